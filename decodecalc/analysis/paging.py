"""What paging costs: bytes of the block table, page ids per tile, and tiles that straddle pages.

The bandwidth is negligible (one int32 per page of keys). The latency is not: the addresses of a tile wait for its page
ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.errors import GateError, InputError, check_type
from decodecalc.intmath import cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan, check_plan
from decodecalc.values import Shown

INDEX_BYTES = 4  # page ids and per-token indices are int32 in every engine modelled


@dataclass(frozen=True, slots=True)
class Paging(Shown):
    """What paging costs. Fields describe the longest request unless `total` is in their name."""

    page_size: int
    """Keys of a page as the kernel sees it."""
    layout: str
    """`block table` or, with pages of one key, `per-token index list`."""
    table_entries: int
    """Page ids of the request."""
    table_bytes: int
    """Bytes of the page ids in the table of one request."""
    table_total_bytes: int
    """Bytes of the page ids of all requests."""
    table_share: float
    """`table_bytes` over the KV bytes of one KV head."""
    last_page_keys: int
    """Keys in the last page of the request."""
    wasted_keys_total: int
    """Keys for which the allocator reserves room that no request uses."""
    ids_per_tile: int
    """Page ids that a tile needs; 1 when tiles fit into a page."""
    tile_straddles: bool
    """Whether a tile can begin in one page and end in another."""
    run_bytes: float
    """Bytes of a tile's keys that lie together, for one KV head."""
    index_bytes_per_key: float
    """Bytes of page ids per key."""
    allocator_page_size: int
    """Keys of a page as the allocator hands it out."""
    allocator_ratio: int
    """Kernel pages of an allocator page; 0 where the sizes do not fit."""
    allocator_entries: int
    """Allocator pages of the request."""
    startup_error: str | None
    """Why an engine refuses these page sizes when it starts; None where they fit."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def expand_page_ids(ids: Sequence[int], ratio: int) -> list[int]:
    """Kernel page ids of allocator pages, each of which is `ratio` kernel pages long.

    >>> expand_page_ids([0, 1, 2], 2)
    [0, 1, 2, 3, 4, 5]
    """
    if ratio < 1:
        raise InputError(f"an allocator page holds at least one kernel page, not {ratio}")
    return [page * ratio + i for page in ids for i in range(ratio)]


def allocator_ratio(kv: KvCache) -> int:
    """Kernel pages per allocator page. Raises GateError when the kernel's page size does not divide the allocator's."""
    size = kv.allocator_page_size or kv.page_size
    if size % kv.page_size:
        raise GateError(
            f"allocator page {size} is not a multiple of the kernel page {kv.page_size}: engines refuse this when they "
            f"start and do not take a slower path; use a kernel page that divides {size}",
            code="allocator_page_not_multiple",
        )
    return size // kv.page_size


def paging(plan: LaunchPlan, kv: KvCache | None = None) -> Paging:
    """Paging of the plan's batch under its cache layout, or under another one."""
    check_plan(plan)
    if kv is not None:
        check_type("kv", kv, KvCache, "for example decodecalc.KvCache(page_size=64)")
    cache = kv or plan.kv
    geo, tile = plan.geometry, plan.tile_keys
    page = cache.page_size
    longest = plan.batch.max_seq_len
    entries = cdiv(longest, page)
    error = None
    try:
        ratio = allocator_ratio(cache)
    except GateError as refused:
        ratio, error = 0, str(refused)
    one_head_per_key = cache.bytes_per_key(geo) / geo.kv_heads
    allocator = cache.allocator_page_size or page
    return Paging(
        page_size=page,
        layout="per-token index list" if page == 1 else "block table",
        table_entries=entries,
        table_bytes=entries * INDEX_BYTES,
        table_total_bytes=sum(cdiv(n, page) for n in plan.batch.seq_lens) * INDEX_BYTES,
        table_share=entries * INDEX_BYTES / (longest * one_head_per_key) if longest else 0.0,
        last_page_keys=(longest - 1) % page + 1 if longest else 0,
        wasted_keys_total=sum(cdiv(n, allocator) * allocator - n for n in plan.batch.seq_lens),
        ids_per_tile=1 if page % tile == 0 else cdiv(tile, page),
        tile_straddles=page % tile != 0,
        run_bytes=min(page, tile) * one_head_per_key / (1 if geo.mla else 2),
        index_bytes_per_key=INDEX_BYTES / page,
        allocator_page_size=allocator,
        allocator_ratio=ratio,
        allocator_entries=cdiv(longest, allocator),
        startup_error=error,
    )
