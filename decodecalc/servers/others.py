"""What servers without a list of backends run: TensorRT-LLM, LMDeploy, llama.cpp, and the Transformers library.

Each has one decode kernel family a device, so that a question about them has a short answer. The rules were read at
the revisions named below; other releases are answered with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.servers.device import ServerDevice, device_of
from decodecalc.servers.question import Question
from decodecalc.servers.resolution import ARGUMENTS, SELECTION, BackendCandidate, Reason, Resolution, ServerRefusal

_XQA_SOURCE = (
    "NVIDIA/TensorRT-LLM main of 2026-08: kernels/decoderMaskedMultiheadAttention/decoderXQARunner.cpp (shouldUse), "
    "decoderXQAImplJIT/kernelUtils.cpp, common/attentionOp.cpp"
)
_READ = "2026-08-21"


def tensorrt_llm(version: str | None, question: Question) -> Resolution:
    """trtllm-gen on compute capability 10.x, else XQA where it supports the layer, else MMHA."""
    layer, device = question.layer, device_of(question.gpu)
    xqa, mmha = _xqa_reasons(question, device), _mmha_reasons(question, device)
    gen: list[str] = [] if not device.hip and device.major == 10 else ["runs on compute capability 10.x alone"]
    found = (
        _candidate("trtllm-gen", gen),
        _candidate("XQA", xqa),
        _candidate("MMHA", mmha),
    )
    chosen = next((candidate.name for candidate in found if candidate.valid), None)
    engines = {"trtllm-gen": "trtllm-gen", "XQA": "tensorrt-llm-xqa", "MMHA": "tensorrt-llm-mmha"}
    notes = (
        ("XQA gives way to MMHA where one step has little work: KV heads x requests x keys / 128 x 4 below the SMs.",)
        if chosen == "XQA" and layer.mla is None
        else ()
    )
    return _answer(
        "tensorrt-llm", version, _XQA_SOURCE, chosen, found, engine=engines.get(chosen or ""), notes=notes
    )  # fmt: skip


def _xqa_reasons(question: Question, device: ServerDevice) -> list[str]:
    layer, fp8 = question.layer, question.kv_cache_dtype.startswith("fp8")
    out = []
    if device.hip or device.capability < (8, 0) or device.major == 10:
        out.append("runs on compute capability 8.0 to 12.1 without 10.x")
    if layer.mla is not None:
        if not (device.exactly(120) and fp8):
            out.append("MLA needs compute capability 12.0 with FP8 queries and an FP8 cache")
        return out
    if layer.group == 1:
        out.append("one query head to a KV head is left to MMHA")
    if layer.group > 32:
        out.append("at most 32 query heads to a KV head")
    wide = 512 if device.exactly(90) and fp8 else 256
    if layer.head_dim > wide or layer.head_dim % 16:
        out.append(f"head dims are multiples of 16 up to {wide}")
    return out


def _mmha_reasons(question: Question, device: ServerDevice) -> list[str]:
    out = [] if not device.hip and device.capability >= (7, 0) else ["runs on NVIDIA from compute capability 7.0 on"]
    if question.layer.mla is not None:
        out.append("has no kernel for MLA")
    return out


def lmdeploy(version: str | None, question: Question) -> Resolution:
    """TurboMind's own kernel on NVIDIA."""
    device = device_of(question.gpu)
    reasons = [] if not device.hip and device.capability >= (7, 0) else ["runs on NVIDIA from 7.0 on"]
    found = (_candidate("turbomind", reasons),)
    source = "InternLM/lmdeploy HEAD of 2026-08-21: src/turbomind/kernels/attention (utils.cc, registry.cu)"
    chosen = None if reasons else "turbomind"
    return _answer("lmdeploy", version, source, chosen, found, engine="turbomind")


def llama_cpp(version: str | None, question: Question) -> Resolution:
    """ggml's FlashAttention: the engine itself picks vec, tile or mma from the step."""
    found = (_candidate("ggml-cuda-fattn", []),)
    source = "ggml-org/llama.cpp HEAD of 2026-08-21: ggml/src/ggml-cuda/fattn.cu (ggml_cuda_get_best_fattn_kernel)"
    note = "The kernel (vec, tile or mma) depends on the step's tokens and cache length."
    return _answer("llama.cpp", version, source, "ggml-cuda-fattn", found, engine="llama-cpp", notes=(note,))


_IMPLEMENTATIONS: Mapping[str, str | None] = {
    "sdpa": None,
    "eager": None,
    "flash_attention_2": "flash-attention-2",
    "flash_attention_3": "flash-attention-3",
    "flash_attention_4": "flash-attention-4",
    "flex_attention": "flex-decoding",
}


def transformers(version: str | None, question: Question) -> Resolution:
    """`attn_implementation`, sdpa by default: PyTorch then picks a kernel for a dense, padded cache."""
    name = question.backend or "sdpa"
    source = "huggingface/transformers: modeling_utils.py (_check_and_adjust_attn_implementation)"
    found = tuple(_candidate(known, []) for known in _IMPLEMENTATIONS)
    if name not in _IMPLEMENTATIONS:
        words = f"{name} is not an attention implementation; known: {', '.join(_IMPLEMENTATIONS)}"
        refused = ServerRefusal(stage=ARGUMENTS, error="ValueError", reasons=(words,), code="unknown_backend")
        return _answer("transformers", version, source, None, found, refused=refused, forced=True)
    note = "The cache is dense: every request is padded to the longest."
    engine = _IMPLEMENTATIONS[name]
    forced = question.backend is not None
    return _answer("transformers", version, source, name, found, engine=engine, notes=(note,), forced=forced)


def _candidate(name: str, reasons: list[str]) -> BackendCandidate:
    return BackendCandidate(name=name, reasons=tuple(Reason(words=words) for words in reasons))


def _answer(
    server: str, version: str | None, source: str, chosen: str | None, found: tuple[BackendCandidate, ...], **rest: Any
) -> Resolution:
    if chosen is None:
        none = ServerRefusal(stage=SELECTION, error="", reasons=("no kernel takes the layer",), code="no_valid_backend")
        rest = {"refused": none, **rest, "engine": None}
    return Resolution(
        server=server,
        version=version or _READ,
        rules_version=_READ,
        source=source,
        backend=chosen,
        candidates=found,
        kernel=chosen,
        **rest,
    )
