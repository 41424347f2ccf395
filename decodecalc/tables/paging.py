"""Rows and columns of `paging`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.paging import allocator_ratio, expand_page_ids, paging
from decodecalc.scenario import Planned
from decodecalc.sizes import check_rows
from decodecalc.tables.columns import scenario_columns
from decodecalc.tables.memory import cautions
from decodecalc.tables.table import Column, Table, percent
from decodecalc.tables.text import absent, sentence
from decodecalc.units import counted, human_bytes, parse_counts

if TYPE_CHECKING:
    from decodecalc.request import Request


def paging_table(request: Request, allocator_page: int | None, page_ids: str | None) -> Table:
    """One row per plan. A page size that the engine refuses raises GateError, with the multiple it needs."""
    ids = None if page_ids is None else parse_counts(page_ids, "--page-ids")
    rows: list[dict[str, Any]] = []
    refused: list[tuple[str, str]] = []
    notes: list[str] = []
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            refused.append((item.engine, item.reason))
            continue
        kv = replace(item.plan.kv, allocator_page_size=allocator_page)
        ratio = allocator_ratio(kv)
        rows.append(
            {
                "engine": item.plan.engine,
                "version": item.plan.version,
                "layer_group": item.layer_group.name,
                "batch": item.batch.size,
                "context": item.batch.max_seq_len,
                "q_len": item.batch.max_q_len,
                "tile_keys": item.plan.tile_keys,
                **paging(item.plan, kv).to_dict(),
            }
        )
        if ids is not None:
            check_rows(len(ids) * ratio, "kernel pages", "give fewer --page-ids")
            expanded = expand_page_ids(ids, ratio)
            rows[-1].update(allocator_page_ids=ids, kernel_page_ids=expanded)
            notes.append(f"the allocator's pages {ids} are the kernel's pages {expanded}")
    reasons, details = absent(refused)
    notes = [*cautions(request), *dict.fromkeys(notes), *reasons]
    return Table(
        "paging",
        request.inputs,
        rows,
        _columns(rows),
        request.heading,
        notes,
        answer=_answer(rows),
        details=details,
        measured=("The table of a request", TABLE),
    )


def _answer(rows: list[dict[str, Any]]) -> str:
    """What a request's block table holds, and what a tile has to look up."""
    first = rows[0]
    size, entries, table = first["page_size"], first["table_entries"], human_bytes(first["table_bytes"])
    if first["startup_error"] is not None:
        return sentence(f"{first['engine']} refuses these pages when it starts: {first['startup_error']}")
    what = f"an index list of {entries} entries" if size == 1 else f"{counted(entries, 'page')} of {size} keys"
    ids = counted(first["ids_per_tile"], "page id")
    return (
        f"A request of {first['context']} keys has {what} and a table of {table}; {first['engine']} looks up {ids} for "
        f"a tile of {first['tile_keys']} keys."
    )


TABLE = Column("table_bytes", "table bytes", human_bytes, rank=0)


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    expands = any(r["allocator_ratio"] > 1 for r in rows)
    return [
        *scenario_columns(rows),
        Column("page_size", "page size", rank=0),
        Column("layout", "layout", align="left", rank=2),
        Column("table_entries", "table entries", rank=0),
        TABLE,
        Column("table_share", "table / KV head", percent, rank=2),
        Column("tile_keys", "tile keys"),
        Column("ids_per_tile", "page ids per tile", rank=0),
        Column("tile_straddles", "tile spans pages"),
        Column("run_bytes", "contiguous bytes", human_bytes),
        *(
            [Column("allocator_page_size", "allocator page"), Column("allocator_ratio", "kernel pages in it")]
            if expands
            else []
        ),
    ]
