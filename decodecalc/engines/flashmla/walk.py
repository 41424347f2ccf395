"""The walk of FlashMLA's metadata kernel: requests are dealt to SM parts in order, a payload of blocks to each.

Equal requests stand in classes with a count, and as many of them as fit a part are dealt at once: a step of one class
takes one turn per part whatever its batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decodecalc.intmath import IntArray

BLOCK_KEYS = 64
OVERHEAD_BLOCKS = 5  # fixed_overhead_num_blocks: what starting a request costs, in blocks
CHUNK_STEPS = 8192  # steps dealt at a time: their state stays in the CPU's cache


class SmPart(NamedTuple):
    """What one SM part serves: requests begin to end (both included), blocks begin to end (end excluded)."""

    begin_req_idx: int
    end_req_idx: int
    begin_block_idx: int
    end_block_idx: int
    begin_split_idx: int
    is_first_req_splitted: bool
    is_last_req_splitted: bool


@dataclass(frozen=True, slots=True)
class Pieces:
    """What the walk finds. most [N, R]: splits of that request of a class which has most. used_parts, split_requests
    [N]: parts with work, requests cut over several. marks: (request, block, split) at the start of every used part, in
    order, for a single step."""

    most: IntArray
    used_parts: IntArray
    split_requests: IntArray
    marks: tuple[tuple[int, int, int], ...] = ()


@dataclass
class _TileWalk:
    """State of the steps that still have requests to deal, one entry each."""

    step: IntArray  # row of the result
    payload: IntArray
    parts: IntArray
    klass: IntArray  # class being dealt
    cost: IntArray  # what a whole request of it takes of a payload
    left: IntArray  # its requests that are not finished
    request: IntArray  # index of the first unfinished request
    block: IntArray  # its blocks that are dealt
    split: IntArray  # its splits so far
    most: IntArray  # most splits of a request of the class
    cut_requests: IntArray  # requests with several splits

    def keep(self, which: Any) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[which])

    def turn(self, remain: IntArray, overhead: int) -> IntArray:
        """Give every part what it can take of the current class; what remains where the class is used up, else 0."""
        spare = remain - (self.cost - self.block)
        fits = (spare >= 0) & (self.left > 0)
        finished = np.where(fits, 1 + np.minimum(self.left - 1, spare // self.cost), 0)
        remain = np.where(fits, spare - (finished - 1) * self.cost, remain)
        self.left -= finished
        self.request += finished
        np.maximum(self.most, np.where(fits, self.split + 1, 0), out=self.most)
        self.cut_requests += fits & (self.split > 0)
        more = self.left > 0
        cut = np.where(more, np.maximum(remain - overhead, 0), 0)
        self.block = np.where(fits, cut, self.block + cut)
        self.split = np.where(fits, 0, self.split) + (cut > 0)
        return np.where(more, 0, remain)


def deal(
    blocks: IntArray, counts: IntArray, payload: IntArray, parts: IntArray, overhead: int = OVERHEAD_BLOCKS
) -> Pieces:
    """Deal every step. blocks, counts [N, R]; payload, parts [N]; overhead: blocks that starting a request costs."""
    chunks = [slice(i, i + CHUNK_STEPS) for i in range(0, len(blocks), CHUNK_STEPS)]
    found = [_deal(blocks[c], counts[c], payload[c], parts[c], overhead) for c in chunks]
    if len(found) == 1:
        return found[0]
    return Pieces(
        np.concatenate([p.most for p in found]),
        np.concatenate([p.used_parts for p in found]),
        np.concatenate([p.split_requests for p in found]),
    )


def _deal(blocks: IntArray, counts: IntArray, payload: IntArray, parts: IntArray, overhead: int) -> Pieces:
    n, classes = blocks.shape
    most = np.zeros_like(blocks)
    used, cut_requests = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    marks: list[tuple[int, int, int]] = []
    walk = _TileWalk(
        np.arange(n), payload, parts, np.zeros(n, dtype=np.int64), blocks[:, 0] + overhead, counts[:, 0].copy(),
        *(np.zeros(n, dtype=np.int64) for _ in range(5)),
    )  # fmt: skip
    for part in range(int(parts.max())):
        _next_class(walk, blocks, counts, most, overhead)
        going = (walk.left > 0) & (walk.parts > part)
        if part % 8 == 0 or n == 1:
            _store(walk, most, cut_requests)
            walk.keep(going)
            if not len(walk.step):
                break
            going = going[going]
        used[walk.step] += going
        if n == 1:
            marks.append((int(walk.request[0]), int(walk.block[0]), int(walk.split[0])))
        remain = walk.turn(np.where(going, walk.payload, 0), overhead)
        while classes > 1 and remain.any():
            _next_class(walk, blocks, counts, most, overhead)
            remain = walk.turn(np.where(walk.left > 0, remain, 0), overhead)
    _store(walk, most, cut_requests)
    return Pieces(most, used, cut_requests, tuple(marks))


def _store(walk: _TileWalk, most: IntArray, cut_requests: IntArray) -> None:
    most[walk.step, walk.klass] = np.maximum(most[walk.step, walk.klass], walk.most)
    cut_requests[walk.step] = walk.cut_requests


def _next_class(walk: _TileWalk, blocks: IntArray, counts: IntArray, most: IntArray, overhead: int) -> None:
    """Move on to the next class that has requests, where the current one is used up."""
    last = counts.shape[1] - 1
    while True:
        over = (walk.left == 0) & (walk.klass < last)
        if not over.any():
            return
        steps = walk.step[over]
        most[steps, walk.klass[over]] = np.maximum(most[steps, walk.klass[over]], walk.most[over])
        walk.most[over] = 0
        walk.klass[over] += 1
        walk.cost[over] = blocks[steps, walk.klass[over]] + overhead
        walk.left[over] = counts[steps, walk.klass[over]]


def deal_one(
    blocks: IntArray,
    counts: IntArray,
    seq_lens: IntArray,
    payload: int,
    parts: int,
    overhead: int = OVERHEAD_BLOCKS,
) -> tuple[SmPart, ...]:
    """The parts of one step that have work. blocks, counts, seq_lens [R]."""
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))  # runs of equal requests are one class
    runs, run_counts = blocks[starts], np.add.reduceat(counts, starts)
    marks = deal(runs[None], run_counts[None], np.array([payload]), np.array([parts]), overhead).marks
    lens, sizes = np.repeat(seq_lens, counts).tolist(), np.repeat(blocks, counts).tolist()
    found = []
    for (request, block, split), (next_request, next_block, _) in zip(marks, [*marks[1:], (len(lens), 0, 0)]):
        end = next_request if next_block > 0 else next_request - 1
        end_block = next_block if next_block > 0 else (sizes[end] if lens[end] else 0)
        first_cut, last_cut = block != 0, end_block != sizes[end] and lens[end] != 0
        if request == end:
            first_cut = last_cut = first_cut or last_cut
        found.append(SmPart(request, end, block, end_block, split, first_cut, last_cut))
    return tuple(found)
