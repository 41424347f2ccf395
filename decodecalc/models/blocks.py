"""Nemotron-NAS (Puzzle) models: `block_configs` describes every layer on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.errors import ModelConfigError
from decodecalc.geometry import MAX_HEADS
from decodecalc.models.fields import MAX_LAYERS, Fields, whole
from decodecalc.models.heads import Heads
from decodecalc.models.layer_types import FULL, NONE, SLIDING


def block_layers(fields: Fields, base: Heads) -> list[tuple[str, Heads, int | None]] | None:
    """(kind, heads, window) per layer, or None when there are no block configurations.

    A block with `no_op`, `replace_with_linear` or a Mamba mixer runs no attention; `n_heads_in_group` is the
    number of query heads per KV head (vLLM 0.33 `model_executor/models/nemotron_nas.py`).
    """
    blocks = fields.raw("block_configs")
    if blocks is None:
        return None
    if not isinstance(blocks, (list, tuple)) or not 1 <= len(blocks) <= MAX_LAYERS:
        raise ModelConfigError(f"block_configs must be a list of 1 to {MAX_LAYERS} objects, not {blocks!r:.60}")
    layers = fields.count("layers", high=MAX_LAYERS)
    if layers is not None and layers > len(blocks):
        raise ModelConfigError(f"block_configs has {len(blocks)} entries for {layers} layers")
    return [_layer(index, block, base) for index, block in enumerate(blocks[:layers])]


def _layer(index: int, block: Any, base: Heads) -> tuple[str, Heads, int | None]:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping):
        raise ModelConfigError(f"block_configs[{index}] has no attention object")
    if attention.get("no_op") or attention.get("replace_with_linear") or attention.get("mamba"):
        return NONE, base, None
    heads, where = base, f"block_configs[{index}].attention"
    if attention.get("n_heads_in_group") is not None:
        group = whole(f"{where}.n_heads_in_group", attention["n_heads_in_group"], 1, MAX_HEADS)
        if base.q % group:
            raise ModelConfigError(f"{where}: {base.q} query heads are not a multiple of groups of {group}")
        heads = base._replace(kv=base.q // group)
    elif attention.get("num_key_value_heads") is not None:
        heads = base._replace(kv=whole(f"{where}.num_key_value_heads", attention["num_key_value_heads"], 1, MAX_HEADS))
    if heads.q % heads.kv:
        raise ModelConfigError(f"{where}: {heads.q} query heads are not a multiple of {heads.kv} KV heads")
    window = attention.get("window_length") or attention.get("sliding_window")
    if window is None:
        return FULL, heads, None
    return SLIDING, heads, whole(f"{where}.window_length", window)
