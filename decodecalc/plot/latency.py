"""Predicted time against the split count, with S*, S_opt and each engine's choice; measured points when given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.plot.measured import split_times
from decodecalc.plot.style import COLORS, MARKERS, is_narrow, log2_ticks, plain_log_ticks

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "predicted time against S"
DEFAULT_ENGINES = "all"


def rows(request: Request, measured: str | None = None, **_: Any) -> list[dict[str, Any]]:
    """Rows of three kinds for the first layer group and batch: curve, engine (its choice on our kernel), measured."""
    from decodecalc.cost import choose

    s = request.scenarios
    group = s.layer_groups[0]
    batch = group.seen_batch(s.batches[0])
    found = choose(group.geometry, batch, kv=s.kv, gpu=s.gpu, engines=s.engines, options=s.options)
    marks = {"s_star": found.s_star, "s_opt": found.s_opt, "s_opt_s": found.total_s, "s_star_s": found.s_star_s}
    out = [{"kind": "curve", "splits": p.splits, "time_s": p.total_s, **marks} for p in found.curve]
    for r in found.regrets:
        if r.splits is not None and r.rule_s is not None:
            out.append(
                {"kind": "engine", "engine": r.engine, "splits": r.splits, "time_s": r.rule_s, "regret": r.regret}
            )
    points = split_times(measured, group.geometry, batch) if measured else []
    return out + [{"kind": "measured", "splits": n, "time_s": t} for n, t in points]


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """The curve; a dot on or above it for every engine, with what its rule loses."""
    curve = [r for r in data if r["kind"] == "curve"]
    ax.plot(
        [r["splits"] for r in curve],
        [r["time_s"] * 1e6 for r in curve],
        color=COLORS[0],
        label="bundled kernel, predicted",
    )
    first = curve[0]
    ax.plot(
        first["s_opt"], first["s_opt_s"] * 1e6, "*", color=COLORS[5], markersize=14, label=f"S_opt = {first['s_opt']}"
    )
    ax.axvline(first["s_star"], color="#8A8A8A", linestyle=":", linewidth=1.2, label=f"S* = {first['s_star']}")
    for i, r in enumerate(r for r in data if r["kind"] == "engine" and r["engine"] != "bundled"):
        label = f"{r['engine']}: S {r['splits']}, {r['regret']:.2f}x"
        color = COLORS[(i + 1) % len(COLORS)]
        ax.plot(
            r["splits"],
            r["time_s"] * 1e6,
            MARKERS[(i + i // len(COLORS)) % len(MARKERS)],
            color=color,
            markersize=6,
            label=label,
        )
    points = [r for r in data if r["kind"] == "measured"]
    if points:
        ax.plot(
            [r["splits"] for r in points], [r["time_s"] * 1e6 for r in points], "x", color="#000000", label="measured"
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    plain_log_ticks(ax.yaxis)
    log2_ticks(ax.xaxis)
    ax.set_xlabel("splits of the longest request")
    ax.set_ylabel("µs per layer (bundled kernel under each rule)")
    b = request.scenarios.batches[0]
    ax.set_title(f"{request.heading[0]}; batch {b.size}, {b.max_seq_len} keys")
    if is_narrow(fig):
        ax.legend(fontsize=5, ncols=2, loc="upper center", bbox_to_anchor=(0.45, -0.3))
    else:
        ax.legend(fontsize="small", ncols=2)
