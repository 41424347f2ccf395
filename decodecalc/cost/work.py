"""From launches to work: how many blocks, tiles and bytes each step has, for the kernel that runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.analysis.traffic import traffic_arrays
from decodecalc.cost.model import Work
from decodecalc.cost.tuning import STATE_SCALARS
from decodecalc.intmath import cdiv
from decodecalc.launch.arrays import Batches, KernelArray, Launches

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.kvcache import KvCache

# Engines whose scheduler kernel serves a whole step (SGLang: get_num_kv_splits in init_forward_metadata).
ONCE_A_STEP = ("sglang-triton",)


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
    share = _contiguous(read, _per_request(found.split_keys, batches), working, tile)
    if found.interleave_keys is not None:
        dealt = _column(found.interleave_keys, n)
        in_turn = _dealt(read, np.maximum(dealt, 1), working, tile)
        share = Share(*(np.where(dealt > 0, a, b) for a, b in zip(in_turn, share)))
    full, tiles = share.full, share.tiles
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
        **_short(batches, columns, share),
    )


class Share(NamedTuple):
    """How a request's tiles are shared out over its working splits, all [N, R]."""

    full: Any
    """Tiles of the split with most of them."""
    tiles: Any
    """Tiles of all splits."""
    short: Any
    """Splits with fewer tiles than `full`."""
    short_tiles: Any
    """Tiles of such a split, on average."""


def _contiguous(read: Any, split_keys: Any, working: Any, tile: Any) -> Share:
    """Splits of `split_keys` keys after each other, of which the last may be shorter."""
    longest = np.minimum(split_keys, read)
    full = cdiv(longest, tile)
    last = cdiv(np.maximum(read - (working - 1) * longest, 0), tile)
    tiles = np.maximum(np.maximum(working - 1, 0) * full + np.where(working > 0, np.minimum(last, full), 0), 0)
    short = (working > 1) & (last < full) & (last > 0)
    return Share(full, tiles, short.astype(np.int64), np.where(short, last, 0))


def _dealt(read: Any, dealt: Any, working: Any, tile: Any) -> Share:
    """Runs of `dealt` keys given to the splits in turn: some get one run more, and one of those the short last run."""
    splits = np.maximum(working, 1)
    runs = cdiv(read, dealt)
    least, more = runs // splits, runs % splits
    most = cdiv(runs, splits)
    of_most = np.where(more > 0, more, splits)  # splits with `most` runs, that with the last run among them
    large, small = cdiv(most * dealt, tile), cdiv(least * dealt, tile)
    last = cdiv(np.maximum(most * dealt - (runs * dealt - read), 0), tile)
    of_least = splits - of_most
    full = np.where(of_most > 1, large, np.maximum(last, np.where(of_least > 0, small, 0)))
    tiles = (of_most - 1) * large + last + of_least * small
    under = [(last < full).astype(np.int64), np.where(small < full, of_least, 0)]
    short = np.where(working > 1, under[0] + under[1], 0)
    mean = (under[0] * last + under[1] * small) / np.maximum(short, 1)
    some = working > 0
    return Share(np.where(some, full, 0), np.where(some, tiles, 0), short, np.where(short > 0, mean, 0))


def _short(batches: Batches, columns: Any, share: Share) -> dict[str, Any]:
    """The splits of equal requests that have fewer tiles than the others."""
    if not batches.is_single_class:
        return {}
    return {"short_blocks": batches.total(columns * share.short), "short_tiles": share.short_tiles[:, 0]}


def scheduler_kernels(engine: str, kernels: Any) -> int:
    """Scheduler kernels that run with every layer; those of ONCE_A_STEP run before the first one."""
    return 0 if engine in ONCE_A_STEP else sum(k.role == "scheduler" for k in kernels)


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
