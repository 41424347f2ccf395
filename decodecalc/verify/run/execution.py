"""How the bundled kernel runs any policy's plan, and what it will then launch.

The kernel is told as little of a policy's rule as its traits allow (`Partition`): the split count and its unit, a count
per request, one size for the batch, or, for any other regular rule, the keys of one split per request. Which splits are
live, where each begins and ends, and which blocks exit are computed on the device from the lengths; therefore they are
observations.

Tile, warps and stages are the bundled kernel's own (the default variant of the time model). Rows are the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from decodecalc.engines.registry import traits_of
from decodecalc.intmath import cdiv, next_power_of_2
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.traits import COUNT, COUNTS, IRREGULAR, SIZE, Partition

if TYPE_CHECKING:
    from decodecalc.cost import Calibration
    from decodecalc_kernels import LaunchConfig

BUNDLED = "bundled"

CACHE_DTYPES = ("bf16", "fp16", "fp32", "fp8")  # what `verify` fills


@dataclass(frozen=True)
class KernelShape:
    """The launch of one kernel, as the bundled launcher documents it: grid (x, y, z) and threads per block."""

    role: str
    grid: tuple[int, int, int]
    threads: int

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Execution:
    """A plan as a launch of the bundled kernel.

    split_values: per request, for the rules that need them. config: for the exact claims, with the engine's rows.
    timed: what is timed, and predicted: the same splits with the bundled kernel's own rows and tile (a window can make
    the engine's tile part of the key ranges of `config`). window: what the kernel is told, which is what the engine's
    rule reads (some read one key less). unsupported: why the kernel cannot run the plan; the other fields are then
    meaningless.
    """

    config: LaunchConfig | None
    timed: LaunchConfig | None = None
    split_values: tuple[int, ...] | None = None
    window: int | None = None
    unsupported: str = ""
    rule: str = ""

    @property
    def launch(self) -> LaunchConfig:
        """The launch configuration of a plan that can run."""
        assert self.config is not None
        return self.config


def execution_of(plan: LaunchPlan, calibration: Calibration | None = None) -> Execution:
    """How the bundled kernel runs `plan`. calibration: whose variants to run; None takes that of the plan's GPU."""
    from decodecalc.cost import load_calibration

    tuning = tuning_of(plan, calibration or load_calibration(gpu=plan.gpu))
    reason = _unsupported(plan, tuning)
    return Execution(None, unsupported=reason) if reason else _by_rule(plan, tuning)


class KernelTuning(NamedTuple):
    """Stage 1's inner shape."""

    tile_keys: int
    warps: int
    stages: int


def tuning_of(plan: LaunchPlan, calibration: Calibration) -> KernelTuning:
    """The variant that the time model predicts for this plan on the bundled kernel."""
    from decodecalc.cost.tuning import default_variant

    if plan.engine != BUNDLED:
        variant = default_variant(calibration, plan.geometry, plan.kv, plan.batch.max_q_len)
        return KernelTuning(variant.tile_keys, variant.warps or 4, variant.stages or 3)
    warps, stages = (int(getattr(plan.detail, name)) for name in ("warps", "stages"))
    return KernelTuning(plan.tile_keys, warps, stages)


def _unsupported(plan: LaunchPlan, tuning: KernelTuning) -> str:
    geo = plan.geometry
    if plan.kv.dtype not in CACHE_DTYPES:
        return f"verify fills {', '.join(CACHE_DTYPES)} caches for the bundled kernel, not {plan.kv.dtype}"
    if min(plan.batch.q_lens) < 1 or min(plan.batch.seq_lens) < 1:
        return "requests without keys or query tokens are not verified"
    if min(n - q for n, q in zip(plan.batch.seq_lens, plan.batch.q_lens)) < 0:
        return "a request has fewer keys than query tokens"
    if _partition(plan).rule == IRREGULAR and plan.is_split:
        return f"{plan.engine} does not cut a request into splits of one size, and the bundled kernel does"
    if plan.is_split and plan.splits.interleave_keys is not None:
        return "this engine deals tiles to its splits in turn, and the splits of the bundled kernel are contiguous"
    if geo.window is None:
        return ""
    if plan.is_split and any(_first_keys(plan)) and _window_as_read(plan) is None:
        return (
            "this engine starts its splits at a tile boundary before the window, and the bundled kernel at the window"
        )
    if _skips_tiles(plan) and _exact_tile(plan, tuning) != plan.tile_keys:
        return (
            f"the window is skipped in whole tiles of {plan.tile_keys} keys, a size that the bundled kernel cannot hold"
        )
    return ""


def _partition(plan: LaunchPlan) -> Partition:
    """How the kernel is told where the plan cuts: by the engine's rule, or by that of the engine whose splits the
    bundled kernel borrows."""
    borrowed = getattr(plan.options, "split_policy", None)
    return Partition() if borrowed else traits_of(plan.engine).partition


def _first_keys(plan: LaunchPlan) -> list[int]:
    return [ranges[0][0] for ranges in plan.splits.keys]


def _window_as_read(plan: LaunchPlan) -> int | None:
    """The window at which the engine's partition starts (for some engines one key short of the layer's); None where no
    window explains it."""
    lens = zip(plan.batch.seq_lens, plan.batch.q_lens, _first_keys(plan))
    windows = {n - q + 1 - first for n, q, first in lens if first}
    window = windows.pop() if len(windows) == 1 else 0
    return window if 0 < window <= (plan.geometry.window or 0) else None


def _skips_tiles(plan: LaunchPlan) -> bool:
    """Whether the window shows in the tiles that are walked, and not in where the partition begins."""
    return plan.geometry.window is not None and _window_as_read(plan) is None


def _exact_tile(plan: LaunchPlan, tuning: KernelTuning) -> int:
    """The tile for the exact claims: the kernel's own, or the engine's where the window is skipped in whole tiles."""
    if not _skips_tiles(plan):
        return tuning.tile_keys
    most = 128 if plan.geometry.v_dim <= 128 else 32
    return min(max(16, next_power_of_2(plan.tile_keys)), most)


def _by_rule(plan: LaunchPlan, tuning: KernelTuning) -> Execution:
    from decodecalc_kernels import LaunchConfig

    shape = _shape(plan, tuning, max(16, next_power_of_2(plan.live_rows)), plan.live_rows, _exact_tile(plan, tuning))
    as_read = _window_as_read(plan)
    window = plan.geometry.window if as_read is None else as_read
    shape["window_partition"] = "full" if as_read is None else "window"
    launched, requested = plan.splits.launched, plan.splits.requested
    partition = _partition(plan)
    unit = partition.unit_keys or plan.tile_keys
    values: tuple[int, ...] | None = None
    if not plan.is_split:
        config, rule = LaunchConfig(**shape), "unsplit"
    elif launched == 1:  # the split path with one split still has partial states and a merge
        longest = plan.batch.max_seq_len
        config = LaunchConfig(num_splits=1, split_rule="size", split_value=longest, **shape)
        rule = "one split, merged"
    elif partition.rule == COUNT:
        count = requested[0]
        config = LaunchConfig(num_splits=launched, split_rule="count", split_value=count, split_unit=unit, **shape)
        rule = f"{count} splits of whole {unit}-key units"
    elif partition.rule == COUNTS:
        config, values = LaunchConfig.per_request_counts(launched, unit=unit, **shape), requested
        rule = f"a split count per request, {unit}-key units"
    elif partition.rule == SIZE:
        # The longest request shows the size: any size of at least a request's length cuts the request in the same way.
        size = max(end - start for ranges in plan.splits.keys for start, end in ranges[:1])
        if plan.engine == BUNDLED and plan.listed:
            shape.update(listed=True, list_length=sum(max(n, 1) for n in plan.splits.live))
        config = LaunchConfig(num_splits=launched, split_rule="size", split_value=size, **shape)
        rule = f"{size} keys per split"
    else:
        values = tuple(ranges[0][1] - ranges[0][0] for ranges in plan.splits.keys)
        config, rule = LaunchConfig.per_request_sizes(launched, **shape), "keys per split of each request"
    return Execution(config, config.replace(**_timed_shape(plan, tuning)), values, window, rule=rule)


def _timed_shape(plan: LaunchPlan, tuning: KernelTuning) -> dict[str, Any]:
    """The bundled kernel's own rows, tile and grid, as the time model assumes them under any rule."""
    from decodecalc.cost.own_launch import row_block

    rows = row_block(plan.geometry, plan.batch.max_q_len, tuning.warps)
    shape = _shape(plan, tuning, rows, min(rows, plan.batch.max_q_len * plan.geometry.group), tuning.tile_keys)
    return {**shape, "idle_requests": 0}  # padding belongs to an engine's launch, not to its splits


def _shape(plan: LaunchPlan, tuning: KernelTuning, rows: int, rows_used: int, tile: int) -> dict[str, Any]:
    """Tile, rows, warps and idle rows. Rows beyond those of the queries are left out: the blocks are the same, with
    less padding."""
    from decodecalc.cost.launcher import kernel_of_block, stages_that_fit, warps_that_hold
    from decodecalc.cost.own_launch import in_warp_groups, row_block

    if in_warp_groups(tuning.warps):
        rows = row_block(plan.geometry, plan.batch.max_q_len, tuning.warps)
    return {
        "kernel": kernel_of_block(tuning.warps),
        "tile_keys": tile,
        "rows": rows,
        "rows_used": rows_used,
        "warps": warps_that_hold(rows, plan.geometry.v_dim, tuning.warps),
        "stages": stages_that_fit(plan.geometry, plan.kv, plan.gpu, tile, tuning.stages),
        "idle_requests": _idle_requests(plan),
        **_merge(plan),
    }


def _merge(plan: LaunchPlan) -> dict[str, Any]:
    """The bundled launcher's own merge for this many splits."""
    from decodecalc_kernels.blocks import merge_shape

    rows = plan.batch.size * plan.batch.max_q_len * plan.geometry.q_heads
    shape: dict[str, Any] = merge_shape(plan.splits.launched, rows, plan.geometry.v_dim) if plan.is_split else {}
    return shape


def row_blocks(plan: LaunchPlan) -> int:
    """Row blocks of the request with the most query tokens."""
    return max(plan.blocks_per_split) // plan.geometry.kv_heads


def _idle_requests(plan: LaunchPlan) -> int:
    """Grid rows that the engine launches beyond the requests, as padding."""
    if not _partition(plan).pads_grid:
        return 0
    return max(0, plan.stage1.grid[0] // row_blocks(plan) - plan.batch.size)


def listed_requests(plan: LaunchPlan) -> list[int]:
    """The request of each entry of the list of live splits, in the list's order (kernels/split_list.py)."""
    live, keys = plan.splits.live, plan.splits.keys
    last_keys = [ranges[-1][1] - ranges[-1][0] if ranges else 0 for ranges in keys]
    whole = [r for r, n in enumerate(live) for _ in range(max(n, 1) - 1)]
    return whole + sorted(range(len(live)), key=lambda r: -last_keys[r])


def predicted_kernels(plan: LaunchPlan, run: Execution) -> tuple[KernelShape, ...]:
    """What the bundled launcher launches for the plan, by the formulas in its docstrings.

    Stage 1 has the grid (KV heads x row blocks, requests + idle, splits), or listed (KV heads x row blocks, entries of
    the list). The merge has (ceil(query tokens x q_heads / merge rows), requests, ceil(value width / merge_dims));
    there is none when nothing is split or the last block merges.
    """
    from decodecalc_kernels.blocks import list_grid

    config, geo, batch = run.launch, plan.geometry, plan.batch
    x = geo.kv_heads * row_blocks(plan)
    grid = (x, batch.size + config.idle_requests, plan.splits.launched)
    if config.listed:
        grid = (x, *list_grid(config.list_length or 0))
    stage1 = KernelShape("stage1", grid, config.warps * 32)
    if not plan.is_split or config.merge == "fused":
        return (stage1,)
    dims = min(config.merge_dims, max(16, next_power_of_2(geo.v_dim)))
    rows = cdiv(batch.max_q_len * geo.q_heads, config.merge_rows)
    return stage1, KernelShape("merge", (rows, batch.size, cdiv(geo.v_dim, dims)), config.merge_warps * 32)
