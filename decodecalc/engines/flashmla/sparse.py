"""flashmla-sparse: FlashMLA's fp8 decode over gathered keys (DeepSeek sparse attention), and vLLM's dense fp8 decode.

An indexer hands every request a list of at most `topk` keys, and the list is dealt to SM parts by the walk of the dense
kernel (`walk.py`). The context's length therefore plays no part: a request of 8000 keys and one of 800 000 get the same
schedule. A layer can have a second list (`extra_topk`, from another cache), which begins at the next whole block.

The number of parts depends on the query tokens and on the heads, never on the batch: one request with as many query
tokens as there are SMs leaves a single part.

Read from deepseek-ai/FlashMLA@9241ae3: csrc/api/sparse_decode.h (parts, checks, buffers), csrc/smxx/decode/
get_decoding_sched_meta/get_decoding_sched_meta.cu (the walk), csrc/smxx/decode/combine/combine.cu and the launchers in
csrc/sm90/decode/sparse_fp8, csrc/sm100/decode/head64 and csrc/sm100/prefill/sparse/fwd_for_small_topk/head128 (grids).
Dense fp8 (`path=dense_fp8`): vllm-project/FlashMLA@46d64a8, csrc/extension/sm90/dense_fp8/pybind.cpp,
flash_fwd_mla_metadata.cu and flash_fwd_mla_kernel.h. Head padding: vLLM 0.33.0,
vllm/v1/attention/backends/mla/flashmla_sparse.py, _compute_fp8_decode_padded_heads.

In a sweep, where one class stands for many equal requests, `requested` and `live` are the most that any of them gets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flashmla.schedule import TileSchedule, schedule
from decodecalc.engines.flashmla.walk import BLOCK_KEYS, OVERHEAD_BLOCKS, SmPart
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SAME, Numbers, Takes, only
from decodecalc.launch.traits import IRREGULAR, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

SPARSE, DENSE = "sparse_fp8", "dense_fp8"
BLOCK_ROWS = 64  # query heads (sparse) or query rows (dense) of one block
V_DIM = 512
COMBINE_HEADS = 8  # heads of a sparse combine block: BLOCK_SIZE_M in combine.cu
MAX_COMBINE_PARTS = 160  # MLA_NUM_SPLITS_SWITCH aborts above it
DENSE_MAX_BATCH = 4096  # MaxBatchSize: static arrays of the dense metadata kernel
# Cache row of one key: fp8 latent, bf16 rope part and scales (sparse_decode.h bytes_per_token; dense is plain fp8).
ROW_BYTES = {576: 512 + 64 * 2 + 512 // 128 * 4, 512: 448 + 64 * 2 + 448 // 64 + 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashMlaSparseOptions(EngineOptions):
    """The index lists of the step, and how the entry point is called."""

    path: str = option(
        SPARSE, "str", "sparse_fp8 reads gathered keys; dense_fp8 is vLLM's dense fp8 decode", choices=(SPARSE, DENSE)
    )
    topk: int | None = option(
        None,
        "int?",
        "width of the index list; by default the list holds every key of a request",
        flag="index_topk",
        low=1,
    )
    topk_lengths: tuple[int, ...] | None = option(
        None, "ints?", "keys in each request's list, for one step; topk by default", flag="topk_length"
    )
    extra_topk: int = option(0, "int", "width of the second index list; 0 means that there is none")
    extra_topk_lengths: tuple[int, ...] | None = option(
        None,
        "ints?",
        "keys in each request's second list, for one step; extra_topk by default",
        flag="extra_topk_length",
    )
    pad_heads: bool = option(
        True, "bool", "vLLM pads the heads to 64 or 128; when off, the call must have 64 or 128 heads"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One of the decode implementations, with the constants of its plan."""

    name: str
    """The implementation, by architecture and heads."""
    heads: int
    """Query heads of the call, padding included."""
    launches: int
    """Kernels launched one after another, each for its share of the heads."""
    cluster: int
    """Blocks of a cluster."""
    overhead: int
    """Blocks that starting a request costs (fixed_overhead_num_blocks)."""
    threads: int
    """Threads of a block."""

    @property
    def heads_per_launch(self) -> tuple[int, ...]:
        """Query heads of each launch."""
        return (self.heads // self.launches,) * self.launches


class FlashMlaSparseDetail(NamedTuple):
    """The schedule in FlashMLA's words."""

    kernel: str
    """The implementation that runs."""
    padded_heads: int
    """Query heads of the call, padding included."""
    kernel_launches: int
    """Kernels launched one after another, each for its share of the heads."""
    heads_per_launch: tuple[int, ...]
    """Query heads of each launch."""
    cluster: tuple[int, int, int]
    """Blocks of a cluster."""
    num_sm_parts: Any
    """SM parts [N]."""
    fixed_overhead_blocks: int
    """Blocks that starting a request costs."""
    block_keys: int
    """Keys of a block."""
    payload_blocks: Any
    """Blocks that a part takes at most [N]."""
    used_parts: Any
    """Parts with work [N]."""
    splits_per_request: Any
    """Partial results of each request, at least 1 [N, R]."""
    gathered_keys: Any
    """Keys that the walk sees for each request: its list, or both lists [N, R]."""
    kv_row_bytes: int
    """Bytes of one cache row."""
    accum_rows: Any
    """Partial states of one (token, head) that the buffers hold [N]."""
    accum_bytes: Any
    """Bytes of the partial outputs and their log-sum-exps [N]."""
    sm_parts: tuple[SmPart, ...] | None
    """The requests and blocks that each part with work serves, of a single plan only."""

    @property
    def num_splits(self) -> tuple[int, ...]:
        """The engine's `num_splits`, which is cumulative with B + 1 entries and not a count per request."""
        return (0, *accumulate(self.splits_per_request))


class FlashMlaSparse(Policy):
    """Blocks of gathered keys dealt to SM parts. `launched` is the number of parts, which all requests share."""

    name = "flashmla-sparse"
    title = "FlashMLA sparse fp8 decode (SM90, SM100)"
    word_for_split = "SM part"
    versions = (
        PolicyVersion(
            "2026-04-29",
            "deepseek-ai/FlashMLA@9241ae3 csrc/api/sparse_decode.h, get_decoding_sched_meta.cu; dense fp8: "
            "vllm-project/FlashMLA@46d64a8 csrc/extension/sm90/dense_fp8",
            ("2026-04-29", "2026-04-29"),
            note="vLLM 0.33 bundles a later build of its fork, of which only the binary is available",
        ),
    )
    options_type = FlashMlaSparseOptions
    rule = (
        "parts = max(SMs // q // (heads / 64), 1) on SM90, max(SMs // q, 1) on SM100 (half of it for 128 heads of "
        "width 512, which run in pairs of blocks); payload = ceil(sum(ceil(K / 64) + F) / parts) + F blocks, K the "
        "request's list and F 5 (3 for the pairs); requests are dealt to the parts in order. Dense fp8: parts = SMs // "
        "kv_heads // ceil(q * group / 64)"
    )
    traits = Traits(
        sparse=True,
        server_names=("FLASHMLA_SPARSE", "flashmla_sparse"),
        schedules_once_a_step=True,
        partition=Partition(rule=IRREGULAR),
    )

    def combinations(self, options: FlashMlaSparseOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        gathered = Takes(
            devices=("sm90", "sm10x"),
            mla=True,
            sparse=True,
            windows=False,
            cache_dtypes=("fp8",),
            query_dtypes=("bf16",),
            head_dims=only(*ROW_BYTES),
            value_dims=only(V_DIM),
            q_heads=Numbers(high=128) if options.pad_heads else only(64, 128),
            kv_heads=only(1),
        )
        if options.path == SPARSE:
            return (gathered,)
        return (
            replace(
                gathered, devices=("sm90",), sparse=False, query_dtypes=SAME, head_dims=only(576), q_heads=Numbers(),
                kv_heads=Numbers(), page_sizes=only(BLOCK_KEYS),
            ),
        )  # fmt: skip

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashMlaSparseOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the walk to arrays.

        Raises GateError for what the entry point refuses, and InputError for lists that do not fit the batch.
        """
        if not geo.mla or geo.v_dim != V_DIM or geo.head_dim not in ROW_BYTES:
            raise GateError(
                f"flashmla-sparse takes MLA latents of 576 or 512 elements with values of 512 only, not {geo.kind} "
                f"{geo.head_dim}/{geo.v_dim}",
                "not_mla" if not geo.mla else "head_dim",
            )
        if geo.window is not None:
            raise GateError("flashmla-sparse: these kernels have no sliding window", "window")
        if not (batches.q_lens == batches.max_q_len[:, None]).all():
            raise GateError("flashmla-sparse: every request needs the same number of query tokens", "ragged_q_len")
        if options.path == DENSE:
            if geo.gather is not None:
                raise GateError("flashmla-sparse: path=dense_fp8 reads whole sequences, not lists", "sparse_layer")
            _check_dense(geo, kv, gpu, options)
            return _dense(geo, batches, gpu)
        return _sparse(geo, batches, kv, gpu, options)


def _sparse(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: FlashMlaSparseOptions) -> Launches:
    kernel = _kernel_of(geo, kv, gpu, options)
    tokens = batches.max_q_len
    blocks_per_token = kernel.heads // BLOCK_ROWS if kernel.cluster > 1 or gpu.is_sm(90) else 1
    parts = np.maximum(gpu.sm_count // tokens // blocks_per_token, 1)
    found = schedule(
        keys=_gathered(geo, batches, options),
        counts=batches.counts,
        parts=parts,
        overhead=kernel.overhead,
        empty_keys=1,
    )
    used = found.pieces.used_parts
    one = np.ones_like(tokens)
    grid = (blocks_per_token * one, tokens, parts) if gpu.is_sm(90) else (blocks_per_token * tokens, parts, one)
    columns = (blocks_per_token * kernel.launches * tokens)[:, None]
    head_blocks = cdiv(kernel.heads, COMBINE_HEADS)
    kernels = (
        KernelArray(name="get_mla_metadata_kernel", role="scheduler", grid=(1, 1, 1), threads=32, live_blocks=1),
        *(
            KernelArray(
                name="flash_fwd_splitkv_mla_fp8_sparse_kernel",
                role="stage1",
                grid=grid,
                threads=kernel.threads,
                live_blocks=blocks_per_token * tokens * used,
                tile_keys=BLOCK_KEYS,
            )
            for _ in range(kernel.launches)
        ),
        KernelArray(
            name="flash_fwd_mla_combine_kernel",
            role="merge",
            grid=(batches.batch * tokens, 1, head_blocks),
            threads=COMBINE_HEADS * 32,
            live_blocks=found.pieces.split_requests * tokens * head_blocks,
        ),
    )
    # The Hopper launcher asserts that rows of 576 come without per-request lengths and without a second list.
    two_lists = geo.gather is not None and geo.gather.window is not None and options.topk is None
    plain = options.topk_lengths is None and not options.extra_topk and not two_lists
    v32_sm90 = gpu.is_sm(90) and geo.head_dim == 576
    gates = (
        GateArray(
            "lists_supported",
            plain or not v32_sm90,
            lambda n: (
                "rows of 656 bytes on SM90 take one list of one width: topk_lengths or extra_topk abort the launch"
                if v32_sm90
                else f"the {kernel.name} kernel takes lengths per request and a second list"
            ),
        ),
    )
    return _planned(
        geo, batches, found, kernel, kernels, columns, _metadata_gate(gpu, batches), gates, ROW_BYTES[geo.head_dim]
    )


def _dense(geo: Geometry, batches: Batches, gpu: Gpu) -> Launches:
    rows = batches.max_q_len * geo.group
    m_blocks = cdiv(rows, BLOCK_ROWS)
    parts = gpu.sm_count // geo.kv_heads // m_blocks  # the source has no lower bound of 1
    if (parts < 1).any():
        raise GateError(
            f"flashmla-sparse: dense fp8 leaves no SM part for {int(m_blocks.max()) * geo.kv_heads} row blocks on "
            f"{gpu.sm_count} SMs",
            "no_sm_parts",
        )
    kernel = Kernel(
        name="sm90_dense_fp8", heads=geo.q_heads, launches=1, cluster=1, overhead=OVERHEAD_BLOCKS, threads=256
    )
    found = schedule(keys=batches.seq_lens, counts=batches.counts, parts=parts, empty_blocks=0)
    used = found.pieces.used_parts
    kernels = (
        KernelArray(name="get_mla_metadata_kernel", role="scheduler", grid=(1, 1, 1), threads=32, live_blocks=1),
        KernelArray(
            name="flash_fwd_splitkv_mla_kernel",
            role="stage1",
            grid=(m_blocks, geo.kv_heads, parts),
            threads=kernel.threads,
            live_blocks=m_blocks * geo.kv_heads * used,
            tile_keys=BLOCK_KEYS,
        ),
        KernelArray(
            name="flash_fwd_splitkv_mla_combine_kernel",
            role="merge",
            grid=(batches.batch * geo.kv_heads * rows, 1, 1),
            threads=128,
            live_blocks=found.pieces.split_requests * geo.kv_heads * rows,
        ),
    )
    fits = GateArray(
        "metadata_fits",
        batches.batch < DENSE_MAX_BATCH,
        lambda n: f"there are {at(batches.batch, n)} requests, and the metadata kernel holds fewer than "
        f"{DENSE_MAX_BATCH}",
    )
    columns = (m_blocks * geo.kv_heads)[:, None]
    return _planned(geo, batches, found, kernel, kernels, columns, fits, (), geo.head_dim)


def _planned(
    geo: Geometry,
    batches: Batches,
    found: TileSchedule,
    kernel: Kernel,
    kernels: tuple[KernelArray, ...],
    columns: IntArray,
    fits: GateArray,
    more_gates: tuple[GateArray, ...],
    row_bytes: int,
) -> Launches:
    parts, payload, used = found.parts, found.payload, found.pieces.used_parts
    accum_rows = batches.batch + parts
    accum_bytes = accum_rows * batches.max_q_len * kernel.heads * (V_DIM + 1) * 4
    detail = FlashMlaSparseDetail(
        kernel=kernel.name,
        padded_heads=kernel.heads,
        kernel_launches=kernel.launches,
        heads_per_launch=kernel.heads_per_launch,
        cluster=(kernel.cluster, 1, 1),
        num_sm_parts=parts,
        fixed_overhead_blocks=kernel.overhead,
        block_keys=BLOCK_KEYS,
        payload_blocks=payload,
        used_parts=used,
        splits_per_request=found.requested,
        gathered_keys=found.walked,
        kv_row_bytes=row_bytes,
        accum_rows=accum_rows,
        accum_bytes=accum_bytes,
        sm_parts=found.sm_parts,
    )
    dense = kernel.name == "sm90_dense_fp8"
    block_rows = np.minimum(batches.max_q_len * geo.group, BLOCK_ROWS) if dense else min(geo.q_heads, BLOCK_ROWS)
    gates = (
        GateArray(
            "split",
            found.is_split,
            lambda n: (
                f"{at(found.total, n)} blocks ({kernel.overhead} of them added for each request) go to "
                f"{at(parts, n)} SM parts; a payload of {at(payload, n)} blocks fills {at(used, n)} of them"
            ),
        ),
        GateArray(
            "combine_supported",
            parts <= MAX_COMBINE_PARTS,
            lambda n: f"there are {at(parts, n)} SM parts, and the combine kernel aborts above {MAX_COMBINE_PARTS}",
        ),
        fits,
        *more_gates,
    )
    return Launches(
        is_split=found.is_split,
        kernels=kernels,
        requested=found.requested,
        launched=parts,
        live=found.live,
        split_keys=found.split_keys,
        keys_read=found.keys,
        blocks_per_split=np.broadcast_to(columns, found.blocks.shape),
        unsplit_blocks=batches.total(columns * (found.keys > 0)),
        tile_keys=BLOCK_KEYS,
        block_rows=BLOCK_ROWS,
        live_rows=block_rows,
        state_values=V_DIM + 1,
        partial_splits=found.partial_splits,
        shared_slots=True,
        scratch_bytes=accum_bytes,
        determinism="batch-dependent",
        detail=detail,
        gates=gates,
        key_ranges=found.key_ranges,
    )


def _gathered(geo: Geometry, batches: Batches, options: FlashMlaSparseOptions) -> IntArray:
    """Keys that the walk sees for each request [N, R]: the list, and behind its last whole block the second list.

    Where the options leave it to the layer, a list of selected keys is walked in its whole width, however short the
    sequence is, and the nearest keys are a list of their own, with lengths per request, before the compressed entries.
    """
    gather, contexts = geo.gather, batches.contexts
    if gather is not None and contexts is not None and options.topk is None and options.topk_lengths is None:
        if gather.window is not None:
            return round_up(np.maximum(gather.near(contexts), 1), BLOCK_KEYS) + gather.listed(contexts)
        if gather.topk is not None:
            return np.full_like(contexts, round_up(gather.topk, BLOCK_KEYS))
    lengths = _lengths(batches, "topk_lengths", options.topk_lengths)
    if lengths is None:
        lengths = batches.seq_lens if options.topk is None else np.full_like(batches.seq_lens, options.topk)
    extra = _lengths(batches, "extra_topk_lengths", options.extra_topk_lengths)
    if not options.extra_topk:
        return lengths
    return round_up(np.maximum(lengths, 1), BLOCK_KEYS) + (options.extra_topk if extra is None else extra)


def _lengths(batches: Batches, name: str, given: tuple[int, ...] | None) -> IntArray | None:
    if given is None:
        return None
    requests = batches.seq_lens.shape[1]
    if batches.n > 1 or (batches.counts != 1).any() or len(given) != requests:
        raise InputError(
            f"{name} gives {len(given)} lengths, and it needs one for each request of one step ({requests})"
        )
    return np.array([given], dtype=np.int64)


def _kernel_of(geo: Geometry, kv: KvCache, gpu: Gpu, options: FlashMlaSparseOptions) -> Kernel:
    """The implementation that the entry point chooses. Raises GateError where the entry point raises."""
    if geo.kv_heads != 1:
        raise GateError(f"flashmla-sparse takes one latent per key only, not {geo.kv_heads} KV heads", "kv_heads")
    if kv.dtype != "fp8" or kv.query_dtype != "bf16":
        raise GateError(
            f"flashmla-sparse takes an fp8 cache and bf16 queries, not {kv.dtype} and {kv.query_dtype}", "dtype"
        )
    padded = 64 if geo.q_heads <= 64 else 128
    heads = max(padded, geo.q_heads) if options.pad_heads else geo.q_heads
    if heads not in (64, 128):
        raise GateError(f"flashmla-sparse takes 64 or 128 query heads (padding included), not {heads}", "heads")
    sm100 = not gpu.is_hip and gpu.is_sm_family(100)
    if gpu.is_hip or not (gpu.is_sm(90) or sm100):
        raise GateError(f"flashmla-sparse runs on SM90 and SM100 only, not on {gpu.label}", "arch")
    for name, width in (("topk", options.topk), ("extra_topk", options.extra_topk)):
        if width and width % BLOCK_KEYS:
            raise GateError(f"flashmla-sparse: {name} must be a multiple of 64, not {width}", "topk_not_multiple_of_64")
    if not sm100:
        return Kernel(
            name=f"sm90_sparse_fp8_h{heads}",
            heads=heads,
            launches=1,
            cluster=heads // 64,
            overhead=OVERHEAD_BLOCKS,
            threads=384,
        )
    if heads == 128 and geo.head_dim == 512:
        return Kernel(name="sm100_head128", heads=heads, launches=1, cluster=2, overhead=3, threads=512)
    launches = heads // 64
    return Kernel(name="sm100_head64", heads=heads, launches=launches, cluster=1, overhead=OVERHEAD_BLOCKS, threads=384)


def _check_dense(geo: Geometry, kv: KvCache, gpu: Gpu, options: FlashMlaSparseOptions) -> None:
    if gpu.is_hip or not gpu.is_sm(90):
        raise GateError(f"flashmla-sparse: dense fp8 runs on SM90 (Hopper) only, not on {gpu.label}", "arch")
    if kv.dtype != "fp8" or kv.query_dtype != "fp8":
        raise GateError(
            f"flashmla-sparse: dense fp8 takes fp8 keys and queries, not {kv.dtype} and {kv.query_dtype}", "dtype"
        )
    if geo.head_dim != 576:
        raise GateError(f"flashmla-sparse: dense fp8 takes latents of 576, not {geo.head_dim}", "head_dim")
    if kv.page_size != BLOCK_KEYS:
        raise GateError(
            f"flashmla-sparse: dense fp8 takes pages of {BLOCK_KEYS} keys, not {kv.page_size}; this is an error "
            f"at start-up",
            "page_size",
        )
    if options.topk is not None or options.topk_lengths is not None or options.extra_topk:
        raise InputError("flashmla-sparse: path=dense_fp8 reads every key; leave topk out")


def _metadata_gate(gpu: Gpu, batches: Batches) -> GateArray:
    smem = 4 * (5 * batches.batch + 1)
    most = gpu.max_smem_bytes_per_block
    return GateArray(
        "metadata_fits",
        True if most is None else smem <= most,
        lambda n: (
            f"{at(batches.batch, n)} requests need {at(smem, n)} bytes of shared memory, and "
            f"{most or 'an unknown number'} fit"
        ),
    )


POLICY = FlashMlaSparse()
