"""Requested, launched and live splits against context, and the count that would fill the GPU: a panel an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.plot.series import Row, along, counts_key, draw_counts, marked, parts, without

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

AGAINST = ("context",)


def rows(request: Request, said: list[str], **unused: Any) -> list[Row]:
    """One row for each layer group, engine, batch size and context."""
    return [row for line in along("context", request, said) for row in line.rows(**line.split_counts(request))]


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """The four counts as lines in each panel."""
    lines = parts(data, without("context"))
    panels = canvas.panels([line.label for line in lines])
    for (ax,), line in zip(panels, lines):
        draw_counts(canvas, ax, line.rows, "context")
    canvas.key(counts_key(panels[0][0]))
    canvas.scenario += marked(data, "context")
    canvas.name_axes(["keys per request"], ["splits per request"])
