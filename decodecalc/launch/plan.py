"""LaunchPlan: everything that one engine launches for the attention of one layer in one decode step.

A plan is exact: it holds what the engine's own code computes for its grid and its key ranges. Three counts are kept
apart: `launched` (the extent of the grid), `requested` (what the rule asked for) and `live` (what has keys to read).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.batch import Batch
from decodecalc.errors import check_type
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.coverage import s_star
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

KeyRange = tuple[int, int]

# Where partial states are combined (the values of `LaunchPlan.merge_in`).
MERGE_KERNEL, LAST_BLOCK, OWNER_BLOCK, CLUSTER, GRID = "kernel", "last_block", "owner_block", "cluster", "grid"
MERGES = {
    MERGE_KERNEL: "a kernel of its own, launched after stage 1, combines the partial states",
    LAST_BLOCK: "the last block of a request to finish combines the partial states, inside stage 1",
    OWNER_BLOCK: "one fixed block of a request waits for the others and combines their partial states, inside stage 1",
    CLUSTER: "the blocks of a thread block cluster combine their partial states through shared memory",
    GRID: "the blocks wait for the whole grid and then combine the partial states, inside stage 1",
}


@dataclass(frozen=True, slots=True)
class Gate(Shown):
    """One named condition of a policy, with its outcome."""

    name: str
    """The condition in snake_case."""
    passed: bool
    """Whether the condition holds."""
    reason: str
    """The numbers that decided it, in words."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "passed": self.passed, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class KernelLaunch(Shown):
    """One kernel that the step launches."""

    name: str
    """The engine's name of the kernel."""
    role: str
    """`stage1` (reads the keys), `merge` (combines partial states) or `scheduler` (writes a work list)."""
    grid: tuple[int, ...]
    """Blocks in each dimension of the grid."""
    threads: int | None
    """Threads of a block; None where the source does not fix them."""
    live_blocks: int
    """Blocks that do work. The other blocks of the grid return at once."""
    tile_keys: int | None = None
    """Keys that one loop iteration of a block loads; None for kernels that read no keys."""

    @property
    def launched_blocks(self) -> int:
        """Blocks in the grid."""
        total = 1
        for extent in self.grid:
            total *= extent
        return total

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the grid as a list."""
        return {
            "name": self.name, "role": self.role, "grid": list(self.grid), "launched_blocks": self.launched_blocks,
            "threads": self.threads, "live_blocks": self.live_blocks, "tile_keys": self.tile_keys,
        }  # fmt: skip


class KeyRanges(Sequence[list[KeyRange]]):
    """Key ranges of each request's live splits, made on demand: `ranges[r]` is [(start, end), …], end exclusive.

    interleave_keys is None where split i owns the keys from first + i*split_keys on. Otherwise it is the keys of one
    tile, and split i of n live splits takes the tiles i, i + n, i + 2n, … counted from `first`. `ranges[r]` then gives
    the span of each split, from its first key to its last one, and the spans overlap.
    """

    def __init__(
        self,
        first_key: Sequence[int],
        split_keys: Sequence[int],
        live: Sequence[int],
        end: Sequence[int],
        interleave_keys: int | None = None,
    ) -> None:
        self.first_key, self.split_keys, self.live, self.end = first_key, split_keys, live, end
        self.interleave_keys = interleave_keys

    def __len__(self) -> int:
        return len(self.live)

    def __getitem__(self, r: Any) -> Any:
        first, size, end = self.first_key[r], self.split_keys[r], self.end[r]
        if self.interleave_keys is None:
            return [(first + i * size, min(first + (i + 1) * size, end)) for i in range(self.live[r])]
        return [(pieces[0][0], pieces[-1][1]) for pieces in self.pieces(r)]

    def pieces(self, r: int) -> list[list[KeyRange]]:
        """The key ranges of each live split of request r: one each, or a tile at a time where tiles are interleaved."""
        if self.interleave_keys is None:
            return [[piece] for piece in self[r]]
        first, end, tile, live = self.first_key[r], self.end[r], self.interleave_keys, self.live[r]
        starts = range(first, end, tile)
        return [[(start, min(start + tile, end)) for start in starts[i::live]] for i in range(live)]

    def counts(self, r: int) -> list[int]:
        """Keys of each live split of request r."""
        if self.interleave_keys is None:
            return [end - start for start, end in self[r]]
        keys = self.end[r] - self.first_key[r]
        return [int(n) for n in dealt_keys(keys, self.interleave_keys, self.live[r], np.arange(self.live[r]))]

    def __iter__(self) -> Iterator[list[KeyRange]]:
        return (self[r] for r in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"KeyRanges({list(self)!r:.200})"


def dealt_keys(keys: Any, tile: Any, splits: Any, i: Any) -> Any:
    """Keys of split `i` where tiles of `tile` keys are dealt to `splits` splits in turn; ints or arrays of them.

    The last tile, which may be shorter, belongs to split (tiles - 1) mod splits.
    """
    tiles = -(-keys // tile)
    whole = np.maximum(-(-(tiles - i) // np.maximum(splits, 1)), 0) * tile
    return whole - np.where((tiles > 0) & (i == (tiles - 1) % np.maximum(splits, 1)), tiles * tile - keys, 0)


@dataclass(frozen=True, slots=True)
class Splits(Shown):
    """How the keys of each of the R requests are cut into splits."""

    requested: tuple[int, ...]
    """Splits that the rule asks for, per request [R]."""
    launched: int
    """Splits in the grid: one number for the whole launch."""
    live: tuple[int, ...]
    """Splits that own keys after rounding, per request [R]."""
    working: tuple[int, ...]
    """Live splits that have at least one tile inside the window, per request [R]. Only a sliding window makes
    them fewer than `live`."""
    keys: Sequence[list[KeyRange]] = field(repr=False)
    """Key ranges (start, end) of each request's live splits [R], end exclusive. Where tiles are interleaved,
    each range is the span from the first key of a split to its last, and spans overlap; `pieces` and
    `key_counts` are right in both cases."""
    interleave_keys: int | None = None
    """Keys of a tile where the tiles of a request are dealt to its live splits in turn; None where every split
    owns one contiguous range."""

    def pieces(self, r: int) -> list[list[KeyRange]]:
        """The key ranges [(start, end), …] that each live split of request r walks, in its order, end exclusive.

        Over all live splits they tile the request's visible keys once. A split of a contiguous partition has one.
        """
        return self.keys.pieces(r) if isinstance(self.keys, KeyRanges) else [[piece] for piece in self.keys[r]]

    def key_counts(self, r: int) -> list[int]:
        """Keys that each live split of request r owns."""
        return self.keys.counts(r) if isinstance(self.keys, KeyRanges) else [end - start for start, end in self.keys[r]]

    def to_dict(self, with_keys: bool = False) -> dict[str, Any]:
        """Plain values; key ranges only when asked for (they are long)."""
        out: dict[str, Any] = {
            "requested": list(self.requested), "launched": self.launched, "live": list(self.live),
            "working": list(self.working), "interleave_keys": self.interleave_keys,
        }  # fmt: skip
        if with_keys:
            out["keys"] = [[list(r) for r in ranges] for ranges in self.keys]
        return out


@dataclass(frozen=True, slots=True)
class LaunchPlan(Shown):
    """What one engine launches for one layer of one decode step of R requests."""

    engine: str
    """Name of the policy."""
    version: str
    """Version of the policy."""
    path: str
    """`unsplit` or `split`, or the engine's own words for the two (`Launches.path_names`)."""
    is_split: bool
    """Whether the split path runs: blocks make partial states, and these are combined."""
    merge_in: str | None
    """Where partial states are combined: a key of `MERGES`, or None where nothing is split. Only `kernel` has a
    launch of its own (`merge`)."""
    geometry: Geometry
    """The layer."""
    batch: Batch
    """The step as the layer's kernel sees it."""
    kv: KvCache
    """The cache."""
    gpu: Gpu
    """The GPU."""
    kernels: tuple[KernelLaunch, ...]
    """The kernels in launch order."""
    splits: Splits
    """How the keys are cut."""
    gates: tuple[Gate, ...]
    """The conditions of the policy and their outcomes."""
    scratch_bytes: int
    """Bytes of the buffers for partial states that the engine allocates."""
    blocks_per_split: tuple[int, ...]
    """Stage-1 blocks that walk each live split of a request, over all KV heads and query tiles [R]."""
    keys_read: tuple[int, ...]
    """Keys that each of these blocks' columns loads for a request [R]: with a window only the tiles that it touches."""
    partial_splits: tuple[int, ...]
    """Partial states that reach memory for each (token, query head) of a request [R]: its live splits, or 0
    where one block writes the output itself or a cluster combines the states in shared memory."""
    shared_slots: bool
    """Whether `splits.launched` counts slots of the whole batch rather than splits of each request."""
    unsplit_blocks: int
    """Stage-1 blocks of the same step without splits."""
    tile_keys: int
    """Keys of a stage-1 tile."""
    block_rows: int
    """Query rows of a stage-1 tile: tokens times `group`, padded to what the kernel needs."""
    live_rows: int
    """How many of these rows hold a query."""
    state_values: int
    """Size of the partial state of one (token, query head, split), in fp32 numbers; a 16-bit value counts as
    half. 0 when nothing is split."""
    determinism: str
    """Where the order of a request's sums comes from: `invariant` (always one split and one tile), `tile-dependent`
    (the splits are fixed, but the tile follows the query tokens of the whole launch, so that a neighbour's prefill
    changes bits), `fixed size` (splits of a constant number of keys), `fixed count` (a constant number of splits: the
    same in any batch, but not as the request grows) or `batch-dependent`."""
    detail: Any = None
    """The engine's own quantities under the engine's own names, or None."""
    options: Any = None
    """The engine options that the plan was made with."""
    merge_walks: int | None = None
    """Splits that the merge's loop visits for each row, with a state or without; None: the live ones."""
    scheduled_once: bool = False
    """Whether the scheduler kernel runs once a step, before its first layer, where the engine can also run one with
    every layer."""
    pieces_in_turn: tuple[int, ...] | None = None
    """How many splits each persistent block walks one after another, in the order of requests and of their splits;
    None: every split has blocks of its own."""
    repeating_blocks: int = 0
    """Stage-1 blocks of the grid that have no work of their own but walk the first request's keys once more, because
    nothing tells them to return. They are not among the live blocks."""
    copies: int = 0
    """Kernels that copy queries or outputs into another order, before or behind the attention kernels."""
    resident_blocks: int = 0
    """Stage-1 blocks that an SM holds at once, where our rule knows what the kernel was compiled to; else 0."""
    loads_value_apart: bool = False
    """Whether stage 1 of an MLA layer loads the value part of a latent once more, and does not take it from the tile of
    keys that it holds."""
    listed: bool = False
    """Whether stage 1 has blocks for the live splits alone, the last split of each request after all whole ones."""

    def __str__(self) -> str:
        """One line for people; `repr` and `to_dict` have everything."""
        s, merge = self.splits, f", merge {self.merge.grid}" if self.merge else ""
        if self.merge_in not in (None, MERGE_KERNEL):
            merge = f", merged in {str(self.merge_in).replace('_', ' ')}"
        return (
            f"{self.engine} {self.version} on {self.gpu.name}: {self.path}, grid {self.stage1.grid}, "
            f"{self.live_blocks} of {self.stage1.launched_blocks} blocks live, splits requested {max(s.requested)}, "
            f"launched {s.launched}, live {max(s.live)}{merge}"
        )

    @property
    def stage1(self) -> KernelLaunch:
        """The kernel that reads keys."""
        return next(k for k in self.kernels if k.role == "stage1")

    @property
    def merge(self) -> KernelLaunch | None:
        """The kernel that combines partial states; None where no kernel does. A split launch may merge without one
        (`merge_in`)."""
        return next((k for k in self.kernels if k.role == "merge"), None)

    @property
    def working_blocks(self) -> int:
        """Live blocks of stage 1 that compute on keys: under a window some only write a neutral partial state."""
        s = self.splits
        if s.working == s.live:
            return self.live_blocks
        return min(self.live_blocks, sum(b * n for b, n in zip(self.blocks_per_split, s.working, strict=True)))

    @property
    def live_blocks(self) -> int:
        """Stage-1 blocks that do work."""
        return self.stage1.live_blocks

    @property
    def s_star(self) -> int:
        """Smallest split count whose first wave covers the SMs: ceil(SMs / unsplit blocks). A coverage heuristic."""
        return s_star(self.gpu.sm_count, self.unsplit_blocks)

    def gate(self, name: str) -> Gate:
        """The gate called `name`. Raises KeyError when this policy has no such gate."""
        for gate in self.gates:
            if gate.name == name:
                return gate
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "gpu":
                out["gpu"] = value.name
            elif f.name in ("kernels", "gates"):
                out[f.name] = [item.to_dict() for item in value]
            elif hasattr(value, "to_dict"):
                out[f.name] = value.to_dict()
            elif f.name == "detail" and value is not None:
                out[f.name] = {name: _plain(part) for name, part in parts_of(value).items()}
            elif is_dataclass(value) and not isinstance(value, type):
                out[f.name] = {g.name: _plain(getattr(value, g.name)) for g in fields(value)}
            else:
                out[f.name] = _plain(value)
        return out


def parts_of(detail: Any) -> dict[str, Any]:
    """The fields of an engine's own quantities, a named tuple or a dataclass."""
    if isinstance(detail, tuple):
        return dict(detail._asdict())  # type: ignore[attr-defined]
    return {f.name: getattr(detail, f.name) for f in fields(detail)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value


def check_step(geometry: Any, batch: Any, kv: Any = None) -> None:
    """InputError when one of what describes a step is of another type; it says where such an object comes from."""
    check_type("geometry", geometry, Geometry, "a layer of one rank: model.shard(tp).layer_groups[i].geometry")
    check_type("batch", batch, Batch, "for example decodecalc.Batch([128, 8192])")
    if kv is not None:
        check_type("kv", kv, KvCache, "for example decodecalc.KvCache(dtype='fp8')")


def check_plan(plan: Any) -> None:
    """InputError when `plan` is not a LaunchPlan."""
    check_type("plan", plan, LaunchPlan, "decodecalc.plan(...) makes one")
