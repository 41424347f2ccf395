"""CUTLASS's MLA decode on SM100 in a trace, as FlashInfer and vLLM ship it.

Source: kernel/sm100_fmha_mla_tma_warpspecialized.hpp, kernel/sm100_fmha_mla_reduction.hpp.
"""

from __future__ import annotations

from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.knowledge import EngineTrace, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, STAGE1, NameRule

CUTLASS_MLA = "cutlass-mla"


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Persistent grid (2 blocks a cluster, up to the SMs), or (2, requests, splits) with a count that was set; the
    reduction's is (128 heads, 1, requests)."""
    (x, y, z), merge = grids(group)
    fixed = x == 2 and z > 1
    batch = y if fixed else None if merge is None else merge[2]
    return Inferred(
        q_heads=q_heads,
        kv_heads=1,
        head_dim=576,
        batch=batch,
        query_tokens=batch,
        splits_launched=z if fixed else 1 if merge is None else None,
        mla=True,
        how="grid (2, requests, splits) or persistent, reduction (128 heads, 1, requests)",
    )


TRACE = TraceKnowledge(
    names=(
        NameRule(
            pattern=r"Sm100FmhaMlaKernelTmaWarpspecialized",
            family=CUTLASS_MLA,
            role=STAGE1,
            why="CUTLASS's MLA decode kernel",
        ),
        NameRule(
            pattern=r"Sm100FmhaMlaReductionKernel",
            family=CUTLASS_MLA,
            role=MERGE,
            why="the reduction of CUTLASS's MLA decode",
        ),
    ),
    engines=(EngineTrace(engine="cutlass-mla", families=(CUTLASS_MLA,), infer=_infer),),
)
