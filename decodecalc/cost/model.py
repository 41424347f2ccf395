"""The time model: how long one layer's launches take, for whole arrays of steps.

    T      = launch + stage 1 + (gap + merge, when split)
    stage1 = start(blocks, tiles) + W(slots) for every full wave + W(blocks left) for the last one + refill times the
             share of the slots that are taken over (2.5 waves: 1.5)
    W(k)   = (w(k)**p + (k · stream)**p + …)**(1/p)        k equal blocks side by side

* start is the time of a launch apart from its tiles: the blocks reach their first tile, all their first loads contend
  for the memory channels, and the epilogue runs. It is measured for 1 to 16 tiles over the number of blocks. Blocks
  with the same keys (row blocks of a latent) contend less: a share of it, start_shared, they have once.
* w(k) is the time of one block by latency alone: its tiles x latency(k), plus t_row per live query row. The latency of
  a tile grows with the number of running blocks, which share SMs, crossbar and memory channels; it is a measured curve
  over k.
* stream is a block's share of the useful bytes over the sustained rate, or of all requested bytes over the L2's rate.
* The sum also holds the executed FLOP over the tensor peak and the launching of the grid's blocks (these matter only
  for grids of thousands of idle blocks).
* merge is a measured table over output rows and splits. A ragged batch is taken as all rows with their mean number of
  splits, or as fewer rows that all have the largest number of splits and together have the same number of states.
* The last split of equal requests may be short. Its blocks then end early, and the others run with fewer blocks beside
  them.

latency(k) is a measured tile time without the blocks' share of the bandwidth. W therefore equals the measurement for
the shape that was measured. For other shapes (fewer bytes in a tile, keys that several blocks share) only the part of
the bytes changes. Ragged batches take their waves from a list schedule (`schedule.py`), not from an average.

Laws: time does not fall when keys, batch or layers grow at a fixed split count, nor rise with bandwidth. More SMs never
hurt a launch that then fits in one wave, nor when their number doubles. In between, a last wave of few blocks is
exposed longer the more of the launch ran before it: so on the device, where 640 blocks on 528 slots took 577 µs and 512
blocks of the same work 481.

Sources of the structure: measurements of kernels on an H200 (reports/h200/accuracy.md) and published timings of H200
and H100 (reports/public-backtest.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decodecalc.cost.parameters import START_TILES
from decodecalc.cost.rates import Rates

FloatArray = npt.NDArray[np.float64]
# So many blocks beyond one (two …) for each SM, as a share of the SMs, and the curves have made their jump: the first
# count past a whole SM-full that `calibrate` can make of four KV heads is 136 on 132 SMs.
PAST = 0.03
WARM_FADE = 1.3  # KV of this many L2 capacities finds nothing left there when a replay starts again


class Work(NamedTuple):
    """What the launches of N steps have to do. Every field is [N] or a number for all.

    blocks: stage-1 blocks with keys to walk; started: live ones, those with nothing in the window too; tiles: of the
    longest block; tiles_total: of all blocks; hbm_bytes: KV read once; requested_bytes: KV as the blocks ask for it;
    io_bytes: queries and outputs; launched_blocks: the grid; live_splits, states, merge_bytes: of the merge (0 where
    nothing is split): most splits of a row, partial states of all merge_rows output rows, and their bytes; rows: live
    query rows of a block; extra_kernels: kernels besides stage 1 and merge (schedulers); copies: kernels that copy
    queries or outputs; short_blocks, short_tiles: blocks of equal requests' last splits, where those have fewer tiles,
    and how many.
    merge_kernels: kernels that run after stage 1 to merge; None where every split step has one. merge_walks: splits
    that the merge's loop visits for a row, with a state or without; None: the live ones. repeating: how many of the
    blocks walk the first request's keys once more (they are among blocks and tiles_total); repeating_tiles: each.
    listed: whether the blocks come by the list of live splits (`Launches.listed`).
    """

    blocks: Any
    started: Any
    tiles: Any
    tiles_total: Any
    hbm_bytes: Any
    requested_bytes: Any
    flop: Any
    launched_blocks: Any
    is_split: Any
    live_splits: Any
    states: Any
    merge_bytes: Any
    merge_rows: Any
    rows: Any = 0
    extra_kernels: Any = 0
    copies: Any = 0
    short_blocks: Any = 0
    short_tiles: Any = 0
    merge_kernels: Any = None
    merge_walks: Any = None
    repeating: Any = 0
    repeating_tiles: Any = 0
    io_bytes: Any = 0
    listed: Any = False


class Terms(NamedTuple):
    """Where the time goes; all seconds, all [N], and `total_s` is their sum.

    launch_s: launching kernels, and schedulers and copies that run with every layer. fixed_s: block start and epilogue.
    stream_s: bytes at the sustained rate. latency_s: what the tiles' latency adds to that with work spread evenly.
    tail_s: what whole waves or the longest request add. compute_s: the tensor cores' share. gap_s: before a merge
    kernel. merge_s: merging, in a kernel of its own or inside stage 1. exchange_s: what the ranks of context
    parallelism exchange, with the kernels around it. body_s: stream + latency + tail + compute.
    """

    launch_s: Any
    fixed_s: Any
    stream_s: Any
    latency_s: Any
    compute_s: Any
    tail_s: Any
    gap_s: Any
    merge_s: Any
    exchange_s: Any = 0.0

    @property
    def total_s(self) -> Any:
        """The sum of the terms."""
        return sum(self, 0.0)

    @property
    def body_s(self) -> Any:
        """Stage 1 after its start."""
        return self.stream_s + self.latency_s + self.compute_s + self.tail_s


class Bodies(NamedTuple):
    """Stage 1 after its start, [N] each: as scheduled, with the work spread evenly over the slots, and that without the
    tensor cores' share."""

    scheduled_s: Any
    even_s: Any
    no_compute_s: Any


def latency(k: Any, rates: Rates, fullest: Any = 0) -> Any:
    """Seconds of a tile apart from its bytes, in each of k blocks at work. fullest: blocks of the SM with most, where
    others have fewer: its blocks are as slow as those of the last SM when all others have one less."""
    among = np.where(np.asarray(fullest) > 1, rates.sm_count * (fullest - 1 + PAST), 0.0)
    return np.interp(np.maximum(k, among), rates.blocks, rates.latency_s)


def block_time(tiles: Any, k: Any, rows: Any, rates: Rates, fullest: Any = 0) -> Any:
    """w(k): seconds of a block of that many tiles by latency alone, k blocks side by side."""
    return np.asarray(tiles) * latency(k, rates, fullest) + np.asarray(rows) * rates.row_s


def start_time(started: Any, tiles: Any, rates: Rates) -> Any:
    """Seconds of a launch of these blocks and tiles apart from the launch overhead and the tiles."""
    k = np.minimum(started, rates.slots)
    if all(curve is rates.starts_s[0] for curve in rates.starts_s):  # the tiles make no difference
        return np.interp(k, rates.blocks, rates.starts_s[0])
    at = np.log2(np.clip(tiles, START_TILES[0], START_TILES[-1]))
    found: Any = 0.0
    for i, tiles_here in enumerate(START_TILES):
        here = log2(tiles_here)
        weight: Any = 1.0
        if i > 0:
            weight = np.minimum(weight, (at - log2(START_TILES[i - 1])) / (here - log2(START_TILES[i - 1])))
        if i + 1 < len(START_TILES):
            weight = np.minimum(weight, (log2(START_TILES[i + 1]) - at) / (log2(START_TILES[i + 1]) - here))
        found = found + np.maximum(weight, 0.0) * np.interp(k, rates.blocks, rates.starts_s[i])
    return found


def merge_time(rows: Any, splits: Any, states: Any, rates: Rates) -> Any:
    """A merge of that many rows with its launch: all with their mean number of states, or as many as have the most."""
    table = (rates.merge_rows, rates.merge_splits, rates.merge_s)
    mean, full = np.asarray(states) / np.maximum(rows, 1), np.asarray(states) / np.maximum(splits, 1)
    return np.maximum(in_table(rows, mean, *table), in_table(full, splits, *table))


def in_table(
    rows: Any,
    splits: Any,
    row_knots: Sequence[float],
    split_knots: Sequence[float],
    table: Sequence[float],
) -> Any:
    """The table's value (its numbers row by row): between its knots by straight lines, beyond the last along the last
    line."""
    i, u = _place(rows, row_knots)
    j, v = _place(splits, split_knots)
    values = np.reshape(table, (len(row_knots), len(split_knots)))
    low = values[i, j] * (1 - v) + values[i, j + 1] * v
    high = values[i + 1, j] * (1 - v) + values[i + 1, j + 1] * v
    return np.maximum(low * (1 - u) + high * u, 0.0)


def _place(x: Any, knots: Sequence[float]) -> tuple[Any, Any]:
    """The knot below each x, and how far it lies towards the next one (beyond 1 past the last, 0 before the first)."""
    k = np.asarray(knots)
    i = np.clip(np.searchsorted(k, x, side="right") - 1, 0, len(k) - 2)
    return i, np.maximum((np.asarray(x) - k[i]) / (k[i + 1] - k[i]), 0.0)


class Shares(NamedTuple):
    """What one of k blocks side by side asks of what they share, in seconds of the whole device [N]."""

    stream: Any
    compute: Any
    launch: Any


def shares_of(work: Work, rates: Rates, blocks: Any) -> Shares:
    """The share of one block, if the work were divided into this number of equal blocks."""
    n = np.maximum(blocks, 1)
    return Shares(
        stream=stream_time(*moved_bytes(work, rates), rates) / n,
        compute=np.asarray(work.flop) / rates.peak_flop_per_s / n,
        launch=np.asarray(work.launched_blocks) * (0.0 if rates.idle_block_s else rates.launch_block_s) / n,
    )


def wave_time(k: Any, w: Any, shares: Shares, rates: Rates, compute: bool = True) -> Any:
    """W(k): seconds that k blocks of latency w take side by side (k may be a fraction: an average)."""
    members = [w, k * shares.stream, k * shares.launch]
    return smooth_max(rates.exponent, *members, *([k * shares.compute] if compute else []))


def uniform_bodies(work: Work, rates: Rates) -> Bodies:
    """Stage 1 of equal blocks, but for short ones that are launched last: the closed form of the list schedule."""
    n, short, tiles = np.asarray(work.blocks), np.asarray(work.short_blocks), np.asarray(work.tiles)
    part = np.where(short > 0, np.asarray(work.short_tiles) / np.maximum(tiles, 1), 1.0)
    whole = n - short * (1 - part)  # so many whole blocks of work
    shares = shares_of(work, rates, whole)
    waves, left = n // rates.slots, n % rates.slots

    def wave(k: Any, *compute: bool) -> list[Any]:
        w = block_time(tiles, k, work.rows, rates)
        return [wave_time(k, w, shares, rates, with_it) for with_it in compute]

    # A wave before the last, all slots; or the only one, all blocks and then those that are not short.
    one, bare = wave(np.minimum(n, rates.slots), True, False)
    several = n > rates.slots
    if short.any():
        late, late_bare = wave(n - short, True, False)
        one = np.where(several, one, part * one + (1 - part) * late)
        bare = np.where(several, bare, part * bare + (1 - part) * late_bare)
    last = np.where(left > 0, np.where(short >= left, part, 1.0) * wave(left, True)[0], 0.0)
    stretch = np.where(several, np.maximum(whole / rates.slots, 1.0), 1.0)
    refill = rates.refill_s * (stretch - 1)
    scheduled = np.where(several, waves * one + last, one) + rates.refill_s * np.maximum(n / rates.slots - 1, 0)
    scheduled = scheduled + idle_time(work, scheduled, rates)
    even = one * stretch + refill
    busy = n > 0
    return Bodies(*(np.where(busy, x, 0.0) for x in (np.maximum(scheduled, even), even, bare * stretch + refill)))


def idle_time(work: Work, busy_s: Any, rates: Rates) -> Any:
    """What blocks without work add: they come after the others, and while those run only the free slots take them."""
    idle = np.maximum(np.asarray(work.launched_blocks) - np.asarray(work.blocks), 0)
    free = np.maximum(1 - np.asarray(work.blocks) / rates.slots, 0.0)
    return np.maximum(idle * rates.idle_block_s - free * busy_s, 0.0)


def moved_bytes(work: Work, rates: Rates) -> tuple[Any, Any]:
    """Bytes that stage 1 takes from memory, and that it asks for: keys and values, and the queries and outputs where
    the time of a row does not hold them already."""
    io = np.asarray(work.io_bytes) * rates.io_share
    return work.hbm_bytes + io, work.requested_bytes + io


def stream_time(hbm_bytes: Any, requested_bytes: Any, rates: Rates) -> Any:
    """Bytes over rates. Warm: what the L2 still holds from the last replay comes at its rate, fading beyond it."""
    hbm = np.asarray(hbm_bytes, dtype=float)
    l2 = requested_bytes / rates.l2_bytes_per_s
    if not rates.warm:
        return np.maximum(hbm / rates.hbm_bytes_per_s, l2)
    cap = rates.l2_capacity_bytes
    missed = np.clip((hbm / cap - 1) / (WARM_FADE - 1), 0.0, 1.0)
    return np.maximum(missed * hbm / rates.hbm_bytes_per_s, l2)


def step_terms(work: Work, bodies: Bodies, rates: Rates) -> Terms:
    """The terms of N steps from their work and the bodies of their stage 1."""
    n = np.asarray(work.blocks)
    stream = stream_time(*moved_bytes(work, rates), rates) * (n > 0)
    started = np.asarray(work.started)
    start = start_time(started, work.tiles, rates)
    if rates.start_shared:
        own = np.asarray(work.hbm_bytes) / np.maximum(work.requested_bytes, 1)  # share of the bytes asked for once
        start = start * (1 - rates.start_shared * (1 - own))
    walks = work.live_splits if work.merge_walks is None else work.merge_walks
    in_vain = np.maximum(np.asarray(walks) - np.asarray(work.live_splits), 0) * rates.merge_walk_s
    merge = smooth_max(
        rates.exponent,
        np.maximum(merge_time(work.merge_rows, work.live_splits, work.states, rates) - rates.gap_s, 0.0) + in_vain,
        np.asarray(work.merge_bytes) / rates.l2_bytes_per_s,
    )
    launched = np.asarray(work.is_split if work.merge_kernels is None else work.merge_kernels)
    split, zero = np.asarray(work.is_split), np.zeros_like(np.asarray(bodies.scheduled_s, dtype=float))
    return Terms(
        launch_s=zero
        + rates.launch_s
        + (rates.launch_s + rates.scheduler_s) * np.asarray(work.extra_kernels)
        + rates.copy_s * np.asarray(work.copies),
        fixed_s=zero + np.where(started > 0, start, 0.0),
        stream_s=zero + stream,
        # Where one part is nearly all of it, rounding leaves a difference a little below zero.
        latency_s=np.maximum(bodies.no_compute_s - stream, 0.0),
        compute_s=np.maximum(bodies.even_s - bodies.no_compute_s, 0.0),
        tail_s=bodies.scheduled_s - bodies.even_s,
        gap_s=zero + np.where(launched, rates.gap_s, 0.0),
        merge_s=zero + np.where(split, merge, 0.0),
    )


def smooth_max(p: float, *terms: Any) -> Any:
    """(sum of x**p)**(1/p): at least the largest term, at most their sum."""
    return sum((np.asarray(t, dtype=float) ** p for t in terms), 0.0) ** (1.0 / p)
