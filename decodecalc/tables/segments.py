"""Rows and columns of `segments`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.segments import segments
from decodecalc.errors import InputError
from decodecalc.scenario import Planned
from decodecalc.sizes import check_rows
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import because

if TYPE_CHECKING:
    from decodecalc.request import Request


def segments_table(request: Request, only: int | None = None) -> Table:
    """One row per split of every plan; of a uniform batch, request 0 stands for all unless `only` names one."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            notes.append(f"not shown: {because(item.engine, item.reason)}")
            continue
        plan, batch = item.plan, item.batch
        if only is not None and not 0 <= only < batch.size:
            raise InputError(f"--request must be between 0 and {batch.size - 1}, not {only}")
        which = 0 if only is None and batch.is_uniform else only
        if only is None and batch.is_uniform and batch.size > 1:
            notes.append(f"all {batch.size} requests have the same length, so only request 0 is shown")
        for segment in segments(plan, which):
            rows.append(
                {
                    "engine": plan.engine,
                    "version": plan.version,
                    "layer_group": item.layer_group.name,
                    "batch": batch.size,
                    "context": batch.seq_lens[segment.request],
                    "path": plan.path,
                    "tile_keys": plan.tile_keys,
                    **segment.to_dict(),
                }
            )
        check_rows(len(rows), "splits", "choose fewer batches or one --request")
    return Table("segments", request.inputs, rows, _columns(rows), request.heading, list(dict.fromkeys(notes)))


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    many = [k for k in ("engine", "layer_group", "batch", "context") if len({str(r[k]) for r in rows}) > 1]
    left = {"engine", "layer_group", "state", "keys_range"}
    keys = dict.fromkeys([*many, "path", "request", "split", "start", "end", "keys", "tiles", "visible_keys", "state"])
    return [Column(k, k.replace("_", " "), align="left" if k in left else "right") for k in keys]
