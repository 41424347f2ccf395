"""FlashInfer's launches in a trace (names: include/flashinfer/attention)."""

from __future__ import annotations

from collections.abc import Iterator

from decodecalc.trace.attribution import PROMPT, Strength, Surroundings, Vote, by_name
from decodecalc.trace.candidates import Candidate
from decodecalc.trace.families import XQA, infer_xqa
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.kernel_names import NameFacts, function_name, integer, template_arguments
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, PREFILL, STAGE1, NameRule
from decodecalc.trace.settings import Setting
from decodecalc.trace.warnings import fixed_to_one

FLASHINFER, FLASHINFER_MLA = "flashinfer", "flashinfer-mla"
PREFILL_TILE = 128  # CTA_TILE_Q of prefill; decode packs its group into 16 rows (64 for larger groups)


def tensor_core_facts(name: str) -> NameFacts:
    """KernelTraits<mask mode, CTA_TILE_Q, MMA_Q, MMA_KV, MMA_D_QK, MMA_D_VO, warps Q, warps KV, …>
    (include/flashinfer/attention/prefill.cuh): head dims are 16 times the MMA counts."""
    own = template_arguments(name, "KernelTraits")
    numbers = [integer(t) for t in own[1:8]]
    if len(numbers) < 7 or any(n is None for n in numbers):
        return NameFacts()
    tile_q, _, mma_kv, qk, vo, _, warps_kv = (n or 0 for n in numbers)
    return NameFacts(tile_rows=tile_q, tile_keys=mma_kv * warps_kv * 16, head_dim=qk * 16, head_dim_v=vo * 16)


def cuda_core_facts(name: str) -> NameFacts:
    """BatchDecodeWithPagedKVCacheKernel<pos mode, stages, tile per bdx, vec size, bdx, bdy, bdz, …>
    (include/flashinfer/attention/decode.cuh): head dim is vec size times bdx, the group bdy."""
    own = [integer(t) for t in template_arguments(name, "BatchDecodeWithPagedKVCacheKernel")[:7]]
    if len(own) < 7 or any(n is None for n in own[2:]):
        return NameFacts()
    tile, vec, bdx, bdy, bdz = (n or 0 for n in own[2:7])
    return NameFacts(tile_keys=tile * bdy * bdz, head_dim=vec * bdx, group=bdy)


def _on_tensor_cores(group: LaunchGroup) -> bool:
    return "Prefill" in function_name(group.stage1.name)


def _vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    rows = group.kind.facts.tile_rows or 0
    if rows >= PREFILL_TILE:
        why = f"{group.kind.why} with tiles of {rows} query rows, which decode never needs"
        return Vote(strength=Strength.LIKELY, why=why, what=PROMPT)
    return by_name(group, around)


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (chunks or requests, 1, KV heads) on tensor cores, (chunks or requests, KV heads, 1) on CUDA cores."""
    (rows, y, z), _ = grids(group)
    facts = group.kind.facts
    kv_heads = z if _on_tensor_cores(group) else y
    return Inferred(
        q_heads=kv_heads * facts.group if facts.group else q_heads,
        kv_heads=kv_heads,
        group=facts.group,
        head_dim=facts.head_dim,
        batch=rows if group.merge is None and not group.graph else None,
        how="grid (chunks or requests, KV heads)",
    )


def _shown(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    cores = "tensor_cores" if _on_tensor_cores(group) else "cuda_cores"
    graph = {"cuda_graph": True} if group.graph else {}
    words = f"{cores.replace('_', ' ')} kernel" + (", planned for a graph" if graph else "")
    yield Setting({"path": cores, **graph}, words)


def _explained(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    yield Setting({"disable_split_kv": True}, "splitting is disabled (batch-invariant mode)")
    yield Setting({"cuda_graph": True}, "the plan is made for a CUDA graph")


def _xqa_vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """FlashInfer and TensorRT-LLM compile one XQA source: a server's own kernels around it tell whose it is."""
    server = around.vendors & {"vllm", "sglang"}
    foreign = "tensorrt-llm" in around.vendors and not server
    why = f"an XQA kernel among {', '.join(sorted(server))} kernels" if server else "an XQA kernel"
    split = None if group.stage1.grid is None else infer_xqa(group, None).splits_launched != 1
    return Vote(strength=Strength.WEAK if foreign else Strength.LIKELY, why=f"{why}: FlashInfer's", split=split)


def _mla_vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """The merge runs inside the kernel, whose grid is persistent: the launch does not show whether it split."""
    return Vote(strength=Strength.SURE, why=group.kind.why)


def _infer_mla(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (blocks of a cluster, clusters): persistent."""
    (_, clusters, _), _ = grids(group)
    how = "persistent grid (blocks of a cluster, clusters): neither heads nor requests in it"
    return Inferred(q_heads=q_heads, kv_heads=1, head_dim=576, splits_launched=clusters, mla=True, how=how)


TRACE = TraceKnowledge(
    families=(KernelFamily(name=FLASHINFER, shows_head_dim=True),),
    names=(
        NameRule(
            pattern=r"BatchDecodeWithPagedKVCacheKernel",
            family=FLASHINFER,
            role=STAGE1,
            why="FlashInfer's CUDA-core decode kernel",
            facts=cuda_core_facts,
        ),
        NameRule(
            pattern=r"BatchPrefillWithPagedKVCacheKernel",
            family=FLASHINFER,
            role=STAGE1,
            why="FlashInfer's tensor-core kernel over a paged cache",
            facts=tensor_core_facts,
        ),
        NameRule(
            pattern=r"BatchPrefillWithRaggedKVCacheKernel|(Single)?PrefillWithKVCacheKernel",
            family=FLASHINFER,
            role=PREFILL,
            why="FlashInfer prefill",
        ),
        NameRule(
            pattern=r"BatchMLAPagedAttentionKernel|BatchMLAPageAttentionHopperKernel",
            family=FLASHINFER_MLA,
            role=STAGE1,
            why="FlashInfer's MLA kernel over a paged cache",
        ),
        NameRule(
            pattern=r"PersistentVariableLengthMergeStatesKernel",
            family=FLASHINFER,
            role=MERGE,
            why="FlashInfer's merge of chunks",
        ),
    ),
    engines=(
        EngineTrace(
            engine="flashinfer",
            families=(FLASHINFER,),
            attribute=_vote,
            infer=_infer,
            shown=_shown,
            explanations=_explained,
            warnings=(fixed_to_one,),
        ),
        EngineTrace(engine="flashinfer-mla", families=(FLASHINFER_MLA,), attribute=_mla_vote, infer=_infer_mla),
        EngineTrace(engine="flashinfer-xqa", families=(XQA,), attribute=_xqa_vote, infer=infer_xqa),
    ),
)
