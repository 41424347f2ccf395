"""FlashAttention 2's and 3's launches in a trace (names: flash-attention, csrc/flash_attn and hopper)."""

from __future__ import annotations

from collections.abc import Iterator

from decodecalc.engines.flash_attention.fa2 import SPLIT_ROWS
from decodecalc.trace.attribution import PROMPT, UNATTRIBUTED, Strength, Surroundings, Vote, by_name
from decodecalc.trace.candidates import Candidate
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.kernel_names import NameFacts, flag, integer, split_range, template_arguments
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, PREFILL, SCHEDULER, STAGE1, NameRule
from decodecalc.trace.settings import Setting
from decodecalc.trace.warnings import fixed_to_one

FA2, FA3, FA4 = "flash-attention-2", "flash-attention-3", "flash-attention-4"
DECODE_ROWS = 64  # hopper/tile_size.h of vLLM's fork: one MMA warpgroup while q_len * group is at most 64
SMALLEST_LOG = {8: 5}  # hopper/flash_fwd_combine_launch_template.h: with tiles of 8 rows, else 4
COMBINE_ROWS_LOG = 4


def fa2_facts(name: str) -> NameFacts:
    """Flash_fwd_kernel_traits<D, kBlockM, kBlockN, …> and flash_fwd_splitkv_kernel<traits, causal, local, alibi,
    even_MN, even_K, softcap, Split, Append_KV> (csrc/flash_attn/src/flash_fwd_launch_template.h)."""
    traits = template_arguments(name, "Flash_fwd_kernel_traits")
    dim, rows, keys = ([integer(t) for t in traits[:3]] + [None] * 3)[:3]
    own = template_arguments(name, "flash_fwd_splitkv_kernel")
    return NameFacts(
        split=flag(own[7]) if len(own) >= 9 else None,
        windowed=flag(own[2]) if len(own) >= 9 else None,
        tile_rows=rows,
        tile_keys=keys,
        head_dim=dim,
    )


def fa2_combine_facts(name: str) -> NameFacts:
    """flash_fwd_splitkv_combine_kernel<traits, kBlockM, Log_max_splits, …>: serves up to 2^Log splits."""
    own = template_arguments(name, "flash_fwd_splitkv_combine_kernel")
    log = integer(own[2]) if len(own) >= 3 else None
    return NameFacts(split_range=split_range(log, 1), tile_rows=integer(own[1]) if len(own) >= 2 else None)


def fa3_facts(name: str) -> NameFacts:
    """CollectiveMainloopFwdSm90<stages, cluster, tile MNK, Dv, element, float, arch, causal, local, …> and
    CollectiveEpilogueFwd<tile, cluster, element, arch, threads, varlen, PackGQA, Split, …> of hopper/. The mainloop's
    later flags moved between versions; the epilogue's did not."""
    loop = template_arguments(name, "CollectiveMainloopFwdSm90")
    epilogue = template_arguments(name, "CollectiveEpilogueFwd")
    tile = [integer(t) for t in template_arguments(loop[2], "tuple")] if len(loop) > 8 else []
    rows, keys, dim = ([*tile, None, None, None])[:3]
    return NameFacts(
        split=flag(epilogue[7]) if len(epilogue) > 7 else None,
        tile_rows=rows,
        tile_keys=keys,
        head_dim=dim,
        head_dim_v=integer(loop[3]) if len(loop) > 8 else None,
        windowed=flag(loop[8]) if len(loop) > 8 else None,
    )


def fa3_combine_facts(name: str) -> NameFacts:
    """FlashAttnFwdCombine<tile, kLogMaxSplits, …>: with tiles of 8 rows the smallest instantiation serves up to 32
    (hopper/flash_fwd_combine_launch_template.h)."""
    own = template_arguments(name, "FlashAttnFwdCombine")
    tile = [integer(t) for t in template_arguments(own[0], "tuple")] if own else []
    rows = tile[0] if tile else None
    log = integer(own[1]) if len(own) > 1 else None
    return NameFacts(split_range=split_range(log, SMALLEST_LOG.get(rows or 0, COMBINE_ROWS_LOG)), tile_rows=rows)


def _fa2_vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    kind, grid = group.kind, group.stage1.grid
    if kind.role == PREFILL and grid is not None and grid[0] == 1:
        why = f"{kind.why}: one tile of query rows, which a short prefill and an unsplit decode share"
        return Vote(strength=Strength.LIKELY, why=why, split=False, what=UNATTRIBUTED)
    if kind.role != PREFILL and grid is not None and grid[0] > 1:
        why = f"{kind.why} with {grid[0]} tiles of {SPLIT_ROWS} query rows per head: a prefill chunk"
        return Vote(strength=Strength.LIKELY, why=why, what=PROMPT)
    return by_name(group, around)


def _fa3_vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    kind = group.kind
    rows = kind.facts.tile_rows or 0
    beside_decode = DECODE_ROWS in around.tile_rows.get(FA3, frozenset())
    if rows > DECODE_ROWS and beside_decode and group.merge is None:
        why = f"{kind.why} with tiles of {rows} rows, beside decode launches with tiles of {DECODE_ROWS}"
        return Vote(strength=Strength.LIKELY, why=why, what=PROMPT)
    return by_name(group, around)


def _infer_fa2(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (row tiles, splits, requests x heads) of the split path, (row tiles, requests, heads) of the unsplit one.
    Heads are KV heads where the group is packed into query rows, query heads elsewhere."""
    (_, y, z), _merge = grids(group)
    facts = group.kind.facts
    split = facts.split if facts.split is not None else group.merge is not None
    if split:
        how = "grid (row tiles, splits, requests x heads)"
        return Inferred(q_heads=q_heads, head_dim=facts.head_dim, splits_launched=y, how=how)
    how = f"grid (row tiles, requests, heads): {z} heads"
    return Inferred(q_heads=q_heads, head_dim=facts.head_dim, batch=y, splits_launched=1, how=how)


def _infer_fa3(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """The main kernel's grid is persistent; the combine's third extent is the batch, unless it is flattened to 1."""
    _, merge = grids(group)
    batch = merge[2] if merge is not None and merge[2] > 1 else None
    how = "persistent grid: one block per SM, neither heads nor splits in it"
    return Inferred(q_heads=q_heads, head_dim=group.kind.facts.head_dim, batch=batch, how=how)


def _fa3_shown(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    if group.graph:
        yield Setting({"cuda_graph": True}, "planned for a graph")
        yield Setting({}, "planned without graph bounds")
    else:
        yield Setting()


def _fa2_explained(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    yield Setting({"batch_invariant": True}, "num_splits is 1 (batch-invariant mode)")
    if seen.splits_launched is not None:
        yield Setting({"num_splits_arg": seen.splits_launched}, f"num_splits is set to {seen.splits_launched}")


def _fa3_explained(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    yield Setting({"batch_invariant": True}, "num_splits is 1 (batch-invariant mode)")
    yield Setting({"cuda_graph": True}, "num_splits is bounded for a CUDA graph")


TRACE = TraceKnowledge(
    families=(
        KernelFamily(name=FA2, shows_path=True, shows_tile=True),
        KernelFamily(name=FA3, shows_path=True, shows_tile=True),
        KernelFamily(name=FA4, serves_prefill=True),
    ),
    names=(
        NameRule(
            pattern=r"flash_fwd_splitkv_kernel",
            family=FA2,
            role=STAGE1,
            why="FlashAttention-2's split-KV kernel",
            facts=fa2_facts,
        ),
        NameRule(
            pattern=r"flash_fwd_splitkv_combine_kernel",
            family=FA2,
            role=MERGE,
            why="FlashAttention-2's combine",
            facts=fa2_combine_facts,
        ),
        NameRule(
            pattern=r"flash_fwd_kernel",
            family=FA2,
            role=PREFILL,
            why="FlashAttention-2 without split-KV",
            facts=fa2_facts,
        ),
        NameRule(
            pattern=r"FlashAttnFwdSm[89]0",
            family=FA3,
            role=STAGE1,
            why="FlashAttention-3's forward kernel",
            facts=fa3_facts,
        ),
        NameRule(
            pattern=r"FlashAttnFwdCombine",
            family=FA3,
            role=MERGE,
            why="FlashAttention-3's combine",
            facts=fa3_combine_facts,
        ),
        NameRule(
            pattern=r"prepare_varlen_num_blocks_kernel",
            family=FA3,
            role=SCHEDULER,
            why="FlashAttention-3's per-request split counts",
        ),
        # The CuTe DSL joins module, class and argument types: kernel_cutlass_…FlashAttentionForwardSm100_object_at_…
        NameRule(
            pattern=r"kernel_cutlass_\w*?(?P<kernel>FlashAttention(MLA)?(Forward|Decode)(1Cta)?(Kb64)?Sm\d+"
            r"|BlackwellFusedMultiHeadAttentionForward)_object_at_\w*",
            family=FA4,
            role=STAGE1,
            why="FlashAttention-4's forward kernel",
        ),
        NameRule(
            pattern=r"kernel_cutlass_\w*?(?P<kernel>FlashAttentionForwardCombine)_object_at_\w*",
            family=FA4,
            role=MERGE,
            why="FlashAttention-4's combine",
        ),
        NameRule(
            pattern=r"kernel_cutlass_\w*?(?P<kernel>FlashPrepareScheduler)_object_at_\w*",
            family=FA4,
            role=SCHEDULER,
            why="FlashAttention-4's per-request split counts",
        ),
    ),
    engines=(
        EngineTrace(
            engine="flash-attention-2",
            families=(FA2,),
            attribute=_fa2_vote,
            infer=_infer_fa2,
            explanations=_fa2_explained,
            warnings=(fixed_to_one,),
        ),
        EngineTrace(
            engine="flash-attention-3",
            families=(FA3,),
            attribute=_fa3_vote,
            infer=_infer_fa3,
            shown=_fa3_shown,
            explanations=_fa3_explained,
            stand_ins=(8192, 256),
            warnings=(fixed_to_one,),
        ),
        EngineTrace(engine="flash-attention-4", families=(FA4,)),
    ),
)
