"""Adds to a judged group what the time model says: the predicted time, the best split count, and what to set."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from decodecalc.errors import DecodecalcError, InputError
from decodecalc.launch.plan import LaunchPlan

if TYPE_CHECKING:
    from decodecalc.batch import Batch
    from decodecalc.cost.advice import Advice
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

COLD, WARM = "cold", "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstModel:
    """What the time model says about a launch. A field is None where the model cannot say."""

    predicted_s: float | None = None
    """Time of the plan that ran, in the engine's own kernel."""
    low_s: float | None = None
    """Lower end of the interval that holds 90 % of such measured times."""
    high_s: float | None = None
    """Upper end of that interval."""
    s_opt: int | None = None
    """The fastest split count, in the bundled kernel."""
    best_s: float | None = None
    """Its time."""
    saving_s_per_token: float | None = None
    """The difference over all layers of the group's kind; 0 where nothing can be saved."""
    advice: Advice | None = None
    """What to set on the server for this step, or why nothing can be advised."""

    def compared(self, measured_s: float | None) -> str | None:
        """A measured time beside the predicted one, in words; None where one of them is not known."""
        if measured_s is None or self.predicted_s is None or self.low_s is None or self.high_s is None:
            return None
        if self.low_s <= measured_s <= self.high_s:
            return AS_PREDICTED
        change = measured_s / self.predicted_s - 1
        return f"{100 * abs(change):.0f} % {'slower' if change > 0 else 'faster'}"


AS_PREDICTED = "as predicted"


def l2_state(kv_read_bytes: int | None, gpu: Gpu | None, launches: int, others: int) -> tuple[str, str]:
    """Whether the KV cache can have been in L2 when a launch began, and why. launches: of decode attention in the
    trace; others: other kernels in it, which read weights and activations in between."""
    cache = None if gpu is None else gpu.l2_total_bytes
    if others >= launches:
        return COLD, "other kernels ran between the attention launches"
    if kv_read_bytes is not None and cache is not None and kv_read_bytes > cache:
        return COLD, f"the launch reads {kv_read_bytes / 1e6:.0f} MB and L2 holds {cache / 1e6:.0f} MB"
    return WARM, "nothing else ran between the attention launches, so that the KV cache may have stayed in L2"


def against_model(plan: LaunchPlan, layers: int | None, l2: str = COLD) -> AgainstModel:
    """The model's answer for this plan, whose lengths must be the real ones. layers: how many layers of its kind the
    model has. l2: whether the cache was in L2."""
    from decodecalc.cost import predict
    from decodecalc.cost.token import sum_layers

    try:
        found = predict(plan, l2=l2)  # no time where the engine's own kernel was not calibrated
        s_opt, best = _best(plan.geometry, plan.batch, plan.kv, plan.gpu, l2)
    except InputError:  # a GPU whose bandwidth nobody knows
        return AgainstModel()
    predicted = found.total_s
    saving = sum_layers([(layers, max(predicted - best, 0.0))]) if layers and predicted is not None else None
    return AgainstModel(
        predicted_s=predicted, low_s=found.low_s, high_s=found.high_s, s_opt=s_opt, best_s=best,
        saving_s_per_token=saving, advice=_advice(plan, layers),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _best(geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu, l2: str) -> tuple[int, float]:
    """S_opt and its time. They are the same for every engine of a step."""
    from decodecalc.cost import choose

    choice = choose(geo, batch, kv=kv, gpu=gpu, engines=[], l2=l2)
    return choice.s_opt, choice.total_s


def _advice(plan: LaunchPlan, layers: int | None) -> Advice | None:
    """What to set on a server, which finds L2 cold, for this step; None where the engine refuses the step under its
    other settings."""
    from decodecalc.cost import load_calibration
    from decodecalc.cost.advice import Adviser, ServedStep
    from decodecalc.engines.registry import load_policy

    policy = load_policy(plan.engine)
    step = ServedStep(geometry=plan.geometry, batch=plan.batch, layers=layers or 1)
    adviser = Adviser(kv=plan.kv, gpu=plan.gpu, calibration=load_calibration(gpu=plan.gpu), options=_options(plan))
    try:
        return adviser.setting(policy, plan.version, [step])
    except DecodecalcError:
        return None


def _options(plan: LaunchPlan) -> dict[str, Any]:
    """The options that the plan was made with, where they are not the defaults."""
    if plan.options is None:
        return {}
    return {f.name: value for f in fields(plan.options) if (value := getattr(plan.options, f.name)) != f.default}
