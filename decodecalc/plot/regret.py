"""Heat map over batch and context of what one engine's split rule loses against S_opt, on the bundled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import GateError
from decodecalc.launch.arrays import Batches
from decodecalc.plot.style import COLORS

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "an engine's loss against S_opt over batch and context"
DEFAULT_ENGINES = DEFAULT_ENGINE
DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def rows(request: Request, **_: Any) -> list[dict[str, Any]]:
    """One row per (batch, context) of the first layer group and engine."""
    from decodecalc.cost.prediction import predict_policy
    from decodecalc.cost.tuning import fastest

    s = request.scenarios
    geo = s.layer_groups[0].geometry
    sizes = sorted({b.size for b in s.batches})
    contexts = sorted({b.max_seq_len for b in s.batches})
    sizes = sizes if len(sizes) > 1 else list(DEFAULT_BATCHES)
    contexts = contexts if len(contexts) > 1 else list(DEFAULT_CONTEXTS)
    steps = Batches.uniform(np.array(sizes)[:, None], np.array(contexts)[None, :], s.batches[0].max_q_len)
    policy, version = s.engines[0]
    try:
        rule = predict_policy(policy, geo, steps, s.kv, s.gpu, s.options_of(policy), version, kernel="bundled")
    except GateError:
        return []
    best = fastest(geo, steps, s.kv, s.gpu)
    pairs = [(b, c) for b in sizes for c in contexts]
    return [
        {
            "engine": policy.name,
            "version": policy.version(version).name,
            "batch": b,
            "context": c,
            "rule_s": float(rule_s),
            "s_opt": int(n),
            "s_opt_s": float(best_s),
            "regret": float(rule_s / best_s),
        }
        for (b, c), rule_s, n, best_s in zip(pairs, rule.total_s, best.splits, best.total_s)
    ]


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """Darker is worse; every cell says by what factor."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    sizes, contexts = (sorted({r[k] for r in data}) for k in ("batch", "context"))
    regret = {(r["batch"], r["context"]): r["regret"] for r in data}
    grid = np.array([[regret[b, c] for c in contexts] for b in sizes])
    shades = LinearSegmentedColormap.from_list("regret", ["#FFFFFF", COLORS[1], COLORS[5], "#3B0F00"])
    ax.imshow(grid, norm=LogNorm(1, max(4.0, float(grid.max()))), cmap=shades, aspect="auto", origin="lower")
    for y, row in enumerate(grid):
        for x, value in enumerate(row):
            dark = value > max(4.0, float(grid.max())) ** 0.55
            text = f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"
            ax.text(x, y, text, ha="center", va="center", color="white" if dark else "black", fontsize="small")
    ax.set_xticks(range(len(contexts)), [f"{c // 1024}k" if c % 1024 == 0 else str(c) for c in contexts])
    ax.set_yticks(range(len(sizes)), [str(b) for b in sizes])
    ax.grid(visible=False)
    ax.set_xlabel("keys per request")
    ax.set_ylabel("batch")
    ax.set_title(
        f"{request.heading[0]}\n{data[0]['engine']} {data[0]['version']}: time / time at S_opt (bundled kernel)"
    )
