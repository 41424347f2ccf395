"""One launch group against the plan of an engine: what was claimed, what was seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.launch.plan import KernelLaunch, LaunchPlan
from decodecalc.trace.beliefs import Belief
from decodecalc.trace.events import KernelShape, dim3
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import FA2, FA3, FLASHINFER, PAGED, ROCM, UNIFIED

KERNEL = "kernel"
PATHS, SPLIT_PATHS = ("2d", "3d"), ("unsplit", "split")  # vLLM's words, everyone else's


@dataclass(frozen=True)
class Claim:
    """One exact statement of a plan and what the trace shows instead or alike."""

    what: str
    predicted: Any
    observed: Any

    @property
    def holds(self) -> bool:
        """Whether both are the same."""
        return bool(self.predicted == self.observed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**plain, "holds": self.holds}


def claims(plan: LaunchPlan, group: LaunchGroup, belief: Belief) -> tuple[Claim, ...]:
    """Every statement of the plan that this group can confirm or refute."""
    facts = group.kind.facts
    out = [Claim(KERNEL, plan.stage1.name, function_name(group.stage1.name))]
    if belief.path_split is not None and group.family in (UNIFIED, FA2, FA3):
        names = PATHS if plan.path in PATHS else SPLIT_PATHS
        out.append(Claim("path", plan.path, names[belief.path_split]))
    out += _launch("stage-1", plan.stage1, group.stage1)
    out.append(Claim("merge runs", plan.merge is not None, group.merge is not None))
    if plan.merge is not None and group.merge is not None:
        out += _launch("merge", plan.merge, group.merge)
    scheduler = next((k for k in plan.kernels if k.role == "scheduler"), None)
    if scheduler is not None and group.scheduler is not None:
        out += _launch("scheduler", scheduler, group.scheduler)
    if group.family in (FA2, FA3):
        out += [
            Claim(what, predicted, observed)
            for what, predicted, observed in (
                ("tile rows", plan.block_rows, facts.tile_rows), ("tile keys", plan.tile_keys, facts.tile_keys),
            ) if observed is not None
        ]  # fmt: skip
    if group.family in (PAGED, ROCM, FLASHINFER) and facts.head_dim is not None:
        out.append(Claim("head dim", plan.geometry.head_dim, facts.head_dim))
    served = None if group.merge_kind is None else group.merge_kind.facts.split_range
    if served is not None:
        bound = plan.splits.launched
        out.append(
            Claim("split bound", bound, bound if served[0] <= bound <= served[1] else f"{served[0]} to {served[1]}")
        )
    return tuple(out)


def _launch(what: str, planned: KernelLaunch, seen: KernelShape) -> list[Claim]:
    """Grid and threads, where both sides have them."""
    out = []
    if seen.grid is not None:
        out.append(Claim(f"{what} grid", dim3(planned.grid), seen.grid))
    if planned.threads is not None and seen.threads is not None:
        out.append(Claim(f"{what} threads", planned.threads, seen.threads))
    return out
