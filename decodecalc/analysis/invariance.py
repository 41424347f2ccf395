"""What an engine's own reproducible mode would launch instead: the price of batch invariance in blocks.

Engines that cut a request by what else is in the batch offer a mode that does not: it never splits (vLLM with Triton
and FlashAttention, FlashInfer) or always cuts the same number of keys (SGLang).
"""

from __future__ import annotations

from dataclasses import fields, replace

from decodecalc.errors import GateError
from decodecalc.launch.plan import LaunchPlan

# Option by which each engine enters that mode, and its value. vLLM VLLM_BATCH_INVARIANT; SGLang
# --enable-deterministic-inference; FlashInfer disable_split_kv, which vLLM's mode sets.
INVARIANT_OPTIONS = {"batch_invariant": True, "deterministic": True, "disable_split_kv": True}
# Options that fix a split size or count where an engine has no such mode.
BY_HAND = ("split_keys", "split_kv", "num_splits")


def invariant_plan(plan: LaunchPlan) -> LaunchPlan | None:
    """The same step in the engine's reproducible mode; None where this version or path of the engine has none.

    A plan whose splits do not depend on its batch anyway is its own answer.
    """
    if plan.determinism != "batch-dependent":
        return plan
    from decodecalc.engines import load_policy

    given = {name: value for name, value in INVARIANT_OPTIONS.items() if name in _options(plan)}
    if not given:
        return None
    try:
        found = load_policy(plan.engine).plan(
            plan.geometry, plan.batch, plan.kv, plan.gpu, replace(plan.options, **given), plan.version
        )
    except GateError:
        return None
    return None if found.determinism == "batch-dependent" else found


def invariant_option(plan: LaunchPlan, invariant: LaunchPlan | None) -> str | None:
    """The engine's option that makes a request's splits independent of its batch; None where it has none.

    invariant: what `invariant_plan` gave for the same plan.
    """
    known = _options(plan)
    modes = list(INVARIANT_OPTIONS) if invariant is not None else []
    return next((name for name in (*modes, *BY_HAND) if name in known), None)


def _options(plan: LaunchPlan) -> set[str]:
    return {f.name for f in fields(plan.options)} if plan.options is not None else set()
