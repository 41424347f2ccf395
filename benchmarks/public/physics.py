"""From a few physical numbers of a kernel on a GPU to the curves of the time model.

A calibration holds curves over the number of blocks at work. Published timings can bear a few numbers only, so the
curves are drawn from these, each within bounds that physics sets. `OF_TABLE` belong to all rows of a table and KV type,
`OF_VARIANT` to one compiled kernel:

* a tile of B bytes takes a lone block `tile_s` + B / `block_bytes_per_s`, and `miss_s` more when the L2 does not hold
  it; m blocks of one SM share its port, so that a tile never takes less than m x B / `sm_bytes_per_s`;
* a start takes `start_s` for a lone block and `start_full_s` more when all slots start together;
* a merge takes `merge_s`, and `merge_state_s` for each state of a row, which are added up in turn; all SMs together
  take `merge_row_s` for a row and `merge_each_s` for each of its states more;
* `operation_s` and what it moves at `moved_bytes_per_s`, and where the backend copies its outputs and queries `copy_s`
  and `gather_s`, are the rest of the published operation. They belong to the table and to no prediction of the kernel
  alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.public.rows import Rows, take
from decodecalc.cost.model import WARM_FADE, step_terms, uniform_bodies
from decodecalc.cost.parameters import START_TILES
from decodecalc.cost.rates import Rates
from decodecalc.gpus import Gpu

PORT_BYTES_PER_CLOCK = 64  # what an SM takes from the L2 in a clock
# name -> (start, least, most); seconds, bytes per second, shares.
_OF_TABLE: dict[str, tuple[float, float, float]] = {
    "operation_s": (4e-6, 2e-7, 40e-6),
    "copy_s": (1.5e-6, 1e-7, 8e-6),
    "gather_s": (3e-6, 1e-7, 16e-6),
    "moved_bytes_per_s": (2e12, 1e11, 1e13),
    "merge_s": (2e-6, 5e-7, 10e-6),
    "merge_state_s": (3e-8, 1e-10, 1e-6),
    "merge_row_s": (3e-11, 1e-12, 5e-9),
    "merge_each_s": (3e-11, 1e-12, 5e-9),
    "exponent": (3.0, 1.0, 12.0),
    "l2_bytes_per_s": (4e12, 5e11, 3e13),
    "l2_share": (0.7, 0.3, 1.0),
}
_OF_VARIANT: dict[str, tuple[float, float, float]] = {
    "start_s": (2e-6, 3e-7, 8e-6),
    "start_full_s": (1e-6, 1e-8, 8e-6),
    "refill_s": (1e-6, 1e-8, 8e-6),
    "row_s": (1e-8, 1e-11, 2e-7),
    "tile_s": (2e-7, 1e-9, 4e-6),
    "miss_s": (2e-7, 1e-9, 4e-6),
    "block_bytes_per_s": (30e9, 2e9, 300e9),
    "sm_bytes_per_s": (60e9, 2e9, 300e9),
}
OF_OPERATION = ("operation_s", "copy_s", "gather_s", "moved_bytes_per_s")
"""Those of OF_TABLE that no kernel's time depends on; they stand first."""
OF_TABLE, OF_VARIANT = tuple(_OF_TABLE), tuple(_OF_VARIANT)


def bounds(gpu: Gpu) -> tuple[Any, Any]:
    """(start, least, most) of the logarithms of OF_TABLE [p, 3] and OF_VARIANT [q, 3]. No SM is faster than its port,
    and the L2 is no faster than all ports."""
    port = PORT_BYTES_PER_CLOCK * gpu.need("boost_clock_hz")
    most = {"l2_bytes_per_s": port * gpu.sm_count, "block_bytes_per_s": port, "sm_bytes_per_s": port}

    def table(of: dict[str, tuple[float, float, float]]) -> Any:
        return np.log([(start, least, min(high, most.get(name, high))) for name, (start, least, high) in of.items()])

    return table(_OF_TABLE), table(_OF_VARIANT)


MERGE_ROWS, MERGE_SPLITS = (1.0, 4097.0), (1.0, 257.0)
LAUNCH_GRAPH_S = 0.5e-6
LAUNCH_BLOCK_S = 0.6e-9
IO_SHARE = 1.0  # queries are read and outputs written beside the keys


def tile_bytes(head_dim: int, head_dim_v: int, tile_keys: int, dtype: str) -> float:
    """Bytes of K and V in a tile."""
    return tile_keys * (head_dim + head_dim_v) * (1 if dtype == "fp8" else 2)


def knots(gpu: Gpu, slots_per_sm: int) -> tuple[float, ...]:
    """Block counts at which the curves are given: one, and whole blocks per SM."""
    return (1.0, *(float(gpu.sm_count * m) for m in range(1, slots_per_sm + 1)))


def curves(
    gpu: Gpu, slots_per_sm: int, values: Mapping[str, float], size: float, missed: bool
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Knots, latency of a tile of `size` bytes at each, and the start at each."""
    at = knots(gpu, slots_per_sm)
    alone = values["tile_s"] + size / values["block_bytes_per_s"] + (values["miss_s"] if missed else 0.0)
    latency = tuple(max(alone, max(k / gpu.sm_count, 1.0) * size / values["sm_bytes_per_s"]) for k in at)
    start = tuple(values["start_s"] + values["start_full_s"] * k / at[-1] for k in at)
    return at, latency, start


def rates_of(gpu: Gpu, slots_per_sm: int, values: Mapping[str, float], size: float, missed: bool) -> Rates:
    """The model's rates, with every tile read from memory or none."""
    blocks, latency, start = curves(gpu, slots_per_sm, values, size, missed)
    return Rates(
        sm_count=gpu.sm_count,
        slots=gpu.sm_count * slots_per_sm,
        launch_s=LAUNCH_GRAPH_S,
        launch_block_s=LAUNCH_BLOCK_S,
        gap_s=LAUNCH_GRAPH_S,
        hbm_bytes_per_s=values["hbm_bytes_per_s"],
        l2_bytes_per_s=values["l2_bytes_per_s"],
        l2_capacity_bytes=l2_capacity(gpu, values),
        peak_flop_per_s=gpu.need("tensor_bf16_flop_per_s"),
        exponent=values["exponent"],
        refill_s=values["refill_s"],
        row_s=values["row_s"],
        blocks=blocks,
        latency_s=latency,
        starts_s=(start,) * len(START_TILES),
        merge_rows=MERGE_ROWS,
        merge_splits=MERGE_SPLITS,
        merge_s=merge_table(values),
        warm=True,
        half_width=0.0,
        half_width_ragged=0.0,
        io_share=IO_SHARE,
    )


def merge_table(values: Mapping[str, float]) -> tuple[float, ...]:
    """A merge's time at the knots, row by row: straight lines, so that two of each say all."""
    return tuple(
        values["merge_s"]
        + splits * values["merge_state_s"]
        + rows * (values["merge_row_s"] + splits * values["merge_each_s"])
        for rows in MERGE_ROWS
        for splits in MERGE_SPLITS
    )


def l2_capacity(gpu: Gpu, values: Mapping[str, float]) -> float:
    """Bytes that replays find again."""
    return values["l2_share"] * float(gpu.l2_bytes or 132e6)


def operation_s(rows: Rows, values: Mapping[str, float]) -> Any:
    """The published operation beside the attention kernels: its constants, the step's keys and values (read in 16 bits,
    written in the cache's type), and the copies of queries and outputs."""
    c = rows.columns
    written = c["batch"] * c["kv_heads"] * (c["head_dim"] + c["head_dim_v"]) * (3.0 if rows.dtype == "fp8" else 4.0)
    copied = c["batch"] * c["q_heads"] * c["head_dim"] * 4.0 * (c["copied"] + c["gathered"])
    constant = values["operation_s"] + c["copied"] * values["copy_s"] + c["gathered"] * values["gather_s"]
    return constant + (written + copied) / values["moved_bytes_per_s"]


def kernel_times(rows: Rows, gpu: Gpu, slots_per_sm: int, values: Mapping[str, float]) -> Any:
    """Predicted seconds of the kernels alone, for rows of one kernel variant in the state the collector left the L2."""
    c = rows.columns
    size = tile_bytes(int(c["head_dim"][0]), int(c["head_dim_v"][0]), int(c["tile_keys"][0]), rows.dtype)
    moved = rows.work.hbm_bytes + IO_SHARE * rows.work.io_bytes
    missed = np.clip((moved / l2_capacity(gpu, values) - 1) / (WARM_FADE - 1), 0.0, 1.0)
    out = np.zeros(len(missed))
    for miss, share in ((False, 1 - missed), (True, missed)):
        at = np.flatnonzero(share > 0)
        if len(at):
            rates = rates_of(gpu, slots_per_sm, values, size, miss)
            work = rows.work if len(at) == len(out) else take(rows.work, at)
            out[at] += share[at] * step_terms(work, uniform_bodies(work, rates), rates).total_s
    return out


def operation_times(rows: Rows, gpu: Gpu, slots_per_sm: int, values: Mapping[str, float]) -> Any:
    """Predicted seconds of the published operation, for rows of one kernel variant."""
    return kernel_times(rows, gpu, slots_per_sm, values) + operation_s(rows, values)
