"""Rows and columns of `merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import WORTHWHILE_SHARE, traffic
from decodecalc.scenario import Planned
from decodecalc.tables.columns import ranging, scenario_columns
from decodecalc.tables.defaults import default_columns, in_order, leading, mark_defaults
from decodecalc.tables.memory import cautions
from decodecalc.tables.table import Column, Table, percent
from decodecalc.tables.text import absent, sentence
from decodecalc.units import human_bytes, listed

if TYPE_CHECKING:
    from decodecalc.request import Request


def merge_table(request: Request) -> Table:
    """Traffic of every plan for one layer, and for the layers of its group together (`_step`: one decode step)."""
    rows: list[dict[str, Any]] = []
    refused: list[tuple[str, str]] = []
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            refused.append((item.engine, item.reason))
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
                "q_len": item.batch.max_q_len,
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
    mark_defaults(request, rows)
    shown = in_order(rows)
    heavy = dict.fromkeys(r["engine"] for r in rows if not r["merge_worthwhile"])
    reasons, details = absent(refused)
    notes = [*cautions(request), *reasons]
    if heavy:
        notes.insert(
            len(notes) - len(reasons),
            f"fewer splits may be faster with {listed(heavy)}, whose partial states move more than "
            f"{percent(WORTHWHILE_SHARE)} of the KV bytes in a row",
        )
    return Table(
        "merge",
        request.inputs,
        rows,
        _columns(rows),
        request.heading,
        notes,
        shown,
        answer=_answer(shown),
        measured=("The ratio of the partial states to the KV that is read", SHARE),
        details=details,
    )


def _answer(rows: list[dict[str, Any]]) -> str:
    first, (who, mine) = rows[0], leading(rows)
    if len(mine) > 1:
        what = f"The ratio of the partial states of {who} to the KV that is read"
        return sentence(ranging(what, mine, SHARE))
    if not first["partial_traffic_bytes"]:
        return f"{who} writes no partial states here, because it does not split the keys."
    verdict = "so the merge is cheap" if first["merge_worthwhile"] else "so fewer splits may be faster"
    return (
        f"{who} writes and reads {human_bytes(first['partial_traffic_bytes'])} of partial states beside "
        f"{human_bytes(first['kv_read_bytes'])} of KV in a layer ({percent(first['partial_share'])}), {verdict}."
    )


SHARE = Column("partial_share", "states / KV", percent, rank=0)


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    return [
        *scenario_columns(rows, more=default_columns(rows)),
        Column("path", "path", align="left", rank=2),
        Column("splits_live_max", "splits live", rank=0),
        Column("partial_state_bytes", "bytes per state", rank=2),
        Column("partial_written_bytes", "states written", human_bytes),
        Column("partial_read_bytes", "states read", human_bytes),
        Column("kv_read_bytes", "KV read a layer", human_bytes, rank=0),
        SHARE,
        Column("partial_allocated_share", "buffers / KV", percent, rank=3),
        Column("kv_read_step_bytes", "KV read a step", human_bytes),
        Column("partial_traffic_step_bytes", "states a step", human_bytes),
    ]
