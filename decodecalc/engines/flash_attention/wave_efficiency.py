"""The 85 % rule of FlashAttention 2 and 3: the smallest split count whose last wave is nearly as full as the best one.

Source: Dao-AILab/flash-attention, `num_splits_heuristic` in csrc/flash_attn/flash_api.cpp (FA2) and
hopper/heuristics.h (FA3), HEAD 0251105a (2026-08-15). With m blocks before splitting, P slots and n key blocks:

    m >= 0.8 P                          -> 1
    s in 1 .. min(cap, P, n):  waves(s) = m s / P,  eff(s) = waves / ceil(waves)
    the smallest s with eff(s) >= 0.85 max eff

The engine computes in float32 (the 85 % product in float64, of float32 values). In float64 the ties at 85 % and at
whole waves fall the other way for some grids, so the widths below are part of the rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from decodecalc.intmath import IntArray, cdiv

ALMOST_FULL = np.float32(0.8)
NEAR_BEST = 0.85
MAX_SPLITS = 128  # the `max_splits` argument of every caller in both code bases
_DENSE_KEYS = 1 << 23  # largest key range for which a table is cheaper than sorting


def fills_without_split(blocks: Any, slots: int) -> npt.NDArray[np.bool_]:
    """Whether `blocks` alone nearly fill the slots: blocks >= 0.8 slots, in float32."""
    return np.asarray(blocks, dtype=np.float32) >= ALMOST_FULL * np.float32(slots)


def splits_by_wave_efficiency(blocks: IntArray, slots: int, n_blocks: IntArray, skip_equal_sizes: bool) -> IntArray:
    """The chosen split count, [N].

    blocks: blocks before splitting, n_blocks: key blocks of the sequence that the rule sees (both int64 [N]); slots:
    blocks that the device holds at once. skip_equal_sizes: FA2 leaves out a count that cuts no smaller pieces than the
    count before it. Every distinct (blocks, n_blocks) is solved once.
    """
    # Beyond s (s - 1) blocks every candidate cuts smaller pieces than the one before: longer sequences are all alike.
    enough = MAX_SPLITS * (MAX_SPLITS - 1) if skip_equal_sizes else MAX_SPLITS
    n_blocks = np.minimum(n_blocks, enough)
    few = ~fills_without_split(blocks, slots)
    blocks = np.where(few, blocks, 0)
    width = int(n_blocks.max(initial=0)) + 1
    key = blocks * width + n_blocks
    span = int(key.max(initial=0)) + 1
    if span <= _DENSE_KEYS:
        seen = np.zeros(span, dtype=bool)
        seen[key] = True
        distinct = np.flatnonzero(seen)
        table = np.ones(span, dtype=np.int64)
        table[distinct] = _solve(distinct // width, slots, distinct % width, skip_equal_sizes)
        found = table[key]
    else:
        distinct, where = np.unique(key, return_inverse=True)
        found = _solve(distinct // width, slots, distinct % width, skip_equal_sizes)[where.reshape(key.shape)]
    return np.where(few, found, 1)


def _solve(blocks: IntArray, slots: int, n_blocks: IntArray, skip_equal_sizes: bool) -> IntArray:
    """The rule itself on distinct pairs [U], in slices that keep the [U, candidates] tables small."""
    out = np.ones_like(blocks)
    for i in range(0, len(blocks), 1 << 14):
        part = slice(i, i + (1 << 14))
        out[part] = _solve_slice(blocks[part], slots, n_blocks[part], skip_equal_sizes)
    return out


def _solve_slice(blocks: IntArray, slots: int, n_blocks: IntArray, skip_equal_sizes: bool) -> IntArray:
    most = min(MAX_SPLITS, slots, int(n_blocks.max(initial=1)))
    if most < 2:
        return np.ones_like(blocks)
    s = np.arange(1, most + 1, dtype=np.int64)  # [C]
    eligible = s <= n_blocks[:, None]  # [U, C]
    if skip_equal_sizes:
        size = cdiv(n_blocks[:, None], s)
        eligible[:, 1:] &= size[:, 1:] != size[:, :-1]
    distinct, where = np.unique(blocks, return_inverse=True)
    waves = (distinct[:, None] * s).astype(np.float32) / np.float32(slots)
    efficiency = (waves / np.maximum(np.ceil(waves), np.float32(1)))[where.reshape(-1)]  # [U, C], float32
    efficiency = np.where(eligible, efficiency, np.float32(0))
    best = efficiency.max(axis=1).astype(np.float64)
    good = eligible & (efficiency.astype(np.float64) >= NEAR_BEST * best[:, None])
    return np.where(good.any(axis=1), good.argmax(axis=1) + 1, 1)
