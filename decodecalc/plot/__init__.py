"""Figures: one module per figure, each a function from a request to data rows and a drawing of them.

A figure module has `TITLE` (one line), `rows(request, **options) -> list[dict]` (the data behind the figure, as plain
values with a unit in each name) and `draw(fig, ax, rows, request, **options)`, which draws those rows and computes
nothing that they do not hold. It may have `DEFAULT_ENGINES` (what is drawn when the user names no engine) and `AGAINST`
(what can stand on the x axis). `decodecalc plot --data` writes the rows. The figures of a verification report are in
`verification`, drawn from the report's own rows.
"""

from __future__ import annotations

import importlib
from typing import Any

FIGURES = ("occupancy", "splits", "segments", "waves", "roofline", "merge", "latency", "regret", "gpus")


def load_figure(name: str) -> Any:
    """The module of one figure."""
    return importlib.import_module(f"decodecalc.plot.{name}")
