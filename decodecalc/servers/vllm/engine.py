"""Which decodecalc engine plans a backend of vLLM, and with which options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from decodecalc.servers.vllm import flash_attn, flashinfer
from decodecalc.servers.vllm.amd import custom_paged_attention
from decodecalc.servers.vllm.ask import Ask
from decodecalc.servers.vllm.flash_attn import SplitCap
from decodecalc.servers.vllm.flashinfer import DecodeRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """How to plan the backend's decode kernel."""

    kernel: str | None = None
    """The decode kernel inside the backend."""
    engine: str | None = None
    """The engine; None where there is no policy."""
    engine_version: str | None = None
    """The engine's version, where it is not that of a library that the release requires."""
    takes_server_version: bool = False
    """The engine's versions are releases of vLLM."""
    options: dict[str, Any] = field(default_factory=dict)
    """The engine's options."""
    detail: dict[str, Any] = field(default_factory=dict)
    """vLLM's own quantities."""
    query_dtype: str | None = None
    """Element type of the query, where the backend chooses it."""
    error: tuple[str, str] | None = None
    """(exception class, words) of what is raised when the metadata builder is made."""
    notes: tuple[str, ...] = ()
    """Remarks."""


# Backends whose decode kernel is one engine, whatever the settings.
_SIMPLE = {
    "FLEX_ATTENTION": ("flex", "flex-decoding"),
    "CUTLASS_MLA": ("cutlass-mla", "cutlass-mla"),
    "FLASHINFER_MLA": ("trtllm-gen-mla", "trtllm-gen"),
    "FLASHINFER_MLA_SPARSE": ("trtllm-gen-sparse-mla", "trtllm-gen"),
    "TOKENSPEED_MLA": ("tokenspeed", None),
    "FLASHINFER_MLA_SPARSE_SM120": ("flashinfer-sparse-mla-sm120", None),
    "FLASHINFER_MLA_SPARSE_SM90": ("flashinfer-sparse-mla-sm90", None),
    "FLASH_ATTN_MLA_SPARSE": ("fa3-sparse-mla", None),
    "FLASH_ATTN_MLA_SPARSE_FA4": ("fa4-sparse-mla", None),
    "B12X": ("b12x", None),
    "HPC_ATTN": ("hpc", None),
    "ROCM_AITER_UNIFIED_ATTN": ("aiter-unified", "aiter-unified"),
    "ROCM_AITER_FA": ("aiter-pa", None),
    "ROCM_AITER_MLA": ("aiter-mla", "aiter-mla"),
    "ROCM_AITER_TRITON_MLA": ("aiter-mla", "aiter-mla"),
    "ROCM_AITER_MLA_SPARSE": ("aiter-sparse-mla", None),
    "ROCM_SEGMENTED_ATTN": ("rocm-segmented", None),
    "ROCM_OCTAVE": ("octave", None),
    "ULTRAQUANT": ("ultraquant", None),
}
_TRITON = {
    "TRITON_ATTN": ("triton", "vllm-triton"),
    "TRITON_MLA": ("triton-mla", "vllm-triton-mla"),
}
# The version of our FlashAttention policies that was read from the fork that vLLM builds.
_FORK = "vllm-0.33"
_CAUSAL_HALF = {"TRITON_FLASH_ATTN": "FLASH_ATTN", "TRITON_FLASHINFER": "FLASHINFER"}


def plan_of(backend: str, ask: Ask, kernel_page: int) -> VllmPlan:
    """The kernel, the engine and what vLLM's settings mean for it."""
    backend = _CAUSAL_HALF.get(backend, backend)
    if backend == "FLASH_ATTN":
        return _flash_attn(ask)
    if backend == "FLASH_ATTN_MLA":
        return _flash_attn_mla(ask)
    if backend == "FLASHINFER":
        return _flashinfer(ask, flashinfer.route(ask))
    if backend in ("FLASHMLA", "FLASHMLA_SPARSE"):
        return _flashmla(ask, sparse=backend == "FLASHMLA_SPARSE")
    if backend == "ROCM_ATTN":
        return _rocm(ask, kernel_page)
    if backend == "TURBOQUANT":
        return VllmPlan(kernel="turboquant", detail={"max_kv_splits": ask.settings.tq_max_kv_splits_for_cuda_graph})
    if backend in _TRITON:
        kernel, engine = _TRITON[backend]
        options = {"batch_invariant": True} if ask.batch_invariant else {}
        return VllmPlan(kernel=kernel, engine=engine, takes_server_version=True, options=options)
    kernel, name = _SIMPLE[backend]
    return VllmPlan(kernel=kernel, engine=name)


def _flashmla(ask: Ask, sparse: bool) -> VllmPlan:
    if not sparse:
        if ask.is_quantized:
            return VllmPlan(
                kernel="flashmla-fp8",
                engine="flashmla-sparse",
                options={"path": "dense_fp8"},
                query_dtype=flashinfer.FP8_E4M3,
            )
        return VllmPlan(kernel="flashmla", engine="flashmla")
    if not ask.is_quantized:
        words = "A bfloat16 cache is read by FlashMLA's sparse prefill kernel, which has no schedule: it is only named."
        return VllmPlan(kernel="flashmla-sparse-prefill", notes=(words,))
    topk = ask.layer.index_topk
    return VllmPlan(kernel="flashmla-sparse", engine="flashmla-sparse", options={} if topk is None else {"topk": topk})


def _cap_detail(cap: SplitCap) -> dict[str, Any]:
    return {
        "max_num_splits": cap.builder,
        "aot_schedule": cap.ahead_of_time,
        "step_max_num_splits": cap.step,
        "step_scheduler_num_splits": cap.scheduler_step,
    }


def _fa3_options(ask: Ask, cap: SplitCap) -> dict[str, Any]:
    """Options of FlashAttention 3: the cap under graphs, or the single split of batch-invariant mode."""
    if ask.batch_invariant:
        return {"batch_invariant": True}
    if not cap.builder:
        return {}
    return {"cuda_graph": True, "max_num_splits_for_cuda_graph": cap.builder}


def _flash_attn(ask: Ask) -> VllmPlan:
    cap = flash_attn.split_cap(ask)
    found = flash_attn.layer_version(ask)
    detail = {"fa_version": found, **_cap_detail(cap)}
    if found is None:
        words = f"FlashAttention {ask.settings.flash_attn_version} does not run on {ask.device}"
        return VllmPlan(detail=detail, notes=(f"{words}: the backend is selected, and no kernel can be launched.",))
    options: dict[str, Any] = {}
    if found == 3:
        options = _fa3_options(ask, cap)
    elif found == 2 and ask.batch_invariant:
        options = {"batch_invariant": True}
    elif found == 4 and cap.step:
        options = {"num_splits_arg": cap.step}
    return VllmPlan(
        kernel=f"fa{found}",
        engine=f"flash-attention-{found}",
        engine_version=_FORK if found in (2, 3) else None,
        options=options,
        detail=detail,
    )


def _flash_attn_mla(ask: Ask) -> VllmPlan:
    cap = flash_attn.mla_split_cap(ask)
    return VllmPlan(
        kernel="fa3-mla",
        engine="flash-attention-3",
        engine_version=_FORK,
        options=_fa3_options(ask, cap),
        detail=_cap_detail(cap),
    )


def _flashinfer(ask: Ask, route: DecodeRoute) -> VllmPlan:
    detail: dict[str, Any] = {
        "decode_kernel": route.kernel,
        "wrapper": route.wrapper,
        "disable_split_kv": route.disable_split,
        "fixed_split_size": route.fixed_split,
    }
    options: dict[str, Any] = {}
    engine = {
        flashinfer.NATIVE: "flashinfer",
        flashinfer.XQA: "flashinfer-xqa",
        flashinfer.TRTLLM_GEN: "trtllm-gen",
        flashinfer.TRTLLM_API: "trtllm-gen",
    }[route.kernel]
    if route.kernel == flashinfer.NATIVE:
        options = {"path": "tensor_cores"}
        if ask.settings.has_full_graphs:
            options["cuda_graph"] = True
    return VllmPlan(
        kernel=route.kernel,
        engine=engine,
        options=options,
        detail=detail,
        query_dtype=route.query_dtype,
        error=route.error,
    )


def _rocm(ask: Ask, kernel_page: int) -> VllmPlan:
    custom = custom_paged_attention(ask, kernel_page)
    return VllmPlan(
        kernel="rocm-paged" if custom else "rocm-triton",
        engine="rocm-paged" if custom else None,
        takes_server_version=custom,
        detail={"custom_paged_attention": custom},
        notes=() if custom else ("ROCM_ATTN runs its Triton kernel for this layer, for which there is no policy.",),
    )
