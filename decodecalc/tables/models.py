"""Rows and columns of `models`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decodecalc.kvcache import KvCache
from decodecalc.models import load_model, zoo_entries
from decodecalc.models.zoo import ZooEntry, find_entry, matching_entries
from decodecalc.sanity import replication_lines
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import sentence
from decodecalc.units import counted, listed


def named_table(spec: str, tp: int) -> Table:
    """The layers of the model that `spec` names, or the models of the zoo whose names hold it."""
    if find_entry(spec) is None and "/" not in spec and not Path(spec).exists():
        found = matching_entries(spec)
        if found:
            return zoo_table(found, spec)
    return model_table(spec, tp)


def zoo_table(entries: Sequence[ZooEntry] | None = None, matching: str | None = None) -> Table:
    """One row per model: of `entries`, whose names hold `matching`, or of the whole zoo."""
    rows = []
    for entry in zoo_entries() if entries is None else entries:
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
                "repo": entry.repo,
            }
        )
    columns = [
        Column("name", "name", align="left", rank=0),
        Column("repo", "hub id", align="left", rank=0),
        Column("kind", "kind", align="left"),
        Column("layers", "layers", rank=2),
        Column("attention_layers", "attention layers"),
        Column("q_heads", "query heads"),
        Column("kv_heads", "KV heads"),
        Column("head_dim", "head dim"),
        Column("valid_tp", "valid TP", align="left", rank=2),
    ]
    known = f"{counted(len(rows), 'model')} {'is' if len(rows) == 1 else 'are'} known by name"
    answer = f"{known}." if matching is None else f"{known} with {matching!r} in the name or the hub id."
    notes = [
        "`decodecalc models NAME` shows the layers of one model. Any other model works by the path of its config.json.",
        "The heads are those of the first layer group, before sharding.",
    ]
    inputs = {} if matching is None else {"matching": matching}
    return Table("models", inputs, rows, columns, notes=notes, answer=answer)


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
        f"valid TP: {', '.join(map(str, model.valid_tp()))}; the table shows one rank at TP {tp}{longest}",
        f"source: {model.source}",
    ]
    notes = [f"warning: {w}" for w in model.warnings] + list(model.notes)
    stored = read = None
    dtype = declared.dtype + (", as the checkpoint declares" if model.kv_dtype else "")
    if not any(row["compress_ratio"] for row in rows):
        stored = sum(row["stored_layers"] * row["kv_elements_per_key"] for row in rows) * declared.element_bytes
        read = sum(row["layers"] * row["kv_elements_per_key"] for row in rows) * declared.element_bytes
        sharing = sum(row["layers"] - row["stored_layers"] for row in rows)
        if sharing:
            notes.insert(
                len(model.warnings),
                f"all layers read {read:.0f} B of a token, since {sharing} of them read what others store",
            )
    notes += replication_lines(model, tp)
    answer = f"{model.name} has {counted(model.attention_layers, 'layer')} of softmax attention"
    answer += f" among {model.total_layers}" if model.total_layers != model.attention_layers else ""
    answer += _shapes(rows)
    if stored is not None:
        index = ", index keys not counted" if any(row["indexer"] for row in rows) else ""
        answer += f"; a token stores {stored:.0f} B of KV over all layers of this rank ({dtype}{index})"
    inputs = {
        "model": model.name,
        "tp": tp,
        "valid_tp": model.valid_tp(),
        "max_position": model.max_position,
        "kv_dtype": model.kv_dtype,
        "stored_bytes_per_token": stored,
        "warnings": list(model.warnings),
    }
    return Table("models", inputs, rows, _columns(rows), heading, notes, answer=sentence(answer))


def _shapes(rows: Sequence[dict[str, Any]]) -> str:
    """The kinds of layers in words: once where only their windows differ."""
    heads = list(dict.fromkeys(_heads(row) for row in rows))
    if len(rows) == 1:
        return f" with {heads[0]}{_window(rows[0])}"
    if len(heads) == 1:
        groups = listed(f"{row['layers']} {row['layer_group']}{_window(row)}" for row in rows)
        return f" ({groups}) with {heads[0]}"
    return ": " + listed(f"{row['layers']} {row['layer_group']}{_window(row)} with {_heads(row)}" for row in rows)


def _heads(row: dict[str, Any]) -> str:
    heads = f"{counted(row['q_heads'], 'query head')} over {counted(row['kv_heads'], 'KV head')}"
    return f"{heads} of {row['head_dim']} elements ({row['kind']})"


def _window(row: dict[str, Any]) -> str:
    return f" with a window of {row['window']}" if row["window"] else ""


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    """What every model has, and what some row of this one has."""
    fixed = {
        "layer_group": "layer group",
        "layers": "layers",
        "kind": "kind",
        "q_heads": "query heads",
        "kv_heads": "KV heads",
        "group": "group",
        "head_dim": "head dim",
        "head_dim_v": "value dim",
        "kv_bytes_per_key_bf16": "KV bytes of a key (bf16)",
    }
    some = {
        "window": "window",
        "chunk": "chunk",
        "topk": "topk",
        "compress_ratio": "compress ratio",
        "indexer": "indexer",
        "sinks": "sinks",
    }
    present = {key: title for key, title in some.items() if any(row[key] for row in rows)}
    shares = any(row["stored_layers"] != row["layers"] for row in rows)
    copies = any(row["kv_replicas"] != 1 for row in rows)
    left = ("layer_group", "kind")
    return [
        *(Column(k, t, align="left" if k in left else "right", rank=0 if k in _FIRST else 1) for k, t in fixed.items()),
        *(Column(key, title) for key, title in present.items()),
        *([Column("stored_layers", "stored layers")] if shares else []),
        *([Column("kv_replicas", "KV replicas")] if copies else []),
    ]


_FIRST = ("layer_group", "layers", "kind", "q_heads", "kv_heads", "head_dim")
