"""The partial states that splits write and the merge reads, against context, as a share of the KV bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import traffic_arrays
from decodecalc.plot.series import Row, along, draw_lines, marked, without

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

LEAST_PERCENT = 0.1  # below it the axis is linear, so that no traffic at all has a place


def rows(request: Request, said: list[str], **unused: Any) -> list[Row]:
    """One row for each layer group, engine, batch size and context."""
    out: list[Row] = []
    for line in along("context", request, said):
        moved = traffic_arrays(line.group.geometry, request.scenarios.kv, line.steps, line.found)
        names = ("kv_read_bytes", "partial_traffic_bytes", "partial_share", "partial_allocated_share")
        out += line.rows(**{name: getattr(moved, name) for name in names})
    return out


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """Live traffic as lines, what the launched splits would move as a thin line of the same colour."""
    curves = {"of live splits": ("partial_share", 100), "of launched splits": ("partial_allocated_share", 100)}
    for ax, _ in draw_lines(canvas, data, without("context"), curves, "context"):
        ax.set_yscale("symlog", linthresh=LEAST_PERCENT)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set_ylim(0, None)
        canvas.powers_of_two(ax)
    canvas.scenario += marked(data, "context")
    canvas.name_axes(["keys per request"], ["partial states, % of the KV bytes"])
