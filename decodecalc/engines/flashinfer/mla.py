"""flashinfer-mla: the planner and the cooperative kernel of FlashInfer's BatchMLAPagedAttentionWrapper (fa2, fa3).

The grid is the device: SM clusters of one CTA, or of two where a request has more than 64 packed query rows. The host
cuts the keys of every query tile into chunks of one limit and deals them to the clusters by cost. The plan does not
depend on pages, element types, occupancy or CUDA graphs. Partial states are merged in the same launch, after a barrier
of the whole grid, so there is no merge kernel.

Read from flashinfer-ai/flashinfer: include/flashinfer/attention/scheduler.cuh (MLAPlan), mla.cuh and mla_hopper.cuh
(kernels and launchers), flashinfer/mla (the wrapper, its checks and its `auto` policy), in the wheels of 0.6.18.post1,
0.7.0, 0.7.1, 0.7.2.post1 and 0.7.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flashinfer.mla_kernels import (
    CTA_ROWS,
    KERNELS,
    MlaRules,
    backend_gate,
    checked_tile_keys,
    chosen_backend,
)
from decodecalc.engines.flashinfer.mla_work import MlaWorkLists, schedule
from decodecalc.engines.flashinfer.options import FlashInferMlaOptions
from decodecalc.engines.flashinfer.releases import RELEASES
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at
from decodecalc.launch.plan import GRID, LaunchPlan
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SAME, SIXTEEN_BITS, UNKNOWN, Numbers, Takes, only
from decodecalc.launch.traits import SIZE, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

THREADS = 256
MAX_WORK_ITEMS = 16384  # max_total_num_works: what the plan's arrays hold
ITEM_BOUNDS = ((8, 32), (16, 64), (32, 128), (64, 192))  # mean keys of a cluster up to the first: chunks of the second

_V074 = MlaRules()
_V071 = replace(_V074, ranked_capabilities=((10, 0),))
_V0618 = MlaRules(ranked_capabilities=(), checks_work=False)


class FlashInferMlaDetail(NamedTuple):
    """The plan in FlashInfer's words. `work_lists(plan)` makes the lists of a single plan."""

    backend: str
    """fa2 or fa3."""
    causal: bool
    """Whether early query tiles see fewer keys."""
    cluster_size: Any
    """CTAs of a cluster, 1 or 2: num_blks_x."""
    clusters: Any
    """Clusters of the grid: num_blks_y."""
    cluster_tile_q: Any
    """Packed query rows (token x head) of a cluster's tile."""
    kv_len_limit: Any
    """Keys of a chunk."""
    work_items: Any
    """Chunks over all requests and query tiles."""
    work_items_per_request: Any
    """Chunks of each request over its query tiles."""
    idle_clusters: Any
    """Clusters without an item."""
    split_work_items: Any
    """Chunks that write partial states."""
    partial_rows: Any
    """Rows of partial states that are written."""
    partial_rows_allocated: Any
    """Rows of partial states that the float workspace has room for."""
    merge_ctas: Any
    """CTAs with rows to merge after the grid barrier."""


class FlashInferMla(Policy):
    """Chunks of keys are dealt to clusters. `launched` is the number of clusters, which all requests share."""

    name = "flashinfer-mla"
    title = "FlashInfer MLA paged attention (plan/run, fa2 and fa3)"
    releases = RELEASES
    word_for_split = "chunk"
    options_type = FlashInferMlaOptions
    traits = Traits(
        server_names=("flashinfer",),
        graph_option=("cuda_graph", True),
        partition=Partition(rule=SIZE, unit_keys=1),
        returns_lse=True,
    )
    versions = (
        PolicyVersion(
            "0.7.4", "flashinfer-python 0.7.4: attention/scheduler.cuh, mla.cuh, mla/", ("0.7.4", "0.7.4"), _V074
        ),
        PolicyVersion(
            "0.7.2.post1",
            "flashinfer-python 0.7.2, 0.7.2.post1: the same files",
            ("0.7.2", "0.7.2.post1"),
            _V074,
            "`auto` ranks other kernels on SM100, SM103 and SM107",
        ),
        PolicyVersion(
            "0.7.1",
            "flashinfer-python 0.7.1: the same files",
            ("0.7.1", "0.7.1"),
            _V071,
            "`auto` ranks other kernels on SM100; the wrapper refuses more than 16384 work items",
        ),
        PolicyVersion(
            "0.6.18.post1",
            "flashinfer-python 0.6.18, 0.6.18.post1, 0.7.0, 0.7.0.post1: the same files",
            ("0.6.18", "0.7.0.post1"),
            _V0618,
            "`auto` means fa3 on SM90 and fa2 elsewhere",
        ),
    )
    rule = (
        "clusters of 2 CTAs where a request has more than 64 query rows (tokens x heads) on average, else of 1; SMs // "
        "cluster clusters. x = ceil(keys of all query tiles / clusters); chunks of 32, 64, 128, 192 keys up to x = 8, "
        "16, 32, 64, beyond that of x rounded up to 256. Chunks go to the cluster of least cost, 2 x tile rows + keys"
    )

    def combinations(self, options: FlashInferMlaOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        layer = Takes(
            devices=("sm80+", UNKNOWN),
            mla=True,
            windows=False,
            sinks=False,
            softcaps=False,
            cache_dtypes=SIXTEEN_BITS,
            query_dtypes=SAME,
            value_dims=Numbers(step=128),
            rotary_dims=Numbers(step=64, low=0),
            kv_heads=only(1),
        )
        eight = replace(
            layer, devices=("sm90",), cache_dtypes=("fp8",), query_dtypes=("bf16",), value_dims=only(512),
            rotary_dims=only(0, 64),
        )  # fmt: skip
        return layer, eight

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashInferMlaOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply MLAPlan to arrays.

        Raises GateError for another layer than MLA, AMD, a device, latent width or element type that no kernel exists
        for, too little shared memory, and more work items than the plan holds where the wrapper checks.
        """
        rules: MlaRules = version.rules
        backend = chosen_backend(geo, gpu, options, rules)
        tile_keys = checked_tile_keys(geo, kv, gpu, backend)
        cluster = np.where(batches.total(batches.q_lens * geo.q_heads) // batches.batch > CTA_ROWS, 2, 1)
        clusters = gpu.sm_count // cluster
        if not clusters.all():
            raise GateError(
                f"flashinfer-mla: a device of {gpu.sm_count} SM cannot hold a cluster of 2 CTAs", "too_few_sms"
            )
        work = _Work(
            batches=batches, heads=geo.q_heads, causal=options.causal, cluster=cluster, clusters=clusters
        ).counted()
        fits = work.items <= MAX_WORK_ITEMS
        if rules.checks_work and not fits.any():
            raise GateError(
                f"flashinfer-mla: the step has {at(work.items, 0)} work items, and the plan holds {MAX_WORK_ITEMS}",
                "too_many_work_items",
            )
        is_split = work.split_items > 0
        tile_rows = cluster * CTA_ROWS
        allocated = 2 * clusters * tile_rows
        rows = batches.max_q_len * geo.q_heads
        live_clusters = np.minimum(work.items, clusters)
        has_keys = (batches.seq_lens > 0) & (batches.q_lens > 0)
        chunks = np.where(has_keys, cdiv(batches.seq_lens, work.limit[:, None]), 1)
        columns = cluster[:, None] * cdiv(batches.q_lens * geo.q_heads, tile_rows[:, None])
        chosen, why = backend_gate(geo, batches, gpu, options, rules, backend)
        exact = _mask_is_exact(batches, geo.q_heads, tile_rows, tile_keys) if options.causal else np.True_
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name=KERNELS[backend],
                    role="stage1",
                    grid=(cluster, clusters, 1),
                    threads=THREADS,
                    live_blocks=cluster * live_clusters,
                    tile_keys=tile_keys,
                ),
            ),
            merge_in=GRID,
            requested=chunks,
            launched=clusters,
            live=np.where(has_keys, chunks, 0),
            split_keys=np.minimum(work.limit[:, None], np.maximum(batches.seq_lens, 1)),
            blocks_per_split=columns,
            keys_read=batches.seq_lens * (batches.q_lens > 0),
            unsplit_blocks=batches.total(columns * has_keys),
            tile_keys=tile_keys,
            block_rows=CTA_ROWS,
            live_rows=np.minimum(rows, CTA_ROWS),
            state_values=cdiv(geo.v_dim * 2, 4) + 1,  # values of the output's 16-bit type, one fp32 sum
            partial_splits=np.where(chunks > 1, chunks, 0),
            shared_slots=True,
            scratch_bytes=allocated * (geo.v_dim * 2 + 4),
            determinism="batch-dependent",
            detail=FlashInferMlaDetail(
                backend=backend,
                causal=options.causal,
                cluster_size=cluster,
                clusters=clusters,
                cluster_tile_q=tile_rows,
                kv_len_limit=work.limit,
                work_items=work.items,
                work_items_per_request=work.per_request,
                idle_clusters=clusters - live_clusters,
                split_work_items=work.split_items,
                partial_rows=work.partial_rows,
                partial_rows_allocated=allocated,
                merge_ctas=work.merge_ctas,
            ),
            gates=(
                GateArray(
                    name="split",
                    passed=is_split,
                    reason=lambda n: (
                        f"{at(work.keys, n)} keys over {at(clusters, n)} clusters of {at(cluster, n)} CTAs make chunks "
                        f"of {at(work.limit, n)}; there are {at(work.items, n)} work items and "
                        f"{at(clusters - live_clusters, n)} clusters without one"
                    ),
                ),
                GateArray(
                    name="merge_in_kernel",
                    passed=is_split,
                    reason=lambda n: (
                        f"{at(work.merge_ctas, n)} of {gpu.sm_count} CTAs at most merge after the grid barrier"
                    ),
                ),
                GateArray(
                    name="work_items_fit",
                    passed=fits,
                    reason=lambda n: f"there are {at(work.items, n)} work items, and the plan's arrays hold "
                    f"{MAX_WORK_ITEMS}",
                ),
                GateArray(
                    name="causal_tile_bound",
                    passed=exact,
                    reason=lambda n: (
                        f"with query tiles of {at(tile_rows, n)} rows, {geo.q_heads} heads and key tiles of "
                        f"{tile_keys}, "
                        + (
                            "the kernel walks all visible keys"
                            if at(exact, n)
                            else "the kernel would leave out a visible key"
                            + (", so the wrapper refuses" if rules.checks_work else "")
                        )
                    ),
                ),
                GateArray(name="backend_is_planned", passed=chosen, reason=why),
            ),
        )


def work_lists(plan: LaunchPlan) -> MlaWorkLists:
    """The exact work and merge lists of a plan of this engine, in the order of the engine's heap."""
    detail: FlashInferMlaDetail = plan.detail
    return schedule(
        plan.batch, plan.geometry.q_heads, detail.causal, detail.clusters, detail.cluster_tile_q, detail.kv_len_limit
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Facts that follow from the query tiles of every step. per_request is [N, R], all others are [N]."""

    keys: IntArray
    limit: IntArray
    items: IntArray
    per_request: IntArray
    split_items: IntArray
    partial_rows: IntArray
    merge_ctas: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The query tiles of every step. cluster, clusters [N]."""

    batches: Batches
    heads: int
    causal: bool
    cluster: IntArray
    clusters: IntArray

    def tiles(self) -> Iterator[tuple[IntArray, IntArray]]:
        """(rows, keys) of every query tile of the requests, 0 rows where a request has no such tile [N, R]."""
        rows = (self.cluster * CTA_ROWS)[:, None]
        packed, seq_lens = self.batches.q_lens * self.heads, self.batches.seq_lens
        for tile in range(int(cdiv(packed, rows).max())):
            left = packed - tile * rows
            ends_at = seq_lens - self.batches.q_lens + cdiv((tile + 1) * rows, self.heads)
            early = np.clip(ends_at, 0, seq_lens)
            yield np.clip(left, 0, rows), np.where((left > rows) & self.causal, early, seq_lens)

    def counted(self) -> _Counts:
        """The chunk limit and all that it decides, except the lists."""
        batches = self.batches
        zero = np.zeros_like(batches.seq_lens)
        keys = zero
        for rows, visible in self.tiles():
            keys = keys + visible * (rows > 0)
        total = batches.total(keys)
        limit = _kv_len_limit(np.maximum(cdiv(total, self.clusters), 1))
        items, split, states, merges = zero, zero, zero, zero
        for rows, visible in self.tiles():
            chunks: IntArray = np.where(rows > 0, np.maximum(cdiv(visible, limit[:, None]), 1), 0)
            cut: IntArray = np.where(chunks > 1, chunks, 0)
            parts = np.maximum(visible * self.cluster[:, None] // limit[:, None], 1)
            share = np.maximum(cdiv(rows, parts), 1)
            items, split, states = items + chunks, split + cut, states + cut * rows
            merges = merges + cdiv(rows, share) * (chunks > 1)
        return _Counts(
            keys=total,
            limit=limit,
            items=batches.total(items),
            per_request=items,
            split_items=batches.total(split),
            partial_rows=batches.total(states),
            merge_ctas=batches.total(merges),
        )


def _kv_len_limit(mean: IntArray) -> IntArray:
    """Keys of a chunk for a mean of `mean` keys a cluster [N]."""
    limit = round_up(mean, 256)
    for most, keys in reversed(ITEM_BOUNDS):
        limit = np.where(mean <= most, keys, limit)
    return limit


def _mask_is_exact(batches: Batches, heads: int, tile_rows: IntArray, tile_keys: int) -> BoolArray:
    """Whether the kernel walks all keys that the planner counts [N].

    The planner rounds the end of a query tile up to whole tokens, the kernel down: a token cut by a tile's end loses
    its last visible key where that key begins a key tile (_validate_fa_causal_tile_bound in mla/_batch_mla).
    """
    rows, seq_lens, q_lens = tile_rows[:, None], batches.seq_lens, batches.q_lens
    lost = np.zeros(seq_lens.shape, dtype=bool)
    for tile in range(1, int(cdiv(q_lens * heads, rows).max())):
        token = tile * rows // heads
        key = seq_lens - q_lens + token
        cut = (tile * rows % heads > 0) & (tile * rows < q_lens * heads)
        lost |= cut & (key >= 0) & (key < seq_lens) & (key % tile_keys == 0)
    exact: BoolArray = ~np.any(lost & (batches.counts > 0), axis=1)
    return exact


POLICY = FlashInferMla()
