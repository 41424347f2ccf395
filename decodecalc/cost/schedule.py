"""List schedule of a ragged launch: which slot runs which block, and when.

Blocks start in launch order on the slot that is free first. Durations are counted in *virtual* seconds, what a block
would take if it only waited for its own loads: tiles x tau_unloaded, plus a refill where it takes over a slot. Load
slows all blocks of a launch alike (they share one memory system), so the real timeline is the virtual one stretched;
for equal blocks the makespan is the closed form of `model.uniform_chain`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decodecalc.cost.rates import Rates
from decodecalc.launch import LaunchPlan

IntArray = npt.NDArray[np.int64]


class Slot(NamedTuple):
    """One block on one slot. start_s, end_s: seconds since stage 1's first block started, t_fixed left out."""

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


def makespan(tiles: IntArray, rates: Rates, rows: float = 0) -> tuple[float, float]:
    """(chain_s, even_s) of blocks with these tiles, in launch order: the list schedule and its even-spread bound."""
    n = len(tiles)
    if n == 0:
        return 0.0, 0.0
    one, refill = tiles * rates.tau_s, rates.refill_s + rows * rates.row_s
    longest = float(one.max())
    excess = max(n / rates.slots - 1, 0.0)
    even = max(longest, float(one.sum()) / rates.slots) + excess * refill
    if n <= rates.slots:
        return longest, longest
    if longest == float(one.min()):
        waves = -(-n // rates.slots)
        return waves * longest + (waves - 1) * refill, even
    ends = one[: rates.slots].tolist()
    heapq.heapify(ends)
    for duration in (one[rates.slots :] + refill).tolist():
        heapq.heapreplace(ends, ends[0] + duration)
    chain = max(ends)
    return chain, min(even, chain)


def timeline(blocks: Blocks, rates: Rates, body_s: float | None = None, rows: float = 0) -> Iterator[Slot]:
    """Every block's slot and times, in launch order, stretched so that the last ends at `body_s` (None: as it is)."""
    chain, _ = makespan(blocks.tiles, rates, rows)
    refill = rates.refill_s + rows * rates.row_s
    stretch = 1.0 if body_s is None or chain == 0 else body_s / chain
    free = [(0.0, slot) for slot in range(min(rates.slots, len(blocks.tiles)))]
    taken = [False] * len(free)
    for tiles, request, split in zip(blocks.tiles.tolist(), blocks.request.tolist(), blocks.split.tolist()):
        start, slot = heapq.heappop(free)
        end = start + tiles * rates.tau_s + (refill if taken[slot] else 0.0)
        taken[slot] = True
        heapq.heappush(free, (end, slot))
        yield Slot(slot, start * stretch, end * stretch, request, split)
