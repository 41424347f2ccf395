"""Which decodecalc engine plans a decode backend of SGLang, and with which options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from decodecalc.servers.sglang.state import ServerState

# Backends without a rule of their own below: (kernel, engine).
_SIMPLE: dict[str, tuple[str, str | None]] = {
    "fa4": ("fa4", "flash-attention-4"),
    "flashmla": ("flashmla", "flashmla"),
    "cutlass_mla": ("cutlass-mla", "cutlass-mla"),
    "cutedsl_mla": ("cutedsl-mla", None),
    "flex_attention": ("flex", "flex-decoding"),
    "torch_native": ("torch-sdpa", None),
    "hpc_ops": ("hpc", None),
    "wave": ("wave", None),
}
# Kernels of the sparse backend.
_SPARSE: dict[str, str | None] = {
    "flashmla_kv": "flashmla-sparse",
    "trtllm": "trtllm-gen",
}
DETERMINISTIC_SPLIT_KEYS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangPlan:
    """How to plan the decode kernel."""

    kernel: str | None
    """The decode kernel inside the backend."""
    engine: str | None
    """The engine; None where there is no policy."""
    engine_version: str | None = None
    """The engine's version, where it is not that of a library that the release requires."""
    takes_server_version: bool = False
    """The engine's versions are releases of SGLang."""
    options: dict[str, Any] = field(default_factory=dict)
    """The engine's options."""
    notes: tuple[str, ...] = ()
    """Remarks."""


def kv_splits(state: ServerState) -> int:
    """`triton_attention_num_kv_splits`: 16 on AMD whatever the user passed."""
    if state.device.hip:
        return 16
    given = state.settings.num_kv_splits
    return 8 if given is None else given


def uses_tensor_cores(state: ServerState) -> bool:
    """`flashinfer_backend.py: should_use_tensor_core`, on the rank's heads."""
    env = state.settings.env.get("SGLANG_FLASHINFER_USE_TENSOR_CORE")
    if env is not None:
        return env.lower() == "true"
    return state.kv_dtype.startswith("fp8") or state.layer.group >= 4


def plan_of(state: ServerState, backend: str) -> SglangPlan:
    """The kernel, the engine and its options."""
    if backend == "triton":
        options: dict[str, Any] = {"max_kv_splits_arg": kv_splits(state)}
        if state.settings.deterministic:
            options["deterministic"] = True
        if state.settings.split_tile_size is not None:
            options["split_tile_size"] = state.settings.split_tile_size
        return SglangPlan(kernel="triton", engine="sglang-triton", takes_server_version=True, options=options)
    if backend == "flashinfer":
        return _flashinfer(state)
    if backend == "fa3":
        options = {"batch_invariant": True} if state.settings.deterministic else {}
        if state.layer.sinks:
            why = "SGLang's FlashAttention 3 takes attention sinks; the upstream kernel, which has a policy, does not."
            return SglangPlan(kernel="fa3", engine=None, notes=(why,))
        notes = () if state.device.major == 9 else ("SGLang builds its FlashAttention 3 kernel for 8.x apart.",)
        return SglangPlan(
            kernel="fa3", engine="flash-attention-3", engine_version="3.0.0", options=options, notes=notes
        )
    if backend == "trtllm_mha":
        gen = state.on_sm100
        return SglangPlan(kernel="trtllm-gen" if gen else "xqa", engine="trtllm-gen" if gen else "flashinfer-xqa")
    if backend == "trtllm_mla":
        gen = state.on_sm100
        return SglangPlan(kernel="trtllm-gen-mla" if gen else "xqa-mla", engine="trtllm-gen" if gen else None)
    if backend in ("dsa", "nsa"):
        return SglangPlan(kernel=state.dsa_decode, engine=_SPARSE.get(state.dsa_decode or ""))
    if backend == "flashmla" and state.kv_dtype.startswith("fp8"):
        why = "SGLang quantises the queries for an FP8 cache: its build of that FlashMLA kernel has no policy."
        return SglangPlan(kernel="flashmla-fp8", engine=None, notes=(why,))
    if backend == "aiter":
        return SglangPlan(
            kernel="aiter-mla" if state.has_mla else "aiter-pa", engine="aiter-mla" if state.has_mla else None
        )
    kernel, engine = _SIMPLE.get(backend, (backend, None))
    return SglangPlan(kernel=kernel, engine=engine)


def _flashinfer(state: ServerState) -> SglangPlan:
    if state.has_mla:
        fp8 = "SGLang converts the FP8 cache to the model's type before the kernel: plan it on a cache of that type."
        notes = (fp8,) if state.kv_dtype.startswith("fp8") else ()
        return SglangPlan(kernel="flashinfer-mla", engine="flashinfer-mla", notes=notes)
    options: dict[str, Any] = {"path": "tensor_cores" if uses_tensor_cores(state) else "cuda_cores", "cuda_graph": True}
    if state.settings.deterministic:
        # Deterministic decoding always takes the tensor-core planner, whose chunks then hold a fixed number of keys.
        options = {
            "path": "tensor_cores",
            "cuda_graph": True,
            "fixed_split_size_pages": max(1, DETERMINISTIC_SPLIT_KEYS // (state.page or 1)),
        }
    return SglangPlan(kernel="native", engine="flashinfer", options=options)
