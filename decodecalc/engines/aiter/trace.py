"""aiter's launches in a trace: unified attention, Gluon paged decode, MLA decode.

Sources: aiter/ops/triton/attention/unified_attention.py, aiter/ops/triton/gluon/pa_decode_gluon.py, aiter/mla.py.
"""

from __future__ import annotations

from decodecalc.trace.attribution import Strength, Surroundings, Vote
from decodecalc.trace.families import FIXED_SEGMENTS, UNIFIED, mixed_batch
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, SCHEDULER, STAGE1, NameRule, Vendor
from decodecalc.trace.warnings import fixed_to_one

PAGED_DECODE, MLA = "gluon-paged-decode", "aiter-mla"


def _unified(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """aiter runs on AMD only and has a kernel for each path, with KV heads first in the unsplit one's grid; vLLM up to
    0.19 has the same names, query blocks first, and always 16 segments."""
    name, grid = function_name(group.stage1.name), group.stage1.grid
    if name == "kernel_unified_attention" or not around.is_amd:
        return None
    split = name.endswith("_3d")
    if split and grid is not None and grid[2] != FIXED_SEGMENTS:
        why = f"{grid[2]} segments: vLLM up to 0.19 always has {FIXED_SEGMENTS}"
        return Vote(strength=Strength.LIKELY, why=why, split=split)
    if not split and grid is not None:
        if grid[0] >= grid[1]:
            why = f"2D grid {grid}: KV heads first, if there are that many"
            return Vote(strength=Strength.POSSIBLE, why=why, split=split)
        why = f"2D grid {grid} has KV heads first: aiter's order (vLLM's is query blocks first)"
        return Vote(strength=Strength.LIKELY, why=why, split=split)
    why = "an AMD GPU with a kernel for each path: this is aiter, whose names vLLM up to 0.19 shares"
    return Vote(strength=Strength.LIKELY, why=why, split=split)


def _infer_unified(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """2D grid (KV heads, query blocks); 3D grid (query blocks, KV heads, segments), merge (tokens, query heads)."""
    (x, y, z), merge = grids(group)
    if function_name(group.stage1.name).endswith("_2d"):
        return Inferred(q_heads=q_heads, kv_heads=x, splits_launched=1, how="2D grid (KV heads, query blocks)")
    tokens, heads = (None, q_heads) if merge is None else (merge[0], merge[1])
    ratio = heads // y if heads and heads % y == 0 else None
    how = "3D grid (query blocks, KV heads, segments), merge (tokens, query heads)"
    return Inferred(q_heads=heads, kv_heads=y, group=ratio, query_tokens=tokens, splits_launched=z, how=how)


def _infer_paged_decode(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (requests, KV heads, splits); the kernel for one KV head has blocks of queries in the heads' place."""
    (batch, kv_heads, splits), _ = grids(group)
    if function_name(group.stage1.name).endswith("_head_1"):
        kv_heads = 1
    heads = q_heads if q_heads is not None and q_heads % kv_heads == 0 else None
    return Inferred(
        q_heads=heads,
        kv_heads=kv_heads,
        group=None if heads is None else heads // kv_heads,
        batch=batch,
        splits_launched=splits,
        how="grid (requests, KV heads, splits)",
    )


def _mla_kernel(group: LaunchGroup) -> str:
    """The assembly kernels have a name for each shape; plans tell the persistent ones, which follow a work list."""
    own = function_name(group.stage1.name)
    persistent = own.endswith("_ps") or group.scheduler is not None
    return "mla_decode_stage1_asm_ps" if persistent else "mla_decode_stage1_asm"


TRACE = TraceKnowledge(
    vendors=(Vendor(name="aiter", pattern=r"aiter"),),
    families=(KernelFamily(name=PAGED_DECODE), KernelFamily(name=MLA)),
    names=(
        NameRule(
            pattern=r"paged_attention_decode_v2_gluon_(large_block_)?dot_kernel|"
            r"paged_attention_decode_sliding_window(_head_1)?",
            family=PAGED_DECODE,
            role=STAGE1,
            why="aiter's paged decode in Gluon",
        ),
        NameRule(
            pattern=r"paged_attention_decode_(v2|ps)_reduce_kernel",
            family=PAGED_DECODE,
            role=MERGE,
            why="the reduction of aiter's paged decode in Gluon",
        ),
        NameRule(
            pattern=r"mla_(dec_stage1_|a\d+w\d+_)\w+",
            family=MLA,
            role=STAGE1,
            why="aiter's MLA decode in assembly",
            inside=r"aiter",
        ),
        NameRule(
            pattern=r"kn_get_mla_metadata_v1_\w+",
            family=MLA,
            role=SCHEDULER,
            why="aiter's MLA work list, made on the device",
        ),
        NameRule(
            pattern=r"kn_mla_reduce_v1(_ps)?",
            family=MLA,
            role=MERGE,
            why="the reduction of aiter's persistent MLA decode",
        ),
        NameRule(pattern=r"_fwd_kernel_stage2_asm", family=MLA, role=MERGE, why="the merge of aiter's MLA decode"),
    ),
    engines=(
        EngineTrace(
            engine="aiter-unified",
            families=(UNIFIED,),
            attribute=_unified,
            infer=_infer_unified,
            stand_ins=(8192, 512),
            warnings=(fixed_to_one, mixed_batch),
        ),
        EngineTrace(engine="aiter-pa-decode", families=(PAGED_DECODE,), infer=_infer_paged_decode),
        EngineTrace(engine="aiter-mla", families=(MLA,), kernel=_mla_kernel),
    ),
)
