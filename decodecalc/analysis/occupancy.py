"""How many SMs a launch gives work to.

Counts live blocks only: a block of the grid that returns at once covers nothing. One block per SM makes a wave here;
how many blocks an SM can hold at a time is a matter of registers and shared memory, and belongs to the time model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.arrays import Batches
from decodecalc.intmath import cdiv
from decodecalc.launch import LaunchPlan

if TYPE_CHECKING:
    from decodecalc.engines.base import Policy
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

FLIP_SEARCH_LIMIT = 4096


@dataclass(frozen=True)
class Occupancy:
    """Blocks of stage 1 against SMs.

    sm_coverage: share of the SMs that get at least one live block, if each free SM takes one first. waves: live blocks
    over SMs. s_star: smallest split count whose first wave covers the SMs; covers_at_s_star: blocks at that count.
    """

    launched_blocks: int
    live_blocks: int
    unsplit_blocks: int
    sm_count: int
    sm_coverage: float
    idle_sms: int
    waves: float
    s_star: int
    blocks_at_s_star: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def occupancy(plan: LaunchPlan, gpu: Gpu | None = None) -> Occupancy:
    """Coverage of `gpu` (the plan's own when None) by the plan's stage-1 kernel."""
    sms = (gpu or plan.gpu).sm_count
    live = plan.live_blocks
    s_star = cdiv(sms, max(plan.unsplit_blocks, 1))
    return Occupancy(
        launched_blocks=plan.stage1.launched_blocks,
        live_blocks=live,
        unsplit_blocks=plan.unsplit_blocks,
        sm_count=sms,
        sm_coverage=min(live, sms) / sms,
        idle_sms=max(sms - live, 0),
        waves=live / sms,
        s_star=s_star,
        blocks_at_s_star=s_star * plan.unsplit_blocks,
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
    """The first batch size at which the path differs from batch 1, at this context; None up to `limit`.

    Asks the policy's own array rule for every batch size at once, so that no threshold is restated here.
    """
    opts = policy.options_type.from_mapping(policy.name, options)
    steps = Batches.uniform(np.arange(1, limit + 1), context, q_len)
    found = policy.launches(geo, steps, kv, gpu, opts, policy.version(version))
    split = np.broadcast_to(np.asarray(found.is_split), (limit,))
    changed = np.flatnonzero(split != split[0])
    return int(changed[0]) + 1 if len(changed) else None
