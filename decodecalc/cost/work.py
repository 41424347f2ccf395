"""From launches to work: how many blocks, tiles and bytes each step has, for the kernel that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.analysis.traffic import traffic_arrays
from decodecalc.cost.cuts import Cuts, alike
from decodecalc.cost.model import Work
from decodecalc.engines.registry import traits_of
from decodecalc.intmath import IntArray, cdiv
from decodecalc.launch.arrays import Batches, Launches

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.kvcache import KvCache


def work_of(engine: str, geo: Geometry, batches: Batches, kv: KvCache, found: Launches, cuts: Cuts) -> Work:
    """Work of every step of `batches` under the launches `found`, cut as `cuts`.

    `found` and `cuts` are those of the kernel that runs: its own tile and rows, even under another engine's rule.
    """
    totals, moved = cuts.totals(), traffic_arrays(geo, kv, batches, found)
    tile, rows = (np.broadcast_to(np.asarray(x), (batches.n,)) for x in (found.tile_keys, found.block_rows))
    partials = np.broadcast_to(np.asarray(found.partials()), batches.seq_lens.shape)
    short, short_tiles = _short(cuts, batches, totals.short_blocks, totals.short_tiles_total)
    again, again_keys = _repeating(found, batches)
    again_tiles = cdiv(again_keys, tile)
    tiles_total = totals.tiles_total + again * again_tiles
    requested = moved.kv_requested_bytes + again * again_keys * (kv.bytes_per_key(geo) / geo.kv_heads)
    started = totals.blocks if cuts.pieces_in_turn else (cuts.blocks * cuts.live).sum(axis=1)
    return Work(
        blocks=totals.blocks + again,
        started=started + again,
        tiles=totals.tiles,
        tiles_total=tiles_total,
        hbm_bytes=moved.kv_read_bytes,
        requested_bytes=np.maximum(requested, moved.kv_read_bytes),
        flop=tiles_total * (tile * rows) * (2.0 * (geo.head_dim + geo.v_dim)),
        launched_blocks=_launched(found, batches.n),
        is_split=np.broadcast_to(np.asarray(found.is_split), (batches.n,)),
        merge_kernels=found.merge_kernels(batches.n),
        merge_walks=found.merge_walks,
        live_splits=batches.largest(partials),
        states=batches.total(batches.q_lens * partials) * geo.q_heads,
        merge_bytes=moved.partial_read_bytes,
        merge_rows=batches.query_tokens * geo.q_heads,
        rows=found.live_rows,
        extra_kernels=scheduler_kernels(engine, found),
        copies=found.copies,
        short_blocks=short,
        short_tiles=short_tiles,
        repeating=again,
        repeating_tiles=again_tiles,
        io_bytes=moved.query_bytes + moved.output_bytes,
        listed=found.listed,
    )


def _repeating(found: Launches, batches: Batches) -> tuple[IntArray, IntArray]:
    """How many blocks walk the first request's keys once more [N], and these keys [N]."""
    again = np.broadcast_to(np.asarray(found.repeating_blocks, dtype=np.int64), (batches.n,))
    read = batches.seq_lens if found.keys_read is None else np.broadcast_to(found.keys_read, batches.seq_lens.shape)
    return again, read[:, 0]


def _short(cuts: Cuts, batches: Batches, blocks: Any, tiles_total: Any) -> tuple[Any, Any]:
    """How many blocks have fewer tiles than the longest, and their mean tiles, in steps that have the closed form."""
    blocks = np.where(closed_form(cuts, batches), blocks, 0)
    return blocks, np.where(blocks > 0, tiles_total / np.maximum(blocks, 1), 0.0)


def closed_form(cuts: Cuts, batches: Batches) -> Any:
    """Which steps hold equal requests that are cut alike: those have the closed form, others a list schedule [N]."""
    regular = np.ones(batches.n, dtype=bool)
    regular[list(cuts.irregular)] = False
    return alike(batches) & regular


def scheduler_kernels(engine: str, found: Launches) -> Any:
    """Scheduler kernels that run with every layer [N]: none where one run before the first layer serves them all."""
    if traits_of(engine).schedules_once_a_step or found.scheduled_once:
        return 0
    return sum((np.where(k.when, 1, 0) for k in found.kernels if k.role == "scheduler"), 0)


def _launched(found: Launches, n: int) -> Any:
    """Stage-1 blocks of every step [N], those without work too."""
    stages = [kernel for kernel in found.kernels if kernel.role == "stage1"]
    return sum((np.where(k.when, k.launched_blocks, 0) for k in stages), np.zeros(n, dtype=np.int64))


def pick(work: Work, n: int) -> Work:
    """The work of step n, as numbers."""
    return Work._make(_number(value, n) for value in work)


def _number(value: Any, n: int) -> Any:
    found = np.asarray(value)
    return found[n].item() if found.ndim else found.item()
