"""Share of the merge's traffic against context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import traffic_arrays
from decodecalc.plot.series import along_contexts, labelled
from decodecalc.plot.style import line_style, log2_ticks

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "partial-state traffic against context"


def rows(request: Request, **_: Any) -> list[dict[str, Any]]:
    """One row per (layer group, engine, context) at the first batch size."""
    batch = request.scenarios.batches[0].size
    out: list[dict[str, Any]] = []
    for line in along_contexts(request):
        moved = traffic_arrays(line.group.geometry, request.scenarios.kv, line.steps, line.found)
        names = ("kv_read_bytes", "partial_traffic_bytes", "partial_share", "partial_allocated_share")
        columns = [line.per_step(getattr(moved, name)) for name in names]
        for context, *values in zip(line.x, *columns):
            out.append(line.row(batch=batch, context=context, **dict(zip(names, values))))
    return out


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """Live traffic as lines, what the launched splits would move as a thin line of the same colour."""
    for i, label, mine in labelled(data):
        x = [r["context"] for r in mine]
        style = {**line_style(i), "markersize": 3, "markevery": 8}
        ax.plot(x, [100 * r["partial_share"] for r in mine], label=f"{label}: live", **style)
        allocated = [100 * r["partial_allocated_share"] for r in mine]
        if allocated != [100 * r["partial_share"] for r in mine]:
            ax.plot(x, allocated, color=style["color"], linewidth=0.8, alpha=0.8, label=f"{label}: launched")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    log2_ticks(ax.xaxis)
    ax.set_xlabel(f"keys per request (batch {data[0]['batch']})" if data else "keys per request")
    ax.set_ylabel("partial states written and read, % of KV bytes")
    ax.set_title(request.heading[0])
    ax.legend(fontsize="small")
