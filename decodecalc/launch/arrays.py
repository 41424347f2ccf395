"""Decode steps and launches as arrays: N steps of R request classes each.

One rule serves both doors. A single plan is N = 1 with one class per request; a sweep is N scenarios of one class each,
whose `counts` say how many equal requests the batch holds. Geometry, cache and GPU are plain numbers of the whole array
(rules branch on them); lengths, query tokens and batch sizes vary along it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from decodecalc.batch import Batch
from decodecalc.intmath import IntArray
from decodecalc.launch.plan import MERGE_KERNEL, KeyRange

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Batches:
    """seq_lens, q_lens, counts: int64 [N, R]. A class with count 0 is absent."""

    seq_lens: IntArray
    q_lens: IntArray
    counts: IntArray

    @classmethod
    def single(cls, batch: Batch) -> Batches:
        """One ragged step: [1, B]."""
        lens = np.asarray(batch.seq_lens, dtype=np.int64)[None, :]
        return cls(lens, np.asarray(batch.q_lens, dtype=np.int64)[None, :], np.ones_like(lens))

    @classmethod
    def uniform(cls, batch: Any, context: Any, q_len: Any = 1) -> Batches:
        """N uniform steps from arrays (or numbers) that broadcast: [N, 1]."""
        b, c, q = np.broadcast_arrays(*(np.asarray(x, dtype=np.int64) for x in (batch, context, q_len)))
        return cls(c.reshape(-1, 1), q.reshape(-1, 1), b.reshape(-1, 1))

    @property
    def n(self) -> int:
        """Steps in the array."""
        return len(self.seq_lens)

    @cached_property
    def is_single_class(self) -> bool:
        """Whether every step holds equal requests only (R is 1)."""
        return self.seq_lens.shape[1] == 1

    def total(self, per_request: IntArray) -> IntArray:
        """Sum over the requests of each step: [N, R] -> [N]."""
        if self.is_single_class:
            return (per_request * self.counts)[:, 0]
        return (per_request * self.counts).sum(axis=1)

    def largest(self, per_request: IntArray) -> IntArray:
        """Largest over the requests of each step: [N, R] -> [N]."""
        return per_request[:, 0] if self.is_single_class else per_request.max(axis=1)

    def smallest(self, per_request: IntArray) -> IntArray:
        """Smallest over the requests of each step: [N, R] -> [N]."""
        return per_request[:, 0] if self.is_single_class else per_request.min(axis=1)

    @cached_property
    def batch(self) -> IntArray:
        """Requests of each step [N]."""
        return self.counts[:, 0] if self.is_single_class else self.counts.sum(axis=1)

    @cached_property
    def query_tokens(self) -> IntArray:
        """Query tokens of each step [N]."""
        return self.total(self.q_lens)

    @cached_property
    def max_seq_len(self) -> IntArray:
        """Keys of the longest request [N]."""
        return self.largest(self.seq_lens)

    @cached_property
    def min_seq_len(self) -> IntArray:
        """Keys of the shortest request [N]."""
        return self.smallest(self.seq_lens)

    @cached_property
    def max_q_len(self) -> IntArray:
        """Most query tokens of a request [N]."""
        return self.largest(self.q_lens)


@dataclass(frozen=True, slots=True)
class GateArray:
    """One condition over the whole array. `passed` is bool or bool [N]; `reason(n)` words it for step n, on demand."""

    name: str
    passed: Any
    reason: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class KernelArray:
    """One kernel over the whole array; every entry is a number or an [N] array. It is launched where `when` is true."""

    name: str
    role: str
    grid: tuple[Any, ...]
    threads: int | None
    live_blocks: Any
    tile_keys: Any = None
    when: Any = True

    @property
    def launched_blocks(self) -> Any:
        """Blocks in the grid, where it is launched."""
        blocks: Any = 1
        for extent in self.grid:
            blocks = blocks * extent
        return blocks


@dataclass(frozen=True, slots=True)
class Launches:
    """What a policy launches for every step of a `Batches`. Shapes: [N] or [N, R], or a plain number for all.

    is_split [N]: the split path runs. requested, live, working, split_keys, first_key, blocks_per_split, keys_read
    [N, R] and launched [N] as in LaunchPlan; split r,i owns keys [first_key + i*split_keys, …) up to the request's end.
    `key_ranges(n)` overrides that regular partition where a policy's is irregular (FlashMLA).
    interleave_keys [N]: None where splits are contiguous; else the keys of one tile (0 in steps whose splits are
    contiguous), and split r,i owns the tiles i, i + live, i + 2*live, … counted from first_key; split_keys is then the
    most keys that a split owns.
    path_names: (unsplit, split). merge_in [N]: where a split step combines its partial states, one of `MERGES`.
    partial_splits [N, R]: live splits that write a partial state to memory, where some write final output instead or
    hand it on in shared memory (None: all of them on the split path). shared_slots: `launched` counts slots of the
    whole batch (FlashMLA's SM parts, FlashInfer's work items), not splits of each request.
    """

    is_split: Any
    kernels: tuple[KernelArray, ...]
    requested: Any
    launched: Any
    live: Any
    split_keys: Any
    blocks_per_split: Any
    tile_keys: Any
    block_rows: Any
    live_rows: Any
    state_values: int
    scratch_bytes: Any
    determinism: str
    gates: tuple[GateArray, ...] = ()
    working: Any = None
    keys_read: Any = None
    first_key: Any = 0
    unsplit_blocks: Any = None
    detail: Any = None
    path_names: tuple[str, str] = ("unsplit", "split")
    key_ranges: Callable[[int], Sequence[list[KeyRange]]] | None = None
    partial_splits: Any = None
    shared_slots: bool = False
    interleave_keys: Any = None
    merge_in: Any = MERGE_KERNEL

    def interleave_at(self, n: int) -> int | None:
        """Keys of the tiles that step n deals to its splits in turn; None where its splits are contiguous."""
        return None if self.interleave_keys is None else int(at(self.interleave_keys, n)) or None

    def partials(self) -> Any:
        """Partial states of each (token, query head) of a request [N, R] (or a number for all)."""
        if self.partial_splits is not None:
            return self.partial_splits
        split = np.asarray(self.is_split)
        return np.where(split[:, None] if split.ndim else split, self.live, 0)

    def unsplit(self, batches: Batches) -> IntArray:
        """Blocks with work if nothing were split [N]."""
        if self.unsplit_blocks is not None:
            return np.broadcast_to(np.asarray(self.unsplit_blocks, dtype=np.int64), (batches.n,))
        return batches.total(self.blocks_per_split * (batches.seq_lens > 0))


def at(value: Any, n: int) -> Any:
    """Entry n of a number or an [N] array, as a plain Python number."""
    if isinstance(value, np.ndarray) and value.ndim:
        value = value[n]
    return value.item() if hasattr(value, "item") else value


def row(value: Any, n: int, r: int) -> tuple[int, ...]:
    """Entry n of a number, an [N, 1] or an [N, R] array, as R plain Python ints."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return (int(value),) * r
    entry = value[n if len(value) > 1 else 0].tolist()
    if not isinstance(entry, list):
        return (int(entry),) * r
    return tuple(entry) if len(entry) == r else (int(entry[0]),) * r


def visible_start(batches: Batches, window: int | None) -> IntArray:
    """First key that any query token of a request can see [N, R]: 0 without a window.

    The first of q tokens sits at position L - q and sees `window` keys, itself included.
    """
    if window is None:
        return np.zeros_like(batches.seq_lens)
    return np.maximum(batches.seq_lens - batches.q_lens - window + 1, 0)
