"""What the time model adds to a judged group: the predicted time, the best split count, and what it would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decodecalc.errors import DecodecalcError
from decodecalc.launch import LaunchPlan


@dataclass(frozen=True)
class ModelSays:
    """predicted_s: of the plan that ran; s_opt, best_s: of the fastest split count; saving_s_per_token: over all layers
    of the group's kind. None where the model cannot say."""

    predicted_s: float | None = None
    s_opt: int | None = None
    best_s: float | None = None
    saving_s_per_token: float | None = None


def model_says(plan: LaunchPlan, layers: int | None, graph: bool) -> ModelSays:
    """The model on this plan. The plan must have the real lengths."""
    from decodecalc import cost

    try:
        predict, choose = (getattr(cost, name, None) for name in ("predict", "choose"))
        predicted = None if predict is None else predict(plan, launch="graph" if graph else "stream").total_s
        choice: Any = None if choose is None else choose(plan.geometry, plan.batch, kv=plan.kv, gpu=plan.gpu)
    except (DecodecalcError, ImportError, OSError):  # a GPU whose bandwidth nobody knows, or no model to ask
        return ModelSays()
    best = getattr(choice, "total_s", None)
    saving = (predicted - best) * layers if predicted is not None and best is not None and layers else None
    return ModelSays(predicted, getattr(choice, "s_opt", None), best, saving)
