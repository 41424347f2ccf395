"""Which decode attention kernel TensorRT-LLM runs: one of three XQA kernels, or MMHA.

Read from NVIDIA/TensorRT-LLM, main of 2026 after the precompiled XQA kernels were dropped:
cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention/decoderXQAImplJIT/kernelUtils.cpp (`supportConfigCommon`,
`supportConfigQGMMA`, `supportConfigHMMA`, `supportConfigMLA`), decoderXQARunner.cpp (`shouldUse`, `mayHavePerfGain`)
and decoderXQAConstants.h. GPUs of compute capability 10.0 and 10.3 never come here: they run trtllm-gen kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, at
from decodecalc.launch.takes import SIXTEEN_BITS, Numbers, Takes, only

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

HMMA, GMMA, MLA = "ampere_hmma", "hopper_gmma", "sm120_mla"
KEYS_PER_BLOCK = 128  # kMinHistoryTokensPerBlock
ENABLE_FACTOR = 4.0  # kEnableMinBlockFactor
ROPE_TYPES = ("rope_gptj", "rope_gpt_neox", "rope_m", "long_rope", "learned_absolute", "yarn")
MAX_ROWS = 32  # query heads of a KV head times beams


@dataclass(frozen=True, slots=True, kw_only=True)
class XqaCall:
    """What decides between XQA and MMHA beside the layer, the step, the cache and the GPU."""

    multi_block_mode: bool = True
    """Whether sequences may be cut over several blocks."""
    beam_width: int = 1
    """Beams of a request."""
    spec_decoding: bool | None = None
    """Whether several query tokens are speculative drafts (`multi_query_tokens`); None: where there are several."""
    spec_lengths_variable: bool = False
    """Whether requests have drafts of different lengths."""
    paged_kv_cache: bool = True
    """Whether the cache is paged."""
    position_embedding_type: str = "rope_gpt_neox"
    """The model's position embedding."""
    chunked_attention: bool = False
    """Whether the layer attends to its own chunk only."""
    force_xqa: bool = False
    """TRTLLM_FORCE_XQA: take XQA wherever it is supported."""

    @classmethod
    def of(cls, options: Any) -> XqaCall:
        """The call that an engine's options describe; what they do not say keeps its default."""
        return cls(**{name: getattr(options, name) for name in cls.__slots__ if hasattr(options, name)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What runs in every step of an array."""

    kernel: str | None
    """The XQA kernel that serves the layer, None where none does."""
    refusal: tuple[str, str] | None
    """(code, reason) where no XQA kernel serves a step."""
    speculative: BoolArray
    """Whether the step runs as speculative decoding (`multi_query_tokens`) [N]."""
    supported: BoolArray
    """Whether an XQA kernel serves the step [N]."""
    perf_gain: BoolArray
    """`mayHavePerfGain` [N]."""
    used: BoolArray
    """`shouldUse` [N]: XQA runs; MMHA where it is false."""
    reason: Callable[[int], str]
    """Why, for step n."""


def decide(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, call: XqaCall) -> Decision:
    """XQA or MMHA for every step, and the XQA kernel. A server asks this before it plans one of the two."""
    if call.spec_decoding is None:
        spec = batches.max_q_len > 1
    else:
        spec = np.full(batches.n, call.spec_decoding)
    kernel, refusal = None, None
    supported = np.zeros(batches.n, dtype=bool)
    for several in (False, True):
        here = spec == several
        if here.any():
            found, why = supported_kernel(
                geo, kv, gpu, call, several, int(batches.max_q_len[here].max()), int(batches.max_seq_len[here].max())
            )
            # Speculation decides whether a kernel serves the layer, never which one.
            kernel, refusal = kernel or found, refusal or why
            supported |= here & (found is not None)
    factor = np.maximum(batches.max_seq_len // KEYS_PER_BLOCK, 1) if call.multi_block_mode else 1
    blocks = geo.kv_heads * batches.batch * factor
    enough = blocks.astype(np.float32) * np.float32(ENABLE_FACTOR) >= np.float32(gpu.sm_count)
    always = spec | call.force_xqa | geo.mla
    gain = enough | always
    # MMHA has no kernel for an FP8 cache under 16-bit queries, so that XQA stays even without a gain.
    keeps = kv.dtype == "fp8" and kv.query_dtype in SIXTEEN_BITS

    def reason(n: int) -> str:
        if not supported[n]:
            return f"no XQA kernel serves the layer ({geo.q_heads}/{geo.kv_heads} heads): " + (refusal or ("", ""))[1]
        if always[n]:
            return f"{at(batches.max_q_len, n)} query tokens: MLA, speculation and TRTLLM_FORCE_XQA always take XQA"
        work = f"{at(blocks, n)} pieces of {KEYS_PER_BLOCK} keys x 4 against {gpu.sm_count} SMs"
        if enough[n]:
            return f"{work}: XQA is worth it"
        return f"{work}: too little work" + (", but MMHA cannot serve an fp8 cache" if keeps else " for XQA")

    return Decision(
        kernel=kernel,
        refusal=refusal,
        speculative=spec,
        supported=supported,
        perf_gain=gain,
        used=(gain | keeps) & supported,
        reason=reason,
    )


def combinations(call: XqaCall) -> tuple[Takes, ...]:
    """What the three kernels take. A group of 1 is served only with several query tokens or beams."""
    generic = Takes(
        devices=("sm8x", "sm9x", "sm11x", "sm12x"),
        mla=False,
        cache_dtypes=(*SIXTEEN_BITS, "int8", "fp8"),
        query_dtypes=SIXTEEN_BITS,
        head_dims=Numbers(step=16, high=256),
        value_dims=None,
        groups=Numbers(high=MAX_ROWS // call.beam_width),
        page_sizes=only(16, 32, 64, 128) if call.paged_kv_cache else Numbers(),
        note="a group of 1 needs several query tokens or beams",
    )
    pages = only(8, 16, 32, 64, 128) if call.paged_kv_cache else Numbers()
    hopper = replace(generic, devices=("sm90",), cache_dtypes=("fp8",), page_sizes=pages)
    wide = replace(hopper, cache_dtypes=(*SIXTEEN_BITS, "fp8"), head_dims=only(512))
    latent = Takes(
        devices=("sm120",), mla=True, cache_dtypes=("fp8",), query_dtypes=("fp8",), page_sizes=pages
    )  # fmt: skip
    return generic, hopper, wide, latent


def supported_kernel(
    geo: Geometry, kv: KvCache, gpu: Gpu, call: XqaCall, spec: bool, q_len: int = 1, longest: int = 0
) -> tuple[str | None, tuple[str, str] | None]:
    """(the XQA kernel, None) or (None, (code, reason)) for steps of up to `q_len` query tokens and `longest` keys.

    The order is the compile engine's: Hopper, MLA, Ampere.
    """
    common = _common(geo, gpu, call, spec)
    if common:
        return None, common
    page = kv.page_size if call.paged_kv_cache else None
    if geo.mla:
        refusal = _mla(geo, kv, gpu, call, page)
        return (None, refusal) if refusal else (MLA, None)
    if _gmma(geo, kv, gpu, call, page, spec, q_len):
        return GMMA, None
    refusal = _hmma(geo, kv, call, page, spec, longest)
    return (None, refusal) if refusal else (HMMA, None)


def _common(geo: Geometry, gpu: Gpu, call: XqaCall, spec: bool) -> tuple[str, str] | None:
    """Refuse what supportConfigCommon refuses, and devices without XQA kernels."""
    if gpu.is_hip:
        return "not_nvidia", f"XQA runs on NVIDIA GPUs only, not on {gpu.label}"
    if gpu.sm is None or gpu.sm < 80:
        return (
            "compute_capability",
            f"XQA needs compute capability 8.0, and {gpu.label} has less, or its own is not known",
        )
    if gpu.sm in (100, 103):
        return "trtllm_gen", f"compute capabilities 10.0 and 10.3 run trtllm-gen kernels instead ({gpu.label})"
    if call.position_embedding_type not in ROPE_TYPES:
        return "position_embedding", f"the position embedding must be one of {', '.join(ROPE_TYPES)}"
    if call.chunked_attention:
        return "chunked_attention", "chunked attention is not supported"
    if not spec and geo.group == 1 and call.beam_width == 1:
        return "mha", f"plain MHA ({geo.q_heads} query heads and as many KV heads) gains nothing from XQA"
    if not spec and geo.group == 1 and geo.head_dim <= 128:
        return "mha", "plain MHA with beams runs XQA at head sizes above 128 only"
    return None


def _gmma(geo: Geometry, kv: KvCache, gpu: Gpu, call: XqaCall, page: int | None, spec: bool, q_len: int) -> bool:
    """supportConfigQGMMA: the Hopper kernel, for FP8 caches, or for head size 512 of any type."""
    large = geo.head_dim == 512
    if not gpu.is_sm(90) or kv.query_dtype not in SIXTEEN_BITS or kv.dtype not in (*SIXTEEN_BITS, "fp8"):
        return False
    if large and spec and geo.group * q_len > MAX_ROWS:
        return False
    if kv.dtype != "fp8" and not large:
        return False
    fits = call.beam_width == 1 and geo.group <= MAX_ROWS
    dims = geo.v_dim == geo.head_dim and geo.head_dim % 16 == 0 and (large or geo.head_dim <= 256)
    return fits and dims and (page is None or page in (8, 16, 32, 64, 128))


def _hmma(
    geo: Geometry, kv: KvCache, call: XqaCall, page: int | None, spec: bool, longest: int
) -> tuple[str, str] | None:
    """supportConfigHMMA: the Ampere-style kernel of every other architecture and cache type."""
    if kv.query_dtype not in SIXTEEN_BITS:
        return "dtype", f"queries must be fp16 or bf16, not {kv.query_dtype}"
    if kv.dtype not in (*SIXTEEN_BITS, "int8", "fp8"):
        return "kv_dtype", f"the cache must be fp16, bf16, int8 or fp8, not {kv.dtype}"
    if call.beam_width not in (1, 4):
        return "beam_width", f"the beam width must be 1 or 4, not {call.beam_width}"
    if not spec and call.beam_width != 1 and geo.window is not None and longest + 1 > geo.window:
        return "window", f"beams need the whole sequence within the window of {geo.window} keys"
    if geo.v_dim != geo.head_dim or geo.head_dim % 16 or geo.head_dim > 256:
        return "head_dim", f"head sizes must be multiples of 16 up to 256, not {geo.head_dim}/{geo.v_dim}"
    if geo.group * call.beam_width > MAX_ROWS:
        return "group", f"{geo.group} query heads x {call.beam_width} beams per KV head exceed {MAX_ROWS}"
    if page is not None and page not in (16, 32, 64, 128):
        return "page_size", f"tokens_per_block must be 16, 32, 64 or 128, not {page}"
    return None


def _mla(geo: Geometry, kv: KvCache, gpu: Gpu, call: XqaCall, page: int | None) -> tuple[str, str] | None:
    """supportConfigMLA: compute capability 12.0 exactly, FP8 queries and cache."""
    if not gpu.is_sm(120):
        return "mla", f"MLA runs on compute capability 12.0 only, not on {gpu.label}"
    if kv.query_dtype != "fp8" or kv.dtype != "fp8":
        return "kv_dtype", f"MLA needs fp8 queries and cache, not {kv.query_dtype} and {kv.dtype}"
    if call.beam_width != 1:
        return "beam_width", f"MLA takes one beam, not {call.beam_width}"
    if page is not None and page not in (8, 16, 32, 64, 128):
        return "page_size", f"tokens_per_block must be 8, 16, 32, 64 or 128, not {page}"
    return None
