"""Rows and columns of `models`."""

from __future__ import annotations

from typing import Any

from decodecalc.kvcache import KvCache
from decodecalc.models import load_model, zoo_entries
from decodecalc.sanity import replication_lines
from decodecalc.tables.table import Column, Table

SPARSE_NOTES = (
    "topk is the number of cache entries that a query token reads from a list. compress ratio is the number of tokens "
    "that one entry of the list stands for.",
    "indexer gives the indexer's query heads x the elements of an index key. The indexer reads every index key of the "
    "sequence to make the list.",
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
    return Table("models", {}, rows, columns, notes=["The heads are those of the first layer group, before sharding."])


def model_table(spec: str, tp: int) -> Table:
    """One row per layer group of one rank."""
    model = load_model(spec)
    rank = model.shard(tp)
    bf16 = KvCache()
    declared = KvCache(model.kv_dtype) if model.kv_dtype else bf16
    rows: list[dict[str, Any]] = []
    for whole, group in zip(model.layer_groups, rank.layer_groups, strict=True):
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
                "stored_layers": model.stored_layers(whole),
                "kv_replicas": model.replicas(whole, tp),
            }
        )
    longest = f"; longest context {model.max_position}" if model.max_position else ""
    heading = [
        f"{model.name} ({model.model_type}): {model.total_layers} layers, {model.attention_layers} softmax attention"
        + longest,
        f"valid tp: {', '.join(map(str, model.valid_tp()))}; the table shows one rank at tp {tp}",
        f"source: {model.source}",
    ]
    notes = [f"warning: {w}" for w in model.warnings] + list(model.notes)
    stored = None
    if not any(row["compress_ratio"] for row in rows):
        stored = sum(row["stored_layers"] * row["kv_elements_per_key"] for row in rows) * declared.element_bytes
        read = sum(row["layers"] * row["kv_elements_per_key"] for row in rows) * declared.element_bytes
        sharing = sum(row["layers"] - row["stored_layers"] for row in rows)
        notes.append(
            f"KV cache of one token on this rank ({declared.dtype}"
            f"{', as the checkpoint declares' if model.kv_dtype else ''}): {stored:.0f} B are stored over all layers"
            + (f"; all layers read {read:.0f} B, since {sharing} of them read what others store" if sharing else "")
            + (", index keys not counted" if any(row["indexer"] for row in rows) else "")
        )
    notes += replication_lines(model, tp)
    if any(group.geometry.gather for group in rank.layer_groups):
        notes += list(SPARSE_NOTES)
    columns = [
        Column(k, k.replace("_", " "), align="left" if k in ("layer_group", "kind") else "right") for k in rows[0]
    ]
    inputs = {
        "model": model.name,
        "tp": tp,
        "valid_tp": model.valid_tp(),
        "max_position": model.max_position,
        "kv_dtype": model.kv_dtype,
        "stored_bytes_per_token": stored,
        "warnings": list(model.warnings),
    }
    return Table("models", inputs, rows, columns, heading, notes)
