"""Rows and columns of `paging`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.paging import allocator_ratio, expand_page_ids, paging
from decodecalc.scenario import Planned
from decodecalc.sizes import check_rows
from decodecalc.tables.table import Column, Table, percent
from decodecalc.tables.text import because
from decodecalc.units import parse_counts

if TYPE_CHECKING:
    from decodecalc.request import Request


def paging_table(request: Request, allocator_page: int | None, page_ids: str | None) -> Table:
    """One row per plan. A page size that the engine refuses raises GateError, with the multiple it needs."""
    kv = replace(request.scenarios.kv, allocator_page_size=allocator_page)
    ratio = allocator_ratio(kv)
    rows: list[dict[str, Any]] = []
    notes = [
        "The block table has one int32 page id per page. Its bandwidth is negligible, but every tile must wait for "
        "its page "
        "ids before its keys can be loaded.",
        "Page ids per tile counts the ids that a tile needs, and contiguous bytes is the longest piece that lies in "
        "one "
        "place in memory.",
    ]
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            notes.append(f"the engine refuses to start: {because(item.engine, item.reason)}")
            continue
        rows.append(
            {
                "engine": item.plan.engine,
                "version": item.plan.version,
                "layer_group": item.layer_group.name,
                "batch": item.batch.size,
                "context": item.batch.max_seq_len,
                "tile_keys": item.plan.tile_keys,
                **paging(item.plan, kv).to_dict(),
            }
        )
    if page_ids is not None:
        ids = parse_counts(page_ids, "--page-ids")
        check_rows(len(ids) * ratio, "kernel pages", "give fewer --page-ids")
        expanded = expand_page_ids(ids, ratio)
        notes.append(f"the allocator's pages {ids} are the kernel's pages {expanded}")
        for row in rows:
            row["allocator_page_ids"], row["kernel_page_ids"] = ids, expanded
    return Table("paging", request.inputs, rows, _columns(rows), request.heading, list(dict.fromkeys(notes)))


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    expands = any(r["allocator_ratio"] > 1 for r in rows)
    return [
        Column("engine", "engine", align="left"),
        Column("layer_group", "layers", align="left"),
        Column("context", "keys"),
        Column("page_size", "page size"),
        Column("layout", "layout", align="left"),
        Column("table_entries", "table entries"),
        Column("table_bytes", "table bytes"),
        Column("table_share", "table / KV head", percent),
        Column("tile_keys", "tile keys"),
        Column("ids_per_tile", "page ids per tile"),
        Column("tile_straddles", "tile spans pages"),
        Column("run_bytes", "contiguous bytes"),
        *(
            [Column("allocator_page_size", "allocator page"), Column("allocator_ratio", "kernel pages in it")]
            if expands
            else []
        ),
    ]
