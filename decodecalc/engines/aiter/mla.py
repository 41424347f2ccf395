"""aiter-mla: AMD's MLA decode in assembly (`mla_decode_fwd`), planned by a metadata kernel or split evenly.

With the persistent plan (what servers take by default) a one-block kernel deals blocks of keys to as many parts as the
device has compute units, in order: a part may hold several requests and a request several parts. Heads that the
stage-1 kernel has no variant for are folded to groups of 16, each of which counts as a request of its own. Without the
plan every request gets the same number of splits, 1 to 16, which balances full waves against the cost of a split at the
batch's mean length; the kernel's source is not public, so its cut points are taken from what the merge kernel assumes.

Read from ROCm/aiter: aiter/mla.py (get_meta_param, mla_decode_fwd, _use_persistent_mla_decode), aiter/ops/attention.py
and csrc/kernels/mla/metadata/v1_2_device.cuh, csrc/kernels/mla/reduce.cu, csrc/py_itfs_cu/asm_mla.cu (grids).

In a sweep, where one class stands for many equal requests, `requested` and `live` are the most that any of them gets;
a single plan has every request's own. Where query tiles or head groups of one request are cut differently, they are
those of the unit that has the most works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.aiter.mla_shape import CDNA3, CDNA4, FOLDED_HEADS, REDUCE_OCCUPANCY, MlaStep
from decodecalc.engines.aiter.mla_walk import Dealing, Dealt, deal
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import KeyRange
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SIXTEEN_BITS, Numbers, Takes, only
from decodecalc.launch.traits import IRREGULAR, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

HEAD_DIM, V_DIM = 576, 512
WAVE = 64
STAGE1_THREADS = 256
MOST_SPLITS = 16  # num_kv_splits without the persistent plan
SPLIT_OVERHEAD = 84.1  # cost of a split, counted in keys (get_meta_param)
MIN_OVERHEAD_KEYS = 16  # fixed overhead of a unit in the persistent plan, in keys
FILL_WARPS = 8  # waves of the parallel planner
LDS_BYTES = {CDNA3: 64 << 10, CDNA4: 160 << 10}
PERSISTENT_MAX_BATCH = 32  # AITER_MLA_DECODE_PERSISTENT_MAX_BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AiterMlaRules:
    """What differs between versions."""

    causal_option: bool = True
    """The metadata kernel leaves the causal trim of query tiles away where the mask is off."""
    fp8_32_heads: bool = True
    """gfx950 takes 32 FP8 heads as they are whatever the number of query tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AiterMlaOptions(EngineOptions):
    """What the caller of `mla_decode_fwd` decides."""

    mode: str = option(
        "persistent", "str", "persistent: a metadata plan is passed; split_kv: no plan is passed",
        choices=("persistent", "split_kv"),
    )  # fmt: skip
    """Whether a metadata plan is passed (`work_meta_data`)."""
    kv_granularity: int = option(16, "int", "pages that a block of the metadata plan holds, a power of two", low=1)
    """Pages of keys that the plan deals at a time."""
    max_split_per_batch: int = option(
        -1, "int", "the parts of a plan are at most this number times the batch; -1 sets no bound", low=-1
    )
    """Bound of the plan's parts for each request."""
    causal: bool = option(True, "bool", "query tokens see only keys up to their own position")
    """Whether the causal mask is on."""
    num_kv_splits: int | None = option(
        None, "int?", "splits of every request where no plan is passed", "num_kv_splits", low=1
    )
    """Fixes the split count of the split_kv mode."""
    persistent_max_batch: int = option(
        PERSISTENT_MAX_BATCH, "int", "batch size from which a gfx950 step of 16 BF16 heads drops its plan; 0 keeps it",
        "AITER_MLA_DECODE_PERSISTENT_MAX_BATCH",
    )  # fmt: skip
    """Batch size from which the persistent plan is dropped for the one shape where it is slower."""
    experimental: bool = option(False, "bool", "take the experimental kernels", "AITER_ENABLE_EXPERIMENTAL")
    """Whether AITER_ENABLE_EXPERIMENTAL is set."""


class AiterMlaDetail(NamedTuple):
    """The schedule in aiter's words. The fields of the plan are 0 or None where there is none."""

    persistent: Any
    """The persistent plan is used."""
    planner: Any
    """The metadata kernel that makes it; None without one."""
    num_clusters: Any
    """Parts of the plan."""
    payload: Any
    """Blocks, overhead included, that a part takes."""
    num_works: Any
    """Entries of work_info_set."""
    split_works: Any
    """Works that write a partial state: entries of reduce_partial_map."""
    used_parts: Any
    """Parts with work."""
    fold: Any
    """Head groups that count as requests of their own (qk_batch_ratio)."""
    qo_tiles: Any
    """Query tiles of a unit."""
    buffer_shapes: tuple[Any, ...] | None
    """Shapes of the six metadata buffers, of a single plan."""
    works: tuple[tuple[int, ...], ...] | None
    """Each work's (request, partial row or -1, first query row, end, first page, end), of a single plan."""
    work_indptr: tuple[int, ...] | None
    """Works before each part, of a single plan."""
    num_kv_splits: Any
    """Splits of every request without the plan."""
    merge_min_granule: Any
    """Keys of a split that the merge looks at, without the plan (mgc)."""
    merge_bound: Any
    """Splits of each request that the merge reads at most, without the plan [N, R]."""


class AiterMla(Policy):
    """Blocks of keys dealt to parts, or the same split count for every request."""

    name = "aiter-mla"
    title = "aiter MLA decode (ROCm)"
    word_for_split = "work"
    options_type = AiterMlaOptions
    versions = (
        PolicyVersion("0.1.20", "ROCm/aiter v0.1.20 (same at e404860)", ("0.1.20", "0.1.20.post1"), AiterMlaRules()),
        PolicyVersion(
            "0.1.18",
            "ROCm/aiter v0.1.18, v0.1.19.post1",
            ("0.1.18", "0.1.19.post2"),
            AiterMlaRules(causal_option=False, fp8_32_heads=False),
            "32 FP8 heads with 3 query tokens are folded on gfx950; the plan always trims query tiles causally",
        ),
    )
    rule = (
        "persistent: parts = CUs, payload = ceil(sum(ceil(pages / granularity) + o) / parts) + o with o = max(1, "
        "ceil(16 / page)), units dealt to the parts in order; else s in 1 to 16 that maximises fill(B * s, CUs) * mean "
        "/ (mean + 84.1 * s)"
    )
    traits = Traits(
        sparse=True,
        server_names=("ROCM_AITER_MLA",),
        schedules_once_a_step=True,  # servers make the plan with the step's other metadata, before the first layer
        partition=Partition(rule=IRREGULAR),
        returns_lse=True,
    )

    def combinations(self, options: AiterMlaOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        layer = Takes(
            devices=(CDNA3, CDNA4),
            mla=True,
            windows=False,
            cache_dtypes=SIXTEEN_BITS,
            query_dtypes=SIXTEEN_BITS,
            head_dims=only(HEAD_DIM),
            value_dims=only(V_DIM),
            q_heads=Numbers(step=8),
            kv_heads=only(1),
        )
        layer = replace(layer, sparse=True)
        return layer, replace(layer, cache_dtypes=("fp8",), query_dtypes=(*SIXTEEN_BITS, "fp8"))

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: AiterMlaOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply both modes to arrays.

        Raises GateError for anything but MLA of 576/512 in BF16, FP16 or FP8 on gfx942 or gfx950, for numbers of heads
        that the library refuses, and for requests that differ in query tokens.
        """
        _check(self.name, geo, batches, kv, gpu, options)
        rules: AiterMlaRules = version.rules
        if geo.gather is not None:
            kv = _listed(self.name, geo, batches, kv)
        step = _Steps.of(geo, batches, kv, gpu, options, rules)
        plan = _Plan.of(step, batches, kv, options, rules) if options.mode == "persistent" else None
        kept = _kept(geo, batches, kv, gpu, options) & (plan is not None)
        splits = _even_splits(step, batches, kv, gpu, options)
        merged = ~kept & ((splits > 1) | ~step.writes_output)

        lens, has_keys = batches.seq_lens, batches.seq_lens > 0
        granule = step.merge_granule[:, None]
        even_keys = np.maximum(granule, cdiv(lens, splits[:, None]))
        even_live = np.where(splits[:, None] > 1, cdiv(lens, np.maximum(even_keys, 1)), has_keys * 1)
        even_keys = np.where(splits[:, None] > 1, even_keys, np.maximum(lens, 1))
        most = plan.dealt.most if plan is not None else np.zeros_like(lens)
        by_plan = kept[:, None]
        live = np.where(by_plan, np.where(has_keys, most, 0), even_live)
        split_keys = np.where(by_plan, plan.split_keys if plan is not None else 1, even_keys)
        is_split = np.where(kept, most.max(axis=1) > 1, merged)
        rows = np.where(kept, step.packed_rows, step.sub_q)
        columns = np.where(kept, step.units, cdiv(batches.max_q_len * geo.q_heads, step.sub_q))
        state = V_DIM + 1
        even_scratch = batches.query_tokens * geo.q_heads * splits * (np.where(merged, state, 1) * 4)
        return Launches(
            is_split=is_split,
            kernels=(
                *(plan.kernels(step, kept, batches, gpu) if plan is not None else ()),
                KernelArray(
                    name="mla_decode_stage1_asm",
                    role="stage1",
                    grid=(columns, batches.batch, splits),
                    threads=STAGE1_THREADS,
                    live_blocks=columns * batches.total(even_live),
                    tile_keys=step.merge_granule,
                    when=~kept,
                ),
                KernelArray(
                    name="_fwd_kernel_stage2_asm",
                    role="merge",
                    grid=(batches.batch, geo.q_heads),
                    threads=WAVE,
                    live_blocks=batches.batch * geo.q_heads,
                    when=merged,
                ),
            ),
            requested=np.where(by_plan, most, splits[:, None]),
            launched=np.where(kept, step.clusters, splits),
            live=live,
            split_keys=split_keys,
            blocks_per_split=np.broadcast_to(columns[:, None], lens.shape),
            unsplit_blocks=batches.total(columns[:, None] * has_keys),
            tile_keys=np.where(kept, options.kv_granularity * kv.page_size, step.merge_granule),
            block_rows=rows,
            live_rows=np.minimum(batches.max_q_len * np.where(kept, step.unit_heads, geo.q_heads), rows),
            state_values=state,
            partial_splits=np.where(by_plan, np.where(has_keys & (most > 1), most, 0), merged[:, None] * live),
            shared_slots=bool(kept.any()),
            scratch_bytes=np.where(kept, plan.scratch_bytes(step) if plan is not None else 0, even_scratch),
            determinism="batch-dependent",
            detail=_detail(step, plan, kept, splits, batches),
            gates=_gates(step, plan, kept, splits, merged, geo, batches, gpu, options),
            key_ranges=_key_ranges(plan, kept, batches, kv.page_size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """`MlaStep`s of an array: each field is an array over the steps [N]."""

    shapes: tuple[MlaStep, ...]
    which: IntArray  # shape of each step
    clusters: IntArray
    fold: IntArray
    unit_heads: IntArray
    packed_rows: IntArray
    tiles: IntArray
    buffer_tiles: IntArray
    merge_granule: IntArray
    writes_output: Any
    sub_q: IntArray

    @classmethod
    def of(
        cls, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: AiterMlaOptions, rules: AiterMlaRules
    ) -> _Steps:
        """The shape of every distinct number of query tokens, given to the steps that have it."""
        queries, which = np.unique(batches.max_q_len, return_inverse=True)
        shapes = tuple(
            MlaStep(
                gfx=gpu.gfx or "", heads=geo.q_heads, q_len=int(q), q_fp8=kv.query_dtype == "fp8",
                kv_fp8=kv.dtype == "fp8", experimental=options.experimental, fp8_32_heads=rules.fp8_32_heads,
            )
            for q in queries
        )  # fmt: skip
        which = which.reshape(-1)
        names = [f.name for f in fields(cls) if f.name not in ("shapes", "which", "clusters")]
        values = {name: np.array([getattr(shape, name) for shape in shapes])[which] for name in names}
        clusters = np.array([gpu.sm_count * shape.occupancy for shape in shapes])[which]
        return cls(shapes=shapes, which=which, clusters=clusters, **values)

    @property
    def units(self) -> IntArray:
        """Units of work that a request makes [N]."""
        return self.fold * self.tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The persistent plan."""

    dealt: Dealt
    dealing: Dealing
    parallel: Any  # which planner makes it [N]
    tile_cnt: IntArray  # tiles that the reduction is launched for [N]
    max_work: IntArray
    partials: IntArray  # entries of reduce_partial_map [N]
    block_keys: int  # keys of a block
    split_keys: IntArray  # keys of a part that holds nothing else [N, R]
    works: tuple[tuple[int, ...], ...] | None
    work_indptr: tuple[int, ...] | None

    @classmethod
    def of(cls, step: _Steps, batches: Batches, kv: KvCache, options: AiterMlaOptions, rules: AiterMlaRules) -> _Plan:
        """Deal the steps to parts. Raises GateError where the metadata kernel refuses the heads."""
        for shape in step.shapes:
            shape.check_persistent()
        page, gran, queries = kv.page_size, options.kv_granularity, batches.max_q_len
        pages = cdiv(batches.seq_lens, page)
        blocks = cdiv(pages, gran)
        overhead = max(1, cdiv(MIN_OVERHEAD_KEYS, page))
        counts = batches.counts * step.units[:, None]
        requests = batches.batch * step.fold
        aim, most = step.clusters, options.max_split_per_batch
        if most >= 0:
            aim = np.minimum(aim, most * requests)
        payload = cdiv(((blocks + overhead) * counts).sum(axis=1), aim) + overhead
        dealing = Dealing(
            blocks=blocks, pages=pages, counts=counts, payload=payload, parts=step.clusters,
            tail=queries if page == 1 else np.zeros_like(queries), block_pages=gran, overhead=overhead,
        )  # fmt: skip
        works = indptr = None
        if batches.n == 1:
            trims = options.causal or not rules.causal_option
            dealt, works, indptr = _deal_one(dealing, step, batches, page, trims)
        else:
            dealt = _deal_unique(dealing)
        scratch = 4 * (3 + 5 * requests)
        shape_lds = np.array([LDS_BYTES[shape.gfx] for shape in step.shapes])[step.which]
        parallel = (queries == 1) & (step.fold == 1) & (step.tiles == 1) & (page == 1) & (scratch <= shape_lds)
        tile_cnt = batches.batch * step.buffer_tiles  # buffers as callers size them: without max_split_per_batch
        max_work = (batches.batch + step.clusters - 1) * step.buffer_tiles
        partials = np.minimum(batches.batch + step.clusters - 1, (step.clusters - 1) * 2) * step.buffer_tiles
        return cls(
            dealt=dealt, dealing=dealing, parallel=parallel, tile_cnt=tile_cnt, max_work=max_work, partials=partials,
            block_keys=gran * page,
            split_keys=np.minimum(np.maximum(blocks, 1), (payload - overhead)[:, None]) * gran * page,
            works=works, work_indptr=indptr,
        )  # fmt: skip

    def scratch_bytes(self, step: _Steps) -> IntArray:
        """Partial outputs and log-sum-exps that mla_decode_fwd allocates [N]."""
        queries = np.array([shape.q_len for shape in step.shapes])[step.which]
        return self.partials * queries * step.unit_heads * (V_DIM + 1) * 4

    def kernels(self, step: _Steps, kept: Any, batches: Batches, gpu: Gpu) -> tuple[KernelArray, ...]:
        """Planner, stage 1 and reduction."""
        groups = np.array(
            [step.shapes[i].reduce_groups(int(t), gpu.sm_count) for i, t in zip(step.which, self.tile_cnt)]
        )
        whole = step.unit_heads * groups
        most = gpu.sm_count * REDUCE_OCCUPANCY * 2
        loops = whole * self.tile_cnt > most
        busy = np.minimum(self.dealt.cut_units, self.tile_cnt) * whole
        return (
            KernelArray(
                name="kn_get_mla_metadata_v1_2_parallel",
                role="scheduler",
                grid=(1, 1, 1),
                threads=WAVE * FILL_WARPS,
                live_blocks=1,
                when=self.parallel,
            ),
            KernelArray(
                name="kn_get_mla_metadata_v1_2",
                role="scheduler",
                grid=(1, 1, 1),
                threads=WAVE,
                live_blocks=1,
                when=~self.parallel,
            ),
            KernelArray(
                name="mla_decode_stage1_asm_ps",
                role="stage1",
                grid=(step.clusters, 1, 1),
                threads=STAGE1_THREADS,
                live_blocks=self.dealt.used_parts,
                tile_keys=self.block_keys,
                when=kept,
            ),
            KernelArray(
                name="kn_mla_reduce_v1",
                role="merge",
                grid=(step.unit_heads, groups, self.tile_cnt),
                threads=2 * WAVE,
                live_blocks=busy,
                when=kept & ~loops,
            ),
            KernelArray(
                name="kn_mla_reduce_v1_ps",
                role="merge",
                grid=(np.full_like(groups, most),),
                threads=2 * WAVE,
                live_blocks=np.minimum(busy, most),
                when=kept & loops,
            ),
        )


def _kept(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: AiterMlaOptions) -> Any:
    """Whether the plan is used and not dropped for the step's batch size: _use_persistent_mla_decode [N]."""
    slower = gpu.gfx == CDNA4 and kv.dtype == kv.query_dtype == "bf16" and geo.q_heads == 16
    limit = options.persistent_max_batch
    if not slower or limit == 0:
        return np.ones(batches.n, dtype=bool)
    return (batches.max_q_len > 1) | (batches.batch < limit)


def _even_splits(step: _Steps, batches: Batches, kv: KvCache, gpu: Gpu, options: AiterMlaOptions) -> IntArray:
    """num_kv_splits of get_meta_param [N]. Lengths are counted in pages, as the caller's indices are."""
    batch, total = batches.batch, batches.total(cdiv(batches.seq_lens, kv.page_size))
    mean, count = total / batch, np.arange(1, MOST_SPLITS + 1)
    blocks = batch[:, None] * count
    waves = blocks / (cdiv(blocks, gpu.sm_count) * gpu.sm_count)
    splits = 1 + np.argmax(waves * mean[:, None] / (mean[:, None] + SPLIT_OVERHEAD * count), axis=1)
    if options.num_kv_splits is not None:
        splits = np.full(batches.n, options.num_kv_splits, dtype=np.int64)
    if kv.query_dtype == "fp8" and options.mode == "split_kv":
        size = np.array([shape.fp8_block_keys for shape in step.shapes])[step.which]
        splits = np.minimum(splits, cdiv(total, batch * size))
        by_mean = (np.abs(mean - batches.max_q_len) // size).astype(np.int64) + 1
        splits = np.where(splits > 1, np.minimum(splits, by_mean), splits)
    return np.maximum(splits, 1)


def _deal_unique(given: Dealing) -> Dealt:
    """Run `deal` on the distinct steps of a sweep only."""
    if given.blocks.shape[1] > 1:
        return deal(given)
    rest = np.where(given.tail > 1, given.pages[:, 0], 0)
    steps = np.stack([given.blocks[:, 0], rest, given.counts[:, 0], given.payload, given.parts, given.tail])
    _, first, back = np.unique(steps, axis=1, return_index=True, return_inverse=True)
    found, back = deal(given.rows(first)), back.reshape(-1)
    return Dealt(
        most=found.most[back], used_parts=found.used_parts[back], works=found.works[back],
        split_works=found.split_works[back], cut_units=found.cut_units[back],
    )  # fmt: skip


def _deal_one(
    given: Dealing, step: _Steps, batches: Batches, page: int, trims: bool
) -> tuple[Dealt, tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Deal a single step, in which requests are told apart; the result has the list of works and where parts begin."""
    counts = batches.counts[0]
    starts = np.flatnonzero(np.diff(given.pages[0], prepend=-1))  # runs of equal requests are one class
    runs = Dealing(
        blocks=given.blocks[:, starts], pages=given.pages[:, starts],
        counts=np.add.reduceat(counts, starts)[None] * step.units[:, None], payload=given.payload, parts=given.parts,
        tail=given.tail, block_pages=given.block_pages, overhead=given.overhead,
    )  # fmt: skip
    marks = deal(runs).marks
    units, fold, tiles = int(step.units[0]), int(step.fold[0]), int(step.tiles[0])
    queries, pages = int(batches.max_q_len[0]), np.repeat(given.pages[0], counts).tolist()
    begins = np.concatenate([[0], np.cumsum(pages)]).tolist()
    tile_rows, gran = cdiv(queries, tiles), given.block_pages
    works: list[tuple[int, ...]] = []
    indptr, partial, cuts = [0], 0, np.zeros(len(pages) * units, dtype=np.int64)
    ends = [*marks[1:], (len(cuts), 0, 0)]
    for (unit, block, _), (next_unit, next_block, _) in zip(marks, ends):
        for u in range(unit, next_unit + (next_block > 0)):
            request, tile = u // units, u % tiles
            start, stop = block if u == unit else 0, next_block if u == next_unit else None
            whole = start == 0 and stop is None
            first, end = begins[request], begins[request] + pages[request]
            trim = tiles - 1 - tile if page == 1 and trims and fold == 1 else 0
            last = end - trim if stop is None else min(first + stop * gran, end - trim)
            row = (u // tiles) * queries + tile * tile_rows
            works.append((
                u // tiles, -1 if whole else partial, row, min(row + tile_rows, (u // tiles + 1) * queries),
                first + start * gran, last,
            ))  # fmt: skip
            partial += 0 if whole else tile_rows
            cuts[u] += 1
        indptr.append(len(works))
    indptr += [len(works)] * (int(given.parts[0]) + 1 - len(indptr))
    per_request = cuts.reshape(-1, units).max(axis=1)
    edges = np.concatenate([[0], np.cumsum(counts)])
    most = [per_request[a:b].max(initial=0) for a, b in pairwise(edges)]
    split = cuts > 1
    dealt = Dealt(
        most=np.array([most], dtype=np.int64), used_parts=np.array([len(marks)]), works=np.array([len(works)]),
        split_works=np.array([int(cuts[split].sum())]), cut_units=np.array([int(split.sum())]),
    )  # fmt: skip
    return dealt, tuple(works), tuple(indptr)


def _key_ranges(
    plan: _Plan | None, kept: Any, batches: Batches, page: int
) -> Callable[[int], list[list[KeyRange]]] | None:
    """Key ranges of one step's persistent plan; None where the partition is regular or there are several steps."""
    if plan is None or plan.works is None or not kept[0]:
        return None
    works = plan.works

    def ranges(n: int) -> list[list[KeyRange]]:
        lens = np.repeat(batches.seq_lens[0], batches.counts[0]).tolist()
        starts: dict[tuple[int, int], list[int]] = {}
        for request, _, row, _, first, _ in works:
            starts.setdefault((request, row), []).append(first)
        units = len(starts) // len(lens)
        found, lists, begin = [], list(starts.values()), 0
        for r, length in enumerate(lens):
            cuts = max(lists[r * units : (r + 1) * units], key=len)
            edges = [(first - begin) * page for first in cuts] + [length]
            found.append(list(pairwise(edges)) if length else [])
            begin += cdiv(length, page)
        return found

    return ranges


def _detail(step: _Steps, plan: _Plan | None, kept: Any, splits: IntArray, batches: Batches) -> AiterMlaDetail:
    zero = np.zeros_like(splits)
    dealt = plan.dealt if plan is not None else None
    shapes = None
    if plan is not None and batches.n == 1:
        tiles, parts = int(plan.tile_cnt[0]), int(step.clusters[0])
        shapes = (2, parts + 1, (int(plan.max_work[0]), 8), tiles + 1, (tiles, 2), int(plan.partials[0]))
    return AiterMlaDetail(
        persistent=kept,
        planner=None if plan is None else np.where(
            plan.parallel, "kn_get_mla_metadata_v1_2_parallel", "kn_get_mla_metadata_v1_2"
        ),
        num_clusters=step.clusters if plan is not None else zero,
        payload=plan.dealing.payload if plan is not None else zero,
        num_works=dealt.works if dealt is not None else zero,
        split_works=dealt.split_works if dealt is not None else zero,
        used_parts=dealt.used_parts if dealt is not None else zero,
        fold=step.fold,
        qo_tiles=step.tiles,
        buffer_shapes=shapes,
        works=plan.works if plan is not None else None,
        work_indptr=plan.work_indptr if plan is not None else None,
        num_kv_splits=np.where(kept, 0, splits),
        merge_min_granule=np.where(kept, 0, step.merge_granule),
        merge_bound=np.minimum(splits[:, None], cdiv(batches.seq_lens, step.merge_granule[:, None])),
    )  # fmt: skip


def _gates(
    step: _Steps,
    plan: _Plan | None,
    kept: Any,
    splits: IntArray,
    merged: Any,
    geo: Geometry,
    batches: Batches,
    gpu: Gpu,
    options: AiterMlaOptions,
) -> tuple[GateArray, ...]:
    def why_split(n: int) -> str:
        if plan is None or not kept[n]:
            return f"each of {at(batches.batch, n)} requests has {at(splits, n)} splits on {gpu.sm_count} compute units"
        return (
            f"a part takes up to {at(plan.dealing.payload, n)} blocks, which makes {at(plan.dealt.works, n)} works on "
            f"{at(plan.dealt.used_parts, n)} of {at(step.clusters, n)} parts"
        )

    refused = np.array([
        shape.fp8 and (shape.heads == 64 or (shape.heads == 32 and shape.q_len > 1) or
                       (shape.heads == 16 and shape.q_len > 4))
        for shape in step.shapes
    ])[step.which] & ~kept  # fmt: skip
    split = np.where(kept, plan.dealt.most.max(axis=1) > 1 if plan is not None else False, splits > 1)
    return (
        GateArray(
            name="persistent_kept",
            passed=kept,
            reason=lambda n: (
                f"the mode is {options.mode}, the batch has {at(batches.batch, n)} requests; a gfx950 step of 16 "
                f"BF16 heads and one token drops its plan from {options.persistent_max_batch} requests on"
            ),
        ),
        GateArray(
            name="folded",
            passed=step.fold > 1,
            reason=lambda n: f"{geo.q_heads} heads are taken as {at(step.fold, n)} groups of {at(step.unit_heads, n)}",
        ),
        GateArray(name="split", passed=split, reason=why_split),
        GateArray(
            name="stage1_kernel",
            passed=~refused,
            reason=lambda n: (
                f"{geo.q_heads} heads have {at(batches.max_q_len, n)} query tokens; without a plan, FP8 has no kernel "
                f"for 64 heads, for 32 with several tokens or for {FOLDED_HEADS} with more than 4"
            ),
        ),
    )


def _listed(name: str, geo: Geometry, batches: Batches, kv: KvCache) -> KvCache:
    """The cache as a sparse layer's lists see it: pages of one key. Servers make every query token a request of its own
    (vLLM 0.33.0: vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py, _forward_sparse_mla)."""
    gather = geo.gather
    if gather is None or gather.window is not None or gather.per_kv_head:
        raise GateError(f"{name}: a query token reads one list, which all heads share", "sparse_layer")
    if (batches.max_q_len > 1).any():
        raise GateError(
            f"{name}: every query token of a sparse layer has a list and counts as a request; plan requests of one "
            f"token instead of {int(batches.max_q_len.max())}",
            "q_len",
        )
    return replace(kv, page_size=1)


def _check(name: str, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: AiterMlaOptions) -> None:
    if not gpu.is_hip:
        raise GateError(f"{name} runs on AMD devices only, and {gpu.label} is not one", "not_amd")
    if gpu.gfx not in (CDNA3, CDNA4):
        raise GateError(f"{name} runs on gfx942 (CDNA3) and gfx950 (CDNA4) only, not on {gpu.gfx or gpu.label}", "arch")
    if not geo.mla:
        raise GateError(f"{name} needs an MLA geometry (one latent per key that is both key and value)", "not_mla")
    if geo.head_dim != HEAD_DIM or geo.v_dim != V_DIM or geo.kv_heads != 1:
        raise GateError(
            f"{name} takes one latent of {HEAD_DIM} elements with values of {V_DIM}, not {geo.kv_heads} of "
            f"{geo.head_dim}/{geo.v_dim}",
            "head_dim",
        )
    if geo.window is not None:
        raise GateError(f"{name} has no sliding window", "window")
    if geo.q_heads % 8:
        raise GateError(f"{name} takes a multiple of 8 query heads, not {geo.q_heads}", "heads")
    if kv.dtype not in ("bf16", "fp16", "fp8") or kv.query_dtype not in ("bf16", "fp16", "fp8"):
        raise GateError(f"{name} takes bf16, fp16 or fp8, not {kv.dtype} keys and {kv.query_dtype} queries", "dtype")
    if kv.query_dtype == "fp8" and kv.dtype != "fp8":
        raise GateError(f"{name}: FP8 queries need FP8 keys, not {kv.dtype}", "dtype")
    if not (batches.q_lens == batches.max_q_len[:, None]).all():
        raise GateError(f"{name}: every request needs the same number of query tokens", "ragged_q_len")
    if options.kv_granularity & (options.kv_granularity - 1):
        raise GateError(
            f"{name}: kv_granularity must be a power of two, not {options.kv_granularity}", "kv_granularity"
        )
    if options.max_split_per_batch == 0:
        raise GateError(f"{name}: max_split_per_batch must be positive or -1", "max_split_per_batch")


POLICY = AiterMla()
