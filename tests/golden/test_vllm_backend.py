"""vLLM's backend choice against what its own selector, builders and block-size rules answered (recorded)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from decodecalc.gpus import Gpu
from decodecalc.servers import Layer, MlaDims, Question, Resolution, VllmSettings, resolve

GOLDEN = "vllm_backend"
LEFT_OUT: dict[str, str] = {}
# Quantities of one backend that our answer holds under vLLM's own names.
DETAIL = (
    "fa_version", "max_num_splits", "aot_schedule", "step_max_num_splits", "step_scheduler_num_splits",
    "decode_kernel", "disable_split_kv", "fixed_split_size", "custom_paged_attention",
)  # fmt: skip


def question_of(given: dict[str, Any]) -> Question:
    """The question of a recorded case."""
    dims = given["mla_dims"]
    layer = Layer(
        q_heads=given["q_heads"],
        kv_heads=given["kv_heads"],
        head_dim=given["head_dim"],
        mla=MlaDims(**dims) if dims else None,
        index_topk=given["index_topk"],
        sparse=given["use_sparse"],
        sinks=given["has_sink"],
        window=given["sliding_window"],
        dtype=given["dtype"],
        state_bytes=given["mamba_page_bytes"],
    )
    gpu = Gpu(
        name=given["device"],
        sm_count=given["sm_count"],
        compute_capability=None if given["gcn_arch"] else tuple(given["compute_capability"]),
        gfx=given["gcn_arch"],
    )
    settings = VllmSettings(
        batch_invariant=given["batch_invariant"],
        flash_attn_version=given["flash_attn_version"],
        use_trtllm_attention=given["use_trtllm_attention"],
        cudagraph_mode=given["cudagraph_mode"],
        env=given["env"],
    )
    if given["flashinfer"] is not None:
        settings = replace(settings, flashinfer=given["flashinfer"])
    if given["aiter"] is not None:
        settings = replace(settings, aiter=given["aiter"])
    return Question(
        layer=layer,
        gpu=gpu,
        kv_cache_dtype=given["kv_cache_dtype"],
        page_size=given["block_size"],
        backend=given["attention_backend"],
        settings=settings,
    )


def as_recorded(answer: Resolution) -> dict[str, Any]:
    """Our answer in the fields of a recording."""
    out: dict[str, Any] = {
        "backend": answer.backend,
        "refused": None,
        "valid": list(answer.valid),
        "skipped": {c.name: [r.words for r in c.reasons] for c in answer.candidates if not c.valid},
    }
    refused = answer.refused
    if refused is not None and answer.backend is None:
        reason: Any = {"forced": answer.forced, "reasons": list(refused.reasons)}
        if refused.stage == "arguments":
            reason = "1 validation error for AttentionConfig"
        out["refused"] = {"stage": refused.stage, "error": refused.error, "reason": reason}
        return out
    out |= {
        "block_size": answer.page_size,
        "kernel_block_size": answer.kernel_page_size,
        "cudagraph_support": answer.cuda_graphs,
        **{name: answer.detail[name] for name in DETAIL if name in answer.detail},
    }
    if refused is not None:
        out["builder_error"] = {"error": refused.error, "reason": " ".join(refused.reasons)}
    if answer.detail.get("wrapper"):
        out["wrapper"] = {"use_tensor_cores": True, "backend": answer.detail["wrapper"]}
    if answer.query_dtype:
        out["query_dtype"] = answer.query_dtype
    return out


def test_backend_is_the_servers(case, check):
    """The backend, every candidate's reasons, the pages, the kernel and the split caps are the recorded ones."""
    given = case["in"]
    check(case["out"], as_recorded(resolve("vllm", given["version"], question_of(given))), LEFT_OUT)
