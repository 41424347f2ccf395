"""Requested and live splits against context, for several engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.plot.series import along_contexts, labelled
from decodecalc.plot.style import line_style, log2_ticks

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "requested and live splits against context"
AGAINST = ("context",)


def rows(request: Request, **_: Any) -> list[dict[str, Any]]:
    """One row per (layer group, engine, context) at the first batch size."""
    batch = request.scenarios.batches[0].size
    out: list[dict[str, Any]] = []
    for line in along_contexts(request):
        counts = (line.per_step(c) for c in (line.found.requested, line.found.launched, line.found.live))
        for context, requested, launched, live in zip(line.x, *counts):
            values = {"splits_requested": requested, "splits_launched": launched, "splits_live": live}
            out.append(line.row(batch=batch, context=context, **values))
    return out


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """Live splits as lines, requested ones as a thin line of the same colour where they differ."""
    for i, label, mine in labelled(data):
        x = [r["context"] for r in mine]
        style = {**line_style(i), "markersize": 3, "markevery": 8}
        ax.plot(x, [r["splits_live"] for r in mine], label=f"{label}: live", **style)
        if any(r["splits_requested"] != r["splits_live"] for r in mine):
            asked = [r["splits_requested"] for r in mine]
            ax.plot(x, asked, color=style["color"], linewidth=0.8, alpha=0.8, label=f"{label}: requested")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    log2_ticks(ax.xaxis)
    log2_ticks(ax.yaxis)
    ax.set_xlabel(f"keys per request (batch {data[0]['batch']})" if data else "keys per request")
    ax.set_ylabel("splits")
    ax.set_title(request.heading[0])
    ax.legend(fontsize="small")
