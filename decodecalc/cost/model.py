"""The time model: how long one layer's launches take, for whole arrays of steps.

    T      = launch + stage 1 + (gap + merge, when split)
    stage1 = t_fixed + ( chain**p + sm**p + stream**p + … )**(1/p)

* t_fixed: the first blocks' start, queries and first addresses, before anything streams, and their epilogue; t_row for
  each live query row on top.
* chain: what the slots need by latency alone: blocks beyond the slots wait, so waves x (tiles x tau), plus a refill for
  each wave after the first. For ragged batches it is the makespan of a list schedule (`schedule.py`), not an average.
* sm: what the busiest SM needs when its resident blocks share it (tau_loaded).
* stream: useful bytes over the sustained rate, or all requested bytes over the L2's, whichever is longer.
* also in the sum: executed FLOP over the tensor peak (matters only for MLA-like groups) and the launching of the
  grid's blocks (matters only for grids of thousands of idle blocks).

The smooth maximum is measured, not chosen: p is 1 where nothing overlaps and infinite where the slower one hides the
other. Every term grows with keys and blocks and falls with bandwidth and SMs, so the total does.

Sources of the structure: measurements of kernels on an H200 (reports/h200/accuracy.md) and published timings of H200
and H100 (reports/public-backtest.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from decodecalc.cost.rates import Rates

FloatArray = npt.NDArray[np.float64]
WARM_FADE = 1.3  # KV of this many L2 capacities finds nothing left there when a replay starts again


@dataclass(eq=False, repr=False)
class Work:
    """What the launches of N steps have to do. Every field is [N] or a number for all.

    blocks: live stage-1 blocks; tiles: of the longest block; tiles_total: of all blocks; hbm_bytes: KV read once;
    requested_bytes: KV as the blocks ask for it; launched_blocks: the grid; merge_bytes, merge_blocks, live_splits: of
    the merge (0 where nothing is split); rows: live query rows of a block; extra_kernels: kernels besides stage 1
    and merge (schedulers).
    """

    blocks: Any
    tiles: Any
    tiles_total: Any
    hbm_bytes: Any
    requested_bytes: Any
    flop: Any
    launched_blocks: Any
    is_split: Any
    live_splits: Any
    merge_bytes: Any
    merge_blocks: Any
    rows: Any = 0
    extra_kernels: Any = 0


@dataclass(eq=False, repr=False)
class Terms:
    """Where the time goes; all seconds, all [N], and `total_s` is their sum.

    launch_s: launching kernels. fixed_s: block start and epilogue. stream_s: bytes at the sustained rate. latency_s:
    what the tiles' latency adds to that with work spread evenly. tail_s: what whole waves or the longest request add.
    compute_s: the tensor cores' share. gap_s, merge_s: of the second kernel. body_s: stream + latency + tail + compute.
    """

    launch_s: Any
    fixed_s: Any
    stream_s: Any
    latency_s: Any
    compute_s: Any
    tail_s: Any
    gap_s: Any
    merge_s: Any

    @property
    def total_s(self) -> Any:
        """The sum of the terms."""
        return sum((getattr(self, f.name) for f in fields(self)), 0.0)

    @property
    def body_s(self) -> Any:
        """Stage 1 after its start."""
        return self.stream_s + self.latency_s + self.compute_s + self.tail_s


def uniform_chain(blocks: Any, tiles: Any, rates: Rates, rows: Any = 0) -> tuple[Any, Any]:
    """Latency of equal blocks on the slots, and the same if fractions of a wave could run: (chain_s, even_s).

    Closed form of the list schedule: whole waves. blocks 0 is a launch without work.
    """
    ratio = np.asarray(blocks) / rates.slots
    waves = np.ceil(ratio)
    even = np.maximum(ratio, np.minimum(waves, 1.0))
    one = np.asarray(tiles) * rates.tau_s
    refill = rates.refill_s + np.asarray(rows) * rates.row_s
    return waves * one + np.maximum(waves - 1, 0) * refill, even * one + np.maximum(even - 1, 0) * refill


def stream_time(hbm_bytes: Any, requested_bytes: Any, rates: Rates) -> Any:
    """Bytes over rates. Warm: what the L2 still holds from the last replay comes at its rate, fading beyond it."""
    hbm = np.asarray(hbm_bytes, dtype=float)
    l2 = requested_bytes / rates.l2_bytes_per_s
    if not rates.warm:
        return np.maximum(hbm / rates.hbm_bytes_per_s, l2)
    cap = rates.l2_capacity_bytes
    missed = np.clip((hbm / cap - 1) / (WARM_FADE - 1), 0.0, 1.0)
    return np.maximum(missed * hbm / rates.hbm_bytes_per_s, l2)


def step_terms(work: Work, chain_s: Any, even_s: Any, rates: Rates) -> Terms:
    """The terms of N steps from their work and the latency chain of their blocks."""
    p = rates.exponent
    has_work = np.asarray(work.blocks) > 0
    stream = stream_time(work.hbm_bytes, work.requested_bytes, rates)
    compute = np.asarray(work.flop) / rates.peak_flop_per_s
    started = np.asarray(work.launched_blocks) * rates.launch_block_s
    busiest_sm = np.ceil(np.asarray(work.blocks) / rates.sm_count) * work.tiles * rates.tau_sm_s
    even_sm = np.maximum(np.asarray(work.tiles_total) / rates.sm_count, work.tiles) * rates.tau_sm_s
    other = _sum_of_powers(p, compute, started)
    body = _norm(p, chain_s, busiest_sm, stream, rest=other)
    even = _norm(p, even_s, even_sm, stream, rest=other)
    no_compute = _norm(p, even_s, even_sm, stream)
    merge_stream_s = np.asarray(work.merge_bytes) / rates.l2_bytes_per_s
    merge = _norm(
        p,
        rates.merge_fixed_s + rates.merge_per_split_s * np.maximum(np.asarray(work.live_splits) - 1, 0),
        merge_stream_s,
        np.asarray(work.merge_blocks) * rates.launch_block_s,
    )
    split = np.asarray(work.is_split)
    zero = np.zeros_like(body)
    return Terms(
        launch_s=zero + rates.launch_s * (1 + np.asarray(work.extra_kernels)),
        fixed_s=zero + np.where(has_work, rates.fixed_s + np.asarray(work.rows) * rates.row_s, 0.0),
        stream_s=zero + stream,
        latency_s=no_compute - stream,
        compute_s=even - no_compute,
        tail_s=body - even,
        gap_s=zero + np.where(split, rates.gap_s, 0.0),
        merge_s=zero + np.where(split, merge, 0.0),
    )


def _sum_of_powers(p: float, *terms: Any) -> Any:
    return sum((np.asarray(t, dtype=float) ** p for t in terms), 0.0)


def _norm(p: float, *terms: Any, rest: Any = 0.0) -> Any:
    """(sum of x**p + rest)**(1/p): at least the largest term, at most their sum."""
    return (_sum_of_powers(p, *terms) + rest) ** (1.0 / p)
