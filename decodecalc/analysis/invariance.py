"""What the reproducible mode of an engine would launch instead: it shows what batch invariance costs in blocks.

Engines that cut a request by what else is in the batch offer a mode that does not: it never splits, or it always cuts
the same number of keys.
"""

from __future__ import annotations

from dataclasses import replace

from decodecalc.engines.registry import load_policy, traits_of
from decodecalc.errors import GateError
from decodecalc.launch.plan import LaunchPlan


def invariant_plan(plan: LaunchPlan) -> LaunchPlan | None:
    """The same step in the engine's reproducible mode; None where this version or path of the engine has no such mode.

    A plan whose splits do not depend on its batch is returned as it is.
    """
    if plan.determinism != "batch-dependent":
        return plan
    mode = traits_of(plan.engine).invariant_option
    if mode is None:
        return None
    try:
        found = load_policy(plan.engine).plan(
            plan.geometry, plan.batch, plan.kv, plan.gpu, replace(plan.options, **dict([mode])), plan.version
        )
    except GateError:
        return None
    return None if found.determinism == "batch-dependent" else found


def invariant_option(plan: LaunchPlan, invariant: LaunchPlan | None) -> str | None:
    """The engine's option that makes the splits of a request independent of its batch; None where there is no such
    option.

    invariant: what `invariant_plan` returned for the same plan.
    """
    traits = traits_of(plan.engine)
    if invariant is not None and traits.invariant_option is not None:
        return traits.invariant_option[0]
    return traits.by_hand_option
