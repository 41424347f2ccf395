"""Physical parameters of the time model: a value, its unit, where it came from and how much it scattered.

Two levels. Device parameters (`DEVICE`) belong to the GPU; variant parameters (`VARIANT`) to one compiled kernel on it
(element type, head widths, tile, rows, warps, stages, page layout). Each is measured by its own microbenchmark
(`decodecalc calibrate`); none is fitted together with another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MEASURED, EXTRAPOLATED, SPEC = "measured", "extrapolated", "spec"
PROVENANCES = (MEASURED, EXTRAPOLATED, SPEC)

# name -> (unit, meaning).
DEVICE: dict[str, tuple[str, str]] = {
    "launch_graph_s": ("s", "one kernel node of a CUDA graph: an empty kernel, per node"),
    "launch_stream_s": ("s", "one kernel launched from the host into a stream"),
    "launch_block_s": ("s", "each further block of a grid, empty"),
    "dependent_launch_gap_s": ("s", "end of stage 1 to the start of a merge that waits for it"),
    "hbm_sustained_bytes_per_s": ("B/s", "read-only stream from memory with every SM busy"),
    "l2_bytes_per_s": ("B/s", "read-only stream of data that the L2 holds"),
    "l2_capacity_bytes": ("B", "largest set of KV that replays find in the L2"),
    "overlap_exponent": ("1", "p of the smooth maximum (sum of x**p)**(1/p) of latency and bandwidth"),
    "merge_fixed_s": ("s", "a merge of one split: from its start to the end of its last block"),
    "merge_per_split_s": ("s", "each further split of a merge"),
    "residual_p90": ("1", "relative error that 90 % of the check cells stayed within"),
}
VARIANT: dict[str, tuple[str, str]] = {
    "slots_per_sm": ("1", "blocks that are resident on an SM at once"),
    "t_fixed_s": ("s", "a lone block without its tiles: start, queries, first addresses, epilogue"),
    "t_crowd_s": ("s", "what blocks that start together cost each other: times sqrt(blocks) - 1, over the first tiles"),
    "refill_s": ("s", "a wave after the first: blocks take over slots from others"),
    "t_row_s": ("s", "each live query row of a block: loading the query, writing its output or partial state"),
    "tau_unloaded_s": ("s", "one tile in a block alone on the device"),
    "tau_loaded_s": ("s", "one tile in a block when every SM runs one, its share of the bandwidth taken out"),
    "tau_busy_s": ("s", "one tile's share of an SM that runs as many blocks as it holds, on data in L2"),
}
# A kernel may come with its own value of these device parameters.
PER_KERNEL = ("dependent_launch_gap_s", "merge_fixed_s", "merge_per_split_s", "residual_p90", "overlap_exponent")
OPTIONAL = ("t_crowd_s", "refill_s", "t_row_s", "tau_loaded_s", "tau_busy_s", "launch_stream_s")


class Parameter(NamedTuple):
    """One number. spread: relative scatter of the repeats it was taken from (0 where there is none)."""

    name: str
    value: float
    provenance: str = MEASURED
    spread: float = 0.0
    note: str = ""

    @property
    def unit(self) -> str:
        """The unit, from the name's entry in DEVICE or VARIANT."""
        return (DEVICE.get(self.name) or VARIANT[self.name])[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the unit."""
        return {**self._asdict(), "unit": self.unit}


class Variant(NamedTuple):
    """One compiled stage-1 kernel. kernel: whose (`bundled`, `vllm-triton-3d`, …); layout: where the rows of a
    tile lie: `paged` (a page holds several KV heads, so one head's rows lie apart), `run` (one KV head: a page is one
    run of memory) or `flat` (page size 1).

    warps and stages are 0 where the kernel's source fixes them.
    """

    kernel: str
    dtype: str
    head_dim: int
    head_dim_v: int
    tile_keys: int
    rows: int
    warps: int = 0
    stages: int = 0
    layout: str = "paged"

    def label(self) -> str:
        """One line for people."""
        tuned = f", {self.warps} warps, {self.stages} stages" if self.warps else ""
        return (
            f"{self.kernel} {self.dtype} {self.head_dim}/{self.head_dim_v}, tile {self.tile_keys} x {self.rows} rows"
            f"{tuned}, {self.layout}"
        )
