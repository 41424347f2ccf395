"""S_opt: the split count, tile and variant that the time model finds fastest, without running anything.

Of equal times the fewest splits are taken.

Not S*: S* is the smallest count whose first wave covers the SMs. S_opt may be larger (more loads in flight hide more
latency) or smaller (each split costs a partial state, and blocks beyond the slots wait for a whole wave).

The rule that is optimised is the bundled kernel's: every request is cut into splits of one length, a whole number of
tiles, so that long requests get more splits and all blocks are alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.cuts import Cuts, alike, cuts_of
from decodecalc.cost.load import load_calibration
from decodecalc.cost.model import FloatArray, Work, step_terms, uniform_bodies
from decodecalc.cost.own_launch import equal_splits, in_warp_groups, row_block, takes_warp_groups, used_rows
from decodecalc.cost.parameters import Variant
from decodecalc.cost.rates import Rates, make_rates
from decodecalc.cost.schedule import ragged_bodies
from decodecalc.cost.variants import BUNDLED, SPLIT, on_path, resolve, tile_elements, wanted_variant
from decodecalc.cost.work import pick, work_of
from decodecalc.intmath import IntArray, cdiv
from decodecalc.kvcache import DTYPE_BYTES
from decodecalc.launch.arrays import Batches, visible_start

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

MOST_SPLITS = 1024  # a merge of more states than this was never worth it on any GPU modelled
SCHEDULED = 8  # split lengths of a ragged step that are worked out block by block
CLOSE = 1.001  # times this near count as equal
NOT_CLOSE = 1.01  # what was not worked out block by block stays this far from the best that was
_FINE, _STEP = 32, 1.06  # every count up to 32, then steps of 6 %


@lru_cache(maxsize=1)
def candidate_splits() -> IntArray:
    """Split counts that are tried: all up to 32, then 6 % apart up to MOST_SPLITS [C]."""
    counts = list(range(1, _FINE + 1))
    while counts[-1] < MOST_SPLITS:
        counts.append(min(max(int(counts[-1] * _STEP), counts[-1] + 1), MOST_SPLITS))
    return np.array(counts, dtype=np.int64)


def tuned_variants(
    calibration: Calibration, geo: Geometry, kv: KvCache, q_len: int = 1, gpu: Gpu | None = None
) -> tuple[Variant, ...]:
    """Bundled variants to choose among for this shape and up to q_len query tokens: the (tile, warps, stages) that were
    measured for the widths and element type nearest to it, each as the variant that this shape would run. With a `gpu`
    on which the kernel for latents on warp groups takes the shape, that kernel's block alone."""
    if gpu is not None and takes_warp_groups(geo, kv, gpu, q_len):
        return (_latent_variant(geo, kv, q_len),)
    rows = used_rows(geo, q_len)
    own = [v for v in calibration.of_kernel(BUNDLED) if v.path == SPLIT and not in_warp_groups(v.warps)]
    wanted = wanted_variant(BUNDLED, geo, kv, 64, rows)
    size = tile_elements(wanted)

    def unlike(v: Variant) -> tuple[float, ...]:
        return (
            v.dtype != wanted.dtype,
            DTYPE_BYTES[v.dtype] != DTYPE_BYTES[wanted.dtype],
            (v.head_dim_v == 0) != (wanted.head_dim_v == 0),
            abs(np.log2(tile_elements(v._replace(tile_keys=wanted.tile_keys)) / size)),
            abs(np.log2(v.rows / rows)),
            v.layout != wanted.layout,
            abs(v.head_dim + v.head_dim_v - wanted.head_dim - wanted.head_dim_v),
        )

    distances = [(unlike(v), v) for v in own]
    nearest = min((d for d, _ in distances), default=None)
    tunings = dict.fromkeys((v.tile_keys, v.warps, v.stages) for d, v in distances if d == nearest)
    return tuple(wanted._replace(tile_keys=t, warps=w, stages=s) for t, w, s in tunings)


def _latent_variant(geo: Geometry, kv: KvCache, q_len: int) -> Variant:
    from decodecalc_kernels.blocks import MLA_HOPPER as SHAPE

    tile, warps, stages = (int(SHAPE[name]) for name in ("tile_keys", "warps", "stages"))
    return wanted_variant(BUNDLED, geo, kv, tile, used_rows(geo, q_len, warps), warps, stages)


def default_variant(calibration: Calibration, geo: Geometry, kv: KvCache, q_len: int = 1) -> Variant:
    """The bundled variant that runs other engines' rules: the first that was tuned for this shape."""
    return tuned_variants(calibration, geo, kv, q_len)[0]


class Fastest(NamedTuple):
    """The best launch of each of N steps."""

    splits: IntArray
    """Splits of the longest request [N]."""
    split_keys: IntArray
    """Keys of every split, a multiple of the variant's tile [N]."""
    which: IntArray
    """Index into `variants` of the variant that runs [N]."""
    total_s: FloatArray
    """Predicted time [N]."""
    variants: tuple[Variant, ...]
    """Variants that were tried."""


def fastest(
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    gpu: Gpu,
    calibration: Calibration | None = None,
    *,
    l2: str = "cold",
    variants: tuple[Variant, ...] | None = None,
    candidates: IntArray | None = None,
    any_rule: bool = False,
) -> Fastest:
    """S_opt of every step of `batches`, among `candidates` when given. Steps differ in nothing but their lengths and
    the number of their requests: each takes the rows and variants of the longest draft (`max_q_len`) among them.

    any_rule: S_opt of the kernel that runs other engines' rules too. Their splits need not be whole tiles, which the
    kernel for latents on warp groups asks for.
    """
    known = calibration or load_calibration(gpu=gpu)
    q_len = int(batches.max_q_len.max()) if batches.n else 1
    tried = variants or tuned_variants(known, geo, kv, q_len, None if any_rule else gpu)
    n = batches.n
    best = np.full(n, np.inf)
    splits, size, which = np.ones(n, dtype=np.int64), np.ones(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for i, variant in enumerate(tried):
        both = path_rates(known, gpu, variant, kv, l2)
        rows = row_block(geo, q_len, variant.warps)
        counts, sizes, total = split_curve(geo, batches, kv, both, variant.tile_keys, rows, candidates)
        # Candidates ascend: the first that is close enough has the fewest splits.
        at = np.argmax(total <= CLOSE * total.min(axis=1, keepdims=True), axis=1)[:, None]
        found = np.take_along_axis(total, at, 1)[:, 0]
        better = found < best
        best = np.where(better, found, best)
        splits = np.where(better, np.take_along_axis(counts, at, 1)[:, 0], splits)
        size = np.where(better, np.take_along_axis(sizes, at, 1)[:, 0], size)
        which = np.where(better, i, which)
    return Fastest(splits=splits, split_keys=size, which=which, total_s=best, variants=tried)


class PathRates(NamedTuple):
    """Rates of one tuning's two kernels."""

    split: Rates
    unsplit: Rates


def path_rates(calibration: Calibration, gpu: Gpu, variant: Variant, kv: KvCache, l2: str = "cold") -> PathRates:
    """Rates of a bundled variant's split and unsplit kernels."""
    found = (resolve(calibration, on_path(variant, split)) for split in (True, False))
    return PathRates(*(make_rates(calibration, gpu, f, l2=l2, dtype=kv.query_dtype)[0] for f in found))


def split_curve(
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    rates: PathRates,
    tile_keys: int,
    rows: int,
    candidates: IntArray | None = None,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Splits of the longest request, keys per split and predicted time of every step and candidate: three [N, C].

    Candidates that round to the same split length give the same launch, and the same time.
    """
    sizes = _split_lengths(geo, batches, tile_keys, candidates)
    n, c = sizes.shape
    steps = batches.take(np.repeat(np.arange(n), c))  # one for each step and candidate
    found = equal_splits(geo, steps, sizes.reshape(-1), tile_keys, rows)
    cuts = cuts_of(steps, found, tile_keys)
    work = work_of(BUNDLED, geo, steps, kv, found, cuts)
    total = _mean_times(work, rates).reshape(n, c)
    for i in np.flatnonzero(~alike(batches)).tolist():
        total[i] = _scheduled_times(work, cuts, rates, total[i], sizes[i], i * c)
    return np.asarray(found.launched).reshape(n, c), sizes, total


def _split_lengths(geo: Geometry, batches: Batches, tile_keys: int, candidates: IntArray | None) -> IntArray:
    """Keys of a split of every step and candidate [N, C]: whole tiles."""
    tried = candidate_splits() if candidates is None else candidates
    longest = batches.largest(batches.seq_lens - visible_start(batches, geo.window))
    if candidates is None:
        most = cdiv(int(longest.max(initial=1)), tile_keys)
        tried = tried[: max(int(np.searchsorted(tried, most)) + 1, 1)]
    return np.maximum(cdiv(cdiv(longest[:, None], tile_keys), tried[None, :]), 1) * tile_keys


def _mean_times(work: Work, rates: PathRates) -> FloatArray:
    """Predicted time of every step, its blocks taken as equal, each on the kernel of its path. Exact where they are."""
    split = np.asarray(work.is_split)
    total = step_terms(work, uniform_bodies(work, rates.split), rates.split).total_s
    if not split.all():
        unsplit = step_terms(work, uniform_bodies(work, rates.unsplit), rates.unsplit).total_s
        total = np.where(split, total, unsplit)
    return np.array(total)


def _scheduled_times(
    work: Work, cuts: Cuts, rates: PathRates, total: FloatArray, sizes: IntArray, first: int
) -> FloatArray:
    """The times [C] of one ragged step's candidates, the SCHEDULED most promising of them worked out block by block and
    the others never better than those. Which are promising, the times of the mean block (`total`) say. `first`: the
    number of the step's first candidate in `work` and `cuts`."""
    out, worked_out = total.copy(), np.zeros(len(total), dtype=bool)
    order = np.argsort(total, kind="stable")
    for size in list(dict.fromkeys(sizes[order].tolist()))[:SCHEDULED]:
        same = np.flatnonzero(sizes == size)
        one = pick(work, first + int(same[0]))
        path = rates.split if one.is_split else rates.unsplit
        tiles = cuts.order(first + int(same[0])).tiles
        out[same] = step_terms(one, ragged_bodies(tiles, one, path), path).total_s
        worked_out[same] = True
    out[~worked_out] = np.maximum(out[~worked_out], NOT_CLOSE * out[worked_out].min())
    return out


@lru_cache(maxsize=4096)
def s_opt(geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu) -> int:
    """S_opt of one step, for tables that print it beside S*. Cached."""
    return int(fastest(geo, gathered(batch), kv, gpu).splits[0])


def gathered(batch: Batch) -> Batches:
    """The batch with equal requests gathered into one class: the shorter array for large uniform batches."""
    if batch.is_uniform:
        return Batches.uniform(batch.size, batch.seq_lens[0], batch.q_lens[0])
    return Batches.single(batch)


class Tuning(NamedTuple):
    """A launch of the bundled kernel in plain numbers."""

    splits: int
    """Splits of the longest request; 1 launches the unsplit kernel."""
    split_keys: int
    """Keys of every split: a whole number of tiles."""
    tile_keys: int
    """Keys of a tile."""
    rows: int
    """Query rows of a block."""
    warps: int
    """Warps of a block."""
    stages: int
    """Loads in flight."""
    total_s: float
    """Predicted time of one layer."""


def tune(
    geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu, calibration: Calibration | None = None, *, l2: str = "cold",
    num_splits: int | None = None, any_rule: bool = False,
) -> Tuning:  # fmt: skip
    """The fastest launch of the bundled kernel for one step: what its launcher uses by default. num_splits: splits of
    the longest request, instead of the fastest count (whole tiles may make them fewer). any_rule: see `fastest`."""
    counts = None if num_splits is None else np.array([num_splits], dtype=np.int64)
    found = fastest(geo, gathered(batch), kv, gpu, calibration, l2=l2, candidates=counts, any_rule=any_rule)
    variant = found.variants[int(found.which[0])]
    return Tuning(
        splits=int(found.splits[0]),
        split_keys=int(found.split_keys[0]),
        tile_keys=variant.tile_keys,
        rows=row_block(geo, batch.max_q_len, variant.warps),
        warps=variant.warps,
        stages=variant.stages,
        total_s=float(found.total_s[0]),
    )
