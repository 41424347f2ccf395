"""llama-cpp: ggml's CUDA FlashAttention, as llama.cpp decodes with it.

Every stream of the cache (a sequence, or all sequences of a unified cache) scans n_kv cells, whatever its own length.
Where there are several streams, a kernel first scans the mask and shortens this. Three kernels can run. vec and tile
launch several blocks for the keys of an output tile and combine their results in a kernel of their own. mma launches
about as many blocks as the device holds, lets each walk an equal share of all key tiles (stream-k), and repairs the
output tiles that were cut in a fix-up kernel. Quantised and bf16 caches are converted to f16 in full before tile and
mma. A layer with a sliding window has a small cache of its own in llama.cpp: pass its cells as `n_kv`.

Read from ggml-org/ggml@d99724f (2026-08-21): src/ggml-cuda/fattn-common.cuh (`launch_fattn`); `choice`, `tables` and
`split` name the other files.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.llama_cpp.choice import (
    KQ_STRIDE,
    MMA,
    NEED_GROUP,
    QUANTISED,
    TILE,
    VALUE_DIMS,
    VEC,
    FattnProblem,
    best_kernel,
)
from decodecalc.engines.llama_cpp.split import StreamK, parallel_blocks, stream_k
from decodecalc.engines.llama_cpp.tables import ADA, mma_config, mma_shared_bytes, tile_config
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, distinct, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import KeyRange, KeyRanges
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import Numbers, Takes, only
from decodecalc.launch.traits import IRREGULAR, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

VEC_THREADS = 128
VEC_OCCUPANCY = 4  # This is assumed, because the vec kernel does not say how many blocks it is compiled for.
MASK_SCAN_TOKENS = 1024  # one stream's mask is scanned from this many query tokens on
SOFTCAP_DIMS = {VEC: (128, 256), TILE: (128, 256), MMA: (128, 256, 512)}
CACHE_DTYPES = ("fp16", "bf16", "fp32", *QUANTISED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions(EngineOptions):
    """The arguments with which llama.cpp calls the operator, and the driver's answers."""

    n_kv: int | None = option(
        None, "int?", "cells of the cache that the kernel sees; by default the longest stream, padded to 256", low=1
    )
    kv_unified: bool = option(False, "bool", "all sequences share one stream of the cache", flag="--kv-unified")
    mask: bool = option(True, "bool", "the operator has a mask")
    max_bias: float = option(0.0, "float", "largest ALiBi bias; it is 0 without ALiBi")
    max_blocks_per_sm: int | None = option(
        None, "int?", "blocks of the kernel that fit an SM; ggml asks the driver, and by default the compiled "
        "bound is assumed",
        low=1,
    )  # fmt: skip


class LlamaCppDetail(NamedTuple):
    """The launch in ggml's words."""

    kernel: Any
    """`vec`, `tile` or `mma` [N]."""
    ncols1: Any
    """Query tokens of a block [N]."""
    ncols2: Any
    """Query heads of a block [N]."""
    n_kv: Any
    """Cells that the kernel sees [N]."""
    streams: Any
    """Streams of the cache [N]."""
    parallel_blocks: Any
    """Blocks that share an output tile's keys in vec and tile; 0 for mma [N]."""
    dynamic_smem: Any
    """Bytes of dynamic shared memory [N]."""
    kv_max_kernel: Any
    """Whether the mask is scanned first [N]."""
    fixup: Any
    """`combine`, `fixup_uniform`, `fixup_general`, or empty where nothing is merged [N]."""
    tmp_floats: Any
    """Floats of partial outputs [N]."""
    tmp_meta_float2: Any
    """Pairs of floats of partial maxima and sums (mma: and outputs) [N]."""
    dequantized_to_f16: Any
    """Whether the whole cache is converted to f16 before the kernel [N]."""
    max_blocks_per_sm: Any
    """Blocks per SM that the launch assumes [N]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Everything [N] that the launch of every step is made of."""

    kernel: Any
    ncols1: IntArray
    ncols2: IntArray
    tokens: IntArray
    streams: IntArray
    keys: IntArray
    columns: IntArray  # output tiles of a stream
    chunk: IntArray  # keys of a tile, as the kernel walks them
    threads: IntArray
    occupancy: IntArray
    smem: IntArray
    parallel: IntArray
    walk: StreamK

    @property
    def mma(self) -> BoolArray:
        return np.asarray(self.kernel == MMA)


class LlamaCpp(Policy):
    """The kernels vec, tile and mma, with parallel blocks or stream-k."""

    name = "llama-cpp"
    title = "llama.cpp CUDA FlashAttention"
    word_for_split = "parallel block"
    versions = (
        PolicyVersion(
            "2026-08-21",
            "ggml-org/ggml@d99724f: src/ggml-cuda/{fattn.cu, fattn-common.cuh, fattn-mma-f16.cuh, fattn-tile.cuh, "
            "fattn-vec.cuh, common.cuh}",
        ),
    )
    options_type = LlamaCppOptions
    traits = Traits(partition=Partition(rule=IRREGULAR))
    rule = (
        "vec, tile: the first count from the occupancy on that fills its waves best, up to 95 %. mma: min(SMs * "
        "occupancy, key tiles * output tiles) blocks, rounded down to whole shares of an output tile if that costs at "
        "most 5 %"
    )

    def combinations(self, options: LlamaCppOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        packed = {192: Numbers(step=8), 320: Numbers(step=32)}
        layer = Takes(devices=("sm50+",), cache_dtypes=CACHE_DTYPES, bf16_anywhere=True)  # converted as it is read
        return tuple(
            replace(
                layer,
                head_dims=only(head_dim),
                value_dims=only(v_dim),
                groups=packed.get(head_dim, Numbers(low=2 if head_dim in NEED_GROUP else 1)),
            )
            for head_dim, v_dim in VALUE_DIMS.items()
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: LlamaCppOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays. Raises GateError where ggml has no kernel.

        A mma launch that is not uniform cuts each output tile at other keys: splits and key ranges are then those of
        the stream's first output tile (first KV head), and partial states are the mean of all output tiles, rounded up.
        In a unified cache, key ranges are cells that all requests scan.
        """
        cc = _check(geo, batches, kv, gpu, options)
        if options.kv_unified:
            tokens, streams = batches.query_tokens, np.ones_like(batches.batch)
            length = np.broadcast_to(batches.total(batches.seq_lens)[:, None], batches.seq_lens.shape)
        else:
            tokens, streams = batches.max_q_len, batches.batch
            length = batches.seq_lens
        longest = batches.largest(length)
        keys = np.maximum(round_up(longest, KQ_STRIDE), KQ_STRIDE)
        if options.n_kv is not None:
            keys = np.full_like(keys, options.n_kv)
            if (longest > keys).any():
                raise GateError(f"llama-cpp: n_kv ({options.n_kv}) is less than the number of keys of a stream", "n_kv")
        if (tokens < 1).any():
            raise InputError("llama-cpp: a step without query tokens launches nothing")
        g = _grid(geo, kv, gpu, options, cc, keys, tokens, streams)
        mma, split_mma = g.mma, g.walk.uniform | g.walk.general
        is_split = np.where(mma, split_mma, g.parallel > 1)
        count = np.where(mma, g.walk.most, g.parallel)

        first_tile = _first_tiles(batches, g, options)
        live = _live(length, g, first_tile)
        scans_mask = (keys % KQ_STRIDE == 0) & options.mask & ((tokens >= MASK_SCAN_TOKENS) | (streams > 1))
        scanned = np.where(scans_mask[:, None], np.minimum(round_up(length, KQ_STRIDE), keys[:, None]), keys[:, None])
        columns = np.broadcast_to(g.columns[:, None], length.shape)
        if options.kv_unified:
            columns = cdiv(columns, batches.batch[:, None])
        has_keys = length > 0
        fixups = np.where(
            mma, np.where(g.walk.uniform, "fixup_uniform", "fixup_general"), np.full(keys.shape, "combine")
        )
        outputs = tokens * geo.q_heads * streams
        floats = np.where(is_split & ~mma, g.parallel * outputs * geo.v_dim, 0)
        meta = np.where(
            mma,
            np.where(g.walk.tiles % g.walk.blocks != 0, g.walk.blocks * g.ncols1 * g.ncols2 * (2 + geo.v_dim // 2), 0),
            np.where(is_split, g.parallel * outputs, 0),
        )
        converts = np.where(g.kernel == VEC, kv.dtype == "fp32", kv.dtype != "fp16")
        share = np.minimum(cdiv(cdiv(keys, g.chunk), np.maximum(count, 1)), cdiv(keys, g.chunk)) * g.chunk
        return Launches(
            is_split=is_split,
            kernels=(
                *_mask_scan(g, scans_mask),
                *_stage1(g, batches, live, columns),
                *_merges(geo, g, batches, is_split),
            ),
            requested=np.broadcast_to(count[:, None], length.shape),
            launched=count,
            live=live,
            split_keys=np.broadcast_to(share[:, None], length.shape),
            interleave_keys=np.where(mma, 0, g.chunk),
            key_ranges=lambda n: _key_ranges(batches, length, live, g, n),
            keys_read=scanned if options.n_kv is not None else np.minimum(scanned, longest[:, None]),
            blocks_per_split=columns,
            unsplit_blocks=np.where(options.kv_unified, g.columns, batches.total(columns * has_keys)),
            tile_keys=g.chunk,
            block_rows=g.ncols1 * g.ncols2,
            live_rows=np.minimum(tokens, g.ncols1) * np.minimum(geo.group, g.ncols2),
            state_values=geo.v_dim + 2,
            partial_splits=np.broadcast_to(
                np.where(is_split, np.where(mma, g.walk.states(), g.parallel), 0)[:, None], length.shape
            ),
            scratch_bytes=4 * floats + 8 * meta,
            determinism="batch-dependent",
            detail=LlamaCppDetail(
                kernel=g.kernel,
                ncols1=g.ncols1,
                ncols2=g.ncols2,
                n_kv=keys,
                streams=streams,
                parallel_blocks=np.where(mma, 0, g.parallel),
                dynamic_smem=g.smem,
                kv_max_kernel=scans_mask,
                fixup=np.where(is_split, fixups, ""),
                tmp_floats=floats,
                tmp_meta_float2=meta,
                dequantized_to_f16=converts,
                max_blocks_per_sm=g.occupancy,
            ),
            gates=_gates(geo, kv, gpu, options, g, is_split, count, converts),
        )


def _grid(
    geo: Geometry,
    kv: KvCache,
    gpu: Gpu,
    options: LlamaCppOptions,
    cc: int,
    keys: IntArray,
    tokens: IntArray,
    streams: IntArray,
) -> _Grid:
    """Kernel, columns, configuration and block counts of every step."""
    picked = best_kernel(
        FattnProblem(
            cc=cc,
            head_dim=geo.head_dim,
            v_dim=geo.v_dim,
            group=geo.group,
            quantised=kv.dtype in QUANTISED,
            mask=options.mask,
            alibi=options.max_bias != 0,
            keys=keys,
            tokens=tokens,
            streams=streams,
        )
    )
    kernel, ncols1, ncols2 = picked.kernel, picked.ncols1, picked.ncols2
    # Keys of a tile as the kernel walks them, and as the launcher counts them: they differ for vec.
    chunk, unit = np.full_like(keys, VEC_THREADS), np.full_like(keys, geo.head_dim)
    threads, occupancy = np.full_like(keys, VEC_THREADS), np.full_like(keys, VEC_OCCUPANCY)
    smem = np.zeros_like(keys)
    for name, config in ((TILE, tile_config), (MMA, mma_config)):
        of_kernel = kernel == name
        for rows in distinct((ncols1 * ncols2)[of_kernel]) if of_kernel.any() else ():
            here = of_kernel & (ncols1 * ncols2 == rows)
            found = config(geo.head_dim, rows, cc)
            chunk, unit = np.where(here, found.batch_fa, chunk), np.where(here, found.batch_fa, unit)
            threads, occupancy = np.where(here, found.threads, threads), np.where(here, found.occupancy, occupancy)
            for heads in distinct(ncols2[here]) if name == MMA else ():
                smem = np.where(
                    here & (ncols2 == heads), mma_shared_bytes(geo.head_dim, rows // heads, heads, cc), smem
                )
    if options.max_blocks_per_sm is not None:
        occupancy = np.full_like(keys, options.max_blocks_per_sm)
    columns = cdiv(tokens, ncols1) * cdiv(geo.group, ncols2) * geo.kv_heads
    tiles, wave, units = columns * streams, occupancy * gpu.sm_count, cdiv(keys, unit)
    return _Grid(
        kernel=kernel,
        ncols1=ncols1,
        ncols2=ncols2,
        tokens=tokens,
        streams=streams,
        keys=keys,
        columns=columns,
        chunk=chunk,
        threads=threads,
        occupancy=occupancy,
        smem=smem,
        parallel=parallel_blocks(tiles, units, occupancy, wave),
        walk=stream_k(tiles, units, wave, cc >= ADA),
    )


def _first_tiles(batches: Batches, g: _Grid, options: LlamaCppOptions) -> IntArray:
    """Index of the first output tile of each class's first stream [N, R]."""
    if options.kv_unified:
        return np.zeros_like(batches.seq_lens)
    before = np.cumsum(batches.counts, axis=1) - batches.counts
    return before * g.columns[:, None]


def _live(length: IntArray, g: _Grid, first_tile: IntArray) -> IntArray:
    """Splits of each request that own keys of it [N, R]."""
    tiles = cdiv(length, g.chunk[:, None])
    start = first_tile * g.walk.key_tiles[:, None]
    walked = g.walk.block_of(start + np.maximum(tiles, 1) - 1) - g.walk.block_of(start) + 1
    return np.where(length > 0, np.where(g.mma[:, None], walked, np.minimum(tiles, g.parallel[:, None])), 0)


def _key_ranges(batches: Batches, length: IntArray, live: IntArray, g: _Grid, n: int) -> Sequence[list[KeyRange]]:
    """Key ranges of every request of step n, equal requests one after another."""
    counts = batches.counts[n]
    ends, lives = np.repeat(length[n], counts).tolist(), np.repeat(live[n], counts).tolist()
    chunk = int(g.chunk[n])
    if not bool(g.mma[n]):
        size = [max(-(-end // chunk // max(count, 1)), 1) * chunk for end, count in zip(ends, lives)]
        return KeyRanges([0] * len(ends), size, lives, ends, chunk)
    walk = g.walk
    columns = int(g.columns[n]) if batches.batch[n] == g.streams[n] else 0  # one stream holds all requests: 0
    blocks, work, key_tiles = int(walk.blocks[n]), int(walk.tiles[n] * walk.key_tiles[n]), int(walk.key_tiles[n])
    found: list[list[KeyRange]] = []
    for r, end in enumerate(ends):
        origin = r * columns * key_tiles
        stop = origin + -(-end // chunk)
        cuts, block = [origin], ((origin + 1) * blocks - 1) // work
        while cuts[-1] < stop:
            block += 1
            cuts.append(min(block * work // blocks, stop))
        edges = [min((cut - origin) * chunk, end) for cut in cuts]
        found.append(list(itertools.pairwise(edges)))
    return found


def _mask_scan(g: _Grid, when: BoolArray) -> tuple[KernelArray, ...]:
    tiles = cdiv(g.tokens, g.ncols1)
    return (
        KernelArray(
            name="flash_attn_mask_to_KV_max",
            role="scheduler",
            grid=(tiles, g.streams, 1),
            threads=KQ_STRIDE // 2,
            live_blocks=tiles * g.streams,
            when=when,
        ),
    )


def _stage1(g: _Grid, batches: Batches, live: IntArray, columns: IntArray) -> list[KernelArray]:
    """The attention kernel: one entry for each kernel and block size that any step uses."""
    parts = g.columns // cdiv(g.tokens, g.ncols1)  # head tiles of a stream
    shared = g.streams == batches.batch
    regular = np.where(shared, batches.total(columns * live), g.columns * batches.largest(live))
    found = []
    for name, kernel in ((VEC, "flash_attn_ext_vec"), (TILE, "flash_attn_tile"), (MMA, "flash_attn_ext_f16")):
        of_kernel = g.kernel == name
        for threads in distinct(g.threads[of_kernel]) if of_kernel.any() else ():
            if name == MMA:
                grid: tuple[Any, ...] = (g.walk.blocks, 1, 1)
                busy = np.where(g.walk.uniform, np.minimum(regular, g.walk.blocks), g.walk.blocks)
            else:
                grid, busy = (cdiv(g.tokens, g.ncols1), g.parallel, parts * g.streams), regular
            found.append(
                KernelArray(
                    name=kernel,
                    role="stage1",
                    grid=grid,
                    threads=threads,
                    live_blocks=busy,
                    tile_keys=g.chunk,
                    when=of_kernel & (g.threads == threads),
                )
            )
    return found


def _merges(geo: Geometry, g: _Grid, batches: Batches, is_split: BoolArray) -> tuple[KernelArray, ...]:
    rows = np.minimum(g.tokens, g.ncols1) * np.minimum(geo.group, g.ncols2)
    fixed = g.walk.cut_tiles() * rows
    return (
        KernelArray(
            name="flash_attn_combine_results",
            role="merge",
            grid=(g.tokens, geo.q_heads, g.streams),
            threads=geo.v_dim,
            live_blocks=g.tokens * geo.q_heads * g.streams,
            when=is_split & ~g.mma,
        ),
        KernelArray(
            name="flash_attn_stream_k_fixup_uniform",
            role="merge",
            grid=(g.walk.tiles, g.ncols1, g.ncols2),
            threads=geo.v_dim,
            live_blocks=g.tokens * geo.q_heads * g.streams,
            when=g.mma & g.walk.uniform,
        ),
        KernelArray(
            name="flash_attn_stream_k_fixup_general",
            role="merge",
            grid=(g.walk.blocks, g.ncols1, g.ncols2),
            threads=geo.v_dim,
            live_blocks=fixed,
            when=g.mma & g.walk.general,
        ),
    )


def _gates(
    geo: Geometry,
    kv: KvCache,
    gpu: Gpu,
    options: LlamaCppOptions,
    g: _Grid,
    is_split: BoolArray,
    count: IntArray,
    converts: BoolArray,
) -> tuple[GateArray, ...]:
    softcap = np.ones_like(is_split)
    if geo.softcap:
        for name, dims in SOFTCAP_DIMS.items():
            softcap = softcap & ((g.kernel != name) | (geo.head_dim in dims))
    return (
        GateArray(
            name="split",
            passed=is_split,
            reason=lambda n: (
                f"{at(g.kernel, n)} runs {at(g.walk.tiles, n)} output tiles on {gpu.sm_count} SMs of "
                f"{at(g.occupancy, n)} blocks each, with up to {at(count, n)} blocks for one output tile"
            ),
        ),
        GateArray(
            name="gqa_path",
            passed=g.ncols2 > 1,
            reason=lambda n: (
                f"a block holds {at(g.ncols2, n)} of the {geo.group} query heads that share a KV head, and "
                f"{at(g.ncols1, n)} of {at(g.tokens, n)} tokens"
            ),
        ),
        GateArray(
            name="cache_used_directly",
            passed=~converts,
            reason=lambda n: (
                f"the {kv.dtype} cache of {at(g.keys, n)} cells is "
                + ("converted to f16 in full first" if at(converts, n) else "read as it is")
            ),
        ),
        GateArray(
            name="softcap_compiled",
            passed=softcap,
            reason=lambda n: (
                f"the layer has {'a' if geo.softcap else 'no'} logit soft cap at head size {geo.head_dim}; the "
                f"kernels have one at 128 and 256, and mma also at 512"
            ),
        ),
        GateArray(
            name="occupancy_given",
            passed=options.max_blocks_per_sm is not None,
            reason=lambda n: (
                f"{at(g.occupancy, n)} blocks fit an SM"
                + ("" if options.max_blocks_per_sm else "; this number is assumed, and ggml asks the driver for it")
            ),
        ),
    )


def _check(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: LlamaCppOptions) -> int:
    """The compute capability as ggml writes it. Raises GateError for devices, caches and batches that it refuses."""
    if gpu.is_hip:
        raise GateError(f"llama-cpp: only the CUDA build is described, which does not run on {gpu.label}", "not_nvidia")
    if gpu.sm is None:
        raise GateError(f"llama-cpp: the compute capability of {gpu.label} is not known", "compute_capability")
    if kv.dtype not in CACHE_DTYPES:
        raise GateError(
            f"llama-cpp takes caches of f16, bf16, f32, q8_0 (int8) or q4_0 (int4) in a default build, not {kv.dtype}",
            "kv_dtype",
        )
    if not options.kv_unified and not (batches.q_lens == batches.max_q_len[:, None]).all():
        raise GateError("llama-cpp: all streams of one step must have the same number of tokens", "ragged_q_len")
    return gpu.sm * 10


POLICY = LlamaCpp()
