"""Heat maps over batch and context of what an engine's split rule loses against S_opt, on the bundled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import GateError, InputError
from decodecalc.launch.arrays import Batches
from decodecalc.plot.series import Row, parts, was_given, without
from decodecalc.plot.style import text_inches
from decodecalc.tables.text import because
from decodecalc.units import short_count

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

DEFAULT_ENGINES = DEFAULT_ENGINE
DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LEAST_TOP = 4.0  # the factor at which the scale of colours ends, unless one is worse


def rows(request: Request, said: list[str], **unused: Any) -> list[Row]:
    """One row for each layer group, engine, number of query tokens, batch size and context."""
    from decodecalc.cost.prediction import predict_policy
    from decodecalc.cost.tuning import fastest

    s = request.scenarios
    if any(len({*zip(b.seq_lens, b.q_lens)}) > 1 for b in s.batches):
        raise InputError(
            "plot regret draws steps of equal requests over --batch and --context; for --seq-lens draw latency"
        )
    sizes = sorted({b.size for b in s.batches}) if was_given(request, "batch") else list(DEFAULT_BATCHES)
    contexts = sorted({b.max_seq_len for b in s.batches}) if was_given(request, "context") else list(DEFAULT_CONTEXTS)
    pairs = [(b, c) for b in sizes for c in contexts]
    said += [f"not drawn: {because(engine, reason)}" for engine, _, reason in s.excluded]
    out: list[Row] = []
    for group in s.layer_groups:
        geo = group.geometry
        seen = np.array([group.seen_batch(b).max_seq_len for b in _uniform(contexts)])
        for q_len in sorted({b.max_q_len for b in s.batches}):
            steps = Batches.uniform(np.array(sizes)[:, None], seen[None, :], q_len)
            best, plain = (fastest(geo, steps, s.kv, s.gpu, any_rule=any_rule) for any_rule in (False, True))
            for policy, version in s.engines:
                options, name = s.options_of(policy), policy.version(version).name
                try:
                    rule = predict_policy(policy, geo, steps, s.kv, s.gpu, options, version, kernel="bundled")
                except GateError as refused:
                    said.append(f"not drawn: {because(policy.name, str(refused))}")
                    continue
                who = {"layer_group": group.name, "engine": policy.name, "version": name, "q_len": q_len}
                of_kernel = best if policy.name == "bundled" else plain  # regret compares rules on one kernel
                times = zip(pairs, rule.total_s.tolist(), of_kernel.splits.tolist(), of_kernel.total_s.tolist())
                for (b, c), rule_s, n, best_s in times:
                    out.append(
                        {
                            **who,
                            "batch": b,
                            "context": c,
                            "rule_s": rule_s,
                            "s_opt": n,
                            "s_opt_s": best_s,
                            "regret": rule_s / best_s,
                        }
                    )
    return out


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """A map for each engine and layer group: darker is worse, and every cell says by what factor where that fits."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    maps = parts(data, without("batch", "context"))
    sizes, contexts = (sorted({r[name] for r in data}) for name in ("batch", "context"))
    top = max(LEAST_TOP, *(r["regret"] for r in data))
    colors = canvas.theme.colors
    shades = LinearSegmentedColormap.from_list("regret", ["#FFFFFF", colors[1], colors[5], "#3B0F00"])
    font = canvas.size.font
    high = canvas.size.height - 0.55 if len(maps) == 1 else len(sizes) * font / 72 * 1.5
    panels = canvas.panels([label for label, _ in maps], wide=True, height=min(high, canvas.size.height) + 0.55)
    room = (canvas.panel_inches - 0.75) / len(contexts), high / len(sizes)
    fits = text_inches("0.00", font) * 1.02 < room[0] and font / 72 * 1.05 < room[1]
    for (ax,), (_, mine) in zip(panels, maps):
        regret = {(r["batch"], r["context"]): r["regret"] for r in mine}
        grid = np.array([[regret[b, c] for c in contexts] for b in sizes])
        image = ax.imshow(grid, norm=LogNorm(1, top), cmap=shades, aspect="auto", origin="lower")
        for (y, x), value in np.ndenumerate(grid) if fits else ():
            text = f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"
            ax.text(x, y, text, ha="center", va="center", color="white" if value > top**0.55 else "black")
        stride = 1 + int(text_inches("128k ", font) / room[0])
        ax.set_xticks(range(0, len(contexts), stride), [short_count(c) for c in contexts[::stride]])
        stride = 1 + int(font / 72 * 1.2 / room[1])
        ax.set_yticks(range(0, len(sizes), stride), [str(b) for b in sizes[::stride]])
        ax.grid(visible=False)
    if not fits:
        bar = canvas.fig.colorbar(image, ax=[ax for (ax,) in panels], label="times as long")
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        bar.ax.yaxis.set_minor_formatter("")
    canvas.name_axes(["keys per request"], ["batch size"])
    canvas.scenario += "; time at the engine's count over the time at S_opt, both on the bundled kernel"


def _uniform(contexts: list[int]) -> Any:
    from decodecalc.batch import Batch

    return (Batch([context]) for context in contexts)
