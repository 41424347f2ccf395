"""Which kernels of a trace belong to decode attention, whose they are, and what part they play.

Names come first (`recognise`), but names are shared: vLLM's and aiter's unified attention, SGLang's and vLLM's Triton
decode kernels. What settles those is the content of the launches and the company they keep: see `beliefs.py`.

Sources of the names: vLLM 0.33 (v1/attention/ops), SGLang 0.5.10 (layers/attention/triton_ops), flash-attention
(csrc/flash_attn, hopper), FlashInfer (include/flashinfer/attention), FlashMLA (csrc), vLLM (csrc/attention, csrc/rocm).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from decodecalc.trace import kernel_names as names
from decodecalc.trace.kernel_names import NameFacts, function_name

STAGE1, MERGE, SCHEDULER, PREFILL, OTHER = "stage1", "merge", "scheduler", "prefill", "other"

# Families: kernels that call one another, whichever engine launched them.
UNIFIED, TRITON_DECODE = "unified-attention", "triton-decode"
FA2, FA3, FLASHINFER, FLASHMLA = "flash-attention-2", "flash-attention-3", "flashinfer", "flashmla"
PAGED, ROCM, MERGE_STATES, FLEX = "paged-attention", "rocm-paged", "merge-states", "flex-decoding"
UNMODELLED = "not modelled"


@dataclass(frozen=True)
class Recognition:
    """A kernel's family and role, what its name fixes, and why it was taken for that."""

    family: str
    role: str
    why: str
    facts: NameFacts = field(default_factory=NameFacts)


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    family: str
    role: str
    why: str
    facts: Callable[[str], NameFacts] | None = None


def _rule(pattern: str, family: str, role: str, why: str, facts: Callable[[str], NameFacts] | None = None) -> _Rule:
    return _Rule(re.compile(pattern), family, role, why, facts)


# Matched against the function's own name, in order.
_RULES = (
    _rule(r"kernel_unified_attention(_[23]d)?$", UNIFIED, STAGE1, "the unified attention kernel of vLLM and aiter"),
    _rule(r"reduce_segments$", UNIFIED, MERGE, "merges the segments of the unified attention kernel"),
    _rule(
        r"_fwd_grouped_kernel_stage1$|_fwd_kernel_stage1$", TRITON_DECODE, STAGE1, "Triton decode attention, stage 1"
    ),
    _rule(r"_fwd_kernel_stage2$", TRITON_DECODE, MERGE, "Triton decode attention, stage 2"),
    _rule(r"get_num_kv_splits_triton$", TRITON_DECODE, SCHEDULER, "SGLang's split counts, chosen on the device"),
    _rule(r"flash_fwd_splitkv_mla_kernel$", FLASHMLA, STAGE1, "FlashMLA's dense decode kernel"),
    _rule(r"flash_fwd_mla_combine_kernel$", FLASHMLA, MERGE, "FlashMLA's combine"),
    _rule(r"get_mla_metadata_kernel$", FLASHMLA, SCHEDULER, "FlashMLA's tile scheduler"),
    _rule(r"flash_fwd_splitkv_kernel$", FA2, STAGE1, "FlashAttention-2's split-KV kernel", names.flash_attention_2),
    _rule(
        r"flash_fwd_splitkv_combine_kernel$", FA2, MERGE, "FlashAttention-2's combine", names.flash_attention_2_combine
    ),
    _rule(r"flash_fwd_kernel$", FA2, PREFILL, "FlashAttention-2 without split-KV", names.flash_attention_2),
    _rule(r"FlashAttnFwdSm[89]0$", FA3, STAGE1, "FlashAttention-3's forward kernel", names.flash_attention_3),
    _rule(r"FlashAttnFwdCombine$", FA3, MERGE, "FlashAttention-3's combine", names.flash_attention_3_combine),
    _rule(r"prepare_varlen_num_blocks_kernel$", FA3, SCHEDULER, "FlashAttention-3's per-request split counts"),
    _rule(
        r"BatchDecodeWithPagedKVCacheKernel$",
        FLASHINFER,
        STAGE1,
        "FlashInfer's CUDA-core decode kernel",
        names.flashinfer_decode,
    ),
    _rule(
        r"BatchPrefillWithPagedKVCacheKernel$",
        FLASHINFER,
        STAGE1,
        "FlashInfer's tensor-core kernel over a paged cache",
        names.flashinfer_prefill,
    ),
    _rule(
        r"BatchPrefillWithRaggedKVCacheKernel$|PrefillWithKVCacheKernel$|SinglePrefillWithKVCacheKernel$",
        FLASHINFER,
        PREFILL,
        "FlashInfer prefill",
    ),
    _rule(r"PersistentVariableLengthMergeStatesKernel$", FLASHINFER, MERGE, "FlashInfer's merge of chunks"),
    _rule(r"paged_attention_v[12]_kernel$", PAGED, STAGE1, "the 2023 PagedAttention kernel", names.paged_attention),
    _rule(r"paged_attention_v2_reduce_kernel$", PAGED, MERGE, "PagedAttention v2's reduction"),
    _rule(
        r"paged_attention_ll4mi_QKV_mfma(4|16)_kernel$", ROCM, STAGE1, "AMD's custom paged attention", names.rocm_paged
    ),
    _rule(r"paged_attention_ll4mi_reduce_kernel$", ROCM, MERGE, "the reduction of AMD's custom paged attention"),
    _rule(
        r"merge_attn_states_kernel$|MergeStates?(InPlace)?Kernel$", MERGE_STATES, MERGE, "merge of two attention states"
    ),
    _rule(
        r"triton_(tem|flex).*flex_decoding|triton_flex_decoding", FLEX, STAGE1, "torch's FlexAttention, decode template"
    ),
    # Prefill that shares a file with a decode kernel above.
    _rule(r"fmhaSm\d+a?Kernel_.*Context", UNMODELLED, PREFILL, "TensorRT-LLM's generated FMHA, context phase"),
    _rule(r"fmhaSm\d+a?Kernel_", UNMODELLED, OTHER, "TensorRT-LLM's generated FMHA, generation phase"),
)

# Anything else that is an attention kernel by its name: shown, never judged. Cache writers and norms are not.
_ATTENTION = re.compile(
    r"attn|attention|fmha|flash_fwd|flash_mla|(?<![a-z])mla(?![a-z])|(?<![a-z])mha(?![a-z])", re.IGNORECASE
)
_NOT_ATTENTION = re.compile(
    r"cache_kernel|reshape_and_cache|concat_and_cache|quant|norm|rope|rotary|indices|gemm|bwd|backward|elementwise|copy",
    re.IGNORECASE,
)
_PREFILL = re.compile(r"prefill|context|extend|varlen_fwd", re.IGNORECASE)
# Whose kernels keep an attention kernel company: pieces of other kernels' names.
_COMPANY = (
    ("vllm", re.compile(r"\bvllm::|_vllm_|vllm_")),
    ("sglang", re.compile(r"sgl_kernel|sglang|sgl_")),
    ("aiter", re.compile(r"aiter")),
    ("tensorrt-llm", re.compile(r"tensorrt_llm")),
)


def recognise(name: str) -> Recognition | None:
    """What a kernel of this name is; None when it is not attention.

    >>> recognise("kernel_unified_attention").role
    'stage1'
    >>> recognise("void at::native::elementwise_kernel<128, 4>()") is None
    True
    """
    own = function_name(name)
    for rule in _RULES:
        if rule.pattern.match(own):
            facts = rule.facts(name) if rule.facts else NameFacts()
            return Recognition(rule.family, rule.role, rule.why, facts)
    if own.startswith("_Z"):
        return _mangled(own)
    return _by_word(own)


def _mangled(own: str) -> Recognition | None:
    """A mangled name keeps its identifiers, each behind its length: enough to know the function."""
    for rule in _RULES:
        for word in re.findall(r"\d+([A-Za-z_]\w*?)(?=I|E|N|\d|$)", own)[:8]:
            if rule.pattern.match(word):
                return Recognition(rule.family, rule.role, rule.why + " (mangled name)")
    return _by_word(own)


def _by_word(own: str) -> Recognition | None:
    if not _ATTENTION.search(own) or _NOT_ATTENTION.search(own):
        return None
    role = PREFILL if _PREFILL.search(own) else OTHER
    return Recognition(UNMODELLED, role, "an attention kernel by its name, of no engine that is modelled")


class NameBook:
    """Remembers what every kernel name of a trace is, and whose kernels are around."""

    def __init__(self) -> None:
        self.known: dict[str, Recognition] = {}
        self.company: Counter[str] = Counter()

    def wanted(self, name: str) -> bool:
        """Whether a kernel of this name is attention."""
        for who, pattern in _COMPANY:
            if pattern.search(name):
                self.company[who] += 1
        found = recognise(name)
        if found is not None:
            self.known[name] = found
        return found is not None

    def __getitem__(self, name: str) -> Recognition:
        return self.known[name]
