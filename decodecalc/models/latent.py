"""Attention whose cache holds one latent vector per key instead of keys and values (MLA, DeepSeek-V4)."""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.errors import ModelConfigError
from decodecalc.geometry import MAX_HEAD_DIM, MAX_HEADS
from decodecalc.models.fields import Fields, whole
from decodecalc.models.heads import Heads

# Compression rates of DeepSeek-V4's layer types (transformers 5.24.0, configuration_deepseek_v4.py).
_V4_RATES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def latent_heads(fields: Fields) -> Heads | None:
    """MLA heads when the configuration has a KV rank; None when it has none.

    The cached latent is `kv_lora_rank` wide plus the `qk_rope_head_dim` elements of the shared rotary key. The value is
    its first `kv_lora_rank` elements, because weights are absorbed (vLLM 0.33 `v1/attention/backends/mla`).
    """
    if fields.raw("use_mla") is False:
        return None
    rank = fields.count("kv_lora_rank", low=0, high=MAX_HEAD_DIM)
    if not rank:
        return None
    q = fields.count("q_heads", high=MAX_HEADS)
    if q is None:
        raise ModelConfigError("no query-head count: num_attention_heads is missing")
    rope = fields.count("qk_rope_head_dim", low=0, high=MAX_HEAD_DIM)
    if rope is None:
        raise ModelConfigError("kv_lora_rank without qk_rope_head_dim: cannot tell the width of the latent")
    return Heads(q, 1, whole("kv_lora_rank + qk_rope_head_dim", rank + rope, 1, MAX_HEAD_DIM), rank, latent=True)


class CompressedPlan(NamedTuple):
    """Attention of DeepSeek-V4: every layer sees a window of plain entries, and layers with a ratio also see one
    compressed entry for every `ratios[i]` tokens. An indexer keeps `topk` of the finely compressed entries."""

    heads: Heads
    window: int
    ratios: tuple[int, ...]
    topk: int | None


def is_compressed(fields: Fields) -> bool:
    """Whether the configuration has the compressed attention of DeepSeek-V4."""
    return fields.model_type == "deepseek_v4" or fields.raw("compress_ratios") is not None


def compressed_plan(fields: Fields, layers: int) -> CompressedPlan:
    """Heads, window and compression ratio of each of the `layers` layers."""
    q = fields.count("q_heads", high=MAX_HEADS)
    dim = fields.count("head_dim", high=MAX_HEAD_DIM)
    window = fields.count("window")
    if q is None or dim is None or window is None:
        raise ModelConfigError("compressed attention needs num_attention_heads, head_dim and sliding_window")
    ratios = fields.counts("compress_ratios", 0, 1 << 20)
    words = fields.words("layer_types")
    if ratios is None and words is not None:
        unknown = set(words) - set(_V4_RATES)
        if unknown:
            raise ModelConfigError(f"layer type {min(unknown)[:60]!r} is not one of {', '.join(_V4_RATES)}")
        ratios = [_V4_RATES[word] for word in words]
    if ratios is None:  # the class default: two heavily compressed layers, then alternating
        ratios = [128 if i < 2 or i % 2 == 0 else 4 for i in range(layers)]
        fields.warnings.append("compress_ratios is not in the configuration: used the class default pattern")
    if len(ratios) < layers:
        raise ModelConfigError(f"compress_ratios has {len(ratios)} entries for {layers} layers")
    heads = Heads(q, 1, dim, dim, latent=True)
    return CompressedPlan(heads, window, tuple(ratios[:layers]), fields.count("index_topk"))
