"""Which keys every stage-1 block walks, in tiles of the kernel that runs it.

A regular partition cuts each request into splits of one size, so that at most three of its splits differ: the first
one with work (a window may begin inside it), the last one (the request may end inside it), and those between them. An
irregular partition comes as lists of key ranges (`Launches.key_ranges`) and is walked split by split. Both
give the same two results: sums over the blocks of a step (`totals`), and the blocks of a step in launch order
(`launch_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decodecalc.intmath import IntArray, cdiv
from decodecalc.launch.arrays import Batches, BoolArray, Launches
from decodecalc.launch.plan import KeyRange, KeyRanges, dealt_keys

# Grids of more blocks than this are scheduled without the blocks that find nothing to do.
MOST_IDLE = 1 << 16
EVERY = slice(None)
PIECE_TILES = 2  # what another piece costs a persistent block, in tiles: 1 to 4 by times of such a kernel (H200)


class Blocks(NamedTuple):
    """Launched stage-1 blocks of one step in launch order [blocks]."""

    tiles: IntArray
    """Tiles that the block walks; 0 where it finds nothing to do."""
    request: IntArray
    """The request, or the class of equal requests, that it works on."""
    split: IntArray
    """The split that it works on."""


class Totals(NamedTuple):
    """Sums over the stage-1 blocks of N steps, each of shape [N]."""

    blocks: IntArray
    """Blocks that walk at least one tile."""
    tiles: IntArray
    """Tiles of the longest block."""
    tiles_total: IntArray
    """Tiles of all blocks."""
    short_blocks: IntArray
    """Blocks with work that have fewer tiles than the longest one."""
    short_tiles_total: IntArray
    """Tiles of those."""


class Cuts(NamedTuple):
    """The partition of N steps of R request classes, as the kernel walks it. Arrays are int64 [N, R] unless noted."""

    first: IntArray
    """First key of split 0."""
    size: IntArray
    """Keys of a split."""
    live: IntArray
    """Splits that own keys."""
    skipped: IntArray
    """Splits in front that lie before the window altogether."""
    begin: IntArray
    """First key that is read."""
    end: IntArray
    """End of the request's last split."""
    reads: BoolArray
    """Whether the class has anything to read."""
    blocks: IntArray
    """Blocks of a split, over all requests of the class."""
    tile_keys: IntArray
    """Keys of a tile [N, 1]."""
    launched: IntArray
    """Splits in the grid [N]."""
    has_idle: bool
    """Whether blocks without work belong to one request each (they do not where requests share the grid's slots)."""
    counts: IntArray
    """Requests of each class."""
    dealt: IntArray
    """Keys of the pieces that are dealt to the splits in turn [N, 1]; 0 where every split owns one contiguous range."""
    irregular: Mapping[int, Sequence[list[KeyRange]]]
    """Key ranges of the steps whose partition has no size: of every class, or of every request in turn."""
    by_request: bool = False
    """Whether blocks start request by request, rather than split by split."""
    listed: BoolArray | None = None
    """Steps that launch a block for each live split alone, the last split of each request after all whole ones, the
    longest first [N]."""
    pieces_in_turn: Callable[[int], tuple[int, ...]] | None = None
    """How many splits each persistent block of a step walks in turn; None: one."""

    def tiles_of(self, split: Any, steps: Any = EVERY) -> IntArray:
        """Tiles of split number `split` in each class of `steps` (all, or one by its number) of a regular partition.
        `split` broadcasts against [N, R], or against [R] of a single step."""
        size, end = self.size[steps], self.end[steps]
        start = self.first[steps] + split * size
        stop = np.minimum(start + size, end)
        works = (split >= self.skipped[steps]) & (split < self.live[steps]) & (stop > start) & self.reads[steps]
        keys = np.where(works, walked_keys(start, stop, self.begin[steps]), 0)
        dealt = self.dealt[steps]
        if dealt.any():  # a window skips whole pieces before they are dealt
            own = dealt_keys(end - self.first[steps], np.maximum(dealt, 1), self.live[steps], split)
            keys = np.where(dealt > 0, np.where(split < self.live[steps], own, 0), keys)
        return cdiv(keys, self.tile_keys[steps])

    def order(self, n: int) -> Blocks:
        """Blocks of step n in launch order: split slowest, then request, then the blocks of a split; or request by
        request; or by the list of live splits. A persistent block that walks several pieces is one block, of the first
        one's request and split."""
        if n in self.irregular:
            tiles, columns = self._walked(n)
        else:
            tiles, columns = self.tiles_of(np.arange(int(self.live[n].max(initial=0)))[:, None], n), self.blocks[n]
        if self.listed is not None and self.listed[n]:
            return _in_list(tiles, self.live[n], columns)
        launched = int(self.launched[n])
        idle = self.has_idle and launched * int(columns.sum()) <= MOST_IDLE
        if idle and launched > len(tiles):
            tiles = np.concatenate([tiles, np.zeros((launched - len(tiles), tiles.shape[1]), dtype=np.int64)])
        every: list[IntArray] = [tiles, *np.indices(tiles.shape)]
        tiles, split, request = ((x.T if self.by_request else x).reshape(-1) for x in every)
        if self.pieces_in_turn is not None:
            tiles, split, request = in_turn(tiles, split, request, self.pieces_in_turn(n))
        each = columns[request]
        found = Blocks(*(np.repeat(x, each) for x in (tiles, request, split)))
        return found if idle else Blocks(*(x[found.tiles > 0] for x in found))

    def _walked(self, n: int) -> tuple[IntArray, IntArray]:
        """Tiles [splits, requests] of an irregular step, and the blocks of a split of each request."""
        ranges = self.irregular[n]
        counts, tile = self.counts[n], int(self.tile_keys[n, 0])
        of_class = np.arange(len(counts)) if len(ranges) == len(counts) else np.repeat(np.arange(len(counts)), counts)
        columns = self.blocks[n] if len(ranges) == len(counts) else (self.blocks[n] // np.maximum(counts, 1))[of_class]
        tiles = np.zeros((max(map(len, ranges), default=0), len(ranges)), dtype=np.int64)
        for r, (splits, c) in enumerate(zip(ranges, of_class.tolist())):
            skipped, begin = int(self.skipped[n, c]), int(self.begin[n, c])
            for i, (start, end) in enumerate(splits):
                if i >= skipped and end > start and self.reads[n, c]:
                    tiles[i, r] = cdiv(end - max(start, min(begin, end - 1)), tile)
        return tiles, columns

    def totals(self) -> Totals:
        """What the blocks of every step come to."""
        kinds = [(tiles, splits * self.blocks * (tiles > 0)) for tiles, splits in self._kinds()]
        longest = np.max([np.where(blocks > 0, tiles, 0).max(axis=1, initial=0) for tiles, blocks in kinds], axis=0)
        short = [blocks * (tiles < longest[:, None]) for tiles, blocks in kinds]
        found = Totals(
            sum(blocks.sum(axis=1) for _, blocks in kinds),
            longest,
            sum((tiles * blocks).sum(axis=1) for tiles, blocks in kinds),
            sum(blocks.sum(axis=1) for blocks in short),
            sum((tiles * blocks).sum(axis=1) for (tiles, _), blocks in zip(kinds, short)),
        )
        for n in self.irregular:
            if self.pieces_in_turn is not None:
                tiles = self.order(n).tiles
                each = np.ones_like(tiles)
            else:
                tiles, columns = self._walked(n)
                each = np.broadcast_to(columns, tiles.shape)
            most_tiles = int(tiles.max(initial=0))
            below = (tiles > 0) & (tiles < most_tiles)
            numbers = (
                each[tiles > 0].sum(), most_tiles, (tiles * each).sum(), each[below].sum(), (tiles * each)[below].sum(),
            )  # fmt: skip
            for values, value in zip(found, numbers):
                values[n] = value
        return found

    def _kinds(self) -> list[tuple[IntArray, IntArray]]:
        """The three kinds of splits that a request of a regular partition has: tiles, and how many there are."""
        most = np.maximum(self.live - self.skipped, 0)
        first = self.tiles_of(self.skipped)
        if (self.skipped == 0).all() and (self.begin <= self.first).all() and not self.dealt.any():
            middle = first  # no window: only the last split differs
        else:
            middle = np.where(most > 2, self.tiles_of(self.skipped + 1), 0)
        last = np.where(most > 1, self.tiles_of(self.live - 1), 0)
        kinds = [(first, np.minimum(most, 1)), (middle, np.maximum(most - 2, 0)), (last, np.where(most > 1, 1, 0))]
        if not self.dealt.any():
            return kinds
        # The first `more` splits get one piece more than the others; the last piece, which may be shorter, goes to the
        # last of them, or to the last split where all get as many.
        live = np.maximum(self.live, 1)
        pieces = cdiv(self.end - self.first, np.maximum(self.dealt, 1))
        more, owner = pieces % live, np.maximum(pieces - 1, 0) % live
        fewer = live - more
        whole = np.where(more > 0, more - 1, 0), np.where(more > 0, fewer, fewer - 1)
        turns = [
            (self.tiles_of(owner), np.ones_like(live)),
            (cdiv((pieces // live + 1) * self.dealt, self.tile_keys), whole[0]),
            (cdiv(pieces // live * self.dealt, self.tile_keys), whole[1]),
        ]
        dealt = self.dealt > 0
        return [(np.where(dealt, t[0], k[0]), np.where(dealt, t[1], k[1])) for t, k in zip(turns, kinds)]


def _in_list(tiles: IntArray, live: IntArray, columns: IntArray) -> Blocks:
    """Blocks with work of a listed launch: whole splits request by request, then each one's last, the longest first."""
    split, request = (x.T.reshape(-1) for x in np.indices(tiles.shape))
    walked, last = tiles.T.reshape(-1), split == live[request] - 1
    last_ones = np.flatnonzero(last)
    order = np.concatenate([np.flatnonzero(~last), last_ones[np.argsort(-walked[last_ones], kind="stable")]])
    order = np.repeat(order, np.where(walked[order] > 0, columns[request[order]], 0))
    return Blocks(walked[order], request[order], split[order])


def walked_keys(start: Any, end: Any, begin: Any) -> Any:
    """Keys that a split from `start` to `end` walks when the request is read from `begin` on: at least one, because a
    split that has work has at least one tile."""
    return end - np.maximum(start, np.minimum(begin, end - 1))


def in_turn(
    tiles: IntArray, split: IntArray, request: IntArray, pieces: Sequence[int]
) -> tuple[IntArray, IntArray, IntArray]:
    """Tiles, first split and first request of every persistent block, from those of the pieces [P] in order."""
    has_keys = tiles > 0
    starts = np.concatenate([[0], np.cumsum(pieces)[:-1]]).astype(np.int64)
    walked = np.add.reduceat(tiles[has_keys], starts) + PIECE_TILES * (np.asarray(pieces) - 1)
    return walked, split[has_keys][starts], request[has_keys][starts]


def cuts_of(batches: Batches, found: Launches, tile_keys: Any, *, by_request: bool = False) -> Cuts:
    """The partition of `found`, walked in tiles of `tile_keys` (a number or [N]). by_request: the blocks' order."""
    shape, n = batches.seq_lens.shape, batches.n

    def per_class(value: Any) -> IntArray:
        return np.broadcast_to(np.asarray(value), shape)

    live = per_class(found.live)
    working = live if found.working is None else per_class(found.working)
    read = batches.seq_lens if found.keys_read is None else per_class(found.keys_read)
    first, size, end = per_class(found.first_key), per_class(found.split_keys), batches.seq_lens
    skipped = live - working
    dealt = np.zeros((n, 1), dtype=np.int64)
    if found.interleave_keys is not None:
        dealt[:, 0] = found.interleave_keys
    irregular: dict[int, Sequence[list[KeyRange]]] = {}
    if found.key_ranges is not None:
        first, size, live, end = first.copy(), size.copy(), live.copy(), end.copy()
        for step in range(n):
            ranges = found.key_ranges(step)
            if isinstance(ranges, KeyRanges):
                first[step], size[step] = ranges.first_key, ranges.split_keys
                live[step], end[step] = ranges.live, ranges.end
                dealt[step] = ranges.interleave_keys or 0
            else:
                irregular[step] = ranges
    return Cuts(
        first=first,
        size=size,
        live=live,
        skipped=skipped,
        begin=batches.seq_lens - read,
        end=end,
        reads=read > 0,
        blocks=per_class(found.blocks_per_split) * batches.counts,
        tile_keys=np.broadcast_to(np.asarray(tile_keys), (n,))[:, None],
        launched=np.broadcast_to(np.asarray(found.launched), (n,)),
        has_idle=not (found.shared_slots or by_request),
        by_request=by_request or found.pieces_in_turn is not None,
        listed=np.broadcast_to(np.asarray(found.listed), (n,)),
        pieces_in_turn=found.pieces_in_turn,
        counts=batches.counts,
        dealt=dealt,
        irregular=irregular,
    )


def alike(batches: Batches) -> BoolArray:
    """Which steps hold equal requests only [N]."""
    absent = batches.counts == 0
    same = (batches.seq_lens == batches.max_seq_len[:, None]) & (batches.q_lens == batches.max_q_len[:, None])
    return np.asarray((same | absent).all(axis=1))
