"""The time model's choice as a launch of the bundled kernel: `decodecalc_kernels.LaunchConfig`.

Importing `decodecalc.cost.bundled` registers `chosen_launch` with `decodecalc_kernels.choose`, so that
`decode_attention` without a config runs what `plan("bundled", ...)` plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.own_launch import in_warp_groups, list_entries
from decodecalc.cost.tuning import tune
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, visible_start

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc_kernels import LaunchConfig
    from decodecalc_kernels.choose import Problem

MAX_ACCUMULATOR = 16384  # rows x value width of one block at four warps: fp32 sums in 128 registers of each thread
MAX_WARPS = 8
SHARED_SHARE = 0.9  # of a block's shared memory for keys and values; queries and weights need the rest
CPU_STANDS_FOR = "h200-sxm"  # whose launches Triton's interpreter runs on a CPU


def chosen_launch(problem: Problem) -> LaunchConfig:
    """The launch of least predicted time, for what `decode_attention` was called with."""
    from decodecalc.gpus import detect_gpu, load_gpu

    gpu = load_gpu(CPU_STANDS_FOR) if problem.device_index is None else detect_gpu(problem.device_index)
    geo = Geometry(problem.q_heads, problem.kv_heads, problem.head_dim, problem.v_dim, problem.window, mla=problem.mla)
    kv = KvCache(problem.kv_dtype, problem.page_size, None, problem.query_dtype)
    if not problem.warp_groups:
        gpu = gpu.with_(compute_capability=None)  # the kernel that only needs what every GPU has
    return launch_config(geo, Batch(problem.seq_lens, problem.q_lens), kv, gpu)


def launch_config(
    geo: Geometry,
    batch: Batch,
    kv: KvCache,
    gpu: Gpu,
    calibration: Calibration | None = None,
    *,
    num_splits: int | None = None,
) -> LaunchConfig:
    """The launch of least predicted time for one step; with `num_splits`, among those of that many splits."""
    from decodecalc_kernels import LaunchConfig
    from decodecalc_kernels.blocks import merge_shape

    best = tune(geo, batch, kv, gpu, calibration, num_splits=num_splits)
    shape: dict[str, Any] = {
        "tile_keys": best.tile_keys,
        "rows": best.rows,
        "rows_used": max(min(best.rows, batch.max_q_len * geo.group), 1),
        "warps": warps_that_hold(best.rows, geo.v_dim, best.warps),
        "stages": stages_that_fit(geo, kv, gpu, best.tile_keys, best.stages),
        "window_partition": "full" if geo.window is None else "window",
        "kernel": kernel_of_block(best.warps),
    }
    if best.splits == 1:
        return LaunchConfig(**shape)
    merge = merge_shape(best.splits, batch.size * batch.max_q_len * geo.q_heads, geo.v_dim)
    if not (batch.is_uniform or in_warp_groups(best.warps)):
        batches = Batches.single(batch)
        keys = batches.seq_lens - visible_start(batches, geo.window)
        shape.update(listed=True, list_length=int(list_entries(batches, cdiv(keys, best.split_keys))[0]))
    return LaunchConfig(num_splits=best.splits, split_rule="size", split_value=best.split_keys, **shape, **merge)


def kernel_of_block(warps: int) -> str:
    """The `kernel` of a LaunchConfig whose blocks have this many warps."""
    from decodecalc_kernels.config import KERNELS

    return KERNELS[int(in_warp_groups(warps))]


def warps_that_hold(rows: int, v_dim: int, warps: int) -> int:
    """Warps whose registers hold the sums of a block: those of the variant, or more where its rows are wide."""
    while warps < MAX_WARPS and rows * next_power_of_2(v_dim) > MAX_ACCUMULATOR * warps // 4:
        warps *= 2
    return warps


def stages_that_fit(geo: Geometry, kv: KvCache, gpu: Gpu, tile_keys: int, stages: int) -> int:
    """Loads in flight that shared memory holds: a variant of another width may be too large for this one."""
    most = gpu.max_smem_bytes_per_block
    if most is None:
        return stages
    tile_bytes = tile_keys * kv.bytes_per_key(geo) / geo.kv_heads
    return max(1, min(stages, int(SHARED_SHARE * most // tile_bytes)))
