"""flashinfer-mla: the planner and the cooperative kernel of FlashInfer's BatchMLAPagedAttentionWrapper (fa2, fa3).

The grid is the device: SM clusters of one CTA, or of two where a request has more than 64 packed query rows. The host
cuts the keys of every query tile into chunks of one limit and deals them to the clusters by cost. Nothing of it looks
at pages, element types, occupancy or CUDA graphs. Partial states are merged in the same launch, after a barrier of the
whole grid, so that there is no merge kernel.

Read from flashinfer-ai/flashinfer: include/flashinfer/attention/scheduler.cuh (MLAPlan), mla.cuh and mla_hopper.cuh
(kernels and launchers), flashinfer/mla (the wrapper, its checks and its `auto` policy), in the wheels of 0.6.18.post1,
0.7.0, 0.7.1, 0.7.2.post1 and 0.7.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.flashinfer.mla_work import Schedule, schedule
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import GRID, LaunchPlan
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.traits import SIZE, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

CTA_ROWS = 64  # CTA_TILE_Q
THREADS = 256
MAX_WORK_ITEMS = 16384  # max_total_num_works: what the plan's arrays hold
FA3_VALUE_DIMS = (128, 256, 512)
# fa2: (least shared memory of an SM, keys of a tile, stages), DISPATCH_SMEM_CONFIG.
FA2_SHAPES = ((221696, 64, 2), (147968, 32, 2), (92672, 16, 1))
FP8_TILE_KEYS = 32
KERNELS = {"fa2": "BatchMLAPagedAttentionKernel", "fa3": "BatchMLAPageAttentionHopperKernel"}
ITEM_BOUNDS = ((8, 32), (16, 64), (32, 128), (64, 192))  # mean keys of a cluster up to the first: chunks of the second


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaRules:
    """What differs between versions: the wrapper, never the planner."""

    ranked_capabilities: tuple[tuple[int, int], ...] = ((10, 0), (10, 3), (10, 7))
    """Devices on which `auto` ranks other kernels before fa2."""
    checks_work: bool = True
    """The wrapper refuses more work items than the plan's arrays hold, and masks that the kernel rounds otherwise."""


_V074 = MlaRules()
_V071 = replace(_V074, ranked_capabilities=((10, 0),))
_V0618 = MlaRules(ranked_capabilities=(), checks_work=False)


@dataclass(frozen=True, slots=True)
class FlashInferMlaOptions(EngineOptions):
    """What the caller of `BatchMLAPagedAttentionWrapper` decides."""

    backend: str = option(
        "auto",
        "str",
        "fa2, fa3, or auto: fa3 on SM90, else fa2; from 0.7.1 on auto may run other kernels on SM100, and the gate "
        "backend_is_planned says so",
        flag="backend",
        choices=("auto", "fa2", "fa3"),
    )
    causal: bool = option(
        True, "bool", "several query tokens see only the keys before them; one token sees all either way", flag="causal"
    )
    cuda_graph: bool = option(
        False, "bool", "the wrapper is made for CUDA graphs: the plan is the same, auto may choose otherwise",
        flag="use_cuda_graph",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferMlaDetail:
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
    """Chunks of keys dealt to clusters. `launched` is the number of clusters, which all requests share."""

    name = "flashinfer-mla"
    title = "FlashInfer MLA paged attention (plan/run, fa2 and fa3)"
    word_for_split = "chunk"
    options_type = FlashInferMlaOptions
    traits = Traits(server_names=("flashinfer",), partition=Partition(rule=SIZE, unit_keys=1))
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
            "`auto` is fa3 on SM90, else fa2",
        ),
    )
    rule = (
        "clusters of 2 CTAs where a request has more than 64 query rows (tokens x heads) on average, else of 1; SMs // "
        "cluster clusters. x = ceil(keys of all query tiles / clusters); chunks of 32, 64, 128, 192 keys up to x = 8, "
        "16, 32, 64, beyond that of x rounded up to 256. Chunks go to the cluster of least cost, 2 x tile rows + keys"
    )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashInferMlaOptions,
        version: PolicyVersion,
    ) -> Launches:
        """MLAPlan on arrays.

        GateError: another layer than MLA, AMD, a device, latent width or element type that no kernel exists for, too
        little shared memory, and more work items than the plan holds where the wrapper checks.
        """
        rules: MlaRules = version.rules
        backend = _backend(geo, gpu, options, rules)
        tile_keys = _check(geo, kv, gpu, backend)
        cluster = np.where(batches.total(batches.q_lens * geo.q_heads) // batches.batch > CTA_ROWS, 2, 1)
        clusters = gpu.sm_count // cluster
        if not clusters.all():
            raise GateError(f"flashinfer-mla: {gpu.sm_count} SM cannot hold a cluster of 2 CTAs", "too_few_sms")
        work = _Work(
            batches=batches, heads=geo.q_heads, causal=options.causal, cluster=cluster, clusters=clusters
        ).counted()
        fits = work.items <= MAX_WORK_ITEMS
        if rules.checks_work and not fits.any():
            raise GateError(
                f"flashinfer-mla: {at(work.items, 0)} work items, and the plan holds {MAX_WORK_ITEMS}",
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
        chosen, why = _backend_gate(geo, batches, gpu, options, rules, backend)
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
                        f"of {at(work.limit, n)}: {at(work.items, n)} work items, {at(clusters - live_clusters, n)} "
                        "clusters without one"
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
                    reason=lambda n: f"{at(work.items, n)} work items; the plan's arrays hold {MAX_WORK_ITEMS}",
                ),
                GateArray(
                    name="causal_tile_bound",
                    passed=exact,
                    reason=lambda n: (
                        f"query tiles of {at(tile_rows, n)} rows, {geo.q_heads} heads, key tiles of {tile_keys}: "
                        + (
                            "the kernel walks all visible keys"
                            if at(exact, n)
                            else "the kernel would leave out a visible key"
                            + (", so that the wrapper refuses" if rules.checks_work else "")
                        )
                    ),
                ),
                GateArray(name="backend_is_planned", passed=chosen, reason=why),
            ),
        )


def work_lists(plan: LaunchPlan) -> Schedule:
    """The exact work and merge lists of a plan of this engine, in the order of the engine's heap."""
    detail: FlashInferMlaDetail = plan.detail
    return schedule(
        plan.batch, plan.geometry.q_heads, detail.causal, detail.clusters, detail.cluster_tile_q, detail.kv_len_limit
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """What follows from the query tiles of every step. per_request [N, R], all others [N]."""

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
        """The chunk limit and all that it decides, without the lists."""
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


def _backend(geo: Geometry, gpu: Gpu, options: FlashInferMlaOptions, rules: MlaRules) -> str:
    """fa2 or fa3."""
    if options.backend != "auto":
        return options.backend
    has_width = geo.v_dim in FA3_VALUE_DIMS or not rules.ranked_capabilities
    return "fa3" if gpu.is_sm(90) and has_width else "fa2"


def _backend_gate(
    geo: Geometry, batches: Batches, gpu: Gpu, options: FlashInferMlaOptions, rules: MlaRules, backend: str
) -> tuple[Any, Callable[[int], str]]:
    """(the planned backend runs [N], why): on SM100 `auto` tries fa2 first only for little work outside CUDA graphs."""
    if options.backend != "auto":
        return True, lambda n: f"backend is {backend}"
    if gpu.compute_capability not in rules.ranked_capabilities:
        return True, lambda n: f"`auto` tries {backend} first on {gpu.label}"
    if options.cuda_graph:
        return False, lambda n: "`auto` ranks trtllm-gen and CuTe DSL kernels before fa2 for CUDA graphs on SM100"
    first = _fa2_first(batches, geo.q_heads)
    return first, lambda n: (
        f"`auto` tries {'fa2' if at(first, n) else 'trtllm-gen or CuTe DSL kernels'} first on SM100 for "
        f"{at(batches.batch, n)} requests of at most {at(batches.max_seq_len, n)} keys; the plan is fa2's"
    )


def _fa2_first(batches: Batches, heads: int) -> BoolArray:
    """Whether `ordered_sm100_backends` (mla/_batch_mla/_auto_policy.py) names fa2 first outside CUDA graphs [N]."""
    tokens, keys = batches.query_tokens, batches.total(batches.seq_lens)
    work, output = heads * batches.total(batches.q_lens * batches.seq_lens), heads * tokens
    one, longest, few_keys = batches.max_q_len == 1, batches.max_seq_len, keys < 5 * 2**14
    small = (work <= 2**21) & (output <= 32768) & (longest <= 4096)
    shallow = np.logical_or(~one | (output <= 2048), longest <= 2048) & (heads >= 128)
    within = np.where(shallow, work < 5 * 2**20, work <= 2**22).astype(bool)
    medium = within & (output <= 32768) & (longest < 32768) & few_keys
    decode = one & (work < 5 * 2**20) & (longest <= 4096) & (output <= 2048) & (batches.batch < 32) & few_keys
    return (tokens > 0) & (keys > 0) & (small | medium | decode)


def _check(geo: Geometry, kv: KvCache, gpu: Gpu, backend: str) -> int:
    """Keys of a tile. GateError for what no kernel exists for."""
    if not geo.mla:
        raise GateError("flashinfer-mla: needs an MLA geometry (one latent per key, both key and value)", "not_mla")
    if gpu.is_hip:
        raise GateError(f"flashinfer-mla: an NVIDIA kernel; {gpu.label} is an AMD device", "not_nvidia")
    if geo.kv_heads != 1:
        raise GateError(f"flashinfer-mla: one latent for all heads, not {geo.kv_heads} KV heads", "kv_heads")
    if geo.window is not None or geo.sinks or geo.softcap:
        raise GateError("flashinfer-mla: no sliding window, sinks or soft cap", "window_sinks_or_softcap")
    ckv, kpe = geo.v_dim, geo.head_dim - geo.v_dim
    if ckv % 128 or kpe % 64 or (backend == "fa3" and ckv not in FA3_VALUE_DIMS):
        raise GateError(
            f"flashinfer-mla: values of a multiple of 128 (fa3: 128, 256, 512) and a rotary part of a multiple of 64, "
            f"not {ckv} and {kpe}",
            "head_dim",
        )
    capability = gpu.compute_capability
    if backend == "fa3" and not gpu.is_sm(90):
        raise GateError(f"flashinfer-mla: fa3 runs on SM90 (Hopper) only, not {gpu.label}", "not_sm90")
    if capability is not None and capability < (8, 0):
        raise GateError(f"flashinfer-mla: fa2 runs from SM80 on, not on {gpu.label}", "compute_capability")
    _check_types(kv, gpu, ckv, kpe)
    return _tile_keys(kv, gpu, backend, ckv, kpe)


def _check_types(kv: KvCache, gpu: Gpu, ckv: int, kpe: int) -> None:
    if kv.dtype == "fp8":
        if not gpu.is_sm(90) or kv.query_dtype != "bf16" or ckv != 512 or kpe not in (0, 64):
            raise GateError(
                "flashinfer-mla: FP8 keys need SM90, bf16 queries and a latent of 512 + 64 or 512, not "
                f"{kv.query_dtype} queries and {ckv} + {kpe} on {gpu.label}",
                "fp8_keys",
            )
    elif kv.dtype not in ("bf16", "fp16") or kv.query_dtype != kv.dtype:
        raise GateError(
            f"flashinfer-mla: bf16 or fp16 keys and queries alike, or FP8 keys, not {kv.dtype} keys and "
            f"{kv.query_dtype} queries",
            "dtype",
        )


def _tile_keys(kv: KvCache, gpu: Gpu, backend: str, ckv: int, kpe: int) -> int:
    """Keys of a tile, after the check that its buffers fit: SharedStorageQKVO and HopperSharedStorageQKVO."""
    fp8, per_sm, per_block = kv.dtype == "fp8", gpu.smem_bytes_per_sm, gpu.max_smem_bytes_per_block
    queries, key_bytes = CTA_ROWS * (ckv + kpe) * 2, 1 if fp8 else 2
    if backend == "fa3":
        tile_keys = 64
        stage = 64 * ckv * key_bytes + max(64 * kpe * key_bytes, 64 * 64 * 2)
        repack = 64 * ckv * 2 + round_up(max(64 * kpe, 1) * 2, 16) if fp8 else 32
        needed = queries + max(2 * stage + repack, 64 * ckv * 2) + 3 * 64 * 4 + 64
    else:
        shapes = [shape for shape in FA2_SHAPES if per_sm is None or per_sm >= shape[0]]
        if not shapes:
            raise GateError(
                f"flashinfer-mla: fa2 needs SMs with {FA2_SHAPES[-1][0]} bytes of shared memory, not {per_sm}",
                "shared_memory",
            )
        _, tile_keys, stages = shapes[0]
        tile_keys = FP8_TILE_KEYS if fp8 else tile_keys
        keys = stages * tile_keys
        repack = keys * ckv * 2 + round_up(keys * max(kpe, 1) * 2, 16) if fp8 else 32
        needed = queries + keys * (ckv + max(kpe, 64)) * key_bytes + repack + 2 * 64 * 4
        needed = max(needed, 64 * ckv * 2)
    if per_block is not None and needed > per_block:
        raise GateError(
            f"flashinfer-mla: {backend} needs {needed} bytes of shared memory for a block, {gpu.label} has {per_block}",
            "shared_memory",
        )
    return tile_keys


POLICY = FlashInferMla()
