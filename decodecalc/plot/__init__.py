"""Figures: one module per figure, each a function from a request to data rows and a drawing of them.

A figure module has `TITLE` (one line), `rows(request, options) -> list[dict]` (the data behind the figure, plain
values) and `draw(fig, ax, rows, request, options)`. The data can be written instead of, or beside, the picture
(`--data`).
"""

from __future__ import annotations

import importlib
from typing import Any

FIGURES = ("occupancy", "splits", "segments", "waves", "roofline", "merge", "latency", "regret", "gpus")


def load_figure(name: str) -> Any:
    """The module of one figure."""
    return importlib.import_module(f"decodecalc.plot.{name}")
