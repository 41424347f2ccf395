"""Which decode kernel vLLM's FLASHINFER runs.

Source: `vllm/v1/attention/backends/flashinfer.py: FlashInferBackend, FlashInferMetadataBuilder`.
"""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.servers.vllm.accepts import Size, sizes
from decodecalc.servers.vllm.ask import Ask

NATIVE, XQA, TRTLLM_GEN, TRTLLM_API = "native", "xqa", "trtllm-gen", "trtllm-api"
FP8_E4M3 = "float8_e4m3fn"


def pages(ask: Ask) -> tuple[Size, ...]:
    """Pages of the kernels: from 128 keys on only trtllm-gen with grouped queries."""
    large = ask.rules.fi_large_pages and ask.layer.group > 1 and ask.device.family(100) and ask.can_use_trtllm()
    return sizes(16, 32, 64, 128, 256, 512, 1024) if large else sizes(16, 32, 64)


def takes_sinks(ask: Ask) -> bool:
    """`supports_sink`."""
    if ask.settings.use_trtllm_attention is False:
        return False
    if any(ask.device.exactly(90) if code == 90 else ask.device.family(code) for code in ask.rules.fi_sink_families):
        return ask.trtllm_kernels()
    if not ask.rules.trtllm_phases:
        return ask.trtllm_kernels()
    return ask.device.family(100) and ask.trtllm_kernels() and ask.trtllm_kernels(is_prefill=True)


def nvfp4_on_fa2(ask: Ask) -> bool:
    """`_nvfp4_kv_on_fa2`: devices on which FlashInfer's fa2 reads an NVFP4 cache."""
    return ask.rules.fi_nvfp4_fa2 and any(ask.device.family(code) for code in (80, 90, 120))


def takes_kv_dtype(ask: Ask) -> bool:
    """`supports_kv_cache_dtype` beyond its list: NVFP4 asks for a device."""
    if not ask.kv_dtype.startswith("nvfp4") or not ask.rules.fi_nvfp4_checked:
        return True
    if nvfp4_on_fa2(ask):
        return ask.kv_dtype == "nvfp4"
    return ask.device.family(100) and ask.trtllm_kernels(is_prefill=True) and ask.trtllm_kernels()


def combination(ask: Ask) -> str | None:
    """`supports_combination`."""
    if ask.rules.fi_nvfp4_fa2 and ask.kv_dtype.startswith("nvfp4") and ask.device.major in (8, 9, 12):
        if ask.layer.head_dim == 64:
            return "fa2 prefill misreads an NVFP4 KV cache at head_size 64"
        if ask.layer.sinks:
            return "the sink prefill wrapper cannot read an NVFP4 KV cache"
    return None


def xqa_takes(head_dim: int) -> bool:
    """`_is_xqa_head_dim_supported`."""
    return 16 <= head_dim <= 256 and head_dim % 16 == 0


class DecodeRoute(NamedTuple):
    """The decode kernel and what it is handed."""

    kernel: str
    """`native` (the planner), `xqa`, `trtllm-gen`, or `trtllm-api` (the one TensorRT-LLM path of 0.24 and before)."""
    wrapper: str | None
    """The native wrapper's `backend` argument; None for the other kernels."""
    query_dtype: str
    """Element type of the query."""
    disable_split: bool
    """`disable_split_kv` of the native planner: batch-invariant mode."""
    fixed_split: int
    """`fixed_split_size` of the native planner; -1 leaves it to the planner."""
    error: tuple[str, str] | None
    """(exception class, words) of what the metadata builder raises when it is made; None when it is made."""


def route(ask: Ask) -> DecodeRoute:
    """The decode kernel for this layer: it does not depend on the batch."""
    nvfp4 = ask.kv_dtype.startswith("nvfp4")
    on_fa2 = nvfp4 and nvfp4_on_fa2(ask)
    api = ask.can_use_trtllm() and (not on_fa2 or ask.device.family(120))
    kernel = NATIVE
    if api:
        kernel = (XQA if ask.on_xqa_device else TRTLLM_GEN) if ask.rules.trtllm_phases else TRTLLM_API
    if kernel == XQA and ask.rules.fi_xqa_checks_head and not xqa_takes(ask.layer.head_dim):
        kernel = NATIVE
    wrapper = None
    if kernel == NATIVE:
        wrapper = "trtllm-gen" if nvfp4 and not on_fa2 else "fa2" if _pins_fa2(ask) else "auto"
    return DecodeRoute(
        kernel=kernel,
        wrapper=wrapper,
        query_dtype=_query_dtype(ask, api, on_fa2),
        disable_split=ask.batch_invariant,
        fixed_split=2048 if ask.batch_invariant else -1,
        error=_builder_error(ask, nvfp4 and not on_fa2),
    )


def _pins_fa2(ask: Ask) -> bool:
    return ask.rules.fi_pins_fa2 and ask.device.capability < (9, 0)


def _builder_error(ask: Ask, needs_trtllm: bool) -> tuple[str, str] | None:
    """What `FlashInferMetadataBuilder.__init__` raises."""
    if needs_trtllm:
        if not ask.rules.fi_nvfp4_checked:
            if not ask.device.family(100):
                return "ValueError", "--kv-cache-dtype nvfp4 requires sm100f, please try a different dtype or remove"
        elif ask.settings.use_trtllm_attention is False or not (ask.trtllm_kernels(True) and ask.trtllm_kernels()):
            return "ValueError", f"--kv-cache-dtype {ask.kv_dtype} requires the SM100 trtllm-gen FlashInfer path."
    if ask.rules.fi_hopper_window_fails and ask.device.exactly(90) and ask.layer.window is not None:
        return (
            "NotImplementedError",
            "FlashInfer backend on SM90 currently crashes with sliding-window attention layers. "
            "Use the default attention backend.",
        )
    return None


def _query_dtype(ask: Ask, api: bool, nvfp4_fa2: bool) -> str:
    """Element type of the query in decoding (`get_q_data_type`)."""
    model, kv = ask.layer.dtype, ask.kv_dtype
    if ask.settings.disable_flashinfer_q_quantization:
        return model
    if not ask.rules.trtllm_phases:
        if not api:
            return model
        return FP8_E4M3 if kv.startswith("nvfp4") else _cache_dtype(kv, model)
    if kv.startswith("fp8"):
        if ask.on_xqa_device and ask.settings.use_trtllm_attention is not False:
            return model
        return _cache_dtype(kv, model) if ask.device.exactly(90) or ask.device.family(100) else model
    if kv.startswith("nvfp4"):
        return model if nvfp4_fa2 else FP8_E4M3
    return _cache_dtype(kv, model)


def _cache_dtype(kv: str, model: str) -> str:
    if kv == "auto":
        return model
    return {"fp8": FP8_E4M3, "fp8_e4m3": FP8_E4M3, "fp8_e5m2": "float8_e5m2"}.get(kv, kv)


def cuda_graphs(ask: Ask) -> str:
    """`FlashInferMetadataBuilder.get_cudagraph_support`, for causal decoding without context parallelism."""
    rules, device = ask.rules, ask.device
    if _pins_fa2(ask):
        return "UNIFORM_SINGLE_TOKEN_DECODE" if ask.settings.use_non_causal else "UNIFORM_BATCH"
    if rules.fi_hopper_single_token and device.exactly(90):
        return "UNIFORM_SINGLE_TOKEN_DECODE"
    works = ask.can_use_trtllm()
    if rules.fi_graphs_check_head and ask.on_xqa_device:
        nvfp4 = rules.fi_nvfp4_fa2 and ask.kv_dtype.startswith("nvfp4") and not device.family(120)
        works = works and not nvfp4 and xqa_takes(ask.layer.head_dim)
    if works and (not ask.settings.use_non_causal or ask.on_xqa_device):
        return "UNIFORM_BATCH"
    return "UNIFORM_SINGLE_TOKEN_DECODE"
