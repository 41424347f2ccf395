"""The fit of one published table: shared numbers, and those of every compiled kernel in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks.public.fit import Predict, fit
from benchmarks.public.physics import (
    OF_OPERATION,
    OF_TABLE,
    OF_VARIANT,
    bounds,
    kernel_times,
    operation_s,
    operation_times,
)
from benchmarks.public.rows import Rows
from benchmarks.public.tables import SLOTS, Table
from decodecalc.gpus import Gpu

Key = tuple[int, int, int, int, int]
"""Whether the split path has a kernel of its own and ran; widths of K and V, keys of a tile, query rows of a block."""

SAMPLE, FEW_SAMPLE, FEW_ROUNDS = 600, 150, 4
SCATTER = 2654435761  # a multiplier whose multiples, modulo 2**32, lie evenly (Knuth, The Art of Computer Programming)
L2_SHARES, L2_RATES = (0.5, 0.9), (0.3, 0.8)
"""Beginnings of the L2's usable share, and of its rate as a share of the fastest one."""
FEWEST = 20
MOST_OF_PEAK = 0.97
KNOWN_STARTS_S = {("flash-attention-3", "bf16"): 4.0e-6, ("flash-attention-3", "fp8"): 2.4e-6}
"""Timings of operations cannot tell a constant of the operation from a start that all kernels have, and the prior keeps
starts short. Of FlashAttention-3, whose own launches were measured on an H200, start and combine take this much longer
than the fits then say. It is taken from the operation's constant, which keeps LEAST_OPERATION_S."""
LEAST_OPERATION_S = 5e-7
FEWER_SLOTS = 0.01
"""How much better a fit must be for one more block on an SM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One compiled kernel's numbers."""

    slots_per_sm: int
    values: Mapping[str, float]
    rows: int
    """Rows of the table that it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFit:
    """What a table came to."""

    gpu: str
    table: Table
    dtype: str
    shared: Mapping[str, float]
    kernels: Mapping[Key, Kernel]

    def predict(self, rows: Rows, gpu: Gpu) -> Any:
        """Seconds of the operation [n]; NaN where no kernel was fitted."""
        out = np.full(len(rows.measured_s), np.nan)
        for key, at in kernels_of(rows):
            if key in self.kernels:
                kernel = self.kernels[key]
                out[at] = operation_times(rows.take(at), gpu, kernel.slots_per_sm, {**self.shared, **kernel.values})
        return out


def kernels_of(rows: Rows) -> Iterator[tuple[Key, Any]]:
    """Every compiled kernel in the rows, and which rows it ran."""
    names = ("own_split", "head_dim", "head_dim_v", "tile_keys", "block_rows")
    kinds, of = np.unique(np.stack([rows.columns[name] for name in names]), axis=1, return_inverse=True)
    for i, (split, d, dv, tile, block) in enumerate(kinds.T.tolist()):
        yield (split, d, dv, tile, block), np.flatnonzero(of == i)


def sustained_rate(rows: Rows, gpu: Gpu) -> float:
    """Bytes per second that the best rows far beyond the L2 reach; 0 without any."""
    far = rows.work.hbm_bytes > 4 * float(gpu.l2_bytes or 132e6)
    far &= ~rows.held_out
    # Rows above the data sheet cannot have read what they should.
    return float(np.quantile((rows.work.hbm_bytes / rows.measured_s)[far], 0.99)) if far.sum() > 20 else 0.0


def fit_table(rows: Rows, gpu: Gpu, table: Table, hbm_bytes_per_s: float) -> TableFit:
    """Fit the rows that are not held out."""
    fixed = {"hbm_bytes_per_s": hbm_bytes_per_s}
    found = [(key, at) for key, at in kernels_of(rows) if (~rows.held_out[at]).sum() >= FEWEST]
    slots = {key: _slots(rows, at, gpu, table, fixed) for key, at in found}
    of_table, of_variant = bounds(gpu)

    def groups(most: int) -> list[tuple[Predict, Any]]:
        samples = [(sampled(rows, at, most), slots[key]) for key, at in found]
        return [(_predict(sample, gpu, n, fixed), np.log(sample.measured_s)) for sample, n in samples]

    # Where the L2 ends and how fast it is are no smooth questions: several beginnings on few rows, then the best one to
    # the end on more.
    few, begins = groups(FEW_SAMPLE), []
    for share, rate in product(L2_SHARES, L2_RATES):
        begin = of_table[:, 0].copy()
        begin[OF_TABLE.index("l2_share")] = np.log(share)
        begin[OF_TABLE.index("l2_bytes_per_s")] = np.log(rate) + of_table[OF_TABLE.index("l2_bytes_per_s"), 2]
        at, _, cost = fit(few, of_table, [of_variant] * len(found), FEW_ROUNDS, begin)
        begins.append((cost, at))
    best = min(begins, key=lambda b: b[0])[1]
    shared, own, _ = fit(groups(SAMPLE), of_table, [of_variant] * len(found), begin=best)
    fitted = TableFit(
        gpu=gpu.name,
        table=table,
        dtype=rows.dtype,
        shared={**dict(zip(OF_TABLE, np.exp(shared).tolist())), **fixed},
        kernels={
            key: Kernel(slots_per_sm=slots[key], values=dict(zip(OF_VARIANT, np.exp(x).tolist())), rows=len(at))
            for (key, at), x in zip(found, own)
        },
    )
    return with_known_start(fitted)


def with_known_start(found: TableFit) -> TableFit:
    """The same operation with as much of its constant in the kernels' starts as was measured (KNOWN_STARTS_S)."""
    more = min(
        KNOWN_STARTS_S.get((found.table.policy, found.dtype), 0.0), found.shared["operation_s"] - LEAST_OPERATION_S
    )
    if more <= 0:
        return found
    return replace(
        found,
        shared={**found.shared, "operation_s": found.shared["operation_s"] - more},
        kernels={
            key: replace(kernel, values={**kernel.values, "start_s": kernel.values["start_s"] + more})
            for key, kernel in found.kernels.items()
        },
    )


def sampled(rows: Rows, at: Any, most: int) -> Rows:
    """At most `most` of the rows numbered `at` that are not held out, scattered through the table: every so manyth row
    would meet some batches and lengths of its regular grid and never others."""
    kept = at[~rows.held_out[at]]
    scattered = np.argsort((np.arange(len(kept)) * SCATTER) % (1 << 32), kind="stable")
    return rows.take(np.sort(kept[scattered[:most]]))


def _slots(rows: Rows, at: Any, gpu: Gpu, table: Table, fixed: Mapping[str, float]) -> int:
    choices = SLOTS[table.policy]
    if len(choices) == 1:
        return choices[0]
    sample = sampled(rows, at, FEW_SAMPLE)
    of_table, of_variant = bounds(gpu)
    costs = [
        fit([(_predict(sample, gpu, s, fixed), np.log(sample.measured_s))], of_table, [of_variant], 6)[2]
        for s in choices
    ]
    best = 0
    for i, cost in enumerate(costs):
        if cost < costs[best] - FEWER_SLOTS:
            best = i
    return choices[best]


def _predict(rows: Rows, gpu: Gpu, slots: int, fixed: Mapping[str, float]) -> Predict:
    last: dict[bytes, Any] = {}  # the kernels' times where only the operation's numbers change

    def predict(shared: Any, own: Any) -> Any:
        values = {**dict(zip(OF_TABLE, np.exp(shared))), **dict(zip(OF_VARIANT, np.exp(own))), **fixed}
        key = np.concatenate([shared[len(OF_OPERATION) :], own]).tobytes()
        if key not in last:
            last.clear()
            last[key] = kernel_times(rows, gpu, slots, values)
        return last[key] + operation_s(rows, values)

    return predict
