"""FlashMLA's launches in a trace (names: FlashMLA, csrc; vLLM's wheel has them in namespaces of its own)."""

from __future__ import annotations

from decodecalc.trace.attribution import Strength, Surroundings, Vote
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.kernel_names import NameFacts, integer, template_arguments
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, SCHEDULER, STAGE1, NameRule
from decodecalc.trace.warnings import fixed_to_one

FLASHMLA = "flashmla"
SPARSE_KERNEL = "flash_fwd_splitkv_mla_fp8_sparse_kernel"


def dense_facts(name: str) -> NameFacts:
    """flash_fwd_splitkv_mla_kernel<Traits<element, head dim>, …> (csrc/sm90/decode/dense/traits.h)."""
    traits = template_arguments(name, "Traits")
    return NameFacts(head_dim=integer(traits[1]) if len(traits) > 1 else None)


def _is_sparse(group: LaunchGroup) -> bool:
    return group.kind.kernel == SPARSE_KERNEL


def _dense(group: LaunchGroup, around: Surroundings) -> Vote | None:
    return None if _is_sparse(group) else Vote(strength=Strength.SURE, why=group.kind.why, split=_merges(group))


def _sparse(group: LaunchGroup, around: Surroundings) -> Vote | None:
    return Vote(strength=Strength.SURE, why=group.kind.why, split=_merges(group)) if _is_sparse(group) else None


def _merges(group: LaunchGroup) -> bool:
    return group.merge is not None


def _infer_sparse(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (blocks of 64 heads, query tokens of a request, SM parts) on SM90, (query tokens, SM parts) on SM100; the
    combine's is (requests x query tokens, 1, blocks of 8 heads, which padding rounds up)."""
    (_, y, z), merge = grids(group)
    tokens = None if merge is None else merge[0]
    parts = y if "sm100" in group.stage1.name else z
    how = "grid (head blocks, query tokens, SM parts), combine (requests x query tokens, 1, blocks of 8 heads)"
    return Inferred(q_heads=q_heads, kv_heads=1, query_tokens=tokens, splits_launched=parts, mla=True, how=how)


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (row tiles, KV heads, SM parts), combine (requests x query tokens, 1, blocks of 8 heads)."""
    (_, kv_heads, parts), merge = grids(group)
    tokens = None if merge is None else merge[0]
    return Inferred(
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=group.kind.facts.head_dim or 576,
        batch=tokens,
        query_tokens=tokens,
        splits_launched=parts,
        mla=True,
        how="grid (row tiles, KV heads, SM parts), combine (requests x query tokens, 1, blocks of 8 heads)",
    )


TRACE = TraceKnowledge(
    families=(KernelFamily(name=FLASHMLA, shows_head_dim=True),),
    names=(
        NameRule(
            pattern=r"flash_fwd_splitkv_mla_kernel",
            family=FLASHMLA,
            role=STAGE1,
            why="FlashMLA's dense decode kernel",
            facts=dense_facts,
        ),
        NameRule(
            pattern=SPARSE_KERNEL, family=FLASHMLA, role=STAGE1, why="FlashMLA's sparse decode kernel over an FP8 cache"
        ),
        NameRule(
            pattern=r"flash_fwd(_splitkv)?_mla_combine_kernel", family=FLASHMLA, role=MERGE, why="FlashMLA's combine"
        ),
        NameRule(pattern=r"get_mla_metadata_kernel", family=FLASHMLA, role=SCHEDULER, why="FlashMLA's tile scheduler"),
    ),
    engines=(
        EngineTrace(engine="flashmla", families=(FLASHMLA,), attribute=_dense, infer=_infer, warnings=(fixed_to_one,)),
        EngineTrace(engine="flashmla-sparse", families=(FLASHMLA,), attribute=_sparse, infer=_infer_sparse),
    ),
)
