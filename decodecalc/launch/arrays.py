"""Decode steps and launches as arrays: N steps with R request classes each.

The same rule serves one step and many. A single plan is N = 1 with one class per request. A sweep is N scenarios with
one class each, whose `counts` say how many equal requests the batch holds. Geometry, cache and GPU are plain numbers of
the whole array, because rules branch on them; lengths, query tokens and batch sizes vary along it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray
from decodecalc.launch.plan import MERGE_KERNEL, KeyRange, LaunchPlan
from decodecalc.units import in_number

BoolArray = npt.NDArray[np.bool_]
ROLES = ("stage1", "merge", "scheduler")
DETERMINISM = ("invariant", "tile-dependent", "fixed size", "fixed count", "batch-dependent")


@dataclass(frozen=True)
class Batches:
    """Decode steps. `seq_lens`, `q_lens` and `counts` are int64 [N, R]; a class with count 0 is absent.

    `contexts` [N, R] are the keys of the sequences where `seq_lens` counts the entries that a sparse layer gathers from
    them, or one rank's share of them.
    """

    seq_lens: IntArray
    q_lens: IntArray
    counts: IntArray
    contexts: IntArray | None = None

    @classmethod
    def single(cls, batch: Batch) -> Batches:
        """One step, whose requests may differ: [1, B]."""
        lens = np.asarray(batch.seq_lens, dtype=np.int64)[None, :]
        contexts = None if batch.contexts is None else np.asarray(batch.contexts, dtype=np.int64)[None, :]
        return cls(lens, np.asarray(batch.q_lens, dtype=np.int64)[None, :], np.ones_like(lens), contexts)

    @classmethod
    def uniform(cls, batch: Any, context: Any, q_len: Any = 1) -> Batches:
        """N steps of equal requests, from arrays (or numbers) that broadcast: [N, 1]."""
        b, c, q = np.broadcast_arrays(*(np.asarray(x, dtype=np.int64) for x in (batch, context, q_len)))
        return cls(c.reshape(-1, 1), q.reshape(-1, 1), b.reshape(-1, 1))

    def take(self, steps: IntArray) -> Batches:
        """The batches with these steps only."""
        contexts = None if self.contexts is None else self.contexts[steps]
        return Batches(self.seq_lens[steps], self.q_lens[steps], self.counts[steps], contexts)

    def seen_by(self, geometry: Geometry) -> Batches:
        """The steps as the kernel of this layer sees them. For a sparse layer every request has a list of gathered
        entries, and under context parallelism the keys of rank 0, which has the most."""
        gather, share = geometry.gather, geometry.share
        if self.contexts is not None or (gather is None and share is None):
            return self
        seen = share.local(self.seq_lens) if share is not None else gather.keys(self.seq_lens)  # type: ignore[union-attr]
        return Batches(seen, self.q_lens, self.counts, self.seq_lens)

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
        """Most query tokens of any request [N]."""
        return self.largest(self.q_lens)


class _GateFields(NamedTuple):
    """What a gate of an array holds."""

    name: str
    """The gate's code, in snake case."""
    passed: Any
    """bool or bool [N]: whether the condition lets the step through."""
    reason: Callable[[int], str]
    """`reason(n)` puts the outcome of step n into words. It is called only where somebody reads it."""


class GateArray(_GateFields):
    """One condition, evaluated for the whole array. Its words are in number: what is counted once is singular."""

    __slots__ = ()

    def __new__(cls, name: str, passed: Any, reason: Callable[[int], str]) -> GateArray:
        """A gate whose reason is made for any number of things."""
        return super().__new__(cls, name, passed, lambda n: in_number(reason(n)))


class KernelArray(NamedTuple):
    """One kernel, described for the whole array. Every entry is a number or an [N] array."""

    name: str
    """The kernel's own name, as a profiler shows it without its template arguments."""
    role: str
    """`stage1`, `merge` or `scheduler`."""
    grid: tuple[Any, ...]
    """Extents of the launch grid, x first."""
    threads: int | None
    """Threads of a block; None where the source does not fix them."""
    live_blocks: Any
    """Blocks that do work; the others return at once. None where the count is never used."""
    tile_keys: Any = None
    """Keys that one iteration of the loop loads, for stage 1."""
    when: Any = True
    """bool or bool [N]: the steps that launch the kernel."""

    @property
    def launched_blocks(self) -> Any:
        """Blocks in the grid, in steps that launch the kernel."""
        blocks: Any = 1
        for extent in self.grid:
            blocks = blocks * extent
        return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What a policy launches for every step of a `Batches`.

    There are N steps of R request classes. A field is [N] or [N, R], as its text says, or a plain number for all steps.
    `check` says whether the parts agree with each other.
    """

    is_split: Any
    """[N]: whether the split path runs."""
    kernels: tuple[KernelArray, ...]
    """Every kernel that some step launches."""
    requested: Any
    """[N, R]: splits that the rule asked for."""
    launched: Any
    """[N]: splits in the grid."""
    live: Any
    """[N, R]: splits that own keys."""
    split_keys: Any
    """[N, R]: keys of a split. Split i owns the keys from first_key + i * split_keys on, up to the end of the request.
    """
    blocks_per_split: Any
    """[N, R]: stage-1 blocks that walk each live split, over all KV heads and query tiles."""
    tile_keys: Any
    """[N]: keys of a tile."""
    block_rows: Any
    """[N]: query rows of a stage-1 tile."""
    live_rows: Any
    """[N]: rows of a tile that hold a query."""
    state_values: Any
    """[N]: size of one partial state of one (query token, query head, split) in fp32 numbers; a 16-bit value counts as
    half."""
    scratch_bytes: Any
    """[N]: bytes of the partial-state buffers that the engine allocates."""
    determinism: str
    """Where the order of a request's sums comes from: `invariant`, `tile-dependent`, `fixed size`, `fixed count` or
    `batch-dependent` (see `LaunchPlan.determinism`)."""
    gates: tuple[GateArray, ...] = ()
    """Named conditions with their outcomes."""
    working: Any = None
    """[N, R]: live splits with a tile inside the window; None means all live splits."""
    keys_read: Any = None
    """[N, R]: keys that each block column of a request loads; None means all keys."""
    first_key: Any = 0
    """[N, R]: the first key of the first split."""
    unsplit_blocks: Any = None
    """[N]: blocks with work if nothing were split; None derives them from blocks_per_split."""
    detail: Any = None
    """The engine's own quantities: a dataclass of numbers, [N] arrays and [N, R] arrays."""
    path_names: tuple[str, str] = ("unsplit", "split")
    """The names of the unsplit and the split path."""
    key_ranges: Callable[[int], Sequence[list[KeyRange]]] | None = None
    """`key_ranges(n)` replaces the regular partition where a policy has an irregular one (a work list)."""
    partial_splits: Any = None
    """[N, R]: splits whose partial state goes through memory; None means the live splits of split steps. There are
    fewer where some splits write final output, or hand their state on in shared memory."""
    shared_slots: bool = False
    """Whether `launched` counts slots that all requests of the batch share, rather than splits of each request."""
    interleave_keys: Any = None
    """None where splits are contiguous. Otherwise [N]: the keys of one tile (0 in steps whose splits are contiguous);
    split i owns the tiles i, i + live, i + 2 * live, … counted from first_key, and split_keys is the most that one
    split owns."""
    merge_in: Any = MERGE_KERNEL
    """[N]: where a split step combines its partial states, one of `MERGES`."""
    merge_walks: Any = None
    """[N]: splits that the merge's loop visits for each row, with a state or without; None: the live ones."""
    scheduled_once: bool = False
    """Whether the scheduler kernel runs once a step, before its first layer, where the engine can also run one with
    every layer."""
    pieces_in_turn: Callable[[int], tuple[int, ...]] | None = None
    """`pieces_in_turn(n)`: how many splits each persistent block of step n walks one after another, in the order of
    requests and of their splits; None: every split has blocks of its own."""

    listed: Any = False
    """[N]: whether stage 1 has blocks for the live splits alone, the last split of each request after all whole ones.
    Otherwise its grid has `launched` splits of every request, or what else the policy's kernels say."""
    repeating_blocks: Any = 0
    """[N]: stage-1 blocks of the grid that have no work of their own and do not return at once either, because nothing
    tells them so: they walk the keys of the first request once more. They are not among the live blocks."""

    copies: Any = 0
    """[N]: kernels that copy queries or outputs into another order, before or behind the attention kernels."""
    resident_blocks: Any = 0
    """[N]: stage-1 blocks that an SM holds at once, where our rule knows what the kernel was compiled to; else 0."""

    loads_value_apart: bool = False
    """Whether stage 1 of an MLA layer loads the value part of a latent once more, and does not take it from the tile of
    keys that it holds."""

    def check(self, batches: Batches) -> None:
        """Raises AssertionError when parts of the launch contradict each other; the message names the first
        contradiction.

        The live splits must tile the keys of each request, no count may exceed the count that contains it, live blocks
        must fit their grids, and a merge kernel must run exactly in the split steps whose `merge_in` says so.
        """
        shape = batches.seq_lens.shape

        def of(value: Any) -> Any:
            value = np.asarray(value)
            return np.broadcast_to(value[:, None] if value.ndim == 1 else value, shape)

        def agree(condition: Any, text: str) -> None:
            if not np.all(condition):
                raise AssertionError(text)

        split, live = of(self.is_split), of(self.live)
        active = (batches.counts > 0) & (live > 0)
        agree(self.determinism in DETERMINISM, f"determinism {self.determinism!r} is none of {DETERMINISM}")
        agree(self.shared_slots or np.all(live <= np.maximum(of(self.launched), 1)), "more live splits than launched")
        agree(of(self.live if self.working is None else self.working) <= live, "more working splits than live")
        agree(split | (live <= 1), "an unsplit step has more than one live split")
        if self.key_ranges is None:
            keys, size = batches.seq_lens - of(self.first_key), of(self.split_keys)
            tiled = np.zeros(shape, bool) if self.interleave_keys is None else of(self.interleave_keys) > 0
            agree(~active | (live * size >= keys), "the live splits do not reach the end of the keys")
            agree(
                ~active | tiled | ((live - 1) * size < np.maximum(keys, 1)), "a live split begins behind the last key"
            )
        merges = np.zeros(batches.n, bool)
        for kernel in self.kernels:
            agree(kernel.role in ROLES, f"kernel role {kernel.role!r} is none of {ROLES}")
            when = np.broadcast_to(np.asarray(kernel.when, dtype=bool), (batches.n,))
            if kernel.live_blocks is not None:
                busy = kernel.live_blocks + (np.asarray(self.repeating_blocks) if kernel.role == "stage1" else 0)
                fits = np.asarray(busy) <= np.asarray(kernel.launched_blocks)
                agree(~when | fits, f"{kernel.name}: more live blocks than launched")
            merges |= when & (kernel.role == "merge")
        wanted = np.broadcast_to(np.asarray(self.is_split, dtype=bool), (batches.n,))
        by_kernel = np.broadcast_to(np.asarray(self.merge_in) == MERGE_KERNEL, (batches.n,))
        agree(~wanted | (merges == by_kernel), "a merge kernel runs where none should, or is missing where one should")

    def interleave_at(self, n: int) -> int | None:
        """Keys of the tiles that step n deals to its splits in turn; None where its splits are contiguous."""
        return None if self.interleave_keys is None else int(at(self.interleave_keys, n)) or None

    def partials(self) -> Any:
        """Partial states of each (token, query head) of a request [N, R] (or a number for all)."""
        if self.partial_splits is not None:
            return self.partial_splits
        split = np.asarray(self.is_split)
        return np.where(split[:, None] if split.ndim else split, self.live, 0)

    def merge_kernels(self, n: int) -> IntArray:
        """Merge kernels that each of the n steps launches; 0 where stage 1 merges by itself."""
        merges = [kernel for kernel in self.kernels if kernel.role == "merge"]
        return sum((np.where(k.when, 1, 0) for k in merges), np.zeros(n, dtype=np.int64))

    def take(self, steps: IntArray, n: int) -> Launches:
        """The launches of these steps (of n) only, without gates and detail."""

        def some(value: Any) -> Any:
            return value[steps] if isinstance(value, np.ndarray) and value.ndim and len(value) == n else value

        ranges, turns, numbers = self.key_ranges, self.pieces_in_turn, steps.tolist()
        kernels = [
            k._replace(
                grid=tuple(some(extent) for extent in k.grid),
                live_blocks=some(k.live_blocks),
                tile_keys=some(k.tile_keys),
                when=some(k.when),
            )
            for k in self.kernels
        ]
        values = {f.name: some(getattr(self, f.name)) for f in fields(self)}
        changed = {
            "kernels": tuple(kernels),
            "key_ranges": None if ranges is None else lambda i: ranges(numbers[i]),
            "pieces_in_turn": None if turns is None else lambda i: turns(numbers[i]),
            "gates": (),
            "detail": None,
        }
        return Launches(**{**values, **changed})

    def unsplit(self, batches: Batches) -> IntArray:
        """Blocks with work if nothing were split [N]."""
        if self.unsplit_blocks is not None:
            return np.broadcast_to(np.asarray(self.unsplit_blocks, dtype=np.int64), (batches.n,))
        return batches.total(self.blocks_per_split * (batches.seq_lens > 0))


def plan_arrays(plan: LaunchPlan) -> tuple[Batches, Launches]:
    """A plan as arrays of one step: what the array rule of its policy returned, with a class for each request."""

    def per_request(values: Sequence[int]) -> IntArray:
        return np.array([values], dtype=np.int64)

    splits, turns = plan.splits, plan.pieces_in_turn
    launches = Launches(
        is_split=np.array([plan.is_split]),
        kernels=tuple(
            KernelArray(
                name=k.name, role=k.role, grid=k.grid, threads=k.threads, live_blocks=k.live_blocks,
                tile_keys=k.tile_keys,
            )
            for k in plan.kernels
        ),
        requested=per_request(splits.requested),
        launched=np.array([splits.launched]),
        live=per_request(splits.live),
        working=per_request(splits.working),
        split_keys=0,  # key_ranges says where each split lies
        key_ranges=lambda _: splits.keys,
        keys_read=per_request(plan.keys_read),
        blocks_per_split=per_request(plan.blocks_per_split),
        unsplit_blocks=plan.unsplit_blocks,
        tile_keys=plan.tile_keys,
        block_rows=plan.block_rows,
        live_rows=plan.live_rows,
        state_values=plan.state_values,
        scratch_bytes=plan.scratch_bytes,
        partial_splits=per_request(plan.partial_splits),
        shared_slots=plan.shared_slots,
        interleave_keys=splits.interleave_keys,
        merge_in=plan.merge_in or MERGE_KERNEL,
        merge_walks=plan.merge_walks,
        scheduled_once=plan.scheduled_once,
        pieces_in_turn=None if turns is None else lambda _: turns,
        repeating_blocks=plan.repeating_blocks,
        copies=plan.copies,
        resident_blocks=plan.resident_blocks,
        loads_value_apart=plan.loads_value_apart,
        listed=plan.listed,
        determinism=plan.determinism,
        detail=plan.detail,
    )  # fmt: skip
    return Batches.single(plan.batch), launches


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
    """The first key that any query token of a request can see [N, R]; 0 without a window.

    The first of q tokens sits at position L - q and sees `window` keys, its own included.
    """
    if window is None:
        return np.zeros_like(batches.seq_lens)
    return np.maximum(batches.seq_lens - batches.q_lens - window + 1, 0)
