"""The attention registry's entry: the class that is built, and what refuses only then.

Source: `sglang/srt/layers/attention/attention_registry.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from decodecalc.servers.sglang.state import ServerState

_CLASSES = {
    "triton": "TritonAttnBackend",
    "torch_native": "TorchNativeAttnBackend",
    "flex_attention": "TorchFlexAttnBackend",
    "fa3": "FlashAttentionBackend",
    "fa4": "FlashAttentionBackend",
    "flashmla": "FlashMLABackend",
    "cutlass_mla": "CutlassMLABackend",
    "trtllm_mla": "TRTLLMMLABackend",
    "cutedsl_mla": "CuteDslMLABackend",
    "trtllm_mha": "TRTLLMHAAttnBackend",
    "hpc_ops": "HPCOpsAttnBackend",
    "aiter": "AiterAttnBackend",
    "wave": "WaveAttnBackend",
    "intel_amx": "IntelAMXAttnBackend",
    "ascend": "AscendAttnBackend",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What building the backend gives."""

    cls: str | None
    """The class; None when it refuses."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments beside the model runner."""
    error: tuple[str, str] | None = None
    """(exception class, words) of the refusal."""


def start(state: ServerState, backend: str) -> Start:
    """Build the decode backend."""
    error = _refusal(state, backend)
    if error is not None:
        return Start(cls=None, error=error)
    if backend == "flashinfer":
        if state.has_mla:
            return Start(cls="FlashInferMLAAttnBackend")
        return Start(cls="FlashInferAttnBackend", arguments={"init_new_workspace": False})
    if backend in ("dsa", "nsa"):
        return Start(cls=state.rules.dsa_class)
    return Start(cls=_CLASSES.get(backend), arguments={"fa_impl_ver": 4} if backend == "fa4" else {})


def _refusal(state: ServerState, backend: str) -> tuple[str, str] | None:
    major = state.device.major
    if backend == "fa3" and not ((major == 8 and not state.has_mla) or major == 9):
        words = "FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`."
        return "AssertionError", words
    if backend in ("trtllm_mla", "cutedsl_mla") and not state.has_mla:
        return "ValueError", f"{backend} backend can only be used with MLA models."
    if backend in ("trtllm_mha", "hpc_ops") and state.has_mla:
        return "ValueError", f"{backend} backend can only be used with non-MLA models."
    if backend == "hpc_ops" and state.drafts:
        return "ValueError", "hpc_ops backend does not support speculative decoding for now."
    return None
