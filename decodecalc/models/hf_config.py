"""Reads a Hugging Face config.json as a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from decodecalc.errors import DecodecalcError, InputError, ModelConfigError
from decodecalc.geometry import Gather, Geometry
from decodecalc.models.blocks import block_layers
from decodecalc.models.declared import declared_kv_dtype
from decodecalc.models.fields import MAX_LAYERS, Fields, whole
from decodecalc.models.heads import Heads, heads_per_layer, layer_overrides, model_heads
from decodecalc.models.latent import compressed_plan, is_compressed, latent_heads
from decodecalc.models.layer_types import CHUNKED, FULL, NONE, SLIDING, SPARSE, LayerPlan, layer_count, plan_layers
from decodecalc.models.model import LayerGroup, Model
from decodecalc.models.sparse import compressed_gather, gather_of, unknown_budget
from decodecalc.models.text_config import text_fields
from decodecalc.models.unread import unread_settings, warning_of
from decodecalc.models.weights import states_of, weights_of
from decodecalc.models.windows import plan_windows

# The rules here would give these models the wrong decode geometry, so they are refused and never guessed.
_UNSUPPORTED = {
    "dots3_note_text": "its sliding layers use MLA of another rank",
    "phi4flash": "its second half reads the cache of one layer",
    "reformer": "its attention is hashed",
    "blt": "it has several decoders",
}


def model_from_config(config: Mapping[str, Any], name: str | None = None, source: str = "config") -> Model:
    """The model that `config` (the content of a config.json) describes.

    Raises ModelConfigError, with the field at fault, for anything that cannot be read or planned.
    """
    try:
        return _build(config, name, source)
    except ModelConfigError as error:
        raise ModelConfigError(f"{source}: {error}") from None
    except InputError as error:  # the geometry's own checks
        raise ModelConfigError(f"{source}: {error}") from None
    except DecodecalcError:
        raise
    except RecursionError:
        raise ModelConfigError(f"{source}: nests too deeply for a config.json") from None


class _Layer(NamedTuple):
    """One attention layer, as grouping sees it."""

    kind: str
    heads: Heads
    window: int | None = None
    chunk: int | None = None
    gather: Gather | None = None


def _build(config: Mapping[str, Any], name: str | None, source: str) -> Model:
    if not all(isinstance(key, str) for key in config):
        raise ModelConfigError("the keys of a configuration must be words")
    fields = text_fields(config)
    reason = _UNSUPPORTED.get(fields.model_type)
    if reason is not None:
        raise ModelConfigError(f"{fields.model_type} is not supported: {reason}")
    layers, words, notes = _layers(fields)
    sinks = _sink_kinds(fields)
    if sinks:
        notes.append("the layers have attention sinks (one logit for each query head)")
    if fields.model_type == "longcat_flash":
        notes.append("every layer runs attention twice: layer groups count both")
        groups = _group([layer for layer in layers for _ in range(2)], sinks, None, per_layer=2)
    else:
        groups = _group(layers, sinks, fields.number("attn_logit_softcapping"))
    if not groups:
        raise ModelConfigError(
            f"{fields.model_type} has no decoder softmax attention: none of its {len(layers)} layers runs it"
        )
    if fields.raw("blocksparse_block_size") is not None:
        fields.warnings.append("block-sparse layers are counted as full attention: they read fewer keys than shown")
    if fields.raw("index_source_layer_ids") or (fields.raw("index_topk_freq") or 1) != 1:
        notes.append("several layers share the list of one indexer: its reads are still counted in every layer")
    shared, shared_layers = fields.raw("num_kv_shared_layers"), frozenset[int]()
    if shared:
        count = whole("num_kv_shared_layers", shared, 0, MAX_LAYERS)
        notes.append(f"the last {count} layers read the cache of earlier layers: they store no keys of their own")
        shared_layers = frozenset(range(max(len(layers) - count, 0), len(layers)))
    if not any(group.geometry.gather for group in groups):
        fields.read.discard("sparse_attention_config")  # looked into, and nothing in it was known
    if fields.raw("attention_chunk_size") and not any(group.chunk for group in groups):
        notes.append(f"attention_chunk_size is ignored: {fields.model_type} has no chunked layers here")
    kv_dtype, unknown_kv = declared_kv_dtype(fields, config)
    fields.warnings += [unknown_kv] if unknown_kv else []
    unread = unread_settings(fields)
    fields.warnings += [warning_of(unread)] if unread else []
    return Model(
        name=name or _own_name(config) or fields.model_type,
        model_type=fields.model_type,
        total_layers=len(layers),
        layer_groups=groups,
        kv_heads=_model_wide_kv_heads(fields, groups),
        max_position=fields.count("max_position", quiet=True),
        source=source,
        warnings=tuple(dict.fromkeys(fields.warnings)),
        notes=tuple(dict.fromkeys(notes)),
        layer_types=words,
        weights=weights_of(fields, words, groups),
        states=states_of(fields, words),
        hidden_size=fields.count("hidden", quiet=True),
        shared_layers=shared_layers,
        kv_dtype=kv_dtype,
    )


def _layers(fields: Fields) -> tuple[list[_Layer | None], tuple[str, ...], list[str]]:
    """Every layer in order (None where it runs no softmax attention), the word that the configuration uses for it, and
    notes."""
    if is_compressed(fields):
        return _compressed_layers(fields)
    latent = latent_heads(fields)
    base, notes = (latent, []) if latent is not None else model_heads(fields)
    blocks = block_layers(fields, base)
    if blocks is not None:
        if fields.raw("num_key_value_heads") is None:
            notes.append("num_key_value_heads is null: the heads come from block_configs")
        found = [None if kind == NONE else _Layer(kind, heads, window) for kind, heads, window in blocks]
        return found, tuple("no_op" if layer is None else f"{layer.kind}_attention" for layer in found), notes
    plan = _plan_with_cross_attention(fields, notes)
    windowed = plan_windows(fields, plan)
    plan = windowed.plan
    heads = heads_per_layer(fields, base, plan.kinds) if latent is None else [base] * len(plan.kinds)
    overrides = layer_overrides(fields, len(plan.kinds))
    layers: list[_Layer | None] = []
    for index, kind in enumerate(plan.kinds):
        window = overrides.get(index, {}).get("sliding_window", windowed.windows[index])
        if kind == SLIDING and window is None:
            kind = FULL
        window = whole("sliding_window", window) if kind == SLIDING else None
        layers.append(None if kind == NONE else _layer(fields, kind, plan.words[index], heads[index], window))
    if latent is not None and fields.model_type == "minicpm3":
        notes.append("the geometry is the cached latent; vLLM 0.33 runs this model as 40-head attention, expanded")
    if latent is not None and fields.mapping("linear_attn_config"):
        notes.append("the model mixes KDA and MLA layers: only those in full_attn_layers run MLA")
    return layers, plan.words, [*notes, *plan.notes, *windowed.notes]


def _plan_with_cross_attention(fields: Fields, notes: list[str]) -> LayerPlan:
    plan = plan_layers(fields)
    cross = fields.counts("cross_attention_layers", 0, MAX_LAYERS)
    if cross is None:
        return plan
    chosen = set(cross)
    notes.append(f"{len(chosen)} cross-attention layers read image keys only and are not counted as decode attention")
    kinds = tuple(NONE if i in chosen else kind for i, kind in enumerate(plan.kinds))
    words = tuple("cross_attention" if i in chosen else word for i, word in enumerate(plan.words))
    return plan._replace(kinds=kinds, words=words)


def _layer(fields: Fields, kind: str, word: str, heads: Heads, window: int | None) -> _Layer:
    chunk = fields.count("attention_chunk_size") if kind == CHUNKED else None
    gather = None
    if kind == SPARSE or (kind == FULL and (heads.latent or fields.raw("indexer_budget") is not None)):
        gather = gather_of(fields)
        if kind == SPARSE and gather is None:
            fields.warnings.append(unknown_budget(fields, {word}))
    return _Layer(SPARSE if gather else kind, heads, window, chunk, gather)


def _compressed_layers(fields: Fields) -> tuple[list[_Layer | None], tuple[str, ...], list[str]]:
    plan = compressed_plan(fields, layer_count(fields))
    layers: list[_Layer | None] = []
    words = []
    for ratio in plan.ratios:
        if not ratio:
            layers.append(_Layer(SLIDING, plan.heads, plan.window))
            words.append("sliding_attention")
            continue
        gather = compressed_gather(fields, ratio, plan.window, plan.topk)
        layers.append(_Layer(f"compressed-{ratio}", plan.heads, gather=gather))
        words.append("compressed_sparse_attention" if gather.topk else "heavily_compressed_attention")
    note = (
        f"head_dim {plan.heads.dim} is the width of the shared latent (K and V are one tensor); "
        f"compress_ratios, window {plan.window} and index_topk apply layer by layer"
    )
    return layers, tuple(words), [note]


def _group(
    layers: list[_Layer | None], sinks: frozenset[str], softcap: float | None, per_layer: int = 1
) -> tuple[LayerGroup, ...]:
    """Attention layers that share a geometry, in order of first appearance. `per_layer` entries of `layers` belong to
    one layer of the model."""
    members: dict[_Layer, list[int]] = {}
    for index, layer in enumerate(layers):
        if layer is not None:
            members.setdefault(layer, []).append(index // per_layer)
    groups = []
    for layer, indices in members.items():
        heads = layer.heads
        geometry = Geometry(
            q_heads=heads.q,
            kv_heads=heads.kv,
            head_dim=heads.dim,
            head_dim_v=heads.dim_v,
            window=layer.window,
            sinks=layer.kind in sinks,
            mla=heads.latent,
            softcap=softcap,
            gather=layer.gather,
        )
        groups.append(
            LayerGroup(
                name=_group_name(layer, list(members), len(layers)),
                layers=len(indices),
                geometry=geometry,
                chunk=layer.chunk,
                layer_indices=tuple(indices),
            )
        )
    return tuple(groups)


def _group_name(layer: _Layer, distinct: list[_Layer], total: int) -> str:
    """The kind of the layers, followed by their heads where several groups share it; `all` for a model with one kind of
    full layer."""
    if len(distinct) == 1 and layer.kind == FULL:
        return "all"
    same = [other for other in distinct if other.kind == layer.kind]
    if len(same) == 1:
        return layer.kind
    label = f"{layer.kind}-q{layer.heads.q}-kv{layer.heads.kv}"
    if len({other.heads.dim for other in same}) > 1:
        label += f"-d{layer.heads.dim}"
    if len({other.window for other in same}) > 1:
        label += f"-w{layer.window}"
    return label


# Switches that add one learned logit per query head in every layer, under the names in use.
_LEARNED_SINKS = (
    "learnable_sink",
    "learned_sink",
    "use_attention_sink",
    "use_attention_sinks",
    "attention_sinks",
    "attn_sinks",
)


def _sink_kinds(fields: Fields) -> frozenset[str]:
    """Kinds of layers whose softmax has a learned sink per query head."""
    if fields.model_type == "gpt_oss":
        return frozenset((FULL, SLIDING))
    if any(fields.raw(name) is True for name in _LEARNED_SINKS):
        return frozenset((FULL, SLIDING, SPARSE, CHUNKED))
    kinds = []
    if fields.flag("add_full_attention_sink_bias"):  # MiMo-V2
        kinds.append(FULL)
    if fields.flag("add_swa_attention_sink_bias"):
        kinds.append(SLIDING)
    return frozenset(kinds)


def _model_wide_kv_heads(fields: Fields, groups: tuple[LayerGroup, ...]) -> int:
    stated = fields.raw("num_key_value_heads")
    if groups[0].geometry.mla:
        return 1
    if isinstance(stated, int) and fields.raw("block_configs") is None:
        return stated
    if fields.raw("block_configs") is not None:
        return groups[0].geometry.kv_heads
    return max(group.geometry.kv_heads for group in groups)


def _own_name(config: Mapping[str, Any]) -> str | None:
    name = config.get("_name_or_path")
    return name[:200] if isinstance(name, str) and name else None
