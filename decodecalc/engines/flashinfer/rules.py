"""Arithmetic that both FlashInfer planners share: query tile, key tile, occupancy and the chunk search."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodecalc.engines.flashinfer.routing import AutoRules
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MIN_CHUNK_KEYS = 128  # scheduler.cuh: no chunk is shorter than max(128 / page_size, 1) pages
OUTPUT_BYTES = 2  # partial outputs have the output's type (tmp_v is DTypeO*), though a float is allocated for each

# Registers of a thread of BatchDecodeWithPagedKVCacheKernel by (cache element bytes, head dim), for groups of 1, 2, 3,
# 4, 6, 8: ptxas of CUDA 13.0.88 for sm_90 on FlashInfer v0.6.9, bf16 queries, no window and no soft cap. Counts for
# other targets differ by a few, which can move the occupancy by a block: `blocks_per_sm` overrides. A group of 16,
# which later versions compile, takes the count of a group of 8.
_GROUPS = (1, 2, 3, 4, 6, 8)
_DECODE_REGISTERS = {
    (2, 64): (68, 50, 56, 56, 61, 56),
    (2, 128): (68, 50, 56, 56, 60, 56),
    (2, 256): (68, 50, 48, 58, 62, 64),
    (1, 64): (79, 72, 72, 72, 76, 72),
    (1, 128): (76, 72, 72, 72, 76, 72),
    (1, 256): (72, 72, 72, 72, 72, 72),
}


class FlashInferRules(NamedTuple):
    """What differs between versions."""

    groups: tuple[int, ...] = (1, 2, 3, 4, 8)
    """q_heads / kv_heads that the CUDA-core kernel is compiled for."""
    window_clamp: bool = True
    """Tensor cores plan and walk the window only."""
    fixed_split: bool = True
    """`fixed_split_size` and `disable_split_kv` exist."""
    wide_heads: bool = True
    """Head dims from 512 on have query tiles of their own."""
    uniform_q_len: bool = True
    """The wrapper promises the planner of a CUDA graph one query length for all requests, if it is more than 1."""
    tile_probe: bool = True
    """The query tile depends on shared memory."""
    checks_lengths: bool = True
    """The wrapper refuses a request with fewer keys than its several query tokens."""
    bounds_partials: bool = True
    """Partial states are reserved for the query rows that a tile can hold, not for each of its packed rows, and every
    CUDA graph has a mask of its padding."""
    fixed_uniform_q_len: bool = True
    """The promise covers one query token too and holds for every replay, so that a graph whose query tiles exceed the
    split budget is planned unsplit."""
    routing: AutoRules | None = None
    """When `backend=auto` leaves fa2; None where it never does."""


def cache_bytes(kv: KvCache) -> int:
    """sizeof of a cache element as the kernels are instantiated: sub-byte formats are stored in bytes."""
    return max(int(kv.element_bytes), 1)


def query_tile(rows: IntArray, geo: Geometry, kv: KvCache, gpu: Gpu, rules: FlashInferRules) -> IntArray:
    """CTA_TILE_Q for `rows` packed query rows [N]: FA2DetermineCtaTileQ of utils.cuh."""
    if rules.wide_heads and geo.v_dim >= 512:
        return np.where(rows <= 32, 16, 32)
    if rules.tile_probe and geo.head_dim >= 512:
        return np.full_like(rows, 16)
    capability = gpu.compute_capability
    narrow = 64 if capability is not None and capability[0] < 8 else 16
    if narrow == 16 and rules.tile_probe:
        needed = 16 * geo.head_dim * 2 + (geo.head_dim + geo.v_dim) * 16 * 4 * cache_bytes(kv)
        if gpu.max_smem_bytes_per_block is not None and needed > gpu.max_smem_bytes_per_block:
            narrow = 64
    tile = np.where(rows > 16, 64, narrow)
    return np.where(rows > 64, 128, tile) if geo.v_dim < 256 else tile


def key_tile(query_rows: int, geo: Geometry, kv: KvCache, gpu: Gpu) -> int:
    """CTA_TILE_KV of the tensor-core kernel at a query tile of `query_rows`: what shared memory and registers hold.

    prefill.cuh, BatchPrefillWithPagedKVCacheDispatched, without rotary embedding in the kernel. Where the shared memory
    of the GPU is not known, only the register limit counts.
    """
    element, d, dv = cache_bytes(kv), geo.head_dim, geo.v_dim
    split_v = element == 2 and dv >= 512 and query_rows == 32
    q_warps = 2 if split_v else (4 if query_rows > 32 else 1)
    kv_warps = 4 // q_warps
    mma_q = 1 if split_v or query_rows in (16, 64) else 2
    warp_split_v = dv // 16 > 16 and (dv // 16) % kv_warps == 0
    shared = warp_split_v and d == dv and (element == 2 or query_rows > 16)
    step = (d if shared else d + dv) * 16 * kv_warps * element
    if element == 1 and dv != 64 and dv <= 256 and query_rows > 16:  # FP8 keys are repacked through a staging buffer
        step += max(d, dv) * 16 * kv_warps * 2
    fixed = query_rows * d * 2
    if warp_split_v:
        step += query_rows * kv_warps * 16 * 2
        fixed += kv_warps * query_rows * 8 + 2048
    steps = 8 // mma_q
    per_sm, per_block = gpu.smem_bytes_per_sm, gpu.max_smem_bytes_per_block
    if per_sm is not None and per_block is not None:
        least = q_warps // 2 if element == 1 and q_warps > 2 else 1
        blocks = 2 if per_sm >= 2 * (fixed + least * step) else 1
        steps = min(steps, max((min(per_sm // blocks, per_block) - fixed) // step, 1))
    return 16 * kv_warps * (1 << (steps.bit_length() - 1))


def decode_registers(head_dim: int, group: int, element_bytes: int) -> int:
    """Registers of a CUDA-core decode thread; head dims and groups that were not compiled take the nearest that was."""
    size = 1 if element_bytes == 1 else 2
    nearest = min((64, 128, 256), key=lambda d: abs(d - head_dim))
    return _DECODE_REGISTERS[size, nearest][_GROUPS.index(min(group, _GROUPS[-1]))]


def smallest_chunk(batches: Batches, pages: IntArray, columns: IntArray, slots: int, least: int) -> IntArray:
    """Pages per chunk [N]: the smallest c >= least with sum(columns * ceil(pages / c)) <= slots.

    When even one chunk per request does not fit, the longest request's pages. The engine bisects between `least` and
    the longest; the bracket here is narrower (both of its ends follow from pages/c <= ceil(pages/c) < pages/c + 1),
    the answer is the same because the count never grows with c.
    """
    work, items = batches.total(columns * pages), batches.total(columns)
    high = np.maximum(batches.largest(pages), least)
    low = np.clip(cdiv(work, max(slots, 1)), least, high)
    room = slots - items
    high = np.where(room > 0, np.clip(cdiv(work, np.maximum(room, 1)), low, high), high)
    searching = low < high
    while searching.any():
        middle = (low + high) // 2
        fits = batches.total(columns * cdiv(pages, middle[:, None])) <= slots
        high = np.where(fits, middle, high)
        low = np.where(searching & ~fits, middle + 1, low)
        searching = low < high
    return low
