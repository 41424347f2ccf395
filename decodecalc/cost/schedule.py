"""List schedule of a ragged launch: which slot runs which block, and when.

Blocks start in launch order on the slot that is free first. Durations are counted in tiles. Load slows all blocks of a
launch equally, because they share one memory system. A tile's real time depends on how many run at the time
(`model.wave_time` of a mean block), and on how many run on the SM that ends last. Blocks that find nothing to do leave
at once, but they hold a slot while the others are placed: where they lie between working blocks, some SMs get several
of those and some none. In a launch by the list of live splits the whole ones end together, so that what follows on any
slot waits for a whole refill (98 such launches of the bundled kernel on an H200: 3.9 % mean error, and 4.4 % with the
share of slots that are taken over). For equal blocks in a grid without idle ones the result is the closed form of
`model.uniform_bodies`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decodecalc.cost.cuts import Blocks
from decodecalc.cost.model import (
    Bodies,
    FloatArray,
    Shares,
    Work,
    block_time,
    idle_time,
    latency,
    shares_of,
    smooth_max,
    wave_time,
)
from decodecalc.cost.rates import Rates
from decodecalc.intmath import IntArray


class Slot(NamedTuple):
    """One block on one slot (slots of one SM lie sm_count apart). Seconds since stage 1's first block got going."""

    slot: int
    start_s: float
    end_s: float
    request: int
    split: int


# How long a block without work holds its slot: long enough to be placed, and little more. The ragged batch of verify's
# standard suite at 15 split counts on an H200: within 10 % at 0.05 tiles, up to 34 % off at 0.5.
IDLE_TILES = 0.05


class Schedule(NamedTuple):
    """Blocks in launch order [blocks]: slot, start and end, in tiles."""

    slot: list[int]
    start: list[float]
    end: list[float]


class Progress(NamedTuple):
    """What happens between edges [E + 1] (in tiles): how many blocks run [E], and how many of them on the SM that would
    end last by latency alone [E].

    Every slot that works is busy until the last block has started; then they fall idle one by one.
    """

    edges: FloatArray
    running: FloatArray
    fullest: FloatArray


def progress(found: Schedule, working: npt.NDArray[np.bool_], rates: Rates) -> Progress:
    """The schedule as the load that it is. working: which blocks have something to do [blocks]."""
    ends = np.zeros(-(-rates.slots // rates.sm_count) * rates.sm_count)
    at = np.flatnonzero(working)
    ends[np.array(found.slot)[at]] = np.array(found.end)[at]  # of the last working block of each slot
    last_start = float(np.array(found.start)[at].max(initial=0.0))
    on_sm = np.sort(ends.reshape(-1, rates.sm_count), axis=0)  # slots of one SM lie sm_count apart
    left = np.arange(len(on_sm), 0, -1)[:, None]  # still running up to each of its ends
    alone = (np.diff(on_sm, axis=0, prepend=0.0) * latency(0, rates, left)).sum(axis=0)
    last = on_sm[:, int(alone.argmax())]
    falling = np.sort(ends[ends > 0])
    edges = np.concatenate([[0.0, last_start], falling])
    running = np.concatenate([[len(falling)], np.arange(len(falling), 0, -1)]).astype(float)
    fullest = (last[None, :] > edges[:-1, None]).sum(axis=1)
    return Progress(edges, running, fullest.astype(float))


def list_schedule(durations: FloatArray, slots: int) -> Schedule:
    """Each block, in order, on the slot that is free first (the lowest of equals)."""
    free = [(0.0, slot) for slot in range(min(slots, len(durations)))]
    found = Schedule([], [], [])
    for duration in durations.tolist():
        start, slot = free[0]
        heapq.heapreplace(free, (start + duration, slot))
        found.slot.append(slot)
        found.start.append(start)
        found.end.append(start + duration)
    return found


class _Run(NamedTuple):
    """Stage 1 as scheduled: the schedule in tiles, seconds at some of its times, and what they come to.

    real_s, at edges [E + 1]: without the refills.
    """

    schedule: Schedule
    edges: FloatArray
    real_s: FloatArray
    bodies: Bodies


def ragged_bodies(tiles: IntArray, work: Work, rates: Rates) -> Bodies:
    """Stage 1 of one step whose blocks have these tiles, in launch order; `work` is that step's (numbers)."""
    return _run(tiles, work, rates).bodies if (tiles > 0).any() else Bodies(0.0, 0.0, 0.0)


def _run(tiles: IntArray, work: Work, rates: Rates) -> _Run:
    """The list schedule of blocks of which at least one has something to do."""
    working = tiles > 0
    n = int(working.sum())
    load = _Load(float(tiles[working].mean()), float(work.rows), shares_of(work, rates, work.blocks), rates)
    found = list_schedule(np.where(working, tiles, IDLE_TILES), rates.slots)
    edges, running, fullest = progress(found, working, rates)
    real = np.concatenate([[0.0], np.cumsum(np.diff(edges) * load.tile_s(running, fullest))])
    again = max(n / rates.slots, 1.0) - 1
    refill = rates.refill_s * again
    scheduled = float(real[-1]) + rates.refill_s * (math.ceil(again) if work.listed else again)
    scheduled = float(smooth_max(rates.exponent, scheduled, _behind_idle(tiles, rates)))
    side_by_side, total = float(min(n, rates.slots)), float(tiles.sum())
    even = total / side_by_side * load.tile_s(side_by_side)
    bare = total / side_by_side * load.tile_s(side_by_side, compute=False)
    scheduled = max(scheduled, even + refill)
    scheduled += float(idle_time(work, scheduled, rates))
    return _Run(found, edges, real, Bodies(scheduled, even + refill, bare + refill))


def _behind_idle(tiles: IntArray, rates: Rates) -> float:
    """When the last block could end that waits for the launching of blocks without work before it, and then for its own
    latency alone. One more launched costs what the start of one tile grows by for a block more, from one an SM to all
    slots; counted up to all slots."""
    if rates.slots <= rates.sm_count or rates.idle_block_s:  # `idle_time` has them
        return 0.0
    few, many = np.interp((rates.sm_count, rates.slots), rates.blocks, rates.starts_s[0])
    before = np.minimum(np.cumsum(tiles == 0), rates.slots) * (many - few) / (rates.slots - rates.sm_count)
    return float((before + tiles * latency(1, rates))[tiles > 0].max()) if before[-1] > 0 else 0.0


def timeline(blocks: Blocks, work: Work, rates: Rates) -> Iterator[Slot]:
    """Slot and real times of every block that has something to do, in launch order."""
    working = blocks.tiles > 0
    if not working.any():
        return
    found, edges, real, bodies = _run(blocks.tiles, work, rates)
    real = real * (bodies.scheduled_s / real[-1])  # refills spread over the whole
    start, end = (np.interp(np.array(times), edges, real)[working].tolist() for times in (found.start, found.end))
    slot = np.array(found.slot)[working].tolist()
    rows = zip(slot, start, end, blocks.request[working].tolist(), blocks.split[working].tolist())
    yield from (Slot(*row) for row in rows)


class _Load(NamedTuple):
    """A launch's mean block, and what it shares with the others."""

    tiles: float
    rows: float
    shares: Shares
    rates: Rates

    def tile_s(self, k: Any, fullest: Any = 0, compute: bool = True) -> Any:
        """Real seconds of one of its tiles while k blocks run, `fullest` of them on the SM that counts."""
        w = block_time(self.tiles, k, self.rows, self.rates, fullest)
        return wave_time(k, w, self.shares, self.rates, compute) / self.tiles
