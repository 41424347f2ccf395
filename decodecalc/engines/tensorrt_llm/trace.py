"""TensorRT-LLM's decode kernels in a trace: XQA and the masked multi-head attention (MMHA) that runs elsewhere.

Source: NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention.
"""

from __future__ import annotations

from decodecalc.trace.attribution import Strength, Surroundings, Vote
from decodecalc.trace.families import XQA, XQA_MLA_THREADS, infer_xqa
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.kernel_names import NameFacts, flag, integer, template_arguments
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import STAGE1, NameRule, Vendor

MMHA = "masked-multi-head-attention"


def mmha_facts(name: str) -> NameFacts:
    """masked_multihead_attention_kernel<T, T_cache, TKcache, KVCacheBuffer, KCacheBuffer, Dh, threads, cross attention,
    beams, DO_MULTI_BLOCK, …> (decoderMaskedMultiheadAttentionLaunch.h)."""
    own = template_arguments(name, "masked_multihead_attention_kernel")
    if len(own) < 10:
        return NameFacts()
    return NameFacts(head_dim=integer(own[5]), split=flag(own[9]))


def _xqa_vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """FlashInfer compiles the same source: only TensorRT-LLM's other kernels tell the two apart."""
    at_home = "tensorrt-llm" in around.vendors and not around.vendors & {"vllm", "sglang"}
    why = "an XQA kernel among TensorRT-LLM's kernels" if at_home else "an XQA kernel of TensorRT-LLM or FlashInfer"
    split = None if group.stage1.grid is None else infer_xqa(group, None).splits_launched != 1
    return Vote(strength=Strength.LIKELY if at_home else Strength.POSSIBLE, why=why, split=split)


def _xqa_kernel(group: LaunchGroup) -> str:
    """All XQA kernels have one name; their blocks tell them apart."""
    block = group.stage1.block
    if block is not None and block[0] == XQA_MLA_THREADS:
        return "kernel_mha_sm120_mla"
    return "kernel_mha_hopper_gmma" if block is not None and block[2] == 3 else "kernel_mha_ampere_hmma"


def _infer_mmha(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (query heads, requests x beams, tiles)."""
    (heads, batch, tiles), _ = grids(group)
    return Inferred(
        q_heads=heads,
        head_dim=group.kind.facts.head_dim,
        batch=batch,
        query_tokens=batch,
        splits_launched=tiles,
        how="grid (query heads, requests x beams, tiles)",
    )


def _mmha_vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """The last block of a head merges the tiles: there is no merge kernel."""
    facts, grid = group.kind.facts, group.stage1.grid
    split = facts.split if facts.split is not None else None if grid is None else grid[2] > 1
    return Vote(strength=Strength.LIKELY, why=group.kind.why, split=split)


TRACE = TraceKnowledge(
    vendors=(Vendor(name="tensorrt-llm", pattern=r"tensorrt_llm"),),
    families=(KernelFamily(name=MMHA, shows_path=True, shows_head_dim=True),),
    names=(
        NameRule(
            pattern=r"masked_multihead_attention_kernel",
            family=MMHA,
            role=STAGE1,
            why="TensorRT-LLM's masked multi-head attention",
            facts=mmha_facts,
        ),
    ),
    engines=(
        EngineTrace(
            engine="tensorrt-llm-xqa", families=(XQA,), attribute=_xqa_vote, kernel=_xqa_kernel, infer=infer_xqa
        ),
        EngineTrace(engine="tensorrt-llm-mmha", families=(MMHA,), attribute=_mmha_vote, infer=_infer_mmha),
    ),
)
