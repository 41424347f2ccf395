"""SGLang's backend choice against what its own argument resolution and attention registry answered (recorded)."""

from __future__ import annotations

from typing import Any

from decodecalc.gpus import Gpu, load_gpu
from decodecalc.servers import Layer, MlaDims, Question, Resolution, SglangSettings, resolve

GOLDEN = "sglang_backend"
LEFT_OUT: dict[str, str] = {}
# The recorded devices' entries in our table; memory decides the captured batch sizes.
TABLE = {
    "A100": "a100-sxm", "A10": "a10", "RTX 3090": "rtx3090", "L40S": "l40s", "RTX 4090": "rtx4090", "H100": "h100-sxm",
    "H200": "h200-sxm", "B200": "b200-sxm", "B300": "b300-sxm", "RTX PRO 6000": "rtx-pro-6000-server",
    "RTX 5090": "rtx5090", "GB10": "gb10", "MI300X": "mi300x", "MI355X": "mi355x",
}  # fmt: skip
R9700 = Gpu(name="r9700", sm_count=64, gfx="gfx1201", memory_bytes=32 << 30)
DETAIL = (
    "prefill_backend", "kv_cache_dtype", "triton_attention_num_kv_splits", "triton_attention_split_tile_size",
    "disable_radix_cache", "decode_cuda_graph", "cuda_graph_max_bs", "use_tensor_cores", "dsa_decode_backend",
    "dsa_prefill_backend", "nsa_decode_backend", "nsa_prefill_backend",
)  # fmt: skip


def layer_of(given: dict[str, Any]) -> Layer:
    """The layer of one rank, from the recorded fields of the model's configuration."""
    dims, tp = given["dims"], given["tp_size"]
    q_heads = max(1, dims["num_attention_heads"] // tp)
    if not given["use_mla"]:
        return Layer(
            q_heads=q_heads,
            kv_heads=max(1, dims["num_key_value_heads"] // tp),
            head_dim=dims.get("head_dim", 128),  # SGLang's choice does not look at it
            head_dim_v=dims.get("v_head_dim"),
            sinks=given["architecture"] == "GptOssForCausalLM",
            window=dims.get("sliding_window"),
            softcap="attn_logit_softcapping" in dims,
        )
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return Layer(
        q_heads=q_heads,
        kv_heads=1,
        head_dim=dims["kv_lora_rank"] + dims["qk_rope_head_dim"],
        mla=MlaDims(**{name: dims[name] for name in names}),
        index_topk=dims.get("index_topk"),
        sparse="index_topk" in dims,
    )


def question_of(given: dict[str, Any]) -> Question:
    """The question of a recorded case."""
    return Question(
        layer=layer_of(given),
        gpu=load_gpu(TABLE[given["device"]]) if given["device"] in TABLE else R9700,
        kv_cache_dtype=given["kv_cache_dtype"],
        page_size=given["page_size"],
        backend=given["attention_backend"],
        settings=SglangSettings(
            architecture=given["architecture"],
            tp_size=given["tp_size"],
            prefill_attention_backend=given["prefill_attention_backend"],
            decode_attention_backend=given["decode_attention_backend"],
            deterministic=given["enable_deterministic_inference"],
            num_kv_splits=given["triton_attention_num_kv_splits"],
            speculative_algorithm=given["speculative_algorithm"],
            speculative_eagle_topk=given["speculative_eagle_topk"],
            flashinfer_installed=given["flashinfer_installed"],
        ),
    )


def as_recorded(answer: Resolution) -> dict[str, Any]:
    """Our answer in the fields of a recording."""
    refused = answer.refused
    if answer.backend is None and refused is not None:
        reason = {"stage": refused.stage, "error": refused.error, "reason": refused.reasons[0]}
        return {"decode_backend": None, "refused": reason}
    out: dict[str, Any] = {
        "decode_backend": answer.backend,
        "refused": None,
        "page_size": answer.page_size,
        **{name: answer.detail[name] for name in DETAIL if name in answer.detail},
    }
    if refused is not None:
        out["start"] = {"class": None, "error": {"error": refused.error, "reason": refused.reasons[0]}}
    else:
        detail = answer.detail
        out["start"] = {"class": detail["backend_class"], "arguments": detail["backend_arguments"], "error": None}
    return out


def test_backend_is_the_servers(case, check):
    """The backends, the page, the cache type, the splits, the graphs and what refuses are the recorded ones."""
    given = case["in"]
    check(case["out"], as_recorded(resolve("sglang", given["version"], question_of(given))), LEFT_OUT)
