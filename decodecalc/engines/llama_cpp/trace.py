"""llama.cpp's FlashAttention kernels in a trace (ggml/src/ggml-cuda: fattn-vec.cuh, fattn-tile.cuh, fattn-mma-f16.cuh,
fattn-common.cuh)."""

from __future__ import annotations

from decodecalc.trace.attribution import Strength, Surroundings, Vote
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.kernel_names import NameFacts, function_name, integer, template_arguments
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, SCHEDULER, STAGE1, NameRule

GGML = "ggml-flash-attention"
VEC, TILE, MMA = "flash_attn_ext_vec", "flash_attn_tile", "flash_attn_ext_f16"
COMBINE = "flash_attn_combine_results"


def vec_facts(name: str) -> NameFacts:
    """flash_attn_ext_vec<D, columns, type K, type V, softcap>."""
    own = template_arguments(name, VEC)
    return NameFacts(head_dim=integer(own[0]), tile_rows=integer(own[1])) if len(own) > 1 else NameFacts()


def _two_dims(name: str, kernel: str) -> NameFacts:
    own = [integer(t) for t in template_arguments(name, kernel)[:4]]
    if len(own) < 4 or own[2] is None or own[3] is None:
        return NameFacts()
    return NameFacts(head_dim=own[0], head_dim_v=own[1], tile_rows=own[2] * own[3])


def tile_facts(name: str) -> NameFacts:
    """flash_attn_tile<D of keys, D of values, columns of queries, columns of heads, softcap>."""
    return _two_dims(name, TILE)


def mma_facts(name: str) -> NameFacts:
    """flash_attn_ext_f16<D of keys, D of values, columns of queries, columns of heads, …>."""
    return _two_dims(name, MMA)


def _vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """Either the grid's second extent counts the splits, or a persistent grid (stream-k) cuts where it must."""
    return Vote(strength=Strength.LIKELY, why=group.kind.why, split=group.merge is not None)


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (query tiles, splits, head blocks x streams), combine (query tokens, query heads, streams). A persistent
    grid (blocks, 1, 1) holds neither heads nor splits."""
    (_, splits, z), merge = grids(group)
    dim = group.kind.facts.head_dim
    if z == 1 and splits == 1:
        return Inferred(q_heads=q_heads, head_dim=dim, how="persistent grid, which holds neither heads nor splits")
    combined = merge is not None and group.merge is not None and function_name(group.merge.name) == COMBINE
    how = "grid (query tiles, splits, head blocks x streams), combine (query tokens, query heads, streams)"
    return Inferred(
        q_heads=merge[1] if combined and merge is not None else q_heads,
        head_dim=dim,
        query_tokens=merge[0] * merge[2] if combined and merge is not None else None,
        batch=merge[2] if combined and merge is not None else None,
        splits_launched=splits,
        how=how,
    )


TRACE = TraceKnowledge(
    families=(KernelFamily(name=GGML, shows_head_dim=True, serves_prefill=True),),
    names=(
        NameRule(pattern=VEC, family=GGML, role=STAGE1, why="llama.cpp's vector kernel", facts=vec_facts),
        NameRule(pattern=TILE, family=GGML, role=STAGE1, why="llama.cpp's tile kernel", facts=tile_facts),
        NameRule(pattern=MMA, family=GGML, role=STAGE1, why="llama.cpp's tensor-core kernel", facts=mma_facts),
        NameRule(pattern=COMBINE, family=GGML, role=MERGE, why="llama.cpp's merge of parallel blocks"),
        NameRule(
            pattern=r"flash_attn_stream_k_fixup(_uniform|_general)?",
            family=GGML,
            role=MERGE,
            why="llama.cpp's fix-up of tiles that several stream-k blocks share",
        ),
        NameRule(
            pattern=r"flash_attn_mask_to_KV_max",
            family=GGML,
            role=SCHEDULER,
            why="llama.cpp's scan of the mask for the last visible key",
        ),
    ),
    engines=(EngineTrace(engine="llama-cpp", families=(GGML,), attribute=_vote, infer=_infer),),
)
