"""A chunk of a sweep as named columns. Names and values are those of the rows of `grid` and `predict`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from decodecalc.analysis.exchange import exchange_of_policy
from decodecalc.analysis.occupancy import Occupancy, occupancy_arrays
from decodecalc.analysis.traffic import Traffic, traffic_arrays
from decodecalc.launch.arrays import Batches, KernelArray, Launches
from decodecalc.sweeps.axes import Family

CONSTANT = (
    "model", "tp", "gpu", "engine", "version", "layer_group", "layers", "q_heads", "kv_heads", "head_dim", "window",
    "kv_dtype", "page_size",
)  # fmt: skip
LAUNCH = (
    "batch", "context", "q_len", "path", "grid", "launched_blocks", "live_blocks", "working_blocks", "unsplit_blocks",
    "sm_count",
    "sm_coverage", "waves", "splits_requested", "splits_launched", "splits_live", "splits_working", "tile_keys",
    "s_star", "merge_grid", "scratch_bytes",
)  # fmt: skip
TRAFFIC = (
    "kv_read_bytes", "kv_requested_bytes", "partial_written_bytes", "partial_traffic_bytes", "partial_share",
    "partial_allocated_bytes", "total_bytes",
)  # fmt: skip
TIME = ("total_s",)
RANKS = ("dcp", "dcp_interleave", "rank_keys", "exchange_launches", "exchange_received_bytes", "exchange_s")
DEFAULT_COLUMNS = (*CONSTANT, *LAUNCH, *TRAFFIC)
COLUMNS = (*DEFAULT_COLUMNS, *TIME, *RANKS)


@dataclass
class Chunk:
    """Columns of `size` scenarios of one family: numbers, strings or [N] arrays, computed when they are first asked
    for.

    `keep` selects the rows that pass a filter; None keeps all.
    """

    family: Family
    size: int
    batches: Batches
    found: Launches
    keep: Any = None
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def column(self, name: str) -> Any:
        """One column, filtered: an [n] array, or one value that all rows share."""
        value = self.full(name)
        return value[self.keep] if self.keep is not None and isinstance(value, np.ndarray) else value

    @property
    def rows(self) -> int:
        """Rows after the filter."""
        if self.keep is None:
            return self.size
        return int(np.count_nonzero(self.keep)) if self.keep.dtype == bool else len(self.keep)

    def full(self, name: str) -> Any:
        """One column before the filter."""
        if name not in self._cache:
            self._cache[name] = _MAKERS[name](self)
        return self._cache[name]

    def values(self, name: str) -> list[Any]:
        """One column as a list of plain Python values, one per kept row."""
        value = self.column(name)
        return value.tolist() if isinstance(value, np.ndarray) else [value] * self.rows

    @property
    def occupancy(self) -> Occupancy:
        """Coverage of every row."""
        return self._once("_occupancy", lambda: occupancy_arrays(self.batches, self.found, self.family.gpu))

    @property
    def traffic(self) -> Traffic:
        """Bytes of every row."""
        family = self.family
        make = partial(traffic_arrays, family.layer_group.geometry, family.kv, self.batches, self.found)
        return self._once("_traffic", make)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]


def _per_step(value: Any, chunk: Chunk) -> Any:
    """A number, [N], [N, 1] or [1, 1] entry of `Launches` as [N]."""
    array = np.asarray(value)
    if array.ndim == 2:
        array = array[:, 0]
    return np.broadcast_to(array, (chunk.size,))


def _path(chunk: Chunk) -> Any:
    names = np.array(chunk.found.path_names, dtype=object)
    return names[_per_step(chunk.found.is_split, chunk).astype(np.int64)]


def _grid(chunk: Chunk, role: str) -> Any:
    """Launch grids as an object array of lists, None where no such kernel is launched."""
    out = np.full(chunk.size, None, dtype=object)
    for kernel in chunk.found.kernels:
        if kernel.role == role:
            _fill(out, kernel, chunk)
    return out


def _fill(out: Any, kernel: KernelArray, chunk: Chunk) -> None:
    extents = [_per_step(extent, chunk).tolist() for extent in kernel.grid]
    when = _per_step(kernel.when, chunk).tolist()
    for i, (launched, *grid) in enumerate(zip(when, *extents)):
        if launched and out[i] is None:
            out[i] = grid


def _predicted(chunk: Chunk) -> Any:
    from decodecalc.cost import predict_arrays

    f = chunk.family
    terms = predict_arrays(f.policy.name, f.layer_group.geometry, chunk.batches, f.kv, f.gpu, chunk.found)
    total = terms.total_s
    if not np.isnan(total).any():
        return total
    shown = total.astype(object)  # the engine's own kernel was not calibrated: no time, rather than another kernel's
    shown[np.isnan(total)] = None
    return shown


def _share(chunk: Chunk, name: str, without: int) -> int:
    share = chunk.family.layer_group.geometry.share
    return without if share is None else int(getattr(share, name))


def _exchanged(chunk: Chunk, name: str) -> Any:
    """A quantity of the exchange of every step [N]; 0 where keys are not divided over ranks."""
    found = exchange_of_policy(
        chunk.family.policy.name, chunk.family.layer_group.geometry, chunk.family.kv, chunk.batches.query_tokens
    )
    return 0 if found is None else np.broadcast_to(np.asarray(getattr(found, name)), (chunk.size,))


def _exchange_s(chunk: Chunk) -> Any:
    from decodecalc.cost import predict_arrays

    f = chunk.family
    if f.layer_group.geometry.share is None:
        return 0.0
    return predict_arrays(f.policy.name, f.layer_group.geometry, chunk.batches, f.kv, f.gpu, chunk.found).exchange_s


_MAKERS: dict[str, Callable[[Chunk], Any]] = {
    "model": lambda c: c.family.model,
    "tp": lambda c: c.family.tp,
    "gpu": lambda c: c.family.gpu.name,
    "engine": lambda c: c.family.policy.name,
    "version": lambda c: c.family.version.name,
    "layer_group": lambda c: c.family.layer_group.name,
    "layers": lambda c: c.family.layer_group.layers,
    "q_heads": lambda c: c.family.layer_group.geometry.q_heads,
    "kv_heads": lambda c: c.family.layer_group.geometry.kv_heads,
    "head_dim": lambda c: c.family.layer_group.geometry.head_dim,
    "window": lambda c: c.family.layer_group.geometry.window,
    "kv_dtype": lambda c: c.family.kv.dtype,
    "page_size": lambda c: c.family.kv.page_size,
    "path": _path,
    "grid": partial(_grid, role="stage1"),
    "merge_grid": partial(_grid, role="merge"),
    "sm_count": lambda c: c.family.gpu.sm_count,
    "splits_requested": lambda c: _per_step(c.found.requested, c),
    "splits_launched": lambda c: _per_step(c.found.launched, c),
    "splits_live": lambda c: _per_step(c.found.live, c),
    "splits_working": lambda c: _per_step(c.found.live if c.found.working is None else c.found.working, c),
    "tile_keys": lambda c: _per_step(c.found.tile_keys, c),
    "scratch_bytes": lambda c: _per_step(c.found.scratch_bytes, c),
    "total_s": _predicted,
    "dcp": lambda c: _share(c, "ranks", 1),
    "dcp_interleave": lambda c: _share(c, "interleave", 1),
    "rank_keys": lambda c: c.batches.max_seq_len,
    "exchange_launches": lambda c: _exchanged(c, "launches"),
    "exchange_received_bytes": lambda c: _exchanged(c, "received_bytes"),
    "exchange_s": _exchange_s,
    **{
        name: lambda c, name=name: getattr(c.occupancy, name)  # type: ignore[misc]
        for name in (
            "launched_blocks",
            "live_blocks",
            "working_blocks",
            "unsplit_blocks",
            "sm_coverage",
            "waves",
            "s_star",
        )
    },
    **{name: lambda c, name=name: getattr(c.traffic, name) for name in TRAFFIC},  # type: ignore[misc]
}
