"""From launches to work: how many blocks, tiles and bytes each step has, for the kernel that runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.analysis.traffic import traffic_arrays
from decodecalc.cost.model import Work
from decodecalc.cost.tuning import STATE_SCALARS
from decodecalc.engines.registry import traits_of
from decodecalc.intmath import cdiv
from decodecalc.launch.arrays import Batches, KernelArray, Launches

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.kvcache import KvCache


def work_of(
    engine: str, geo: Geometry, batches: Batches, kv: KvCache, found: Launches, tile_keys: Any, block_rows: Any
) -> Work:
    """Work of every step of `batches` under `found`, walked in tiles of `tile_keys` by blocks of `block_rows` rows.

    tile_keys and block_rows are those of the kernel that runs (a number or [N]): an engine's rule may be run by another
    kernel. Blocks of one request are alike but for its last split, which may be shorter.
    """
    n = batches.n
    working = _per_request(found.live if found.working is None else found.working, batches)
    columns = _per_request(found.blocks_per_split, batches)
    read = batches.seq_lens if found.keys_read is None else _per_request(found.keys_read, batches)
    tile = _column(tile_keys, n)
    longest = np.minimum(_per_request(found.split_keys, batches), read)
    full = cdiv(longest, tile)  # tiles of a full split [N, R]
    last = cdiv(np.maximum(read - (working - 1) * longest, 0), tile)
    tiles = np.maximum(np.maximum(working - 1, 0) * full + np.where(working > 0, np.minimum(last, full), 0), 0)
    dealt, short_splits = np.zeros(n, dtype=np.int64)[:, None], np.int64(1)
    if found.interleave_keys is not None:  # the tiles are shared out evenly: none is longer by more than one of them
        dealt = _column(found.interleave_keys, n)
        turns = cdiv(read, np.maximum(dealt, 1))
        tiles = np.where(dealt > 0, np.where(working > 0, cdiv(read, tile), 0), tiles)
        last = np.where(dealt > 0, cdiv(turns // np.maximum(working, 1) * dealt, tile), last)
        short_splits = np.where(dealt > 0, -turns % np.maximum(working, 1), 1)
    rows = np.asarray(_column(block_rows, n))[:, 0]
    tiles_total = batches.total(tiles * columns)
    is_split = np.broadcast_to(np.asarray(found.is_split), (n,))
    moved = traffic_arrays(geo, kv, batches, found)
    return Work(
        blocks=batches.total(columns * working),
        started=batches.total(columns * _per_request(found.live, batches)),
        tiles=batches.largest(np.where(working > 0, full, 0)),
        tiles_total=tiles_total,
        hbm_bytes=moved.kv_read_bytes,
        requested_bytes=np.maximum(moved.kv_requested_bytes, moved.kv_read_bytes),
        flop=tiles_total * (np.asarray(tile)[:, 0] * rows) * (2.0 * (geo.head_dim + geo.v_dim)),
        launched_blocks=_launched(found, n),
        is_split=is_split,
        merge_kernels=_merge_kernels(found, n),
        live_splits=batches.largest(_per_request(found.partials(), batches)),
        states=batches.total(batches.q_lens * _per_request(found.partials(), batches)) * geo.q_heads,
        merge_bytes=moved.partial_read_bytes,
        merge_rows=batches.query_tokens * geo.q_heads,
        rows=found.live_rows,
        extra_kernels=scheduler_kernels(engine, found.kernels),
        **_short(batches, columns * short_splits, working, full, last),
    )


def _short(batches: Batches, columns: Any, working: Any, full: Any, last: Any) -> dict[str, Any]:
    """The splits of equal requests that have fewer tiles than the others: the last one, or those dealt one less."""
    if not batches.is_single_class:
        return {}
    short = (working > 1) & (last < full) & (last > 0)
    return {"short_blocks": batches.total(columns * short), "short_tiles": np.where(short, last, 0)[:, 0]}


def scheduler_kernels(engine: str, kernels: Any) -> int:
    """Scheduler kernels that run with every layer: none where one run before the first layer serves them all."""
    return 0 if traits_of(engine).schedules_once_a_step else sum(k.role == "scheduler" for k in kernels)


def on_bundled(found: Launches, geo: Geometry, batches: Batches, tile_keys: int, rows: int) -> Launches:
    """The same splits on the bundled kernel's stage 1: its tile, rows, sharing of KV heads, grid and states."""
    row_blocks = cdiv(batches.q_lens * geo.group, rows)
    most = batches.largest(_per_request(found.live, batches))
    launched = most if found.shared_slots else np.maximum(found.launched, most)
    splits = np.where(found.is_split, launched, 1)
    grid = (geo.kv_heads * batches.largest(row_blocks), batches.batch, splits)
    return replace(
        found,
        kernels=(
            KernelArray(
                name="stage1_kernel", role="stage1", grid=grid, threads=None, live_blocks=None, tile_keys=tile_keys
            ),
            *(kernel for kernel in found.kernels if kernel.role == "merge"),
        ),
        blocks_per_split=geo.kv_heads * row_blocks,
        tile_keys=tile_keys,
        block_rows=rows,
        live_rows=np.minimum(batches.max_q_len * geo.group, rows),
        state_values=geo.v_dim + STATE_SCALARS,
        partial_splits=None,
        shared_slots=False,
    )


def _merge_kernels(found: Launches, n: int) -> Any:
    """Merge kernels that every step [N] launches: 0 where stage 1 merges by itself."""
    merges = [kernel for kernel in found.kernels if kernel.role == "merge"]
    return sum((np.where(k.when, 1, 0) for k in merges), np.zeros(n, dtype=np.int64))


def _launched(found: Launches, n: int) -> Any:
    """Stage-1 blocks of every step [N], those without work too."""
    stages = [kernel for kernel in found.kernels if kernel.role == "stage1"]
    return sum((np.where(k.when, k.launched_blocks, 0) for k in stages), np.zeros(n, dtype=np.int64))


def _per_request(value: Any, batches: Batches) -> Any:
    """A number, [N, 1] or [N, R] as something that broadcasts to [N, R]."""
    return np.broadcast_to(np.asarray(value), batches.seq_lens.shape)


def _column(value: Any, n: int) -> Any:
    """A number or [N] as [N, 1]."""
    return np.broadcast_to(np.asarray(value), (n,))[:, None]
