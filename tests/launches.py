"""Launch groups made without a trace file: from a plan, or from names and grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from decodecalc.launch.plan import KernelLaunch, LaunchPlan
from decodecalc.trace.events import KernelShape, dim3
from decodecalc.trace.load import knowledge
from decodecalc.trace.pairing import LaunchGroup, Timing

ONE_TIME = Timing.of(np.array([1e-5], dtype=np.float32))


def make_launch(
    name: str,
    grid: Sequence[int] | None = (1, 1, 1),
    block: Sequence[int] | None = (128, 1, 1),
    merge: tuple[str, Sequence[int] | None] | None = None,
    scheduler: str | None = None,
    graph: bool = False,
) -> LaunchGroup:
    """One launch group: stage 1's name, grid and block; name and grid of the merge; name of the scheduler."""
    kind = knowledge().recognise(name)
    assert kind is not None, name
    merge_kind = None if merge is None else knowledge().recognise(merge[0])
    return LaunchGroup(
        kind=kind,
        stage1=KernelShape(name, dim3(grid), dim3(block)),
        merge=None if merge is None else KernelShape(merge[0], dim3(merge[1]), (128, 1, 1)),
        merge_kind=merge_kind,
        scheduler=None if scheduler is None else KernelShape(scheduler, (1, 1, 1), (32, 1, 1)),
        graph=graph,
        ranks=(0,),
        device=0,
        stage1_time=ONE_TIME,
        merge_time=None if merge is None else ONE_TIME,
        scheduler_time=None if scheduler is None else ONE_TIME,
    )


def launch_of(plan: LaunchPlan, names: Mapping[str, str] | None = None, graph: bool = False) -> LaunchGroup:
    """The launch group that a plan leaves in a trace. names: whole names of kernels, template arguments included."""
    full = dict(names or {})

    def shown(kernel: KernelLaunch) -> str:
        return full.get(kernel.name, kernel.name)

    stage1, merge = plan.stage1, plan.merge
    scheduler = next((k for k in plan.kernels if k.role == "scheduler"), None)
    return make_launch(
        shown(stage1),
        stage1.grid,
        None if stage1.threads is None else (stage1.threads, 1, 1),
        None if merge is None else (shown(merge), merge.grid),
        None if scheduler is None else shown(scheduler),
        graph,
    )
