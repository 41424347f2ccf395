"""The time model: how long one layer's launches take, for whole arrays of steps.

    T      = launch + stage 1 + (gap + merge, when split)
    stage1 = start + W(slots) for every full wave + W(blocks left) for the last one + refill for each after the first
    W(k)   = ( w**p + sm(k)**p + (k · stream)**p + … )**(1/p)        k equal blocks side by side

* start: t_fixed, a lone block's way to its first tile and its epilogue, plus t_crowd x (sqrt(blocks) - 1): blocks that
  start together meet in the memory channels until, some CROWD_TILES tiles on, they have fallen out of step.
* w: one block by latency alone: its tiles x tau, at least as many as are in flight, plus t_row per live query row. tau
  grows from tau_unloaded (a block alone on the device) to tau_loaded (one on every SM) with the logarithm of the
  blocks: requests of different SMs meet in the crossbar and the memory channels before any of them is full.
* sm(k): an SM whose resident blocks share its pipes (tau_busy).
* stream: a block's share of the useful bytes over the sustained rate, or of all requested bytes over the L2's.
* also in the sum: executed FLOP over the tensor peak (matters only for MLA-like groups) and the launching of the
  grid's blocks (matters only for grids of thousands of idle blocks).

The smooth maximum is measured, not chosen: p is 1 where nothing overlaps and infinite where the slower one hides the
other. Ragged batches take their waves from a list schedule (`schedule.py`), not from an average.

Laws: time does not fall when keys, batch or layers grow at a fixed split count, nor rise with bandwidth. More SMs never
hurt a launch that then fits in one wave, nor when their number doubles. In between, a last wave of few blocks is
exposed longer the more of the launch ran before it: so on the device, where 640 blocks on 528 slots took 577 µs and 512
blocks of the same work 481.

Sources of the structure: measurements of kernels on an H200 (reports/h200/accuracy.md) and published timings of H200
and H100 (reports/public-backtest.md).
"""

from __future__ import annotations

from dataclasses import fields
from math import log2
from typing import Any

import numpy as np
import numpy.typing as npt

from decodecalc.cost.rates import Rates
from decodecalc.record import record

FloatArray = npt.NDArray[np.float64]
CROWD_TILES = 16  # microbenchmarks of 13 kernel variants: starts of 4, 16 and 48 tiles cost 3/4, 1 and 1 of the whole
WARM_FADE = 1.3  # KV of this many L2 capacities finds nothing left there when a replay starts again


@record
class Work:
    """What the launches of N steps have to do. Every field is [N] or a number for all.

    blocks: live stage-1 blocks; tiles: of the longest block; tiles_total: of all blocks; hbm_bytes: KV read once;
    requested_bytes: KV as the blocks ask for it; launched_blocks: the grid; merge_bytes, merge_blocks, live_splits: of
    the merge (0 where nothing is split); rows: live query rows of a block; extra_kernels: kernels besides stage 1
    and merge (schedulers).
    """

    blocks: Any
    tiles: Any
    tiles_total: Any
    hbm_bytes: Any
    requested_bytes: Any
    flop: Any
    launched_blocks: Any
    is_split: Any
    live_splits: Any
    merge_bytes: Any
    merge_blocks: Any
    rows: Any = 0
    extra_kernels: Any = 0


@record
class Terms:
    """Where the time goes; all seconds, all [N], and `total_s` is their sum.

    launch_s: launching kernels. fixed_s: block start and epilogue. stream_s: bytes at the sustained rate. latency_s:
    what the tiles' latency adds to that with work spread evenly. tail_s: what whole waves or the longest request add.
    compute_s: the tensor cores' share. gap_s, merge_s: of the second kernel. body_s: stream + latency + tail + compute.
    """

    launch_s: Any
    fixed_s: Any
    stream_s: Any
    latency_s: Any
    compute_s: Any
    tail_s: Any
    gap_s: Any
    merge_s: Any

    @property
    def total_s(self) -> Any:
        """The sum of the terms."""
        return sum((getattr(self, f.name) for f in fields(self)), 0.0)

    @property
    def body_s(self) -> Any:
        """Stage 1 after its start."""
        return self.stream_s + self.latency_s + self.compute_s + self.tail_s


@record
class Bodies:
    """Stage 1 after its start, [N] each: as scheduled, with the work spread evenly over the slots, and that without the
    tensor cores' share."""

    scheduled_s: Any
    even_s: Any
    no_compute_s: Any


def tile_time(blocks: Any, rates: Rates) -> Any:
    """tau of a launch of that many blocks."""
    if rates.sm_count == 1:
        return np.full_like(np.asarray(blocks, dtype=float), rates.tau_loaded_s)
    crowd = np.log2(np.clip(blocks, 1, rates.sm_count)) / log2(rates.sm_count)
    return rates.tau_s + (rates.tau_loaded_s - rates.tau_s) * crowd


def block_time(tiles: Any, blocks: Any, rows: Any, rates: Rates) -> Any:
    """w: seconds of a block of that many tiles by latency alone."""
    return np.maximum(tiles, rates.in_flight) * tile_time(blocks, rates) + np.asarray(rows) * rates.row_s


@record
class Shares:
    """What one of k blocks side by side asks of what they share, in seconds of the whole device [N]; sm: of its SM."""

    stream: Any
    compute: Any
    launch: Any
    sm: Any


def crowding(blocks: Any, tiles: Any, rates: Rates) -> Any:
    """(sqrt(blocks) - 1) of the first wave, half of it at the first tile and all of it from CROWD_TILES on."""
    reached = 0.5 + 0.5 * np.log2(np.clip(tiles, 1, CROWD_TILES)) / log2(CROWD_TILES)
    return (np.sqrt(np.clip(blocks, 1, rates.slots)) - 1) * reached


def shares_of(work: Work, rates: Rates) -> Shares:
    """Every block's equal share."""
    n = np.maximum(work.blocks, 1)
    return Shares(
        stream=stream_time(work.hbm_bytes, work.requested_bytes, rates) / n,
        compute=np.asarray(work.flop) / rates.peak_flop_per_s / n,
        launch=np.asarray(work.launched_blocks) * rates.launch_block_s / n,
        sm=np.asarray(work.tiles_total) * rates.tau_sm_s / n,
    )


def wave_time(k: Any, w: Any, shares: Shares, rates: Rates, compute: bool = True) -> Any:
    """W(k): seconds that k blocks of latency w take side by side (k may be a fraction: an average)."""
    per_sm = np.ceil(np.asarray(k) / rates.sm_count)
    members = [w, per_sm * shares.sm, k * shares.stream, k * shares.launch]
    return _norm(rates.exponent, *members, *([k * shares.compute] if compute else []))


def uniform_bodies(work: Work, rates: Rates) -> Bodies:
    """Stage 1 of equal blocks: the closed form of the list schedule."""
    n = np.asarray(work.blocks)
    w, shares = block_time(work.tiles, n, work.rows, rates), shares_of(work, rates)
    waves, left = n // rates.slots, n % rates.slots
    one = wave_time(np.minimum(n, rates.slots), w, shares, rates)
    last = np.where(left > 0, wave_time(left, w, shares, rates), 0.0)
    several = n > rates.slots
    stretch = np.where(several, n / rates.slots, 1.0)
    refill = rates.refill_s * (stretch - 1)
    scheduled = np.where(several, waves * one + last, one) + rates.refill_s * np.maximum(waves + (left > 0) - 1, 0)
    bare = wave_time(np.minimum(n, rates.slots), w, shares, rates, compute=False)
    busy = n > 0
    return Bodies(*(np.where(busy, x, 0.0) for x in (scheduled, one * stretch + refill, bare * stretch + refill)))


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
    stream = stream_time(work.hbm_bytes, work.requested_bytes, rates) * (n > 0)
    start = rates.fixed_s + rates.crowd_s * crowding(n, work.tiles, rates)
    merge = _norm(
        rates.exponent,
        rates.merge_fixed_s + rates.merge_per_split_s * np.maximum(np.asarray(work.live_splits) - 1, 0),
        np.asarray(work.merge_bytes) / rates.l2_bytes_per_s,
        np.asarray(work.merge_blocks) * rates.launch_block_s,
    )
    split, zero = np.asarray(work.is_split), np.zeros_like(np.asarray(bodies.scheduled_s, dtype=float))
    return Terms(
        launch_s=zero + rates.launch_s * (1 + np.asarray(work.extra_kernels)),
        fixed_s=zero + np.where(n > 0, start, 0.0),
        stream_s=zero + stream,
        latency_s=bodies.no_compute_s - stream,
        compute_s=bodies.even_s - bodies.no_compute_s,
        tail_s=bodies.scheduled_s - bodies.even_s,
        gap_s=zero + np.where(split, rates.gap_s, 0.0),
        merge_s=zero + np.where(split, merge, 0.0),
    )


def _norm(p: float, *terms: Any) -> Any:
    """(sum of x**p)**(1/p): at least the largest term, at most their sum."""
    return sum((np.asarray(t, dtype=float) ** p for t in terms), 0.0) ** (1.0 / p)
