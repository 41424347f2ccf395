"""Head counts and widths, of the whole model and of the layers that differ from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from decodecalc.errors import ModelConfigError
from decodecalc.geometry import MAX_HEAD_DIM, MAX_HEADS
from decodecalc.models.fields import ALIASES, Fields, whole, whole_list
from decodecalc.models.layer_types import FULL, NONE, SLIDING

_FALCON = ("falcon", "RefinedWeb", "RefinedWebModel")


class Heads(NamedTuple):
    """Heads of one layer. `dim` is the width of a cached key and `dim_v` that of a value. With `latent` the cache holds
    one vector of `dim` elements per key (MLA), and the value is a part of it."""

    q: int
    kv: int
    dim: int
    dim_v: int
    latent: bool = False


def model_heads(fields: Fields) -> tuple[Heads, list[str]]:
    """Heads as the model-wide fields state them, and facts worth printing."""
    notes: list[str] = []
    q = _query_heads(fields)
    kv = _kv_heads(fields, q, notes)
    if q % kv:
        raise ModelConfigError(f"{q} query heads are not a multiple of {kv} KV heads")
    dim = _head_dim(fields, q, notes)
    dim_v = fields.count("v_head_dim", low=0, high=MAX_HEAD_DIM) or dim
    return Heads(q, kv, dim, dim_v), notes


def _query_heads(fields: Fields) -> int:
    if fields.model_type == "jetmoe":  # transformers derives it: every KV head serves the chosen experts
        kv, experts = fields.count("kv_heads", high=MAX_HEADS), fields.count("num_experts_per_tok", high=MAX_HEADS)
        if kv and experts:
            return whole("num_attention_heads", kv * experts, 1, MAX_HEADS)
    q = _scalar(fields, "q_heads", "num_attention_heads_per_layer")
    if q is None:
        raise ModelConfigError("no query-head count: num_attention_heads (or n_head, n_heads, …) is missing")
    return q


def _scalar(fields: Fields, concept: str, per_layer: str, default: bool = True) -> int | None:
    """The model-wide count of a concept; where a list gives one per layer, that of the first layer with heads."""
    value = fields.value(concept, quiet=True) if default or fields.is_stated(concept) else None
    if value is None or (fields.raw(per_layer) is not None and not fields.is_stated(concept)):
        value = fields.raw(per_layer)
    elif default and not fields.is_stated(concept):
        value = fields.value(concept)  # records the class default as a warning
    if isinstance(value, (list, tuple)):
        heads = [count for count in whole_list(concept, value, 0, MAX_HEADS) if count]
        if not heads:
            raise ModelConfigError(f"{concept}: no layer has heads")
        return heads[0]
    return None if value is None else whole(ALIASES[concept][0], value, 1, MAX_HEADS)


def _kv_heads(fields: Fields, q: int, notes: list[str]) -> int:
    nested = fields.mapping("attn_config")  # mpt, dbrx
    if nested.get("kv_n_heads") is not None:
        return whole("kv_n_heads", nested["kv_n_heads"], 1, MAX_HEADS)
    if nested.get("attn_type") == "multiquery_attention":
        return 1
    if fields.model_type in _FALCON:
        if fields.flag("new_decoder_architecture"):
            return fields.count("kv_heads", high=MAX_HEADS) or q
        # Old decoder: multi_query alone decides, whatever num_kv_heads says (modeling_falcon.FalconAttention).
        return 1 if fields.flag("multi_query") else q
    if fields.model_type == "gpt_bigcode":
        return 1 if fields.flag("multi_query") else q
    groups = fields.raw("multi_query_group_num")
    if groups is not None and fields.flag("multi_query_attention"):  # ChatGLM
        return whole("multi_query_group_num", groups, 1, MAX_HEADS)
    stated = _scalar(fields, "kv_heads", "num_key_value_heads_per_layer", default=False)
    if stated is not None:
        return stated
    if fields.flag("multi_query") or fields.flag("multi_query_attention"):
        return 1
    shared = fields.raw("n_shared_head")
    if shared is not None:  # PLaMo: query heads per KV head
        return max(1, -(-q // whole("n_shared_head", shared, 1, MAX_HEADS)))
    if fields.raw("block_configs") is not None:
        return q  # replaced by what the blocks say
    default = fields.default("kv_heads", quiet=True)
    if isinstance(default, int) and q % default == 0 and fields.value("kv_heads", quiet=True) is not None:
        fields.value("kv_heads")  # records the warning
        return default
    notes.append("there is no field for KV heads: the model is read as MHA")
    return q


def _head_dim(fields: Fields, q: int, notes: list[str]) -> int:
    if fields.is_stated("q_heads") and not fields.nested and not fields.is_stated("hidden"):
        hidden = None  # a class default for the width does not belong to the model's own heads
    else:
        hidden = fields.count("hidden", quiet=fields.is_stated("head_dim"))
    if fields.model_type in ("zamba", "zamba2") and not fields.is_stated("head_dim"):
        if hidden is None:
            raise ModelConfigError("no hidden_size: cannot tell the head width")
        return _quotient(2 * hidden, q, "2 * hidden_size")  # attention runs on the doubled residual stream
    dim = fields.count("head_dim", high=MAX_HEAD_DIM)
    rope_part = fields.count("qk_rope_head_dim", low=0, high=MAX_HEAD_DIM, quiet=True)
    nope_part = fields.count("qk_nope_head_dim", low=0, high=MAX_HEAD_DIM, quiet=True)
    if rope_part and nope_part:
        return rope_part + nope_part
    if dim is None:
        if hidden is None:
            raise ModelConfigError("no head width: neither head_dim nor hidden_size is there")
        return _quotient(hidden, q, "hidden_size")
    if hidden is not None and dim * q != hidden:
        notes.append(f"head_dim is {dim}, not hidden_size / heads ({hidden} / {q} = {hidden / q:g})")
    return dim


def _quotient(hidden: int, q: int, name: str) -> int:
    if hidden % q:
        raise ModelConfigError(f"head_dim is missing and {name} ({hidden}) is not a multiple of {q} query heads")
    return whole("head_dim", hidden // q, 1, MAX_HEAD_DIM)


def heads_per_layer(fields: Fields, base: Heads, kinds: tuple[str, ...]) -> list[Heads]:
    """Heads of every layer: `base`, with every exception that the configuration makes."""
    layers = [base] * len(kinds)
    for rule in (_other_sliding_heads, _global_heads, _listed_heads, _per_layer_config):
        layers = rule(fields, layers, kinds)
    for index, (heads, kind) in enumerate(zip(layers, kinds, strict=True)):
        if kind != NONE and heads.q % heads.kv:
            raise ModelConfigError(f"layer {index}: {heads.q} query heads are not a multiple of {heads.kv} KV heads")
    return layers


def _other_sliding_heads(fields: Fields, layers: list[Heads], kinds: tuple[str, ...]) -> list[Heads]:
    """Gives sliding layers their own heads: MiMo-V2 (`swa_*`) and Step-3 (`attention_other_setting`)."""
    other = fields.mapping("attention_other_setting")
    if other and other.get("attention_type", "sliding_attention") != "sliding_attention":
        raise ModelConfigError(f"attention_other_setting has an unknown type {other['attention_type']!r:.60}")
    base = layers[0]
    changed = _overridden(base, other)
    q = fields.raw("num_sliding_attention_heads")
    if q is not None:
        changed = changed._replace(q=whole("num_sliding_attention_heads", q, 1, MAX_HEADS))
    own = {name: fields.value(f"swa_{name}", quiet=True) for name in _OVERRIDES}
    changed = _overridden(changed, {name: value for name, value in own.items() if value is not None})
    return [changed if kind == SLIDING else heads for heads, kind in zip(layers, kinds, strict=True)]


def _global_heads(fields: Fields, layers: list[Heads], kinds: tuple[str, ...]) -> list[Heads]:
    """Gives full layers of Gemma-4 their wider heads, and fewer KV heads where the configuration states them."""
    gemma = fields.model_type.startswith(("gemma4", "diffusion_gemma", "embedding_gemma2"))
    dim = fields.raw("global_head_dim")
    if (dim is None and not gemma) or fields.raw("per_layer_config") is not None:
        return layers
    dim = 512 if dim is None else whole("global_head_dim", dim, 1, MAX_HEAD_DIM)
    kv = fields.raw("num_global_key_value_heads")
    if fields.raw("attention_k_eq_v") is False:
        kv = None  # transformers: the KV-head override belongs to layers whose value is their key
    out = []
    for heads, kind in zip(layers, kinds, strict=True):
        if kind == FULL:
            kv_here = heads.kv if kv is None else whole("num_global_key_value_heads", kv, 1, MAX_HEADS)
            heads = heads._replace(dim=dim, dim_v=dim, kv=kv_here)
        out.append(heads)
    return out


def _listed_heads(fields: Fields, layers: list[Heads], kinds: tuple[str, ...]) -> list[Heads]:
    """Reads one count for each layer: OpenELM, DeciLM, Laguna."""
    for name, slot in (
        ("num_query_heads", "q"),
        ("num_attention_heads", "q"),
        ("num_attention_heads_per_layer", "q"),
        ("num_kv_heads", "kv"),
        ("num_key_value_heads", "kv"),
        ("num_key_value_heads_per_layer", "kv"),
    ):
        values = fields.raw(name)
        if not isinstance(values, (list, tuple)):
            continue
        counts = whole_list(name, values, 0, MAX_HEADS)
        if len(counts) < len(layers):
            raise ModelConfigError(f"{name} has {len(counts)} entries for {len(layers)} layers")
        if any(count < 1 and kind != NONE for count, kind in zip(counts, kinds, strict=False)):
            raise ModelConfigError(f"{name} must be positive in every attention layer")
        chosen = [max(1, count) for count in counts[: len(layers)]]
        if slot == "q":
            layers = [heads._replace(q=count) for heads, count in zip(layers, chosen, strict=True)]
        else:
            layers = [heads._replace(kv=count) for heads, count in zip(layers, chosen, strict=True)]
    return layers


def _per_layer_config(fields: Fields, layers: list[Heads], kinds: tuple[str, ...]) -> list[Heads]:
    """Applies `per_layer_config` of transformers: overrides keyed by layer index."""
    out = list(layers)
    for index, values in layer_overrides(fields, len(layers)).items():
        out[index] = _overridden(out[index], values)
    return out


def layer_overrides(fields: Fields, layers: int) -> dict[int, Mapping[str, Any]]:
    """`per_layer_config` with its keys as indices."""
    found: dict[int, Mapping[str, Any]] = {}
    for key, values in fields.mapping("per_layer_config").items():
        text = str(key)
        if not text.isdecimal() or len(text) > 6 or int(text) >= layers or not isinstance(values, Mapping):
            raise ModelConfigError(f"per_layer_config entry {text[:40]!r} is not an object of one of {layers} layers")
        found[int(text)] = values
    return found


_OVERRIDES = {
    "num_attention_heads": ("q", MAX_HEADS),
    "num_key_value_heads": ("kv", MAX_HEADS),
    "num_attention_groups": ("kv", MAX_HEADS),
    "head_dim": ("dim", MAX_HEAD_DIM),
    "v_head_dim": ("dim_v", MAX_HEAD_DIM),
}


def _overridden(heads: Heads, values: Mapping[str, Any]) -> Heads:
    """`heads` with the fields that `values` states; a value is as wide as its key unless it says otherwise."""
    changes: dict[str, int] = {}
    for name, (slot, high) in _OVERRIDES.items():
        if values.get(name) is not None:
            changes[slot] = whole(name, values[name], 1, high)
    if "dim" in changes and "dim_v" not in changes and heads.dim_v == heads.dim:
        changes["dim_v"] = changes["dim"]
    return Heads(
        q=changes.get("q", heads.q),
        kv=changes.get("kv", heads.kv),
        dim=changes.get("dim", heads.dim),
        dim_v=changes.get("dim_v", heads.dim_v),
        latent=heads.latent,
    )
