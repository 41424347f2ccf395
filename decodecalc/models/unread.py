"""Fields of a configuration that look like attention settings and that nothing here has used.

A setting under a name that is not known would otherwise be left out in silence: a sparse budget would read as full
attention, a second window as none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from decodecalc.models.fields import ALIASES, Fields

# Compiled where they are used: most models have no field that either is asked about.
_LOOKS_LIKE_ATTENTION = (
    r"attn|attention|window|sparse|index|top_?k|budget|(^|_)kv(_|$)|sink|latent|chunk|compress|n_?heads?($|_)|head_dim"
    r"|select|block|lightning|nsa|dsa|(^|_)mla(_|$)|share|local|global|swa|stride|sparsity|cla(_|$)|retriev|evict|heads?$"
)
# Names that say how many keys a query reads, whatever else they speak of (a budget is counted in tokens), and what
# they select where they do not select keys.
_SELECTS_KEYS = r"budget|sparse_att|top_?k|select|retriev|evict|(kv|key|attn|attention)_compress"
_SELECTS_OTHERS = (
    r"expert|router|moe|mtp|nextn|loss|vision|visual|audio|image|video|rope|dropout|norm_|group_method|ffn|mlp|init|^top_?k$"
    r"|group|prob|gating|gate"
)
# What such names are about when they do not change which keys are read: weights, training, experts, positions, other
# towers, other kinds of layers, and switches of an implementation.
_HARMLESS = (
    r"dropout|pdrop|bias|norm|expert|router|moe|mtp|nextn|loss|implementation|rope|rotary|theta|vision|audio|image|video"
    r"|multiplier|scale|scaling|scalar|init|linear|mamba|ssm|conv|alpha|lm_head|dtype|gate|gating|quant|cache_impl"
    r"|output_att|token|softcap|group_method|lora|flash|fused|parallel|checkpoint|type_vocab|embed|vocab|delta|kda|gdn"
    r"|xla|pretrain|_range|d_ff|ffn|mlp|version|train|layernorm|temperature|tuning|float32|fp32|causal|mask|is_global"
    r"|engram|altup|laurel|hc_|tie_|partial|mrope|decoder_|encoder_|cross_attention|time_|summary|log_n"
)
_KNOWN = frozenset(
    (
        "attention_dropout", "topk_group", "topk_method", "norm_topk_prob", "n_group", "top_k", "top_p", "use_cache",
        "return_dict", "use_mqa", "use_sliding_window", "max_window_layers", "attention_window_size", "cache_config",
        "sliding_window_pattern", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim",
        "layer_types", "mla_use_nope", "num_local_heads", "num_nextn_predict_layers", "attention_type", "chunk_size",
        "chunk_size_feed_forward", "attn_config", "attention_types", "architectures", "multi_query", "kv_lora_rank",
        "num_kv_shared_layers", "new_decoder_architecture", "attention_k_eq_v", "attention_chunk_size",
        "global_head_dim",
        "num_global_key_value_heads", "index_topk_freq", "index_source_layer_ids", "compress_ratios", "local_layer_ids",
        "global_attn_idx", "global_attn_every_n_layers", "block_types", "block_configs", "full_attention_interval",
        "use_bidirectional_attention", "block_size_inference", "use_attention_sink", "attn_output_multiplier",
        "index_skip_topk_offset", "index_topk_pattern", "indexer_types", "index_share_for_mtp_iteration",
        "share_expert_dim", "shared_intermediate_size", "shared_layers",
        "block_use_double_wide_mlp", "interleaved_mrope", "no_rope_layer_interval", "no_rope_layers",
    )
)  # fmt: skip


def unread_settings(fields: Fields) -> tuple[str, ...]:
    """Names of the fields that look like settings of attention, are set, and were never read."""
    aliases = {name for names in ALIASES.values() for name in names}
    return tuple(
        name
        for name, value in fields.config.items()
        if name not in fields.read
        and name not in aliases
        and name not in _KNOWN
        and _is_set(value)
        and re.search(_LOOKS_LIKE_ATTENTION, name.lower())
        and not _is_harmless(name.lower())
    )


def _is_harmless(name: str) -> bool:
    if re.search(_SELECTS_KEYS, name):
        return re.search(_SELECTS_OTHERS, name) is not None
    return re.search(_HARMLESS, name) is not None


def _is_set(value: Any) -> bool:
    """Whether a value can switch something on: nothing, no, zero and one empty thing cannot."""
    if isinstance(value, str):
        return False  # a word chooses an implementation or a kind of position; sizes are numbers
    if isinstance(value, (list, tuple, Mapping)):
        return bool(value)
    return value not in (None, False, 0, -1)


def warning_of(names: tuple[str, ...]) -> str:
    """The warning that names the fields."""
    listed = ", ".join(name[:60] for name in names[:8]) + (", …" if len(names) > 8 else "")
    verb = "looks like an attention setting and is" if len(names) == 1 else "look like attention settings and are"
    return (
        f"{listed} {verb} not known here: the layers were read as if {'it' if len(names) == 1 else 'they'} were absent"
    )
