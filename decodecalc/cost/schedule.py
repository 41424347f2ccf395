"""List schedule of a ragged launch: which slot runs which block, and when.

Blocks start in launch order on the slot that is free first. Durations are counted in *virtual* seconds: what a block
takes by latency alone (`model.block_time`). Load slows all blocks of a launch alike (they share one memory system), by
a factor that depends on how many run at the time; real time is virtual time stretched by that factor. For equal blocks
the result is the closed form of `model.uniform_bodies`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decodecalc.cost.model import Bodies, FloatArray, Shares, Work, block_time, shares_of, wave_time
from decodecalc.cost.rates import Rates
from decodecalc.launch import LaunchPlan

IntArray = npt.NDArray[np.int64]


class Slot(NamedTuple):
    """One block on one slot (slots of one SM lie sm_count apart). Seconds since stage 1's first block got going."""

    slot: int
    start_s: float
    end_s: float
    request: int
    split: int


class Blocks(NamedTuple):
    """Live stage-1 blocks in launch order: tiles, request and split of each [blocks]."""

    tiles: IntArray
    request: IntArray
    split: IntArray


def launch_order(plan: LaunchPlan) -> Blocks:
    """The plan's working blocks in launch order: split slowest, then request, then the blocks of a split.

    Every split-KV grid modelled has its split index outermost or launches few enough blocks that the order does not
    matter.
    """
    tile = plan.tile_keys
    rows: list[tuple[int, int, int, int]] = []  # (split, request, tiles, columns)
    for r, ranges in enumerate(plan.splits.keys):
        read, skipped = plan.keys_read[r], plan.splits.live[r] - plan.splits.working[r]
        for i, (start, end) in enumerate(ranges):
            if i >= skipped and end > start and read > 0:
                # With a window, what lies before it is skipped: the first working splits may be cut.
                keys = end - max(start, min(plan.batch.seq_lens[r] - read, end - 1))
                rows.append((i, r, -(-keys // tile), plan.blocks_per_split[r]))
    rows.sort(key=lambda row: row[:2])
    if not rows:
        empty = np.zeros(0, dtype=np.int64)
        return Blocks(empty, empty, empty)
    split, request, tiles, columns = (np.array(c, dtype=np.int64) for c in zip(*rows))
    return Blocks(np.repeat(tiles, columns), np.repeat(request, columns), np.repeat(split, columns))


class Schedule(NamedTuple):
    """Blocks in launch order [blocks]: slot, start and end in virtual seconds."""

    slot: list[int]
    start: list[float]
    end: list[float]

    def running(self) -> tuple[FloatArray, FloatArray]:
        """(edges [E + 1], blocks running in each interval between them [E]) in virtual seconds.

        Every slot is busy until the last block has started; then they fall idle one by one.
        """
        last_start = max(self.start, default=0.0)
        ends = dict(zip(self.slot, self.end))  # the last block of each slot
        falling = np.sort(np.array(list(ends.values())))
        edges = np.concatenate([[0.0, last_start], falling])
        count = np.concatenate([[len(ends)], np.arange(len(ends), 0, -1)])
        return edges, count.astype(float)


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


def ragged_bodies(tiles: IntArray, work: Work, rates: Rates) -> Bodies:
    """Stage 1 of one step whose blocks have these tiles, in launch order; `work` is that step's (numbers)."""
    n = len(tiles)
    if n == 0:
        return Bodies(0.0, 0.0, 0.0)
    w, mean, shares = _virtual(tiles, work, rates)
    edges, running = list_schedule(w, rates.slots).running()
    waves, fraction = -(-n // rates.slots), max(n / rates.slots, 1.0)
    scheduled = float((np.diff(edges) * _slowdown(running, mean, shares, rates)).sum()) + rates.refill_s * (waves - 1)
    refill = rates.refill_s * (fraction - 1)
    side_by_side = float(min(n, rates.slots))
    even = float(w.sum()) / side_by_side * _slowdown(side_by_side, mean, shares, rates)
    bare = float(w.sum()) / side_by_side * _slowdown(side_by_side, mean, shares, rates, compute=False)
    return Bodies(max(scheduled, even + refill), even + refill, bare + refill)


def timeline(blocks: Blocks, work: Work, rates: Rates) -> Iterator[Slot]:
    """Every block's slot and real times, in launch order."""
    if not len(blocks.tiles):
        return
    w, mean, shares = _virtual(blocks.tiles, work, rates)
    found = list_schedule(w, rates.slots)
    edges, running = found.running()
    real = np.concatenate([[0.0], np.cumsum(np.diff(edges) * _slowdown(running, mean, shares, rates))])
    real *= ragged_bodies(blocks.tiles, work, rates).scheduled_s / real[-1]  # refills spread over the whole
    start, end = (np.interp(np.array(times), edges, real).tolist() for times in (found.start, found.end))
    rows = zip(found.slot, start, end, blocks.request.tolist(), blocks.split.tolist())
    yield from (Slot(*row) for row in rows)


def _virtual(tiles: IntArray, work: Work, rates: Rates) -> tuple[FloatArray, float, Shares]:
    """Virtual duration of every block, their mean, and a mean block's shares."""
    w = block_time(tiles, len(tiles), float(work.rows), rates)
    return w, float(w.mean()), shares_of(work, rates)


def _slowdown(k: Any, mean: float, shares: Shares, rates: Rates, compute: bool = True) -> Any:
    """Real over virtual time while k blocks run."""
    return wave_time(k, mean, shares, rates, compute) / mean
