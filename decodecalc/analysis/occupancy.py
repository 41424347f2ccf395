"""How many SMs a launch gives work to.

Three counts of blocks: launched (the grid), live (those that do not return at once) and working (those that compute on
keys: under a window some live blocks only write a neutral partial state). Coverage counts working blocks. One block per
SM makes a wave here; how many an SM can hold at a time is a matter of registers and shared memory, and belongs to the
time model.
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
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy
    from decodecalc.models import LayerGroup

FLIP_SEARCH_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Occupancy(Shown):
    """Blocks of stage 1 against SMs.

    Fields are numbers from `occupancy` and [N] arrays from `occupancy_arrays`.
    """

    launched_blocks: Any
    """Blocks in the grid."""
    live_blocks: Any
    """Blocks that do not return at once."""
    working_blocks: Any
    """Live blocks that compute on keys."""
    unsplit_blocks: Any
    """Blocks of the same step without splits."""
    sm_count: int
    """SMs of the GPU."""
    sm_coverage: Any
    """Share of the SMs that get at least one working block when every free SM takes one first; between 0 and 1."""
    idle_sms: Any
    """SMs that get no working block."""
    waves: Any
    """Working blocks over SMs."""
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
    return _occupancy(plan.stage1.launched_blocks, plan.live_blocks, plan.working_blocks, plan.unsplit_blocks, sms)


def occupancy_arrays(batches: Batches, found: Launches, gpu: Gpu) -> Occupancy:
    """Coverage for every step of a whole-array launch: each field is an [N] array."""
    n = batches.n
    launched, live = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for kernel in found.kernels:
        if kernel.role == "stage1":
            launched = np.where(kernel.when, kernel.launched_blocks, launched)
            live = np.where(kernel.when, kernel.live_blocks, live)
    working = live
    if found.working is not None:
        fewer = np.broadcast_to(batches.total(found.working < found.live) > 0, (n,))
        of_work = np.broadcast_to(batches.total(found.blocks_per_split * found.working), (n,))
        working = np.where(fewer, np.minimum(live, of_work), live)
    return _occupancy(launched, live, working, found.unsplit(batches), gpu.sm_count)


def _occupancy(launched: Any, live: Any, working: Any, unsplit: Any, sms: int) -> Occupancy:
    """The formulas, on numbers or on arrays."""
    least, most = (np.minimum, np.maximum) if isinstance(live, np.ndarray) else (min, max)
    covering = s_star(sms, unsplit)
    return Occupancy(
        launched_blocks=launched,
        live_blocks=live,
        working_blocks=working,
        unsplit_blocks=unsplit,
        sm_count=sms,
        sm_coverage=least(working, sms) / sms,
        idle_sms=most(sms - working, 0),
        waves=working / sms,
        s_star=covering,
        blocks_at_s_star=covering * unsplit,
    )


def first_split_change(
    policy: Policy,
    group: LayerGroup,
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

    Asks the policy's own array rule for every batch size at once, so that no threshold is restated here. The layers of
    the group see the context as their plans do: chunked ones a chunk, sparse ones a list. GateError where the engine
    refuses the layers.
    """
    opts = policy.options_type.from_mapping(policy.name, options)
    seen = context if group.chunk is None else group.keys_read(context)
    steps = Batches.uniform(np.arange(1, limit + 1), seen, q_len)
    _, found = policy.on_layer(group.geometry, steps, kv, gpu, opts, policy.version(version))
    split = np.broadcast_to(np.asarray(found.is_split), (limit,))
    changed = np.flatnonzero(split != split[0])
    return int(changed[0]) + 1 if len(changed) else None
