"""turbomind: LMDeploy's C++ engine, which weighs fewer keys per split against more waves.

The split count is chosen for the batch: over s = 1, 2, … it minimises (1/s + 0.001) times the waves of s splits, in
float32, and never takes more than four waves. Every request is cut into the same number of splits of whole tiles, so
that rounding up leaves fewer live splits than launched ones. Splits write partial states that a reduction kernel
combines 32 at a time.

Read from InternLM/lmdeploy@1263d5c (2026-08-21): src/turbomind/kernels/attention/utils.cc (`GetSplitCount`),
decoding_template.h (`invokeDecoding`), attention_universal.h (tiles of a split), reduce.cu (`invokeReduceV3`) and
src/turbomind/models/llama/unified_attention_layer.{h,cc} (`max_split_k`, workspace).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.lmdeploy.kernels import DecodeKernel, find, kernel_arch, registered
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import Numbers, Takes, only

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MAX_SPLITS = 128  # kMaxKVSplits
WORKSPACE_TOKENS = 4096  # kMaxWorkspaceTokens
MAX_WAVES = 4
ALPHA, BETA = np.float32(1), np.float32(1e-3)
REDUCE_SPLITS = 32  # CTA_K of the reduction kernel
REDUCE_THREADS = 128
ASSUMED_ACTIVE_CTAS = 2
CP_SIZES = (1, 2, 4, 8, 16, 32)
MLA_HEAD_DIM = 576
QUANT_BITS = {"bf16": 0, "fp16": 0, "int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurbomindOptions(EngineOptions):
    """Quantities that the engine takes from the driver or from its configuration."""

    max_active_ctas: int | None = option(
        None,
        "int?",
        "blocks of the decode kernel that fit an SM; the engine asks the driver, and 2 is assumed here",
        low=1,
    )
    cp_size: int = option(1, "int", "ranks that share a request's keys (context parallelism)", flag="--cp", low=1)


class TurbomindDetail(NamedTuple):
    """The launch in TurboMind's words."""

    cta_h: Any
    """Query heads of a block."""
    cta_s: Any
    """Keys of a tile."""
    kernel_arch: Any
    """Compute capability whose kernels run: 70, 75 or 80."""
    cta_per_q_group: Any
    """Blocks for the query heads of one KV head."""
    max_split_k: Any
    """Splits that the workspace has room for [N]."""
    max_active_ctas: Any
    """Blocks per SM that the choice of the split count assumes."""
    split_count: Any
    """Splits launched [N]."""


def split_count(most: IntArray, blocks: IntArray, active_ctas: int, sm_count: int) -> IntArray:
    """`GetSplitCount` on arrays: the count in 1..most that minimises (1/s + 0.001) * waves, in float32. Shapes [N]."""
    scale = blocks.astype(np.float32) / np.float32(sm_count * active_ctas)
    best = np.ones_like(most)
    best_cost, best_load = np.full(most.shape, np.inf, np.float32), np.zeros(most.shape, np.float32)
    going = most >= 1
    for s in range(1, int(most.max(initial=1)) + 1):
        count = np.float32(s)
        load = scale * count
        waves = np.ceil(load)
        going = going & (s <= most) & ((s == 1) | (waves <= MAX_WAVES))  # the first count over four waves ends it
        if not going.any():
            break
        cost = (ALPHA / count + BETA) * waves
        better = going & ((cost < best_cost) | ((cost == best_cost) & (load < best_load)))
        best = np.where(better, s, best)
        best_cost, best_load = np.where(better, cost, best_cost), np.where(better, load, best_load)
    return best


class Turbomind(Policy):
    """The split count follows the waves, and a reduction combines 32 splits at a time."""

    name = "turbomind"
    title = "LMDeploy TurboMind decode attention"
    versions = (
        PolicyVersion(
            "2026-08-21",
            "InternLM/lmdeploy@1263d5c: src/turbomind/kernels/attention/{utils.cc, decoding_template.h, reduce.cu, "
            "registry.cu, kernel/decoding_*.cu}, src/turbomind/models/llama/unified_attention_layer.cc",
        ),
    )
    options_type = TurbomindOptions
    rule = (
        "S minimises (1/s + 0.001) * ceil(s * blocks / (SMs * occupancy)) in float32 over s <= min(128, 4096 / B, "
        "tiles of the longest request), at most 4 waves; a split has ceil(tiles / S) tiles"
    )

    def combinations(self, options: TurbomindOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        return tuple(_combinations())

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: TurbomindOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays.

        Raises GateError where no kernel is registered, for several query tokens, and for a page that cuts tiles.

        With context parallelism everything is one rank's view: keys are numbered within the rank's share, and every
        request leaves partial states for the exchange between the ranks.
        """
        kernel = _check(geo, batches, kv, gpu, options)
        tile, cp = kernel.cta_s, options.cp_size
        active = ASSUMED_ACTIVE_CTAS if options.max_active_ctas is None else options.max_active_ctas
        blocks_of_group = cdiv(geo.group, min(geo.group, kernel.cta_h))
        columns = blocks_of_group * geo.kv_heads
        batch = batches.batch
        room = np.minimum(np.maximum(WORKSPACE_TOKENS // batch, 1), MAX_SPLITS)
        longest = cdiv(batches.max_seq_len, cp)
        if geo.window is not None:
            longest = np.minimum(longest, geo.window)
        most = np.minimum(room, cdiv(longest, tile))
        splits = split_count(np.maximum(most, 1), columns * batch, active, gpu.sm_count)

        keys = cdiv(batches.seq_lens, cp)  # of rank 0, which has the most
        first_tile = cdiv(visible_start(batches, geo.window), cp) // tile
        tiles = cdiv(keys, tile) - first_tile
        split_tiles = np.maximum(cdiv(tiles, splits[:, None]), 1)
        live = cdiv(tiles, split_tiles)
        has_keys = keys > 0
        is_split = (splits > 1) | (cp > 1)
        writes_state = is_split[:, None] & ((live > 1) | (cp > 1)) & has_keys
        merged = np.where(writes_state, live, 0)
        first_grid, second_grid = cdiv(splits, REDUCE_SPLITS), cdiv(cdiv(splits, REDUCE_SPLITS), REDUCE_SPLITS)
        state = geo.head_dim + 2
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name="attention_kernel",
                    role="stage1",
                    grid=(columns, batch, splits),
                    threads=kernel.threads,
                    live_blocks=columns * batches.total(live),
                    tile_keys=tile,
                ),
                KernelArray(
                    name="reduce",
                    role="merge",
                    grid=(geo.q_heads, batch, first_grid),
                    threads=REDUCE_THREADS,
                    live_blocks=geo.q_heads * batches.total(cdiv(merged, REDUCE_SPLITS)),
                    when=is_split,
                ),
                KernelArray(
                    name="reduce",
                    role="merge",
                    grid=(geo.q_heads, batch, second_grid),
                    threads=REDUCE_THREADS,
                    live_blocks=geo.q_heads * batches.total((merged > 0) * 1),
                    when=is_split & (splits > REDUCE_SPLITS),
                ),
            ),
            requested=np.broadcast_to(splits[:, None], batches.seq_lens.shape),
            launched=splits,
            live=live,
            split_keys=split_tiles * tile,
            first_key=first_tile * tile,
            key_ranges=None if cp == 1 else lambda n: _rank_ranges(batches, keys, first_tile, split_tiles, tile, n),
            keys_read=keys - first_tile * tile,
            blocks_per_split=np.full_like(batches.seq_lens, columns),
            unsplit_blocks=columns * batches.total(has_keys * 1),
            tile_keys=tile,
            block_rows=kernel.cta_h,
            live_rows=min(geo.group, kernel.cta_h),
            state_values=state,
            partial_splits=merged,
            scratch_bytes=4 * WORKSPACE_TOKENS * geo.q_heads * (geo.head_dim + 2 * cp),
            determinism="batch-dependent",
            detail=TurbomindDetail(
                cta_h=kernel.cta_h,
                cta_s=tile,
                kernel_arch=kernel.arch,
                cta_per_q_group=blocks_of_group,
                max_split_k=room,
                max_active_ctas=active,
                split_count=splits,
            ),
            gates=(
                GateArray(
                    name="split",
                    passed=splits > 1,
                    reason=lambda n: (
                        f"{columns} x {at(batch, n)} blocks run on {gpu.sm_count} SMs of {active} blocks each, so "
                        f"{at(splits, n)} splits of at most {at(most, n)} cost the least"
                    ),
                ),
                GateArray(
                    name="occupancy_given",
                    passed=options.max_active_ctas is not None,
                    reason=lambda n: (
                        f"{active} blocks fit an SM"
                        + (
                            ""
                            if options.max_active_ctas
                            else "; this number is assumed, and the engine asks the driver for it"
                        )
                    ),
                ),
            ),
        )


def _rank_ranges(
    batches: Batches, keys: IntArray, first_tile: IntArray, split_tiles: IntArray, tile: int, n: int
) -> list[list[tuple[int, int]]]:
    """Key ranges of step n within the keys that rank 0 holds, equal requests one after another."""
    found = []
    for end, first, size, count in zip(keys[n], first_tile[n] * tile, split_tiles[n] * tile, batches.counts[n]):
        ranges = [(start, min(start + int(size), int(end))) for start in range(int(first), int(end), int(size))]
        found += [ranges] * int(count)
    return found


# Devices that run the kernels of each family.
_DEVICES = {70: ("sm70", "sm72"), 75: ("sm75",), 80: ("sm80+",)}
_HEAD_DIMS = (64, 128, 192, 256, 576)


def _combinations() -> Iterator[Takes]:
    """The head sizes of the registry: 576 is MLA's latent, and all other heads have values as wide as their keys."""
    for arch, devices in _DEVICES.items():
        for head_dim in _HEAD_DIMS:
            for bits in sorted(set(QUANT_BITS.values())):
                kernels = registered(arch, head_dim, bits)
                if kernels:
                    yield Takes(
                        devices=devices,
                        mla=head_dim == MLA_HEAD_DIM,
                        cache_dtypes=tuple(name for name, size in QUANT_BITS.items() if size == bits),
                        head_dims=only(head_dim),
                        value_dims=Numbers() if head_dim == MLA_HEAD_DIM else None,
                        page_sizes=Numbers(step=min(kernel.cta_s for kernel in kernels)),
                        bf16_anywhere=True,  # a cache of 16 bits: LMDeploy stores FP16 where there is no BF16
                    )


def _check(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: TurbomindOptions) -> DecodeKernel:
    """The kernel that serves the layer. Raises GateError where TurboMind has none or would read wrong keys."""
    if gpu.is_hip:
        raise GateError(f"turbomind runs on NVIDIA GPUs only, not on {gpu.label}", "not_nvidia")
    arch = None if gpu.sm is None else kernel_arch(gpu.sm)
    if arch is None:
        raise GateError(
            f"turbomind needs compute capability 7.0 or newer, which {gpu.label} does not have", "compute_capability"
        )
    if (batches.max_q_len > 1).any():
        raise GateError(
            "turbomind: the decode kernel takes one query token per request, and several run as a prefill", "q_len"
        )
    if kv.dtype not in QUANT_BITS:
        raise GateError(f"turbomind takes caches of bf16, fp16, int8 or int4, not {kv.dtype}", "kv_dtype")
    if geo.mla and geo.head_dim != 576:
        raise GateError(f"turbomind takes MLA latents of 576 elements, not {geo.head_dim}", "head_dim")
    bits = QUANT_BITS[kv.dtype]
    kernel = find(registered(arch, geo.head_dim, bits), geo.group)
    if kernel is None or (not geo.mla and (geo.head_dim == 576 or geo.v_dim != geo.head_dim)):
        raise GateError(
            f"turbomind: no decode kernel is registered for head size {geo.head_dim}/{geo.v_dim} with a {kv.dtype} "
            f"cache on compute capability {arch // 10}.{arch % 10}",
            "head_dim",
        )
    if kv.page_size % kernel.cta_s:
        raise GateError(
            f"turbomind: a tile of {kernel.cta_s} keys lies in one cache block, so cache_block_seq_len must be a "
            f"multiple of {kernel.cta_s}, not {kv.page_size}",
            "page_size",
        )
    if options.cp_size not in CP_SIZES:
        raise GateError(f"turbomind: cp_size must be a power of two up to 32, not {options.cp_size}", "cp_size")
    return kernel


POLICY = Turbomind()
