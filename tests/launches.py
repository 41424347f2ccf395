"""Launch groups made without a trace file: from a plan, or from names and grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from decodecalc.launch.plan import KernelLaunch, LaunchPlan
from decodecalc.trace.events import LaunchShape, dim3
from decodecalc.trace.load import knowledge
from decodecalc.trace.pairing import LaunchGroup, Timing

# Whole names of kernels whose plans call them otherwise (or by a name that only the whole name makes theirs).
WHOLE_NAMES = {
    "attention_kernel": "void turbomind::attention_kernel<turbomind::AttentionUniversal<X> >(P)",
    "reduce": "void turbomind::attention::reduce<32, 4, 8, 128, __half>(P)",
    "flex_decoding": "triton_tem_fused_flex_attention_0",
    "inductor reduction": "triton_per_fused_flex_attention_1",
    "mla_decode_stage1_asm": "aiter::mla_dec_stage1_bf16_a16w16_subQ16_mqa16",
    "mla_decode_stage1_asm_ps": "aiter::mla_a16w16_qh16_qseqlen1_gqaratio16_ps",
    "kernel_mha_ampere_hmma": "kernel_mha",
    "kernel_mha_hopper_gmma": "kernel_mha",
    "kernel_mha_sm120_mla": "kernel_mha",
}
# A profiler shows kernels of the CuTe DSL under a name that joins the module, the class and the argument types.
CUTE = ("FlashAttention", "FlashPrepareScheduler", "BlackwellFusedMultiHeadAttention")
# Blocks of XQA kernels by their threads: warp groups stand in the third extent, but for MLA.
XQA_BLOCKS = {256: (128, 1, 2), 384: (128, 1, 3)}


def whole_name(kernel: str) -> str:
    """What a profiler shows for a kernel that plans call by this name."""
    if kernel.startswith(CUTE):
        return f"kernel_cutlass_kernel_flash_attncute{kernel}_object_at__tensor000o1110_None_0"
    return WHOLE_NAMES.get(kernel, kernel)


def block_of(kernel: KernelLaunch) -> tuple[int, int, int] | None:
    """A block's extents, which plans know as threads only."""
    if kernel.threads is None:
        return None
    if kernel.name.startswith("kernel_mha") and not kernel.name.endswith("_mla"):
        return XQA_BLOCKS[kernel.threads]
    return (kernel.threads, 1, 1)


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
        stage1=LaunchShape(name, dim3(grid), dim3(block)),
        merge=None if merge is None else LaunchShape(merge[0], dim3(merge[1]), (128, 1, 1)),
        merge_kind=merge_kind,
        scheduler=None if scheduler is None else LaunchShape(scheduler, (1, 1, 1), (32, 1, 1)),
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
