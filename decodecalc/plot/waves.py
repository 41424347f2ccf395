"""Blocks on SM slots over time, from the schedule that `predict` uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import InputError
from decodecalc.plot.style import COLORS
from decodecalc.scenario import Planned

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "blocks on SM slots over time"
DEFAULT_ENGINES = DEFAULT_ENGINE
MAX_BLOCKS = 40_000


def rows(request: Request, **_: Any) -> list[dict[str, Any]]:
    """One row per stage-1 block of the first plan: slot, start and end, request, split."""
    from decodecalc.cost.prediction import schedule_of

    for item in request.scenarios.plans():
        if isinstance(item, Planned):
            if item.plan.live_blocks > MAX_BLOCKS:
                raise InputError(f"plot waves draws at most {MAX_BLOCKS} blocks, not {item.plan.live_blocks}")
            return [
                {
                    "engine": item.plan.engine,
                    "version": item.plan.version,
                    "sm_count": item.plan.gpu.sm_count,
                    **s._asdict(),
                }
                for s in schedule_of(item.plan)
            ]
    return []


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """One lane per slot; shades alternate by split, so that the edges of waves show in greyscale."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    end = max(r["end_s"] for r in data) * 1e6
    slots = max(r["slot"] for r in data) + 1
    several = len({r["request"] for r in data}) > 1
    for i in range(4):
        mine = [r for r in data if (r["split"] + r["request"]) % 4 == i]
        boxes = [Rectangle((r["start_s"] * 1e6, r["slot"]), (r["end_s"] - r["start_s"]) * 1e6, 1) for r in mine]
        shade = (COLORS[0], COLORS[6], COLORS[1], COLORS[4])[i]
        ax.add_collection(PatchCollection(boxes, facecolor=shade, edgecolor="white", linewidth=0.2))
    busy = sum(r["end_s"] - r["start_s"] for r in data) * 1e6 / (end * slots)
    ax.set_xlim(0, end * 1.02)
    ax.set_ylim(0, slots)
    ax.set_xlabel("µs since stage 1's first block")
    sms = data[0]["sm_count"]
    ax.set_ylabel(f"slots used (of {sms} SMs)" if slots <= sms else f"slots used ({slots} on {sms} SMs)")
    ax.grid(visible=False)
    what = "requests and splits" if several else "splits"
    ax.set_title(f"{request.heading[0]}\n{data[0]['engine']} {data[0]['version']}: {len(data)} blocks, slots busy "
                 f"{100 * busy:.0f} % of the time (shades: {what})")  # fmt: skip
