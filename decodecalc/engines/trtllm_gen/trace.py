"""trtllm-gen's generated FMHA kernels in a trace, as FlashInfer and TensorRT-LLM launch them (SM100, SM103).

Source of names and grids: flashinfer-python 0.6.13 to 0.7.4, include/flashinfer/trtllm/fmha/fmhaKernels.cuh.
"""

from __future__ import annotations

from decodecalc.trace.attribution import by_name
from decodecalc.trace.families import GENERATED_FMHA
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.knowledge import EngineTrace, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup

MLA_DIMS = (576, 320)  # widths of a latent key


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (query blocks x splits, head blocks x value parts, requests). A block holds one KV head's group while that
    fits the tile's rows: where the heads of a block fill the tile, the group may be larger."""
    (x, y, z), _ = grids(group)
    facts = group.kind.facts
    mla = facts.head_dim in MLA_DIMS
    how = "grid (query blocks x splits, head blocks, requests), if every request has one query block"
    kv_heads = 1 if mla else None
    if not mla and q_heads is not None and q_heads % y == 0 and q_heads // y < (facts.tile_rows or 0):
        kv_heads = y
    return Inferred(
        q_heads=q_heads,
        kv_heads=kv_heads,
        group=None if q_heads is None or kv_heads is None else q_heads // kv_heads,
        head_dim=facts.head_dim,
        batch=z,
        splits_launched=x if facts.split else 1,
        mla=mla or None,
        how=how,
    )


TRACE = TraceKnowledge(
    engines=(EngineTrace(engine="trtllm-gen", families=(GENERATED_FMHA,), attribute=by_name, infer=_infer),),
)
