"""Physical parameters of the time model: each has a value, a unit, an origin and the spread of its measurements.

Three words say where a number came from, and no output mixes them: `measured` (this project's microbenchmarks on that
GPU), `fitted to public timings` (published timings of that GPU, `benchmarks/fit_public.py`) and `extrapolated` (from
another GPU or another kernel). `spec` is a data sheet's.

Two levels. Device parameters (`DEVICE`) belong to the GPU; variant parameters (`VARIANT`) to one compiled kernel on it
(element type, head widths, tile, rows, warps, stages, page layout, split or not). Each is measured by its own
microbenchmark (`decodecalc calibrate`) where it is measured; only numbers that are fitted to public timings are found
together.

Some variant parameters are curves. They have a value at each of the `blocks` counts of running blocks, because the time
of a tile and of a start depends on how many blocks run at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MEASURED, FITTED, EXTRAPOLATED, SPEC = "measured", "fitted to public timings", "extrapolated", "spec"
PROVENANCES = (MEASURED, FITTED, EXTRAPOLATED, SPEC)

# name -> (unit, meaning).
DEVICE: dict[str, tuple[str, str]] = {
    "launch_graph_s": ("s", "one kernel node of a CUDA graph: an empty kernel, per node"),
    "launch_stream_s": ("s", "one kernel launched from the host into a stream"),
    "launch_block_s": ("s", "each further block of a grid, empty"),
    "dependent_launch_gap_s": ("s", "the part of a merge's time that is its own launch"),
    "hbm_sustained_bytes_per_s": ("B/s", "read-only stream from memory with every SM busy"),
    "l2_bytes_per_s": ("B/s", "read-only stream of data that the L2 holds"),
    "l2_capacity_bytes": ("B", "largest set of KV that replays find in the L2"),
    "overlap_exponent": ("1", "p of the smooth maximum (sum of x**p)**(1/p) of latency and bandwidth"),
    "residual_p90": ("1", "relative error that 90 % of the check cells stayed within"),
    "stand_in_low": ("1", "an engine's own kernel over the bundled one's time under its rule: 5 % of steps lie below"),
    "stand_in_high": ("1", "the same ratio: 5 % of steps lie above"),
}
START_TILES = (1, 2, 4, 8, 16)  # tiles of the launches whose starts are measured; between them, by the logarithm
STARTS = tuple(f"t_start_{t}_s" for t in START_TILES)
# name -> (unit, meaning) of the curves: a value at each count of `blocks`.
STAGE_CURVES: dict[str, tuple[str, str]] = {
    "blocks": ("1", "blocks at work: the knots of the curves, from a lone one of each KV head to all slots"),
    "tau_s": ("s", "one more tile in each of so many blocks: latency and their share of the bandwidth"),
    **{
        name: ("s", f"what blocks of {t} tiles cost beside launch and tiles: start, queries, first addresses, epilogue")
        for name, t in zip(STARTS, START_TILES)
    },
}
# The merge's time is a table: rows x splits, row by row.
MERGE_CURVES: dict[str, tuple[str, str]] = {
    "merge_rows": ("1", "output rows (query tokens x query heads): knots of merge_s"),
    "merge_splits": ("1", "live splits of a row: knots of merge_s"),
    "merge_s": ("s", "a merge with its launch: for every one of merge_rows, all of merge_splits"),
}
CURVES = {**STAGE_CURVES, **MERGE_CURVES}
VARIANT: dict[str, tuple[str, str]] = {
    "slots_per_sm": ("1", "blocks that are resident on an SM at once"),
    "refill_s": ("s", "a whole wave after the first: blocks take over slots from others"),
    "residual_ragged_p90": ("1", "as residual_p90, of steps whose requests differ in length; else the same as that"),
    "residual_ratio": (
        "1",
        "predicted gain of another setting from which on it made no held-out step slower than the default by 2 %",
    ),
    "scheduler_s": ("s", "a scheduler kernel that runs with every layer, beside its launch"),
    "copy_s": ("s", "each kernel that copies queries or outputs beside the attention kernels, with its launch"),
    "idle_block_s": ("s", "each block of the grid that finds no work, when every slot takes such blocks"),
    "merge_walk_s": ("s", "each split that the merge's loop visits for a row and finds no state in"),
    "t_row_s": ("s", "each live query row of a block: loading the query, writing its output or partial state"),
    "io_share": (
        "1",
        "share of the bytes of queries and outputs that stage 1 moves beside its keys; none where t_row_s holds them",
    ),
    "start_shared": ("1", "share of a start that blocks with the same keys have once: their first loads from memory"),
    **CURVES,
}
# A kernel may come with its own value of these device parameters.
PER_KERNEL = (
    "dependent_launch_gap_s",
    "residual_p90",
    "overlap_exponent",
    "hbm_sustained_bytes_per_s",
    "l2_bytes_per_s",
    "l2_capacity_bytes",
)
OPTIONAL = (
    "refill_s",
    "t_row_s",
    "merge_walk_s",
    "copy_s",
    "idle_block_s",
    "scheduler_s",
    "io_share",
    "start_shared",
    "residual_ratio",
    "residual_ragged_p90",
    "launch_stream_s",
    "stand_in_low",
    "stand_in_high",
)

Value = float | tuple[float, ...]


class Parameter(NamedTuple):
    """One number, or the numbers of a curve. spread: relative scatter of the repeats it was taken from (0: unknown)."""

    name: str
    value: Value
    provenance: str = MEASURED
    spread: float = 0.0
    note: str = ""

    @property
    def unit(self) -> str:
        """The unit, from the name's entry in DEVICE or VARIANT."""
        return (DEVICE.get(self.name) or VARIANT[self.name])[0]

    @property
    def number(self) -> float:
        """The value of one that is no curve. TypeError for a curve."""
        if isinstance(self.value, tuple):
            raise TypeError(f"{self.name} is a curve")
        return self.value

    @property
    def curve(self) -> tuple[float, ...]:
        """The values of a curve; of another parameter, its value alone."""
        return self.value if isinstance(self.value, tuple) else (self.value,)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the unit."""
        return {**self._asdict(), "unit": self.unit}


EDGE = 1.25  # random steps end somewhere: so far beyond the last one nothing begins that they do not show


class TimedSteps(NamedTuple):
    """The steps behind a variant's parameters, where whole launches were timed: what they ranged over."""

    batch: tuple[int, int]
    """Fewest and most requests."""
    context: tuple[int, int]
    """Keys of the longest request: least and most."""
    pages: tuple[int, ...]
    """Keys of a page, ascending."""
    times: int
    """How many launches were timed."""
    q_lens: tuple[int, ...] = (1,)
    """Query tokens of a request, ascending."""
    windows: bool = False
    """Whether layers with a sliding window were among them."""

    def beyond(self, batch: int, longest: int, page: int, q_len: int = 1, window: bool = False) -> str:
        """What of a step lies outside, in words; empty where nothing does. EDGE beyond the ends counts as inside."""
        said = []
        if not self.batch[0] <= batch <= EDGE * self.batch[1]:
            said.append(f"{batch} requests (timed: {self.batch[0]} to {self.batch[1]})")
        if not self.context[0] / EDGE <= longest <= EDGE * self.context[1]:
            said.append(f"{longest} keys (timed: {self.context[0]} to {self.context[1]})")
        if page not in self.pages:
            said.append(f"pages of {page} keys (timed: {', '.join(map(str, self.pages))})")
        if q_len not in self.q_lens:
            said.append(f"{q_len} query tokens a request (timed: {', '.join(map(str, self.q_lens))})")
        if window and not self.windows:
            said.append("a sliding window")
        return " and ".join(said)


class Variant(NamedTuple):
    """One compiled stage-1 kernel. kernel: whose (`bundled`, `NAME-3d`, …); rows: query rows of a block (of the
    bundled kernel, those it computes on: by eights); layout: where the rows of a tile lie: `paged` (a page holds
    several KV heads: one head's rows lie apart), `run` (one KV head: a page is one run of memory) or `flat` (page size
    1). The bundled kernel's time is the same for `run` and `paged` (within 2 % on an H200): it is `paged` for both.

    warps and stages are 0 where the kernel's source fixes them. path: `split` (blocks leave partial states) or
    `unsplit` (they write the output), where one source compiles to two kernels; empty where it does not. resident:
    blocks that an SM holds at once, where an engine's rule knows what a launch was compiled to; else 0.
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
    path: str = ""
    resident: int = 0

    def label(self) -> str:
        """One line for people."""
        tuned = f", {self.warps} warps, {self.stages} stages" if self.warps else ""
        path = f", {self.path}" if self.path else ""
        held = f", {self.resident} blocks an SM" if self.resident else ""
        return (
            f"{self.kernel} {self.dtype} {self.head_dim}/{self.head_dim_v}, tile {self.tile_keys} x {self.rows} rows"
            f"{tuned}, {self.layout}{path}{held}"
        )
