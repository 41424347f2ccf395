"""Adds to a judged group what the time model says: the predicted time, the best split count, and what it would save."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from decodecalc.errors import InputError
from decodecalc.launch.plan import LaunchPlan

if TYPE_CHECKING:
    from decodecalc.batch import Batch
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstModel:
    """What the time model says about a launch. A field is None where the model cannot say."""

    predicted_s: float | None = None
    """Time of the plan that ran, in the engine's own kernel."""
    s_opt: int | None = None
    """The fastest split count, in the bundled kernel."""
    best_s: float | None = None
    """Its time."""
    saving_s_per_token: float | None = None
    """The difference over all layers of the group's kind; 0 where nothing can be saved."""


def against_model(plan: LaunchPlan, layers: int | None) -> AgainstModel:
    """The model's answer for this plan, whose lengths must be the real ones. layers: how many layers of its kind the
    model has."""
    from decodecalc.cost import predict
    from decodecalc.cost.token import sum_layers

    try:
        predicted = predict(plan).total_s  # None where the engine's own kernel was not calibrated
        s_opt, best = _best(plan.geometry, plan.batch, plan.kv, plan.gpu)
    except InputError:  # a GPU whose bandwidth nobody knows
        return AgainstModel()
    saving = sum_layers([(layers, max(predicted - best, 0.0))]) if layers and predicted is not None else None
    return AgainstModel(predicted_s=predicted, s_opt=s_opt, best_s=best, saving_s_per_token=saving)


@lru_cache(maxsize=256)
def _best(geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu) -> tuple[int, float]:
    """S_opt and its time. They are the same for every engine of a step."""
    from decodecalc.cost import choose

    choice = choose(geo, batch, kv=kv, gpu=gpu, engines=[])
    return choice.s_opt, choice.total_s
