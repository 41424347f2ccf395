"""How many SMs a launch gives work to.

Only live blocks count: a block that returns at once covers nothing. A wave here has one block per SM. How many blocks
an SM can hold at a time depends on registers and shared memory; the time model takes that into account.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.launch.arrays import Batches, Launches
from decodecalc.launch.coverage import s_star
from decodecalc.launch.plan import LaunchPlan, check_plan
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy

FLIP_SEARCH_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Occupancy(Shown):
    """Blocks of stage 1 against SMs.

    Fields are numbers from `occupancy` and [N] arrays from `occupancy_arrays`.
    """

    launched_blocks: Any
    """Blocks in the grid."""
    live_blocks: Any
    """Blocks that do work."""
    unsplit_blocks: Any
    """Blocks of the same step without splits."""
    sm_count: int
    """SMs of the GPU."""
    sm_coverage: Any
    """Share of the SMs that get at least one live block when every free SM takes one first; between 0 and 1."""
    idle_sms: Any
    """SMs that get no live block."""
    waves: Any
    """Live blocks over SMs."""
    s_star: Any
    """Smallest split count whose first wave covers the SMs."""
    blocks_at_s_star: Any
    """Blocks at that split count."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def occupancy(plan: LaunchPlan, gpu: Gpu | str | None = None) -> Occupancy:
    """How the plan's stage-1 kernel covers `gpu`, a GPU or its name (the plan's own when None)."""
    from decodecalc.gpus import load_gpu

    check_plan(plan)
    sms = (plan.gpu if gpu is None else load_gpu(gpu)).sm_count
    return _occupancy(plan.stage1.launched_blocks, plan.live_blocks, plan.unsplit_blocks, sms)


def occupancy_arrays(batches: Batches, found: Launches, gpu: Gpu) -> Occupancy:
    """Coverage for every step of a whole-array launch: each field is an [N] array."""
    n = batches.n
    launched, live = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for kernel in found.kernels:
        if kernel.role == "stage1":
            launched = np.where(kernel.when, kernel.launched_blocks, launched)
            live = np.where(kernel.when, kernel.live_blocks, live)
    return _occupancy(launched, live, found.unsplit(batches), gpu.sm_count)


def _occupancy(launched: Any, live: Any, unsplit: Any, sms: int) -> Occupancy:
    """The formulas, on numbers or on arrays."""
    least, most = (np.minimum, np.maximum) if isinstance(live, np.ndarray) else (min, max)
    covering = s_star(sms, unsplit)
    return Occupancy(
        launched_blocks=launched,
        live_blocks=live,
        unsplit_blocks=unsplit,
        sm_count=sms,
        sm_coverage=least(live, sms) / sms,
        idle_sms=most(sms - live, 0),
        waves=live / sms,
        s_star=covering,
        blocks_at_s_star=covering * unsplit,
    )


def first_split_change(
    policy: Policy,
    geo: Geometry,
    kv: KvCache,
    gpu: Gpu,
    options: Any,
    version: str | None,
    context: int,
    q_len: int = 1,
    limit: int = FLIP_SEARCH_LIMIT,
) -> int | None:
    """The first batch size whose path differs from that of batch 1 at this context; None when there is none up to
    `limit`.

    It evaluates the policy's own array rule for every batch size at once, so that no threshold is stated twice.
    """
    opts = policy.options_type.from_mapping(policy.name, options)
    steps = Batches.uniform(np.arange(1, limit + 1), context, q_len)
    _, found = policy.on_layer(geo, steps, kv, gpu, opts, policy.version(version))
    split = np.broadcast_to(np.asarray(found.is_split), (limit,))
    changed = np.flatnonzero(split != split[0])
    return int(changed[0]) + 1 if len(changed) else None
