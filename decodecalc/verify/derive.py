"""From microbenchmark times to the parameters of one kernel variant. Plain arithmetic: needs no GPU and no torch.

Each parameter comes from the few points that show it and little else:

* so many equal blocks of 16 and of 48 tiles: tau, what one more tile costs (slope);
* the same blocks of 1, 4 and 16 tiles: starts, what is left once launch and tiles are taken off;
* two and three waves of short blocks: refill;
* blocks on the same few keys, which the L2 holds, against blocks on their own: the overlap exponent;
* the merge alone, over rows and splits: its table.

What cannot be is taken for noise: more blocks, tiles, rows or splits that took less time get the longest time below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from decodecalc.cost.parameters import START_TILES, STARTS

MANY, LONG = 16, 48  # tiles between which a tile's own time is taken
TILES = (*START_TILES, LONG)
WAVE_TILES = (2, 8)
LEAST_EXPONENT, MOST_EXPONENT = 1.5, 12.0


@dataclass(frozen=True)
class StageTimes:
    """Seconds of stage 1 by (blocks, tiles per block), launch included and merge taken off.

    slots: blocks that the device holds; by_blocks: every count up to there with all of TILES; waves: twice and three
    times the slots, with WAVE_TILES.
    """

    slots: int
    by_blocks: Mapping[tuple[int, int], float]
    waves: Mapping[tuple[int, int], float]


def derive_stage(times: StageTimes, launch_s: float) -> dict[str, list[float] | float]:
    """Stage-1 parameters by name (`cost.parameters.STAGE_CURVES`, and refill_s)."""
    blocks = sorted({n for n, _ in times.by_blocks})
    seen = {t: np.maximum.accumulate([times.by_blocks[n, t] for n in blocks]) for t in TILES}
    tau = np.maximum.accumulate((seen[LONG] - seen[MANY]) / (LONG - MANY))
    starts = {name: np.maximum(seen[t] - launch_s - t * tau, 0.0) for name, t in zip(STARTS, START_TILES)}
    two, three = sorted({n for n, _ in times.waves})
    waves = (three - two) / times.slots
    refills = [(times.waves[three, t] - times.waves[two, t]) / waves - t * tau[-1] for t in WAVE_TILES]
    return {
        "blocks": [float(n) for n in blocks],
        "tau_s": tau.tolist(),
        **{name: values.tolist() for name, values in starts.items()},
        "refill_s": max(float(np.median(refills)), 0.0),
    }


def derive_exponent(own_s: float, shared_s: float, transfer_s: float) -> float:
    """p of (shared**p + transfer**p)**(1/p) = own: tile times of blocks that read their own keys, of as many on shared
    ones, and the bandwidth's share of the former."""
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
    """The merge's table from times by (rows, splits). A pair that was not measured (its states would not fit) is
    carried on along the last two splits that were."""
    rows, splits = (sorted({key[i] for key in alone_s}) for i in (0, 1))
    table = np.array([_carried([alone_s.get((r, s)) for s in splits], splits) for r in rows])
    table = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
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
    """Block counts at which curves are measured: few, and every half SM-full up to all slots.

    >>> knots(132, 3)[:4], knots(132, 3)[-2:]
    ([1, 16, 33, 66], [330, 396])
    """
    shares = [0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.25, *(i / 2 for i in range(3, 2 * slots + 1))]
    return sorted({max(1, int(share * sm_count)) for share in shares if share <= slots})


def wave_points(slots: int) -> list[tuple[int, int]]:
    """(blocks, tiles) of the probes of several waves."""
    return list(product((2 * slots, 3 * slots), WAVE_TILES))
