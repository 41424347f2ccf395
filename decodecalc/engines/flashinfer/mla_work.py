"""The work lists of FlashInfer's MLA planner: which cluster runs which item, and who merges which rows.

Items go, in order, to the cluster of least cost. The planner keeps the costs in a binary heap, and clusters of equal
cost leave it in the order of that heap, not of their index. The two functions below are therefore those of libstdc++
(`std::push_heap`, `std::pop_heap` in bits/stl_heap.h), which nvcc compiles the planner with on Linux. Costs are fp32.

Read from flashinfer-ai/flashinfer: include/flashinfer/attention/heap.h (MinHeap), scheduler.cuh (MLAPlan,
cost_function, packed_causal_kv_end).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decodecalc.batch import Batch
from decodecalc.intmath import cdiv

EXACT_FP32 = 1 << 24  # whole numbers up to here are exact in fp32

Entry = tuple[float, int]  # cost, cluster


class WorkItem(NamedTuple):
    """One chunk of keys for one query tile, run by one cluster."""

    request: int
    packed_row: int
    """First query row (token x head) of the tile within the request."""
    start: int
    end: int
    """Keys, end exclusive."""
    partial_row: int
    """First row of its partial state; -1 where the item writes the output itself."""


class MergeRows(NamedTuple):
    """The merge work of one CTA after the grid barrier: rows of the output and where their partial states lie."""

    start: int
    end: int
    """Packed rows of the output, over the whole batch, end exclusive."""
    partial_start: int
    partial_end: int
    stride: int
    """Partial rows between two states of one output row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaWorkLists:
    """The exact lists of one step."""

    clusters: tuple[tuple[WorkItem, ...], ...]
    """Items of every cluster in the order that it runs them."""
    merges: tuple[MergeRows, ...]
    """Merge work of every CTA that has any."""

    @property
    def keys_per_cluster(self) -> tuple[int, ...]:
        """Keys that every cluster walks."""
        return tuple(sum(item.end - item.start for item in items) for items in self.clusters)


def schedule(
    batch: Batch, heads: int, causal: bool, clusters: int, cluster_tile_q: int, kv_len_limit: int
) -> MlaWorkLists:
    """MLAPlan's lists. clusters, cluster_tile_q, kv_len_limit: as planned for this batch."""
    heap: list[Entry] = [(0.0, i) for i in range(clusters)]
    lists: list[list[WorkItem]] = [[] for _ in range(clusters)]
    merges: list[MergeRows] = []
    first_row = partial = 0
    for request, (q_len, keys) in enumerate(zip(batch.q_lens, batch.seq_lens)):
        packed = q_len * heads
        for tile, visible in _tiles(q_len, keys, heads, causal, cluster_tile_q):
            rows = min(cluster_tile_q, packed - tile * cluster_tile_q)
            chunks = max(cdiv(visible, kv_len_limit), 1)
            if chunks > 1:
                output = first_row + tile * cluster_tile_q
                merges += _merge_rows(output, rows, partial, chunks, visible * (cluster_tile_q // 64) // kv_len_limit)
            for start in range(0, chunks * kv_len_limit, kv_len_limit):
                end = min(start + kv_len_limit, visible)
                cost, cluster = _pop(heap)
                _push(heap, (_fp32(cost + _fp32(2 * cluster_tile_q + end - start)), cluster))
                lists[cluster].append(
                    WorkItem(request, tile * cluster_tile_q, start, end, partial if chunks > 1 else -1)
                )
                partial += rows if chunks > 1 else 0
        first_row += packed
    return MlaWorkLists(clusters=tuple(map(tuple, lists)), merges=tuple(merges))


def _tiles(q_len: int, keys: int, heads: int, causal: bool, tile_rows: int) -> Iterator[tuple[int, int]]:
    """(query tile, keys that it sees) of one request, last tile first."""
    tiles = cdiv(q_len * heads, tile_rows)
    for tile in range(tiles - 1, -1, -1):
        ends_at = keys - q_len + cdiv((tile + 1) * tile_rows, heads)
        yield tile, keys if not causal or tile + 1 == tiles else max(min(ends_at, keys), 0)


def _merge_rows(output: int, rows: int, partial: int, chunks: int, parts: int) -> list[MergeRows]:
    """The rows of one split tile in about `parts` equal shares, one for each merging CTA."""
    share = cdiv(rows, max(parts, 1))
    return [
        MergeRows(output + at, output + min(at + share, rows), partial + at, partial + chunks * rows, rows)
        for at in range(0, rows, share)
    ]


def _fp32(value: float) -> float:
    return value if value <= EXACT_FP32 else float(np.float32(value))


def _push(heap: list[Entry], entry: Entry) -> None:
    """std::push_heap with the smallest cost on top: a parent of equal cost stays above."""
    heap.append(entry)
    _sift_up(heap, len(heap) - 1, entry)


def _pop(heap: list[Entry]) -> Entry:
    """std::pop_heap and pop_back: the hole at the top goes down to a leaf, then the last entry rises from there."""
    top, last = heap[0], heap.pop()
    size = len(heap)
    if not size:
        return top
    hole = child = 0
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if heap[child][0] > heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * (child + 1)
        heap[hole] = heap[child - 1]
        hole = child - 1
    _sift_up(heap, hole, last)
    return top


def _sift_up(heap: list[Entry], hole: int, entry: Entry) -> None:
    """Move the hole up while its parent costs more, and fill it: std::__push_heap."""
    parent = (hole - 1) // 2
    while hole > 0 and heap[parent][0] > entry[0]:
        heap[hole] = heap[parent]
        hole = parent
        parent = (hole - 1) // 2
    heap[hole] = entry
