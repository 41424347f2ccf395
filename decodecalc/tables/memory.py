"""What tables of launches and times say of the memory behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodecalc.analysis.memory import over_capacity

if TYPE_CHECKING:
    from decodecalc.request import Request


def cautions(request: Request) -> list[str]:
    """What to know before the numbers are used; the first notes of every table of launches and times."""
    return [*request.cautions, *_capacity(request)]


def _capacity(request: Request) -> list[str]:
    """A line where a step of the request stores more keys than the GPU has memory; none where all fit.

    Windows, shared caches and states count as the model has them; a layer given by hand is one layer.
    """
    s, model = request.scenarios, request.layers.model
    if model is None:
        return []
    found = over_capacity(model, s.kv, s.gpu, s.batches, request.layers.tp, request.layers.share or 1)
    return [] if found is None else [f"warning: {found}"]
