"""A picture of launches: the keys of every request by the split that reads them, and what each split has to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.segments import segments
from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import InputError
from decodecalc.plot.series import Row, parts, planned
from decodecalc.units import short_count

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

DEFAULT_ENGINES = DEFAULT_ENGINE
MAX_REQUESTS, MAX_SPLITS = 64, 20_000
LIVE, OUTSIDE, EXIT = "live", "outside window", "early exit"
SHADES = (0, 6)


def rows(request: Request, said: list[str], **unused: Any) -> list[Row]:
    """One row for each split of every plan.

    A split that owns several key ranges, because tiles are dealt to the splits in turn, has a row for each of them.
    """
    out: list[Row] = []
    for item, who in planned(request, said):
        if item.batch.size > MAX_REQUESTS:
            raise InputError(f"plot segments draws at most {MAX_REQUESTS} requests, not {item.batch.size}")
        plan = item.plan
        for segment in segments(plan):
            row = {**who, **segment.to_dict()}
            drawn = plan.splits.pieces(segment.request)[segment.split] if segment.pieces > 1 else []
            out += [{**row, "start": start, "end": end, "keys": end - start} for start, end in drawn] or [row]
            if len(out) > MAX_SPLITS:
                raise InputError(f"plot segments draws at most {MAX_SPLITS} key ranges: give fewer or shorter requests")
    return out


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """For each plan, a lane for each request: left its keys, shaded by split, right its splits by state."""
    from matplotlib.patches import Patch

    plans = parts(data)
    requests = max(r["request"] for r in data) + 1
    lane = min(0.28, canvas.size.height / requests)
    panels = canvas.panels(
        [label for label, _ in plans], wide=True, across=(3, 1), share="", height=0.55 + max(0.4, lane * requests)
    )
    for panel, (_, mine) in zip(panels, plans):
        _draw_keys(canvas, panel[0], mine, lane)
        _draw_counts(canvas, panel[1], mine, lane)
    theme = canvas.theme
    styles = {
        LIVE: Patch(facecolor=theme.colors[0], label="keys that are read (two shades: split after split)"),
        OUTSIDE: Patch(facecolor=theme.paper, edgecolor=theme.quiet, hatch="////", label="outside the window"),
        EXIT: Patch(facecolor=theme.idle, edgecolor=theme.quiet, label="splits without keys (early exit)"),
    }
    canvas.key([patch for state, patch in styles.items() if any(r["state"] == state for r in data)])
    canvas.name_axes(["key position", "splits"], ["request" if requests > 1 else "", ""])


def _draw_keys(canvas: Canvas, ax: Any, mine: list[Row], lane: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MultipleLocator

    theme, full = canvas.theme, 0.5 if lane < 0.1 else 0.4
    fills: list[tuple[str, dict[str, Any]]] = [(theme.colors[shade], {"linewidth": 0}) for shade in SHADES]
    fills.append((theme.paper, {"hatch": "////", "edgecolor": theme.quiet, "linewidth": 0.5}))
    for kind, (color, style) in enumerate(fills):
        boxes = [
            Rectangle((r["start"], r["request"] - full), r["keys"], 2 * full)
            for r in mine
            if r["keys"] and kind == (len(SHADES) if r["state"] == OUTSIDE else r["split"] % len(SHADES))
        ]
        if boxes:
            ax.add_collection(PatchCollection(boxes, facecolor=color, **style))
    _lanes(canvas, ax, mine)
    longest = max(r["end"] for r in mine)
    first = min((r["start"] for r in mine if r["state"] == LIVE), default=0)
    if any(r["state"] == OUTSIDE for r in mine) and first > 0.6 * longest:
        ax.set_xlim(first - 0.5 * (longest - first), longest)  # the keys before it are all outside the window
    else:
        ax.set_xlim(0, longest)
    shown = longest - ax.get_xlim()[0]
    ax.xaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(shown / max(2, canvas.panel_inches * 0.9)))))
    ax.xaxis.set_major_formatter(lambda value, _: short_count(value))


def _draw_counts(canvas: Canvas, ax: Any, mine: list[Row], lane: float) -> None:
    theme, edge = canvas.theme, 0.5 if lane > 0.1 else 0.0
    styles: dict[str, dict[str, Any]] = {
        LIVE: {"color": theme.colors[0]},
        OUTSIDE: {"facecolor": theme.paper, "hatch": "////", "edgecolor": theme.quiet, "linewidth": edge},
        EXIT: {"facecolor": theme.idle, "edgecolor": theme.quiet, "linewidth": edge},
    }
    left: dict[int, int] = {}
    for state, style in styles.items():
        splits: dict[int, set[int]] = {}
        for r in mine:
            if r["state"] == state:
                splits.setdefault(r["request"], set()).add(r["split"])
        for request, found in splits.items():
            ax.barh(request, len(found), left=left.get(request, 0), height=0.8, **style)
            left[request] = left.get(request, 0) + len(found)
    _lanes(canvas, ax, mine)
    ax.tick_params(labelleft=False)
    ax.xaxis.get_major_locator().set_params(integer=True, nbins=2)


def _lanes(canvas: Canvas, ax: Any, mine: list[Row]) -> None:
    """One lane for each request, the first on top, numbered as far as the numbers fit."""
    requests = max(r["request"] for r in mine) + 1
    stride = next(n for n in (1, 2, 4, 8, 16) if requests <= 16 * n)
    ax.set_yticks(range(0, requests, stride) if requests > 1 else [])
    ax.set_ylim(requests - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
