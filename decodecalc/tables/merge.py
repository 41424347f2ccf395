"""Rows and columns of `merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import WORTHWHILE_SHARE, traffic
from decodecalc.scenario import Planned
from decodecalc.tables.table import Column, Table, percent
from decodecalc.tables.text import because
from decodecalc.units import human_bytes

if TYPE_CHECKING:
    from decodecalc.request import Request


def merge_table(request: Request) -> Table:
    """Traffic of every plan for one layer, and for the layers of its group together (`_step`: one decode step)."""
    rows: list[dict[str, Any]] = []
    notes = [
        "A partial state is what one split leaves for one token and query head. Stage 1 writes the states of live "
        "splits "
        "and the merge reads them back; states / KV compares these bytes with the KV bytes that are read.",
        "buffers / KV is the same ratio if every launched split were live. It is an upper bound and not traffic.",
    ]
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            notes.append(f"not shown: {because(item.engine, item.reason)}")
            continue
        plan, found = item.plan, traffic(item.plan)
        layers = item.layer_group.layers
        rows.append(
            {
                "engine": plan.engine,
                "version": plan.version,
                "layer_group": item.layer_group.name,
                "layers": layers,
                "batch": item.batch.size,
                "context": item.batch.max_seq_len,
                "path": plan.path,
                "splits_launched": plan.splits.launched,
                "splits_live_max": max(plan.splits.live),
                **found.to_dict(),
                "scratch_bytes": plan.scratch_bytes,
                "merge_grid": list(plan.merge.grid) if plan.merge else None,
                "kv_read_step_bytes": found.kv_read_bytes * layers,
                "partial_traffic_step_bytes": found.partial_traffic_bytes * layers,
                "launches_step": len(plan.kernels) * layers,
            }
        )
        if not found.merge_worthwhile:
            notes.append(
                f"{plan.engine} at {item.batch.max_seq_len} keys: partial states move {percent(found.partial_share)} "
                f"of the KV bytes (over {percent(WORTHWHILE_SHARE)}), so fewer splits may be faster"
            )
    return Table("merge", request.inputs, rows, _columns(rows), request.heading, list(dict.fromkeys(notes)))


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    groups = len({r["layer_group"] for r in rows}) > 1
    return [
        Column("engine", "engine", align="left"),
        *([Column("layer_group", "layers", align="left")] if groups else []),
        Column("batch", "batch"),
        Column("context", "keys"),
        Column("path", "path"),
        Column("splits_live_max", "live splits"),
        Column("partial_state_bytes", "bytes per state"),
        Column("partial_written_bytes", "bytes written"),
        Column("partial_read_bytes", "bytes read"),
        Column("kv_read_bytes", "KV bytes"),
        Column("partial_share", "states / KV", percent),
        Column("partial_allocated_share", "buffers / KV", percent),
        Column("kv_read_step_bytes", "KV per token", human_bytes),
        Column("partial_traffic_step_bytes", "states per token", human_bytes),
    ]
