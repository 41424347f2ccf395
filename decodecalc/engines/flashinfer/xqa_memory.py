"""Shared memory and scratch of the two XQA kernels, from the structs that their sources declare.

Read from flashinfer-python 0.7.4: csrc/xqa/mha.cu and csrc/xqa/mha_sm90.cu (SharedMem, ScratchMem, the segments of the
scratch), csrc/xqa/mha.h (padded heads), csrc/xqa/utils.cuh (kMAX_SMEM_SIZE). All sizes are in bytes.
Rows and query tokens may be arrays; head size, cache type and architecture are plain values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decodecalc.intmath import cdiv, round_up

ELEMENT = 2  # bytes of a query, output or partial element: fp16 and bf16 only
ROW_BYTES = 128  # one row of 64 probabilities in 16 bits: XSmemBuffer
ROW_VECTOR = 128  # one fp32 number for each of up to 32 rows: SMemWarpRowMax
WARPS = 4  # math warps, ctaShapeInWarps.x
WARP_KEYS = 64  # keys of one warp: warpTile.x
QUERY_TILE_LIMIT = 16 << 10  # persistentQ: the whole query tile stays in shared memory
LIMIT, LIMIT_SM12X = 227 << 10, 99 << 10  # kMAX_SMEM_SIZE


def padded_head(head_dim: int) -> int:
    """Elements of a head as the kernels lay it out: 64, 128, 256 or 512."""
    return next(size for size in (64, 128, 256, 512) if head_dim <= size)


def memory_limit(major: int) -> int:
    """Shared memory that a kernel built for this major compute capability may use."""
    return LIMIT_SM12X if major == 12 else LIMIT


def generic_memory(head_dim: int, cache: str, rows: Any, major: int) -> Any:
    """Dynamic shared memory of the generic kernel with a query tile of `rows` rows (sizeof SharedMem)."""
    head, element = padded_head(head_dim), 1 if cache in ("fp8", "int8", "nvfp4") else ELEMENT
    small = major == 12
    part = min(64 if small else 128, head * element)
    if small:
        value_keys = 16 if head_dim > 256 and element == ELEMENT else 32
    else:
        value_keys = 32 if head_dim > 256 else 64
    warps_a_head = min(head // 64, WARPS)
    groups = WARPS // warps_a_head
    shared_values = element == 1 or head_dim > 256  # GRP_LOAD_V: the warps of a group load values together
    width = head if shared_values else 64
    buffers = 2 * groups * (1 if shared_values else warps_a_head)
    size = rows * head * ELEMENT  # queries
    size = size + WARPS * 2 * WARP_KEYS * part  # keys
    size = size + WARPS * rows * ROW_BYTES  # probabilities
    size = size + buffers * value_keys * width * element  # values
    if cache == "nvfp4":  # one scale for 16 elements
        size = size + WARPS * 2 * WARP_KEYS * part // 16 + buffers * value_keys * width // 16
    size = size + 3 * WARPS * ROW_VECTOR * cdiv(rows, 32)  # row maxima and sums
    barriers = 1 + 2 * WARPS + (3 * groups if shared_values else 0)
    return round_up(size + 8 * barriers, 128)


def hopper_memory(head_dim: int, rows: Any, swapped: Any, page_size: int) -> Any:
    """Dynamic shared memory of the Hopper FP8 kernel (sizeof SharedMem).

    swapped: keys are the rows of the matrix product (SWAP_AB), which one query token a request uses.
    """
    head = padded_head(head_dim)
    size = 2 * 64 * min(head, 128)  # keys
    size = size + 2 * np.maximum(hopper_buffers(head_dim, rows, swapped), rows * head * ELEMENT)
    size = size + rows * head  # queries, converted to FP8
    size = size + 4 * rows * np.where(swapped, 2 + 2 * 4 + 3, 2 + 2 + 3)  # row maxima and sums
    size = size + 2 * 4 * max(1, 64 // page_size)  # page ids
    size = round_up(size, 8) + 16 * np.where(swapped, 7, 9) + 2 * 8 + 1  # barriers, isLastCta
    return round_up(size, 128)


def hopper_buffers(head_dim: int, rows: Any, swapped: Any) -> Any:
    """One buffer of probabilities and values, which must hold the output of the tile as well (XV)."""
    head = padded_head(head_dim)
    return rows * 64 + 64 * head + np.where(swapped, 0, 64 * head)


def generic_scratch(head_dim: int, valid_rows: Any, rows: Any, states: Any) -> Any:
    """Partial states of the generic kernel: two row vectors and an output tile for each of `states` blocks."""
    tile = valid_rows * padded_head(head_dim) * ELEMENT
    vectors = 2 * ROW_VECTOR * cdiv(rows, 32) * states
    return round_up(vectors, tile) + tile * states


def hopper_scratch(head_dim: int, valid_rows: Any, states: Any) -> Any:
    """Partial states of the Hopper kernel: sum and maximum of every row, and an output tile that is not padded."""
    tile = valid_rows * head_dim * ELEMENT
    return round_up(8 * valid_rows * states, tile) + tile * states
