"""Derives the parameters of one kernel variant from microbenchmark times. It is plain arithmetic without GPU or torch.

Each parameter comes from the few measurements that depend on little else:

* tau, the time of one more tile: the slope between 16 and 48 tiles in the same number of equal blocks;
* starts: what is left of the same blocks with 1 to 16 tiles once launch and tiles are subtracted;
* refill: two and six waves of short blocks;
* the overlap exponent: blocks that read the same few keys, which stay in the L2, against blocks that read their own;
* the merge table: the merge alone, over rows and splits.

More blocks, rows or splits cannot take less time, so a measurement that says otherwise is treated as noise: an isotonic
regression (pool adjacent violators) replaces neighbours that fall by their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import log

import numpy as np

from decodecalc.cost.model import FloatArray
from decodecalc.cost.parameters import START_TILES, STARTS

MANY, LONG = 16, 48  # tiles between which a tile's own time is taken
TILES = (*START_TILES, LONG)
WAVE_TILES = (2, 8)
FEW_WAVES, MANY_WAVES = 2, 6
LEAST_EXPONENT, MOST_EXPONENT = 1.5, 12.0


@dataclass(frozen=True)
class StageTimes:
    """Seconds of stage 1 by (blocks, tiles per block). The launch is included and the merge is subtracted.

    slots: blocks that the device can hold. by_blocks: every measured count up to there, each with all of TILES. waves:
    FEW_WAVES and MANY_WAVES times the slots, with WAVE_TILES.
    """

    slots: int
    by_blocks: Mapping[tuple[int, int], float]
    waves: Mapping[tuple[int, int], float]


def derive_stage(times: StageTimes, launch_s: float) -> dict[str, list[float] | float]:
    """Stage-1 parameters by name (`cost.parameters.STAGE_CURVES`, and refill_s)."""
    blocks = sorted({n for n, _ in times.by_blocks})
    seen = {t: rising([times.by_blocks[n, t] for n in blocks]) for t in TILES}
    tau = rising(np.maximum(seen[LONG] - seen[MANY], 0.0) / (LONG - MANY))
    starts = [np.maximum(seen[t] - launch_s - t * tau, 0.0) for t in START_TILES]
    for i, (t, more) in enumerate(pairwise(START_TILES), 1):
        # Between these counts a start is interpolated over the logarithm of the count, and must not fall faster than
        # tiles add time.
        starts[i] = np.maximum(starts[i], starts[i - 1] - log(more / t) * t * tau)
    few, many = sorted({n for n, _ in times.waves})
    waves = (many - few) / times.slots
    refills = [(times.waves[many, t] - times.waves[few, t]) / waves - t * tau[-1] for t in WAVE_TILES]
    return {
        "blocks": [float(n) for n in blocks],
        "tau_s": tau.tolist(),
        **{name: values.tolist() for name, values in zip(STARTS, starts)},
        "refill_s": max(float(np.median(refills)), 0.0),
    }


def rising(values: Sequence[float] | FloatArray) -> FloatArray:
    """Isotonic regression: the nondecreasing numbers with the least squared distance from `values`.

    Neighbours that fall are replaced by their mean.

    >>> rising([1, 3, 2, 4]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = float(value), 1
        while pools and pools[-1][0] > mean:
            above, count = pools.pop()
            mean, size = (above * count + mean * size) / (count + size), count + size
        pools.append((mean, size))
    return np.repeat([mean for mean, _ in pools], [size for _, size in pools])


def derive_exponent(own_s: float, shared_s: float, transfer_s: float) -> float:
    """The exponent p in (shared**p + transfer**p)**(1/p) = own, from the tile times of blocks that read shared keys, of
    as many blocks that read their own keys, and the transfer time at the bandwidth's share."""
    least = max(shared_s, transfer_s)
    if own_s <= least:
        return MOST_EXPONENT
    low, high = LEAST_EXPONENT, MOST_EXPONENT
    for _ in range(60):
        p = (low + high) / 2
        told = (shared_s**p + transfer_s**p) ** (1 / p)
        low, high = (p, high) if told > own_s else (low, p)
    return (low + high) / 2


def derive_merge(alone_s: Mapping[tuple[int, int], float]) -> dict[str, list[float]]:
    """The merge table from times by (rows, splits). A pair that was not measured, because its states would not fit,
    continues the line through the last two splits that were."""
    rows, splits = (sorted({key[i] for key in alone_s}) for i in (0, 1))
    table = np.array([rising(_carried([alone_s.get((r, s)) for s in splits], splits)) for r in rows])
    table = np.apply_along_axis(rising, 0, table)
    return {
        "merge_rows": [float(r) for r in rows],
        "merge_splits": [float(s) for s in splits],
        "merge_s": table.reshape(-1).tolist(),
    }


def _carried(times: Sequence[float | None], splits: Sequence[int]) -> list[float]:
    out: list[float] = []
    for i, time in enumerate(times):
        if time is None:
            slope = (out[i - 1] - out[i - 2]) / (splits[i - 1] - splits[i - 2]) if i > 1 else 0.0
            time = out[i - 1] + slope * (splits[i] - splits[i - 1])
        out.append(time)
    return out


def knots(sm_count: int, slots: int) -> list[int]:
    """Block counts at which curves are measured: every half of the number of SMs, up to all slots, and the first counts
    after each of `jumps`.

    >>> knots(132, 3)
    [1, 33, 66, 99, 132, 198, 264, 330, 396]
    """
    shares = [0.0, 0.25, 0.5, 0.75, 1.0, *(i / 2 for i in range(3, 2 * slots + 1))]
    return sorted({max(1, int(share * sm_count)) for share in shares if share <= slots})


def jumps(sm_count: int, slots: int) -> list[int]:
    """Block counts after which times jump, because some SM gets one more block.

    >>> jumps(132, 3)
    [132, 264]
    """
    return [full * sm_count for full in range(1, slots)]


def wave_points(slots: int) -> list[tuple[int, int]]:
    """(blocks, tiles) of the probes with few and with many waves; the difference is the cost of the waves."""
    return list(product((FEW_WAVES * slots, MANY_WAVES * slots), WAVE_TILES))
