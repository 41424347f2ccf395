"""Tile sizes of FlashAttention 3's forward kernels, upstream and in vLLM's fork.

Source: hopper/tile_size.h (tile_size_fwd_sm90, tile_size_fwd_sm8x) and the width dispatch of hopper/flash_api.cpp
(run_mha_fwd_constexpr), at Dao-AILab/flash-attention 0251105a and vllm-project/flash-attention 617264c. The fork adds
decode tiles of one warp group (64 rows) for D 64 and 128, and other FP8 tiles (two-level accumulation is on in its
builds). Flags that vary along the array are bool [N] (or a bool for all); results are int64 [N].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decodecalc.intmath import IntArray

KERNEL_DIMS = (64, 96, 128, 192, 256)


def kernel_tile_dims(head_dim: int, v_dim: int, arch: int, element_bytes: int) -> tuple[int, int]:
    """(kHeadDim, kHeadDimV) of the kernel that runs; it may be wider than what the host's tile was chosen for."""
    d = next(w for w in KERNEL_DIMS if head_dim <= w)
    if arch == 90 and d == 64 and element_bytes == 2:
        return d, 512 if v_dim > 256 else 256 if v_dim > 64 else 64
    if arch == 90 and d == 192 and v_dim <= 128:
        return d, 128
    return d, d


def sm90_tile(
    dims: tuple[int, int],
    causal: Any,
    local: Any,
    element_bytes: int,
    paged_non_tma: Any,
    softcap: bool,
    one_group: Any,
    fork: bool,
) -> tuple[IntArray, IntArray]:
    """(kBlockM, kBlockN) on Hopper."""
    narrow = causal | local | paged_non_tma
    if element_bytes == 1:
        m, n = (_fork_fp8 if fork else _upstream_fp8)(dims, local, paged_non_tma, softcap)
        if fork:
            m, n = np.where(one_group, 64, m), np.where(one_group, 128 if dims[0] <= 96 else 96, n)
    else:
        m, n = _two_bytes(dims, causal, local, paged_non_tma, narrow, fork)
        if fork and dims[0] in (64, 128) and dims[1] not in (256, 512):
            decode_n = 192 if dims[0] == 64 else np.where(narrow, 128, 176)
            m, n = np.where(one_group, 64, m), np.where(one_group, decode_n, n)
    like = np.zeros_like(np.asarray(causal), dtype=np.int64)
    return m + like, n + like


def _two_bytes(
    dims: tuple[int, int], causal: Any, local: Any, non_tma: Any, narrow: Any, fork: bool
) -> tuple[Any, Any]:
    d, dv = dims
    if d <= 64:
        if dv == 512:
            return 64, 64
        if dv == 256:
            return 128, 96
        if fork:
            return 192, np.where(causal, 128, np.where(local | non_tma, 160, 192))
        return 192, np.where(narrow, 128, 192)
    if d <= 96:
        return 192, np.where(local | non_tma, 128, 144)
    if d <= 128:
        return 128, np.where(narrow, 128, 160 if fork else 176)
    if d <= 192:
        return 128, np.where(local | non_tma, 96, 128 if dv <= 128 else 96 if fork else 112)
    return 128, np.where(local, 64, 80)


def _upstream_fp8(dims: tuple[int, int], local: Any, non_tma: Any, softcap: bool) -> tuple[Any, Any]:
    d = dims[0]
    if d <= 64:
        return 192, 160
    if d <= 96:
        return 192, 128
    if d <= 128:
        return 128, np.where(non_tma, 160, np.where(local & softcap, 192, 224))
    if d <= 192:
        return 128, np.where((non_tma | softcap) & local, 128, 160)
    return 128, np.where(local, 64, 128)


def _fork_fp8(dims: tuple[int, int], local: Any, non_tma: Any, softcap: bool) -> tuple[Any, Any]:
    d = dims[0]
    if d <= 128:
        return {64: (192, 128), 96: (128, 128), 128: (128, 192)}[d]
    return (128, 96) if d <= 192 else (128, np.where(local, 64, 128))


def sm8x_tile(head_dim: int, sm86_or_89: bool, local: Any, paged: bool, varlen_split: Any) -> tuple[IntArray, IntArray]:
    """(kBlockN, warps) before Hopper; 128 rows always, two-byte elements only."""
    small = local | varlen_split
    warps: Any = 8
    if head_dim <= 64:
        n, warps = np.where(varlen_split, 80, np.where(local, 96, 112)), 4
    elif head_dim <= 96:
        n, warps = np.where(small, 48, 64), 4
    elif head_dim <= 128:
        eight = varlen_split | sm86_or_89
        with_eight = np.where(local, 96, np.where(varlen_split, 112, 128))
        n, warps = np.where(eight, with_eight, np.where(local, 48, 64)), np.where(eight, 8, 4)
    elif head_dim <= 192:
        n = np.where(small | paged, 64, 96)
    else:
        n = np.where(small, 48, 64) if sm86_or_89 else np.where(small, 64, 96)
    return np.asarray(n, dtype=np.int64), np.broadcast_to(np.asarray(warps, dtype=np.int64), np.shape(n))
