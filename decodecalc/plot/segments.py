"""A picture of one launch: every request's key ranges, live, outside the window, or idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.segments import segments
from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import InputError
from decodecalc.plot.style import COLORS, is_narrow
from decodecalc.scenario import Planned

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "key ranges and idle slots of one launch"
DEFAULT_ENGINES = DEFAULT_ENGINE
MAX_REQUESTS, MAX_SPLITS = 64, 20_000
_STYLE = {
    "live": {"facecolor": COLORS[0], "hatch": ""},
    "outside window": {"facecolor": "#FFFFFF", "hatch": "////"},
    "early exit": {"facecolor": "#E3E3E3", "hatch": ""},
}


def rows(request: Request, **_: Any) -> list[dict[str, Any]]:
    """One row per split of the first layer group, first batch, for every engine.

    A split that owns several key ranges, because tiles are dealt to the splits in turn, has a row for each of them.
    """
    out: list[dict[str, Any]] = []
    for item in request.scenarios.plans():
        if not isinstance(item, Planned) or item.case:
            continue
        if item.batch.size > MAX_REQUESTS:
            raise InputError(f"plot segments draws at most {MAX_REQUESTS} requests, not {item.batch.size}")
        plan = item.plan
        for segment in segments(plan):
            row = {"engine": plan.engine, "version": plan.version, **segment.to_dict()}
            drawn = plan.splits.pieces(segment.request)[segment.split] if segment.pieces > 1 else []
            out += [{**row, "start": start, "end": end, "keys": end - start} for start, end in drawn] or [row]
            if len(out) > MAX_SPLITS:
                raise InputError(f"plot segments draws at most {MAX_SPLITS} key ranges")
    return out


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """Left to right: keys. One lane per (engine, request); splits without keys stand at the lane's end as grey
    slots."""
    from matplotlib.patches import Patch

    lanes = list(dict.fromkeys((r["engine"], r["version"], r["request"]) for r in data))
    longest = max(r["end"] for r in data)
    slot = longest * 0.012
    for y, lane in enumerate(lanes):
        mine = [r for r in data if (r["engine"], r["version"], r["request"]) == lane]
        idle = 0
        for r in mine:
            style = {
                **_STYLE[r["state"]],
                "edgecolor": "white" if r["state"] == "live" else "#8A8A8A",
                "linewidth": 0.7,
            }
            if r["keys"]:
                ax.barh(y, r["keys"], left=r["start"], height=0.7, **style)
            else:
                ax.barh(y, slot * 0.8, left=r["end"] + slot * (1 + idle), height=0.7, **style)
                idle += 1
        count = {state: len({r["split"] for r in mine if r["state"] == state}) for state in _STYLE}
        label = ", ".join(f"{n} {state}" for state, n in count.items() if n)
        ax.text(longest * 1.13, y, label, va="center", fontsize="small")
    ax.set_yticks(range(len(lanes)))
    ax.set_yticklabels([f"{engine}\nrequest {r}" if len(lanes) < 9 else f"{engine} {r}" for engine, _, r in lanes])
    ax.invert_yaxis()
    ax.set_xlim(0, longest * 1.6)
    ax.set_xlabel("key position")
    ax.grid(axis="y", visible=False)
    shown = [state for state in _STYLE if any(r["state"] == state for r in data)]
    handles = [Patch(label=state, edgecolor="#8A8A8A", **_STYLE[state]) for state in shown]  # type: ignore[arg-type]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.4, -0.3 if is_narrow(fig) else -0.16), ncols=3)
    ax.set_title(request.heading[0])
