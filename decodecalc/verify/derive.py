"""From microbenchmark times to the parameters of one kernel variant. Plain arithmetic: needs no GPU and no torch.

Each parameter comes from the few points that show it and little else, with the device's own parameters given:

* a lone block of few and of many tiles: tau_unloaded (slope) and t_fixed (what is left);
* one, two and all resident blocks on every SM, many tiles: tau_loaded and the overlap exponent, from three slopes;
* the same launches with few tiles: t_block, what each further block adds to the start;
* many waves of short blocks: refill;
* wide against narrow query groups: t_row;
* many blocks on the same few keys, which the L2 holds: tau_busy;
* both kernels against stage 1 alone, over split counts: the merge's fixed cost and its cost per split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

EXPONENTS = np.concatenate([np.arange(1.0, 4.0, 0.05), np.arange(4.0, 12.5, 0.5)])
FEW, MANY, LONG = 4, 16, 48  # tiles per block of the probes
# An SM term this close to the L2's own limit is that limit, which the model has already.
L2_MARGIN = 1.25


@dataclass(frozen=True)
class Surroundings:
    """What the device's own probes gave, and the shape. slots: resident blocks per SM; tile_bytes: K and V."""

    sm_count: int
    slots: int
    launch_s: float
    hbm_bytes_per_s: float
    l2_bytes_per_s: float
    tile_bytes: float


@dataclass(frozen=True)
class StageTimes:
    """Seconds of stage 1 by (blocks, tiles per block); narrow_s, wide_s: one block per SM of FEW tiles for the two
    query groups of `narrow_rows` and `wide_rows`; shared_s: every slot taken, all blocks on the same keys, by tiles."""

    by_blocks: Mapping[tuple[int, int], float]
    narrow_s: float
    wide_s: float
    narrow_rows: int
    wide_rows: int
    shared_s: Mapping[int, float]


def derive_stage(times: StageTimes, at: Surroundings) -> dict[str, float]:
    """Stage-1 parameters by name (`cost.parameters.VARIANT`, and the overlap exponent)."""
    t = times.by_blocks
    sm, full = at.sm_count, at.sm_count * at.slots
    tau_unloaded = max((t[1, LONG] - t[1, FEW]) / (LONG - FEW), 1e-9)
    fixed = max(t[1, FEW] - at.launch_s - FEW * tau_unloaded, 0.0)
    busy = _busy(times, at)
    slopes = {n: (t[n, LONG] - t[n, MANY]) / (LONG - MANY) for n in sorted({sm, 2 * sm, full})}
    exponent, tau_loaded = _overlap(slopes, busy, at)
    tau_loaded = max(tau_loaded, tau_unloaded)

    def wave(n: int, tiles: int, more_s: float = 0.0) -> float:
        members = [tiles * tau_loaded + more_s, n * tiles * at.tile_bytes / at.hbm_bytes_per_s]
        members.append(-(-n // sm) * tiles * busy)
        return float(sum(x**exponent for x in members) ** (1 / exponent))

    starts = [(t[n, FEW] - at.launch_s - fixed - wave(n, FEW)) / (n - 1) for n in sorted({sm, 2 * sm, full}) if n > 1]
    block = max(float(np.median(starts)), 0.0)
    waves = 3
    one_wave = (t[waves * full, 2] - at.launch_s - fixed - block * (full - 1)) / waves
    return {
        "t_fixed_s": fixed,
        "t_block_s": block,
        "t_row_s": max((times.wide_s - times.narrow_s) / (times.wide_rows - times.narrow_rows), 0.0),
        "refill_s": _solve_more(wave, full, one_wave),
        "tau_unloaded_s": tau_unloaded,
        "tau_loaded_s": tau_loaded,
        "tau_busy_s": busy,
        "overlap_exponent": exponent,
    }


def _busy(times: StageTimes, at: Surroundings) -> float:
    """An SM's own time per tile, 0 where the L2's rate explains it."""
    few, many = min(times.shared_s), max(times.shared_s)
    slope = (times.shared_s[many] - times.shared_s[few]) / (many - few)  # of every resident block, a tile more
    l2 = at.sm_count * at.slots * at.tile_bytes / at.l2_bytes_per_s
    return slope / at.slots if slope > L2_MARGIN * l2 else 0.0


def _overlap(slopes: Mapping[int, float], busy: float, at: Surroundings) -> tuple[float, float]:
    """Exponent and loaded tile time that best explain the slopes, by search (relative squares)."""
    n = np.array(list(slopes), dtype=float)
    seen = np.array([slopes[int(k)] for k in n])
    stream = n * at.tile_bytes / at.hbm_bytes_per_s
    own = np.ceil(n / at.sm_count) * busy
    taus = seen[0] * np.linspace(0.02, 1.0, 99)
    best = (np.inf, 1.0, float(seen[0]))
    for p in EXPONENTS:
        told = (taus[:, None] ** p + stream**p + own**p) ** (1 / p)
        error = (np.log(told / seen) ** 2).sum(axis=1)
        i = int(error.argmin())
        if error[i] < best[0] - 1e-12:
            best = float(error[i]), float(p), float(taus[i])
    return best[1], best[2]


def _solve_more(wave: object, full: int, target_s: float) -> float:
    """The refill at which a full wave of two-tile blocks takes target_s; 0 when it already takes as long."""
    low, high = 0.0, 20e-6
    call = wave if callable(wave) else None
    assert call is not None
    if call(full, 2, high) < target_s:
        return high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if call(full, 2, middle) < target_s else (low, middle)
    return low if low > 1e-9 else 0.0


def derive_merge(
    both_s: Mapping[int, float], stage1_s: Mapping[int, float], merge_s: Mapping[int, float], launch_s: float
) -> dict[str, float]:
    """Gap, fixed cost and cost per split of the merge, from times by split count.

    merge_s: the merge kernel by itself, back to back. Theil-Sen slope: one odd point does not move it.
    """
    splits = sorted(both_s)
    added = [both_s[s] - stage1_s[s] for s in splits]
    per_split = max(_theil_sen(splits, added), 0.0)
    total = float(np.median([a - per_split * (s - 1) for s, a in zip(splits, added)]))
    alone = max(float(np.median([merge_s[s] - per_split * (s - 1) for s in splits])) - launch_s, 0.0)
    fixed = min(max(alone, 0.0), max(total, 0.0))
    return {
        "dependent_launch_gap_s": max(total - fixed, 0.0),
        "merge_fixed_s": fixed,
        "merge_per_split_s": per_split,
    }


def _theil_sen(x: Sequence[float], y: Sequence[float]) -> float:
    slopes = [(y[j] - y[i]) / (x[j] - x[i]) for i in range(len(x)) for j in range(i + 1, len(x))]
    return float(np.median(slopes)) if slopes else 0.0
