"""How much faster one launch is whose requests point to the same pages of a prefix.

The blocks of different requests that walk the same split of a shared prefix start together and stay together: of what
they ask for, the memory delivers a page once and the L2 hands it to the others. The blocks are followed through their
keys in step, wave by wave. While n_s of them walk shared keys and n_o their own, a key of every block takes

    (latency**p + stream**p + compute**p)**(1/p),
    stream = max((n_o + n_s / sharers) x bytes / memory's rate, (n_o + n_s) x bytes / L2's rate)

with `bytes` of one block's key and `sharers` the requests of the wave, or of the batch where the prefix fits the L2,
which then keeps it from wave to wave. Stage 1 takes as much less time as this sum is less than the same one over keys
that nobody shares. Shared keys differ from others in three more points, all seen on an H200
(reports/h200/shared-prefix.md):

* The L2 hands out a page that many SMs ask for faster than pages that one asks for: `SHARED_L2`.
* Their tile's latency does not grow with the load of the memory (`hit_latency`).
* Their first loads do not contend for the memory's channels, as those of a launch otherwise do (`shared_start`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.cost.model import FloatArray, Work, latency, smooth_max, start_time
from decodecalc.intmath import IntArray

if TYPE_CHECKING:
    from decodecalc.cost.rates import Rates
    from decodecalc.launch.plan import LaunchPlan

# Rate of pages that many SMs read over that of pages that one SM reads. The steps with 8 KV heads of
# benchmarks/shared_prefix.py on an H200 gave it; those with one KV head and with latents were held out.
SHARED_L2 = 1.3


class Walks(NamedTuple):
    """What every stage-1 block walks, equal blocks as one, in launch order [W]."""

    shared: IntArray
    """Keys of the shared prefix."""
    own: IntArray
    """Other keys."""
    blocks: IntArray
    """Blocks that walk these."""
    request: IntArray
    """The request."""


def walks_of(plan: LaunchPlan, keys: int, by_request: bool) -> Walks:
    """The walks of a plan whose requests share their first `keys` keys. by_request: blocks start request by request.

    A split that tiles are dealt to has its share of the prefix, and is taken to walk it first.
    """
    found = []
    for r, (each, length) in enumerate(zip(plan.blocks_per_split, plan.batch.seq_lens)):
        walked = np.array(plan.splits.key_counts(r), dtype=np.int64)
        if plan.splits.interleave_keys is None:
            starts = np.array([start for start, _ in plan.splits.keys[r]], dtype=np.int64)
            shared = np.clip(keys - starts, 0, walked)
        else:
            shared = walked * min(keys, length) // max(length, 1)
        split = np.arange(len(walked))
        found.append(np.stack([shared, walked - shared, np.full_like(split, each), np.full_like(split, r), split]))
    columns = np.concatenate(found, axis=1)
    columns = columns[:, columns[:2].sum(axis=0) > 0]
    order = np.arange(columns.shape[1]) if by_request else np.lexsort((columns[3], columns[4]))
    return Walks(*columns[:4, order])


def hit_latency(k: Any, cost: KeyCost, rates: Rates) -> Any:
    """Seconds of a tile from the L2 in each of k blocks, apart from its bytes.

    A measured tile time tells its latency where that is longer than what the memory takes for the blocks' bytes. From
    the last such number of blocks on it stays what it was.
    """
    blocks, tile = np.array(rates.blocks), np.array(rates.latency_s)
    told = tile >= blocks * (cost.key_bytes * cost.tile_keys) / rates.hbm_bytes_per_s
    told[0] = True
    return np.interp(k, blocks[told], np.maximum.accumulate(tile[told]))


class KeyCost(NamedTuple):
    """What a key costs a block, whatever the load."""

    key_bytes: float
    """Bytes that the block asks for."""
    tile_keys: int
    """Keys of a tile."""
    row_blocks: float
    """Blocks that walk the same keys of the same KV head for other query rows."""
    flop: float
    """FLOP that the block executes."""


def walk_time(walks: Walks, sharers: int, cost: KeyCost, rates: Rates) -> float:
    """Seconds that these blocks take side by side and in step. sharers: requests that a shared page serves."""
    ends = walks.shared + walks.own
    edges = np.unique(np.concatenate([[0], walks.shared, ends]))
    on_shared = _beyond(walks.shared, walks.blocks, edges[:-1])
    n = _beyond(ends, walks.blocks, edges[:-1])
    on_own = n - on_shared
    cold = on_own / n
    tile = (1 - cold) * hit_latency(n, cost, rates) + cold * latency(n, rates)
    fetched = (on_own + on_shared / sharers) / cost.row_blocks
    handed = on_own + on_shared / SHARED_L2
    stream = cost.key_bytes * np.maximum(fetched / rates.hbm_bytes_per_s, handed / rates.l2_bytes_per_s)
    key = smooth_max(rates.exponent, tile / cost.tile_keys, stream, n * cost.flop / rates.peak_flop_per_s)
    return float((np.diff(edges) * key).sum())


def _beyond(ends: IntArray, blocks: IntArray, keys: IntArray) -> FloatArray:
    """Blocks that end after so many keys."""
    order = np.argsort(ends)
    ended = np.concatenate([[0], np.cumsum(blocks[order])])
    return np.asarray(ended[-1] - ended[np.searchsorted(ends[order], keys, side="right")], dtype=float)


def faster(walks: Walks, kept_bytes: float, cost: KeyCost, rates: Rates) -> float:
    """Stage 1's time over shared pages of so many bytes, as a share of its time over keys that nobody shares."""
    everyone = len(np.unique(walks.request))
    alone = walks._replace(shared=np.zeros_like(walks.shared), own=walks.shared + walks.own)
    wave = (np.cumsum(walks.blocks) - 1) // max(rates.slots, 1)
    found, before = 0.0, 0.0
    for number in np.unique(wave):
        here, there = (Walks(*(column[wave == number] for column in all_)) for all_ in (walks, alone))
        side_by_side = len(np.unique(here.request[here.shared > 0]))
        sharers = everyone if kept_bytes <= rates.l2_capacity_bytes else max(side_by_side, 1)
        unshared = walk_time(there, 1, cost, rates)
        found += min(walk_time(here, sharers, cost, rates), unshared) if sharers > 1 else unshared
        before += unshared
    return found / before if before else 1.0


def shared_share(walks: Walks) -> float:
    """Share of the blocks that begin with keys which another request's block brings to the L2."""
    begins = float((walks.blocks * (walks.shared > 0)).sum() / max(walks.blocks.sum(), 1))
    return begins * (1 - 1 / max(len(np.unique(walks.request)), 1))


def shared_start(share: float, work: Work, rates: Rates) -> float:
    """Seconds of the start of a launch, `share` of whose blocks begin with keys that others begin with too: theirs is
    that of a single tile, because the first loads of a longer walk contend for the memory's channels."""
    usual, least = (float(np.ravel(start_time(work.started, tiles, rates))[0]) for tiles in (work.tiles, 1))
    return (1 - share) * usual + share * min(least, usual)
