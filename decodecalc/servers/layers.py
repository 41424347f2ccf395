"""Questions from a model's layers: the door for the rest of the product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache
from decodecalc.models import LayerGroup, Model, RankModel
from decodecalc.servers.question import Layer, MlaDims, Question, SglangSettings, VllmSettings
from decodecalc.servers.registry import resolve
from decodecalc.servers.resolution import Resolution

_SETTINGS: dict[str, type[VllmSettings] | type[SglangSettings]] = {"vllm": VllmSettings, "sglang": SglangSettings}
# Our cache types in each server's words; one that is missing is given in the server's own.
_KV_WORDS = {
    "vllm": {"fp8": "fp8", "nvfp4": "nvfp4", "int8": "int8_per_token_head", "int4": "int4_per_token_head"},
    "sglang": {"fp8": "fp8_e4m3", "nvfp4": "fp4_e2m1"},
}
_HALF = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# The first of a configuration's `architectures`, for the model types whose architecture SGLang looks at.
_ARCHITECTURES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "exaone4": "Exaone4ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
}


def architecture_of(model: Model) -> str | None:
    """The architecture that SGLang looks at, by the model's type; None where its rules ask for none."""
    return _ARCHITECTURES.get(model.model_type.removesuffix("_text"))


def settings_of(server: str, values: Mapping[str, Any]) -> VllmSettings | SglangSettings | None:
    """A server's settings from names and values. UnknownNameError names the nearest setting."""
    kind = _SETTINGS.get(server)
    known = {f.name for f in fields(kind)} if kind else set()
    for name in values:
        if name not in known:
            raise UnknownNameError(f"setting of {server}", name, known or {"(none)"})
    return kind(**values) if kind else None


def settings_of_model(server: str, model: Model) -> dict[str, Any]:
    """What a server's settings take from the model: its architecture, where the server's rules look at it."""
    kind = _SETTINGS.get(server)
    asks = kind is not None and any(f.name == "architecture" for f in fields(kind))
    return {"architecture": architecture_of(model)} if asks else {}


def kv_words(server: str, kv: KvCache | str | None, dtype: str = "bfloat16") -> str:
    """A cache type as `--kv-cache-dtype` spells it; `auto` where the cache has the model's own type."""
    if kv is None:
        return "auto"
    if isinstance(kv, str):
        return kv
    half = _HALF.get(kv.dtype)
    if half is not None:
        if half == dtype:
            return "auto"
        return kv.dtype if server == "sglang" else half
    word = _KV_WORDS.get(server, {}).get(kv.dtype)
    if word is None and server in _KV_WORDS:
        raise InputError(f"{server} has no cache of type {kv.dtype}: give one of its own words")
    return word or kv.dtype


def layer_of(
    group: LayerGroup, *, dtype: str = "bfloat16", mla_dims: MlaDims | None = None, state_bytes: int | None = None
) -> Layer:
    """A layer group as servers see it.

    mla_dims: the latent's widths; where they are not given, the key's part without rotary embedding and the value are
    128 wide, as in DeepSeek's models. InputError for layers whose cache is compressed along the sequence, which have
    backends of their own.
    """
    if group.compress_ratio is not None:
        raise InputError(f"layers {group.name!r} keep a compressed cache, whose backends are not known here")
    geo = group.geometry
    if geo.mla and mla_dims is None:
        mla_dims = MlaDims(
            kv_lora_rank=geo.v_dim, qk_rope_head_dim=geo.head_dim - geo.v_dim, qk_nope_head_dim=128, v_head_dim=128
        )
    ranks = 1 if geo.share is None else geo.share.ranks
    return Layer(
        q_heads=geo.q_heads // ranks,
        kv_heads=geo.kv_heads,
        head_dim=geo.head_dim,
        head_dim_v=None if geo.mla else geo.v_dim,
        mla=mla_dims if geo.mla else None,
        index_topk=group.topk,
        sparse=group.topk is not None,
        sinks=geo.sinks,
        window=geo.window,
        softcap=geo.softcap is not None,
        dtype=dtype,
        state_bytes=state_bytes,
        context_ranks=ranks,
    )


def question_of(
    server: str,
    group: LayerGroup,
    gpu: Gpu,
    kv: KvCache | str | None = None,
    *,
    dtype: str = "bfloat16",
    page_size: int | None = None,
    backend: str | None = None,
    mla_dims: MlaDims | None = None,
    state_bytes: int | None = None,
    **settings: Any,
) -> Question:
    """The question about one layer group. page_size and backend: only what the user gave. settings: fields of the
    server's settings. Errors: InputError, UnknownNameError."""
    layer = layer_of(group, dtype=dtype, mla_dims=mla_dims, state_bytes=state_bytes)
    return Question(
        layer=layer,
        gpu=gpu,
        kv_cache_dtype=kv_words(server, kv, layer.dtype),
        page_size=page_size,
        backend=backend,
        settings=settings_of(server, settings),
    )


def resolve_layers(
    server: str, version: str | None, rank: RankModel, gpu: Gpu, kv: KvCache | str | None = None, **settings: Any
) -> tuple[tuple[LayerGroup, Resolution], ...]:
    """The server's answer for every layer group of a rank, in the model's order (keywords as in `question_of`).

    For SGLang give `architecture=architecture_of(model)`: several architectures have defaults of their own.
    """
    name = server.strip().lower()
    if name == "sglang":
        settings = {"tp_size": rank.tp, **settings}
    return tuple(
        (group, resolve(name, version, question_of(name, group, gpu, kv, **settings))) for group in rank.layer_groups
    )
