"""Rows and columns of `models`."""

from __future__ import annotations

from decodecalc.kvcache import KvCache
from decodecalc.models import load_model, zoo_entries
from decodecalc.tables.table import Column, Table

SPARSE_NOTES = (
    "topk: cache entries that a query token reads by a list; compress ratio: tokens behind one entry of that list",
    "indexer: query heads x width of an index key; every index key of the sequence is read to make the list",
)


def zoo_table() -> Table:
    """One row per model of the zoo."""
    rows = []
    for entry in zoo_entries():
        model = load_model(entry.name)
        shown = model.layer_groups[0].geometry
        rows.append(
            {
                "name": entry.name,
                "kind": model.kind,
                "layers": model.total_layers,
                "attention_layers": model.attention_layers,
                "layer_groups": len(model.layer_groups),
                "q_heads": shown.q_heads,
                "kv_heads": shown.kv_heads,
                "head_dim": shown.head_dim,
                "valid_tp": model.valid_tp(),
                "source": model.source,
            }
        )
    columns = [
        Column("name", "name", align="left"),
        Column("kind", "kind", align="left"),
        *(Column(k, k.replace("_", " ")) for k in ("layers", "attention_layers", "q_heads", "kv_heads", "head_dim")),
        Column("valid_tp", "valid tp", align="left"),
    ]
    return Table("models", {}, rows, columns, notes=["heads are those of the first layer group; before sharding"])


def model_table(spec: str, tp: int) -> Table:
    """One row per layer group of one rank."""
    model = load_model(spec)
    rank = model.shard(tp)
    bf16 = KvCache()
    rows = []
    for group in rank.layer_groups:
        geometry, gather = group.geometry, group.geometry.gather
        indexer = None if gather is None else gather.indexer
        rows.append(
            {
                "layer_group": group.name,
                "layers": group.layers,
                "kind": geometry.kind,
                "q_heads": geometry.q_heads,
                "kv_heads": geometry.kv_heads,
                "group": geometry.group,
                "head_dim": geometry.head_dim,
                "head_dim_v": geometry.v_dim,
                "window": geometry.window if gather is None else gather.window,
                "chunk": group.chunk,
                "topk": group.topk,
                "compress_ratio": group.compress_ratio,
                "indexer": None if indexer is None else f"{indexer.heads}x{indexer.head_dim}",
                "sinks": geometry.sinks,
                "kv_elements_per_key": geometry.kv_elements_per_key,
                "kv_bytes_per_key_bf16": bf16.bytes_per_key(geometry),
            }
        )
    heading = [
        f"{model.name} ({model.model_type}): {model.total_layers} layers, {model.attention_layers} softmax attention",
        f"valid tp: {', '.join(map(str, model.valid_tp()))}; shown: one rank at tp {tp}",
        f"source: {model.source}",
    ]
    notes = [f"warning: {w}" for w in model.warnings] + list(model.notes)
    if any(group.geometry.gather for group in rank.layer_groups):
        notes += list(SPARSE_NOTES)
    columns = [
        Column(k, k.replace("_", " "), align="left" if k in ("layer_group", "kind") else "right") for k in rows[0]
    ]
    inputs = {"model": model.name, "tp": tp, "valid_tp": model.valid_tp(), "warnings": list(model.warnings)}
    return Table("models", inputs, rows, columns, heading, notes)
