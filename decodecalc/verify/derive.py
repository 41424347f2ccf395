"""From microbenchmark times to the parameters of one kernel variant. Plain arithmetic: needs no GPU and no torch.

Each parameter comes from the few points that show it and little else, with the device's own parameters given:

* a lone block of few and of many tiles: tau_unloaded (slope) and t_fixed (what is left);
* one block, and as many as it holds, on every SM, many tiles: tau_loaded and the overlap exponent, from two slopes (two
  blocks per SM are left out of this: where an SM holds three, the device does not place them two by two);
* the same launches with fewer tiles: t_crowd, what blocks that start together cost each other;
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
REACHED = {2: 0.625, FEW: 0.75, MANY: 1.0}  # share of t_crowd that so many tiles meet (cost.model.crowding)
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
    """Seconds of stage 1 by (blocks, tiles per block), and which block counts play which part.

    few: the fewest blocks there can be (one of each KV head); one, two: about as many per SM; full: every slot
    taken; waves: several times that. narrow_s, wide_s: `one` blocks of FEW tiles for two query
    groups; shared_s: `full` blocks, all on one request's keys, by tiles.
    """

    by_blocks: Mapping[tuple[int, int], float]
    few: int
    one: int
    two: int
    full: int
    waves: int
    narrow_s: float
    wide_s: float
    narrow_rows: int
    wide_rows: int
    shared_s: Mapping[int, float]


def derive_stage(times: StageTimes, at: Surroundings) -> dict[str, float]:
    """Stage-1 parameters by name (`cost.parameters.VARIANT`, and the overlap exponent)."""
    t = times.by_blocks
    tau_unloaded = max((t[times.few, LONG] - t[times.few, FEW]) / (LONG - FEW), 1e-9)
    busy = _busy(times, at)
    slopes = {n: (t[n, LONG] - t[n, MANY]) / (LONG - MANY) for n in (times.one, times.full)}
    exponent, tau_loaded = _overlap(slopes, busy, at)
    tau_loaded = max(tau_loaded, tau_unloaded)

    def wave(n: int, tiles: int) -> float:
        tau = tau_unloaded if n == times.few else tau_loaded
        members = [tiles * tau, n * tiles * at.tile_bytes / at.hbm_bytes_per_s, -(-n // at.sm_count) * tiles * busy]
        return float(sum(x**exponent for x in members) ** (1 / exponent))

    # What a launch costs besides its waves: t_fixed + t_crowd x (sqrt(blocks) - 1) x reached(tiles).
    rest = {
        (n, tiles): t[n, tiles] - at.launch_s - wave(n, tiles)
        for n in (times.few, times.one, times.two, times.full)
        for tiles in (FEW, MANY)
    }
    crowded = {point: (np.sqrt(point[0]) - 1) * REACHED[point[1]] for point in rest}
    base = (times.few, FEW)
    slope = [(rest[p] - rest[base]) / (crowded[p] - crowded[base]) for p in rest if p[0] != times.few]
    crowd = max(float(np.median(slope)), 0.0)
    fixed = max(rest[base] - crowd * crowded[base], 0.0)
    count = -(-times.waves // times.full)
    start = at.launch_s + fixed + crowd * (np.sqrt(times.full) - 1) * REACHED[2]
    return {
        "t_fixed_s": fixed,
        "t_crowd_s": crowd,
        "t_row_s": max((times.wide_s - times.narrow_s) / (times.wide_rows - times.narrow_rows), 0.0),
        "refill_s": max(float((t[times.waves, 2] - start - count * wave(times.full, 2)) / (count - 1)), 0.0),
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
