"""The figures there are."""

from __future__ import annotations

import importlib
from typing import Any

# Every figure, and the one question that it answers.
FIGURES = {
    "occupancy": "Does every SM get work?",
    "splits": "Into how many splits is a request cut?",
    "segments": "Which split reads which keys?",
    "waves": "Which SMs work, and for how long?",
    "roofline": "How close does decode attention come to the roof?",
    "merge": "How much traffic does merging the splits add?",
    "latency": "Which split count is the fastest?",
    "regret": "How much time does the engine's split count lose?",
    "gpus": "How long does attention take on each GPU?",
}


def load_figure(name: str) -> Any:
    """The module of one figure."""
    return importlib.import_module(f"decodecalc.plot.{name}")
