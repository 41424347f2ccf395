"""The schedule of one step: SM parts, their payload, and what every part serves, from the walk in `walk.py`.

Every kernel of the FlashMLA family deals blocks of 64 keys in this way; they differ in how many parts there are, in
which keys a request has (its context, or a gathered list), and in what starting a request costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.engines.flashmla.walk import BLOCK_KEYS, OVERHEAD_BLOCKS, Pieces, SmPart, deal, deal_one
from decodecalc.intmath import IntArray, cdiv
from decodecalc.launch.arrays import at
from decodecalc.launch.plan import KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSchedule:
    """What the metadata kernel writes for every step of an array."""

    parts: IntArray
    """SM parts of each step [N]."""
    payload: IntArray
    """Blocks that a part takes at most, with the cost of starting its requests included [N]."""
    total: IntArray
    """Blocks of all requests, with the cost of starting each of them included [N]."""
    pieces: Pieces
    """Splits of each class, used parts and split requests."""
    sm_parts: tuple[SmPart, ...] | None
    """The requests and blocks that each part with work serves; only for an array of one step."""
    blocks: IntArray
    """Blocks of one request of each class, as the walk counts them [N, R]."""
    walked: IntArray
    """Keys of one request of each class, as the walk sees them [N, R]."""
    keys: IntArray
    """Keys of one request of each class that exist [N, R]."""
    counts: IntArray
    """Requests of each class [N, R]."""
    overhead: int
    """Blocks that starting a request costs."""

    @property
    def requested(self) -> IntArray:
        """Partial results of the request that has the most of its class, at least 1 [N, R]."""
        return self.pieces.most

    @property
    def is_split(self) -> Any:
        """Whether any request is cut over several parts [N]."""
        return self.pieces.most.max(axis=1) > 1

    @property
    def live(self) -> IntArray:
        """Splits with keys of the request that has the most of its class [N, R]."""
        return np.where(self.keys > 0, self.pieces.most, 0)

    @property
    def split_keys(self) -> IntArray:
        """Keys that a part takes of one request at most [N, R]."""
        room = np.maximum(self.payload - self.overhead, 1)[:, None]
        return np.minimum(np.maximum(self.blocks, 1), room) * BLOCK_KEYS

    @property
    def partial_splits(self) -> IntArray:
        """Splits that write a partial state: all splits of a request that is cut, and none of any other [N, R]."""
        return np.where((self.keys > 0) & (self.pieces.most > 1), self.pieces.most, 0)

    def parts_of(self, n: int) -> tuple[SmPart, ...]:
        """The requests and blocks that each part with work serves in step n."""
        if self.sm_parts is not None:
            return self.sm_parts
        payload, parts = at(self.payload, n), at(self.parts, n)
        return deal_one(self.blocks[n], self.counts[n], self.walked[n], payload, parts, self.overhead)

    def pieces_in_turn(self, n: int) -> tuple[int, ...]:
        """Pieces with keys that each part of step n walks one after another; parts without any are left out."""
        lens = np.repeat(self.keys[n], self.counts[n]).tolist()
        counts = []
        for part in self.parts_of(n):
            pieces = range(part.begin_req_idx, part.end_req_idx + 1)
            starts = (part.begin_block_idx if r == part.begin_req_idx else 0 for r in pieces)
            ends = (part.end_block_idx * BLOCK_KEYS if r == part.end_req_idx else lens[r] for r in pieces)
            counts.append(sum(s * BLOCK_KEYS < min(e, lens[r]) for r, s, e in zip(pieces, starts, ends)))
        return tuple(count for count in counts if count)

    def key_ranges(self, n: int) -> Sequence[list[KeyRange]]:
        """Key ranges of every request of step n, equal requests one after another."""
        lens = np.repeat(self.keys[n], self.counts[n]).tolist()
        ranges: list[list[KeyRange]] = [[] for _ in lens]
        for part in self.parts_of(n):
            for r in range(part.begin_req_idx, part.end_req_idx + 1):
                start = part.begin_block_idx * BLOCK_KEYS if r == part.begin_req_idx else 0
                end = min(part.end_block_idx * BLOCK_KEYS, lens[r]) if r == part.end_req_idx else lens[r]
                if start < end:
                    ranges[r].append((start, end))
        return ranges


def schedule(
    *,
    keys: IntArray,
    counts: IntArray,
    parts: IntArray,
    overhead: int = OVERHEAD_BLOCKS,
    least_payload: int = 0,
    empty_blocks: int = 1,
    empty_keys: int = 0,
) -> TileSchedule:
    """Deal every step. `keys` and `counts` [N, R] are the keys of a class's requests and their number; `parts` is [N].

    `least_payload` is the lower bound of the payload. A request without keys counts for `empty_blocks` blocks, and the
    walk sees `empty_keys` keys in its place.
    """
    blocks = np.where(keys > 0, cdiv(keys, BLOCK_KEYS), empty_blocks)
    walked = np.where(keys > 0, keys, empty_keys)
    total = ((blocks + overhead) * counts).sum(axis=1)
    payload = np.maximum(cdiv(total, parts) + overhead, least_payload)
    sm_parts = None
    if len(keys) == 1:
        sm_parts = deal_one(blocks[0], counts[0], walked[0], payload.item(), parts.item(), overhead)
        pieces = _pieces_of(sm_parts, counts)
    else:
        pieces = _deal_unique(blocks, counts, payload, parts, overhead)
    return TileSchedule(
        parts=parts,
        payload=payload,
        total=total,
        pieces=pieces,
        sm_parts=sm_parts,
        blocks=blocks,
        walked=walked,
        keys=keys,
        counts=counts,
        overhead=overhead,
    )


def _deal_unique(blocks: IntArray, counts: IntArray, payload: IntArray, parts: IntArray, overhead: int) -> Pieces:
    """Run `deal` on the distinct steps of a sweep only; contexts of the same number of blocks count as equal."""
    if len(blocks) == 1 or blocks.shape[1] > 1:
        return deal(blocks, counts, payload, parts, overhead)
    keys = (blocks[:, 0] * (counts.max() + 1) + counts[:, 0]) * (parts.max() + 1) + parts
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    found = deal(blocks[first], counts[first], payload[first], parts[first], overhead)
    back = back.reshape(-1)
    return Pieces(found.most[back], found.used_parts[back], found.split_requests[back])


def _pieces_of(sm_parts: tuple[SmPart, ...], counts: IntArray) -> Pieces:
    """The same counts from the parts of a single step, where requests of a class are told apart."""
    splits = np.zeros(counts.sum(), dtype=np.int64)
    for part in sm_parts:
        splits[part.begin_req_idx : part.end_req_idx + 1] += 1
    ends = np.cumsum(counts[0])
    most = [splits[end - n : end].max(initial=0) for end, n in zip(ends, counts[0])]
    return Pieces(np.array([most]), np.array([len(sm_parts)]), np.array([(splits > 1).sum()]))
