"""S_opt: the split count, tile and variant that the time model finds fastest, without running anything.

Of equal times the fewest splits are taken.

Not S*: S* is the smallest count whose first wave covers the SMs. S_opt may be larger (more loads in flight hide more
latency) or smaller (each split costs a partial state, and blocks beyond the slots wait for a whole wave).

The rule that is optimised is the bundled kernel's: every request is cut into splits of one length, a whole number of
tiles, so that long requests get more splits and all blocks are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.analysis.traffic import PARTIAL_BYTES
from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.load import load_calibration
from decodecalc.cost.model import FloatArray, Work, step_terms, uniform_bodies
from decodecalc.cost.parameters import Variant
from decodecalc.cost.rates import Rates, make_rates
from decodecalc.cost.schedule import cut_tiles, ragged_bodies
from decodecalc.cost.variants import BUNDLED, SPLIT, on_path, resolve, tile_elements, wanted_variant
from decodecalc.intmath import IntArray, cdiv
from decodecalc.launch.arrays import Batches, BoolArray, visible_start

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

MOST_SPLITS = 1024  # a merge of more states than this was never worth it on any GPU modelled
STATE_SCALARS = 2  # running max and running sum beside each output vector in the bundled kernel's partial states
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


def row_block(geo: Geometry, q_len: int) -> int:
    """Query rows of a block of the bundled kernel (its own rule)."""
    from decodecalc_kernels.blocks import default_rows

    return int(default_rows(max(q_len, 1), geo.group, geo.v_dim))


def used_rows(geo: Geometry, q_len: int) -> int:
    """Query rows that a block of the bundled kernel computes on: the `rows` of its variants."""
    from decodecalc_kernels.blocks import rows_by_eights

    return int(rows_by_eights(row_block(geo, q_len), max(q_len, 1) * geo.group))


def tuned_variants(calibration: Calibration, geo: Geometry, kv: KvCache, q_len: int = 1) -> tuple[Variant, ...]:
    """Bundled variants to choose among for this shape and up to q_len query tokens: the (tile, warps, stages) that were
    measured for the widths and element type nearest to it, each as the variant that this shape would run."""
    rows = used_rows(geo, q_len)
    own = [v for v in calibration.variants if v.kernel == BUNDLED and v.path == SPLIT]
    wanted = wanted_variant(BUNDLED, geo, kv, 64, rows)
    size = tile_elements(wanted)

    def unlike(v: Variant) -> tuple[float, ...]:
        return (
            v.dtype != wanted.dtype,
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


def default_variant(calibration: Calibration, geo: Geometry, kv: KvCache, q_len: int = 1) -> Variant:
    """The bundled variant that runs other engines' rules: the first that was tuned for this shape."""
    return tuned_variants(calibration, geo, kv, q_len)[0]


@dataclass(frozen=True, slots=True)
class Fastest:
    """The best launch of each of N steps. All [N]; `variants[which[n]]` is the variant of step n.

    splits: of the longest request; split_keys: keys of every split (a multiple of the variant's tile).
    """

    splits: IntArray
    split_keys: IntArray
    which: IntArray
    total_s: FloatArray
    variants: tuple[Variant, ...]


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
) -> Fastest:
    """S_opt of every step of `batches`, among `candidates` when given."""
    known = calibration or load_calibration(gpu=gpu)
    q_len = int(batches.max_q_len.max()) if batches.n else 1
    rows = row_block(geo, q_len)
    tried = variants or tuned_variants(known, geo, kv, q_len)
    n = batches.n
    best = np.full(n, np.inf)
    splits, size, which = np.ones(n, dtype=np.int64), np.ones(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for i, variant in enumerate(tried):
        both = path_rates(known, gpu, variant, kv, l2)
        counts, sizes, total = split_curve(geo, batches, kv, both, variant.tile_keys, rows, candidates)
        # Candidates ascend: the first that is close enough has the fewest splits.
        at = np.argmax(total <= CLOSE * total.min(axis=1, keepdims=True), axis=1)[:, None]
        found = np.take_along_axis(total, at, 1)[:, 0]
        better = found < best
        best = np.where(better, found, best)
        splits = np.where(better, np.take_along_axis(counts, at, 1)[:, 0], splits)
        size = np.where(better, np.take_along_axis(sizes, at, 1)[:, 0], size)
        which = np.where(better, i, which)
    return Fastest(splits, size, which, best, tried)


def _scheduled_times(
    geo: Geometry,
    batches: Batches,
    tile_keys: int,
    rows: int,
    rates: PathRates,
    sizes: IntArray,
    work: Work,
    total: FloatArray,
) -> FloatArray:
    """The times [N, C] with the SCHEDULED most promising candidates of each ragged step worked out block by block, and
    the others never better than those. Which are promising, the times of the mean block (`total`) say."""
    out = total.copy()
    keys = batches.seq_lens - visible_start(batches, geo.window)
    columns = geo.kv_heads * cdiv(batches.q_lens * geo.group, rows) * batches.counts
    alike = _alike(batches, keys)
    for n, order in enumerate(np.argsort(total, axis=1, kind="stable")):
        if alike[n]:
            continue  # the closed form is exact
        worked_out = np.zeros(total.shape[1], dtype=bool)
        for size in list(dict.fromkeys(sizes[n, order].tolist()))[:SCHEDULED]:
            same = np.flatnonzero(sizes[n] == size)
            one = pick(work, n, int(same[0]))
            depth = max(cdiv(int(keys[n].max(initial=0)), size), 1)
            tiles = cut_tiles(keys[n], size, depth, columns[n], tile_keys, depth)
            path = rates.split if one.is_split else rates.unsplit
            out[n, same] = step_terms(one, ragged_bodies(tiles, one, path), path).total_s
            worked_out[same] = True
        least = out[n, worked_out].min()
        out[n, ~worked_out] = np.maximum(out[n, ~worked_out], NOT_CLOSE * least)
    return out


def _alike(batches: Batches, keys: IntArray) -> BoolArray:
    """Which steps hold equal requests only [N]; keys: that each request reads [N, R]."""
    absent = batches.counts == 0
    return np.asarray(
        ((keys == batches.largest(keys)[:, None]) & (batches.q_lens == batches.max_q_len[:, None]) | absent).all(axis=1)
    )


def pick(work: Work, *at: int) -> Work:
    """The work of one step (and candidate), as numbers."""

    def number(value: Any) -> Any:
        found = np.asarray(value)
        return found[tuple(min(i, n - 1) for i, n in zip(at, found.shape))].item() if found.ndim else found.item()

    return Work(**{f.name: number(getattr(work, f.name)) for f in fields(Work)})


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
    counts, sizes, work = _curve_work(geo, batches, kv, tile_keys, rows, candidates)
    total = _curve_times(work, rates)
    if not batches.is_single_class:
        total = _scheduled_times(geo, batches, tile_keys, rows, rates, sizes, work, total)
    return counts, sizes, total


def _curve_times(work: Work, rates: PathRates) -> FloatArray:
    """Predicted time of work [N, C], each on the kernel of its path."""
    split = np.asarray(work.is_split)
    total = step_terms(work, uniform_bodies(work, rates.split), rates.split).total_s
    if not split.all():
        unsplit = step_terms(work, uniform_bodies(work, rates.unsplit), rates.unsplit).total_s
        total = np.where(split, total, unsplit)
    return np.asarray(total)


def _curve_work(
    geo: Geometry, batches: Batches, kv: KvCache, tile_keys: int, rows: int, candidates: IntArray | None = None
) -> tuple[IntArray, IntArray, Work]:
    """Splits of the longest request, keys per split and work of every step and candidate, [N, C] each."""
    tried = (candidate_splits() if candidates is None else candidates)[None, :]
    keys = batches.seq_lens - visible_start(batches, geo.window)  # [N, R]
    longest = batches.largest(keys)[:, None]
    if candidates is None:
        tried = tried[:, : max(int(np.searchsorted(tried[0], cdiv(int(longest.max(initial=1)), tile_keys))) + 1, 1)]
    tiles = np.maximum(cdiv(cdiv(longest, tile_keys), tried), 1)  # of a full split [N, C]
    size = tiles * tile_keys
    counts = np.maximum(cdiv(longest, size), 1)
    row_blocks = cdiv(batches.q_lens * geo.group, rows)
    columns = geo.kv_heads * row_blocks * batches.counts  # [N, R]
    if batches.is_single_class:
        blocks, states = columns * counts, batches.counts * batches.q_lens * counts
    else:
        live = cdiv(keys[:, :, None], size[:, None, :])  # [N, R, C]
        blocks = (columns[:, :, None] * live).sum(axis=1)
        states = ((batches.counts * batches.q_lens)[:, :, None] * live).sum(axis=1)
    per_key = kv.bytes_per_key(geo)
    useful = batches.total(np.where(batches.q_lens > 0, keys, 0))[:, None] * per_key
    asked = batches.total(keys * row_blocks)[:, None] * per_key
    tiles_total = batches.total(columns // np.maximum(batches.counts, 1) * cdiv(keys, tile_keys))[:, None]
    split, last = counts > 1, cdiv(longest - (counts - 1) * size, tile_keys)
    short = split & (last < tiles) & _alike(batches, keys)[:, None]
    work = Work(
        blocks=blocks,
        started=blocks,
        tiles=tiles,
        tiles_total=tiles_total,
        hbm_bytes=useful,
        requested_bytes=np.maximum(asked, useful),
        flop=2.0 * tiles_total * tile_keys * rows * (geo.head_dim + geo.v_dim),
        launched_blocks=(batches.largest(row_blocks) * geo.kv_heads * batches.batch)[:, None] * counts,
        is_split=split,
        live_splits=counts,
        states=states * geo.q_heads,
        rows=np.minimum(batches.max_q_len * geo.group, rows)[:, None],
        merge_bytes=np.where(split, states * geo.q_heads * (geo.v_dim + STATE_SCALARS) * PARTIAL_BYTES, 0),
        merge_rows=np.reshape(batches.query_tokens, (-1, 1)) * geo.q_heads,
        short_blocks=columns.sum(axis=1)[:, None] * short,
        short_tiles=last * short,
    )
    return counts, size, work


@lru_cache(maxsize=4096)
def s_opt(geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu) -> int:
    """S_opt of one step, for tables that print it beside S*. Cached."""
    return int(fastest(geo, gathered(batch), kv, gpu).splits[0])


def gathered(batch: Batch) -> Batches:
    """The batch with equal requests gathered into one class: the shorter array for large uniform batches."""
    if batch.is_uniform:
        return Batches.uniform(batch.size, batch.seq_lens[0], batch.q_lens[0])
    return Batches.single(batch)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A launch of the bundled kernel in plain numbers."""

    splits: int
    split_keys: int
    tile_keys: int
    rows: int
    warps: int
    stages: int
    total_s: float


def tune(
    geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu, calibration: Calibration | None = None, *, l2: str = "cold"
) -> Tuning:
    """The fastest launch of the bundled kernel for one step: what its launcher uses by default."""
    found = fastest(geo, gathered(batch), kv, gpu, calibration, l2=l2)
    variant = found.variants[int(found.which[0])]
    return Tuning(
        int(found.splits[0]), int(found.split_keys[0]), variant.tile_keys, row_block(geo, batch.max_q_len),
        variant.warps, variant.stages, float(found.total_s[0]),
    )  # fmt: skip
