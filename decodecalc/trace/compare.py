"""Compares one launch group with the plan of an engine: what was claimed and what was seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.launch.plan import KernelLaunch, LaunchPlan
from decodecalc.trace.attribution import Attribution
from decodecalc.trace.events import LaunchShape, dim3
from decodecalc.trace.pairing import LaunchGroup

KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFamily:
    """Kernels that belong together, and what their launches show in addition to kernel, grids and threads."""

    name: str
    """The name of the family in results."""
    shows_path: bool = False
    """Whether a stage-1 launch shows the path by itself (by a template flag or an extent of the grid), not only by its
    merge."""
    shows_tile: bool = False
    """Whether the tiles in the names are those of the plan."""
    shows_head_dim: bool = False
    """Whether the head dim in the names is that of the layer, not rounded up."""
    plans_merge_grid: bool = True
    """Whether plans know the grid of the merge; they do not where a compiler chooses it."""
    serves_prefill: bool = False
    """Whether the same kernel without splits also serves prompts."""


@dataclass(frozen=True, slots=True)
class LaunchClaim:
    """One exact statement of a plan, and what the trace shows."""

    what: str
    """What is compared."""
    predicted: Any
    """The plan's value."""
    observed: Any
    """The trace's."""

    @property
    def holds(self) -> bool:
        """Whether both are the same."""
        return bool(self.predicted == self.observed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**plain, "holds": self.holds}


def claims(
    plan: LaunchPlan,
    group: LaunchGroup,
    attribution: Attribution,
    family: KernelFamily,
    kernel: str,
    path_names: tuple[str, str],
) -> tuple[LaunchClaim, ...]:
    """Every statement of the plan that this group can confirm or refute. kernel: the name of the stage-1 kernel that
    ran, in the engine's plans. path_names: the engine's words for unsplit and split."""
    facts = group.kind.facts
    out = [LaunchClaim(KERNEL, plan.stage1.name, kernel)]
    if attribution.path_split is not None and family.shows_path:
        out.append(LaunchClaim("path", plan.path, path_names[attribution.path_split]))
    out += _launch("stage-1", plan.stage1, group.stage1)
    out.append(LaunchClaim("merge runs", plan.merge is not None, group.merge is not None))
    if plan.merge is not None and group.merge is not None:
        out += _launch("merge", plan.merge, group.merge, family.plans_merge_grid)
    scheduler = next((k for k in plan.kernels if k.role == "scheduler"), None)
    if scheduler is not None and group.scheduler is not None:
        out += _launch("scheduler", scheduler, group.scheduler)
    if family.shows_tile:
        out += [
            LaunchClaim(what, predicted, observed)
            for what, predicted, observed in (
                ("tile rows", plan.block_rows, facts.tile_rows), ("tile keys", plan.tile_keys, facts.tile_keys),
            ) if observed is not None
        ]  # fmt: skip
    if family.shows_head_dim and facts.head_dim is not None:
        out.append(LaunchClaim("head dim", plan.geometry.head_dim, facts.head_dim))
    served = None if group.merge_kind is None else group.merge_kind.facts.split_range
    if served is not None:
        bound = plan.splits.launched
        out.append(
            LaunchClaim(
                "split bound", bound, bound if served[0] <= bound <= served[1] else f"{served[0]} to {served[1]}"
            )
        )
    return tuple(out)


def _launch(what: str, planned: KernelLaunch, seen: LaunchShape, has_grid: bool = True) -> list[LaunchClaim]:
    """Claims about grid and threads, where both sides have them."""
    out = []
    if seen.grid is not None and has_grid:
        out.append(LaunchClaim(f"{what} grid", dim3(planned.grid), seen.grid))
    if planned.threads is not None and seen.threads is not None:
        out.append(LaunchClaim(f"{what} threads", planned.threads, seen.threads))
    return out
