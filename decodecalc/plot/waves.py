"""Blocks on SMs over time, from the schedule that `predict` uses; SMs without a block stay empty."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import InputError
from decodecalc.plot.series import Row, parts, planned

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

DEFAULT_ENGINES = DEFAULT_ENGINE
MAX_BLOCKS = 40_000
SHADES = (0, 6, 1, 4)


def rows(request: Request, said: list[str], **unused: Any) -> list[Row]:
    """One row for each block of stage 1 of every plan: slot, start and end, request, split.

    A slot is one of the places for blocks that SMs have; those of one SM lie `sm_count` apart.
    """
    from decodecalc.cost.prediction import schedule_of

    out: list[Row] = []
    for item, who in planned(request, said):
        if len(out) + item.plan.live_blocks > MAX_BLOCKS:
            raise InputError(
                f"plot waves draws at most {MAX_BLOCKS} blocks, not {len(out) + item.plan.live_blocks}: give fewer "
                "or smaller steps"
            )
        sms = item.plan.gpu.sm_count
        blocks = [{**who, "sm_count": sms, "sm": s.slot % sms, **s._asdict()} for s in schedule_of(item.plan)]
        if not blocks:
            said.append(f"not drawn: {item.plan.engine}: no block of {item.layer_group.name} layers has keys to read")
        out += blocks
    return out


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """A lane for each SM, cut in as many as it holds blocks at a time; shades alternate by split and request."""
    plans = parts(data)
    high = canvas.size.height * (1 if len(plans) == 1 else 0.8)
    panels = canvas.panels([label for label, _ in plans], wide=True, share="x", height=high)
    edge = 0.2 if high * 72 / data[0]["sm_count"] > 1.2 else 0.0  # thinner lanes would be all edge
    end = max(r["end_s"] for r in data) * 1e6
    for (ax,), (label, mine) in zip(panels, plans):
        _draw_plan(canvas, ax, mine, end, edge)
        canvas.name_panel(ax, f"{label}\n{_summary(mine)}".strip())
    several = "requests and splits" if any(r["request"] for r in data) else "splits"
    canvas.name_axes(["µs since the first block of stage 1"], ["SM"])
    canvas.scenario += f"; shades tell {several} apart"


def _draw_plan(canvas: Canvas, ax: Any, mine: list[Row], end: float, edge: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    sms, theme = mine[0]["sm_count"], canvas.theme
    deep = max(r["slot"] for r in mine) // sms + 1
    ax.set_facecolor(theme.idle)
    for i, shade in enumerate(SHADES):
        boxes = [
            Rectangle(
                (r["start_s"] * 1e6, r["sm"] + r["slot"] // sms / deep), (r["end_s"] - r["start_s"]) * 1e6, 1 / deep
            )
            for r in mine
            if (r["split"] + r["request"]) % len(SHADES) == i
        ]
        ax.add_collection(PatchCollection(boxes, facecolor=theme.colors[shade], edgecolor=theme.paper, linewidth=edge))
    ax.set_xlim(0, end)
    ax.set_ylim(0, sms)
    ax.set_yticks([*range(0, sms - sms // 8, max(1, sms // 4)), sms])
    ax.grid(visible=False)
    busy = {r["sm"] for r in mine}
    edges = [-1, *sorted(busy), sms]
    low, high = max(pairwise(edges), key=lambda gap: gap[1] - gap[0])
    if high - low > 0.15 * sms:  # room for words
        ax.text(end / 2, (low + 1 + high) / 2, f"{sms - len(busy)} SMs idle", ha="center", va="center")


def _summary(mine: list[Row]) -> str:
    """How much of the GPU works."""
    sms = mine[0]["sm_count"]
    end = max(r["end_s"] for r in mine)
    busy = {r["sm"] for r in mine}
    area = sum(r["end_s"] - r["start_s"] for r in mine)
    slots = sms * (max(r["slot"] for r in mine) // sms + 1)
    return (
        f"{len(mine)} blocks on {len(busy)} of {sms} SMs; {100 * area / (end * slots):.0f} % of the SMs' time is used"
    )
