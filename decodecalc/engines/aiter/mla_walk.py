"""The walk of aiter's MLA metadata kernel: units of work are dealt to parts in order, a payload of blocks to each.

A unit is one tile of query rows of one request, or of one group of 16 heads of it where the heads are folded. It costs
its blocks of keys and a fixed overhead. A part that cannot take the rest of a unit takes as many blocks as its payload
leaves and the next part goes on there; a rest that is shorter than the query tokens is not left to the next part.

Equal units stand in classes with a count, and as many of them as fit a part are dealt at once: a step of one class
takes one turn for each part whatever its batch size.

Read from ROCm/aiter: csrc/kernels/mla/metadata/v1_2_device.cuh (kn_get_mla_metadata_v1_2;
kn_get_mla_metadata_v1_2_parallel makes the same list).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.intmath import IntArray

CHUNK_STEPS = 8192  # steps dealt at a time: their state stays in the CPU's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """The work that is to be dealt: N steps of R classes of equal units."""

    blocks: IntArray
    """Blocks of keys of a unit [N, R]."""
    pages: IntArray
    """Pages of keys of a unit [N, R]."""
    counts: IntArray
    """Units of the class [N, R]."""
    payload: IntArray
    """Blocks, overhead included, that a part takes [N]."""
    parts: IntArray
    """Parts of the launch [N]."""
    tail: IntArray
    """A rest of fewer pages than this is taken along by the part before it [N]; 0 where that is never done."""
    block_pages: int
    """Pages of a block: kv_granularity."""
    overhead: int
    """What a unit costs beside its blocks: fixed_over_head_num_blocks."""

    def rows(self, which: Any) -> Dealing:
        """The same for some of the steps."""
        return Dealing(
            blocks=self.blocks[which], pages=self.pages[which], counts=self.counts[which],
            payload=self.payload[which], parts=self.parts[which], tail=self.tail[which],
            block_pages=self.block_pages, overhead=self.overhead,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The result of the walk."""

    most: IntArray
    """Works of the unit that has the most of its class [N, R]."""
    used_parts: IntArray
    """Parts with work [N]."""
    works: IntArray
    """Works of all units [N]."""
    split_works: IntArray
    """Works that write a partial state, which are those of units with several works [N]."""
    cut_units: IntArray
    """Units with several works [N]."""
    marks: tuple[tuple[int, int, int], ...] = ()
    """Unit, block and work of the unit at the start of every used part, for a single step only."""


@dataclass(slots=True)
class _MlaWalk:
    """State of the steps that still have units to deal, one entry each."""

    step: IntArray  # row of the result
    klass: IntArray  # class being dealt
    left: IntArray  # its units that are not finished
    unit: IntArray  # index of the first unfinished unit
    block: IntArray  # its blocks that are dealt
    split: IntArray  # its works so far
    most: IntArray  # most works of a unit of the class
    works: IntArray
    split_works: IntArray
    cut_units: IntArray

    def keep(self, which: Any) -> None:
        """Keep these steps and drop the others."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[which])

    def turn(self, given: Dealing, remain: IntArray) -> IntArray:
        """Give every part what it can take of the current class.

        Returns the payload that remains where the class is used up, and 0 elsewhere.
        """
        here = (self.step, self.klass)
        blocks = given.blocks[here]
        cost = blocks + given.overhead
        spare = remain - (cost - self.block)
        fits = (spare >= 0) & (self.left > 0)
        finished = np.where(fits, 1 + np.minimum(self.left - 1, spare // cost), 0)
        remain = np.where(fits, spare - (finished - 1) * cost, remain)
        self._finish(fits, finished)
        more = self.left > 0
        taken = np.where(more, np.maximum(remain - given.overhead, 0), 0)
        rest = given.pages[here] - (self.block + taken) * given.block_pages
        whole = (taken > 0) & (rest < given.tail[self.step])
        self._finish(whole, whole * 1)
        cut = (taken > 0) & ~whole
        self.block += np.where(cut, taken, 0)
        self.split += cut
        self.works += cut
        self.split_works += cut
        return np.where(more, 0, remain)

    def _finish(self, which: Any, units: IntArray) -> None:
        """Units of the class end here, the one in hand first."""
        was_cut = which & (self.split > 0)
        self.left -= units
        self.unit += units
        self.works += units
        self.split_works += was_cut
        self.cut_units += was_cut
        np.maximum(self.most, np.where(which, self.split + 1, 0), out=self.most)
        self.block = np.where(which, 0, self.block)
        self.split = np.where(which, 0, self.split)


def deal(given: Dealing) -> Dealt:
    """Deal every step."""
    n = len(given.blocks)
    found = [_deal(given.rows(slice(i, i + CHUNK_STEPS))) for i in range(0, n, CHUNK_STEPS)]
    if len(found) == 1:
        return found[0]
    return Dealt(
        most=np.concatenate([part.most for part in found]),
        used_parts=np.concatenate([part.used_parts for part in found]),
        works=np.concatenate([part.works for part in found]),
        split_works=np.concatenate([part.split_works for part in found]),
        cut_units=np.concatenate([part.cut_units for part in found]),
    )


def _deal(given: Dealing) -> Dealt:
    n, classes = given.blocks.shape
    most = np.zeros_like(given.blocks)
    totals = np.zeros((4, n), dtype=np.int64)
    used = totals[3]
    marks: list[tuple[int, int, int]] = []
    walk = _MlaWalk(
        np.arange(n), np.zeros(n, dtype=np.int64), given.counts[:, 0].copy(), *np.zeros((7, n), dtype=np.int64).copy()
    )
    for part in range(int(given.parts.max())):
        _next_class(walk, given, most)
        going = (walk.left > 0) & (given.parts[walk.step] > part)
        if part % 8 == 0 or n == 1:
            _store(walk, most, totals)
            walk.keep(going)
            if not len(walk.step):
                break
            going = going[going]
        used[walk.step] += going
        if n == 1:
            marks.append((int(walk.unit[0]), int(walk.block[0]), int(walk.split[0])))
        remain = walk.turn(given, np.where(going, given.payload[walk.step], 0))
        while classes > 1 and remain.any():
            _next_class(walk, given, most)
            if not (walk.left > 0).any():
                break
            remain = walk.turn(given, np.where(walk.left > 0, remain, 0))
    _store(walk, most, totals)
    return Dealt(
        most=most, used_parts=used, works=totals[0], split_works=totals[1], cut_units=totals[2], marks=tuple(marks)
    )


def _store(walk: _MlaWalk, most: IntArray, totals: IntArray) -> None:
    most[walk.step, walk.klass] = np.maximum(most[walk.step, walk.klass], walk.most)
    totals[0, walk.step], totals[1, walk.step] = walk.works, walk.split_works
    totals[2, walk.step] = walk.cut_units


def _next_class(walk: _MlaWalk, given: Dealing, most: IntArray) -> None:
    """Move on to the next class that has units, where the current one is used up."""
    last = given.counts.shape[1] - 1
    while True:
        over = (walk.left == 0) & (walk.klass < last)
        if not over.any():
            return
        steps = walk.step[over]
        most[steps, walk.klass[over]] = np.maximum(most[steps, walk.klass[over]], walk.most[over])
        walk.most[over] = 0
        walk.klass[over] += 1
        walk.left[over] = given.counts[steps, walk.klass[over]]
