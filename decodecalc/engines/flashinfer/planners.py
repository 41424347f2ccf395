"""FlashInfer's two planners on arrays: DecodePlan for CUDA cores, PrefillPlan for tensor cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flashinfer.rules import (
    MIN_CHUNK_KEYS,
    OUTPUT_BYTES,
    FlashInferRules,
    cache_bytes,
    decode_registers,
    key_tile,
    query_tile,
    smallest_chunk,
)
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, distinct, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.resident import blocks_per_sm

if TYPE_CHECKING:
    from decodecalc.engines.flashinfer.options import FlashInferOptions
    from decodecalc.gpus import Gpu

TENSOR_CORE_BLOCKS_PER_SM = 2  # scheduler.cuh, PrefillPlanImpl: num_blocks_per_sm, whatever the kernel's occupancy
MERGE_REGISTERS = 40  # ptxas of CUDA 13.0.88 for sm_90 on FlashInfer v0.6.9, bf16, head dims up to 256
MERGE_THREADS = 128


class FlashInferDetail(NamedTuple):
    """The plan in FlashInfer's words. None stands for what the planner of this path does not have."""

    kernel_path: str
    """`cuda_cores` or `tensor_cores`."""
    kv_chunk_tokens: Any
    """Keys of a chunk; 0 when splitting is disabled."""
    chunks_per_request: Any
    """Chunks of a request; times its query tiles they are its work items."""
    work_items: Any
    """Work items of this step over all requests and query tiles, per KV head."""
    padded_batch_size: Any
    """Work items that the grid holds, per KV head."""
    max_batch_size_if_split: int
    """Work items that the planner allows, per KV head."""
    max_grid_size: int
    """Blocks that the planner allows."""
    blocks_per_sm: int
    """Blocks of an SM that the planner counts with."""
    q_tiles_per_request: Any = None
    """Query tiles of a request."""
    cta_tile_q: Any = None
    """Packed query rows of a block."""
    total_num_rows: Any = None
    """Query tokens of the step, as the wrapper passes them."""
    uniform_q_len: Any = None
    """Query tokens of every request that the wrapper promises the planner; 0 for no promise."""
    fixed_uniform_q_len: bool | None = None
    """Whether the promise holds for every replay of the graph."""
    causal: Any = None
    """Whether the wrapper asks for a causal mask."""
    partial_rows: Any = None
    """Partial states of one query head that this step writes; 0 where nothing is split."""
    float_workspace_bytes: Any = None
    """Bytes of the partial states in the float workspace."""
    int_workspace_bytes: Any = None
    """Bytes of the plan's own arrays in the int workspace, from 0.7.1 on."""


def cuda_core_launches(
    geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: FlashInferOptions, rules: FlashInferRules
) -> Launches:
    """DecodePlan: a block serves a whole group, the occupancy sizes the grid, and chunks ignore the window."""
    if geo.group not in rules.groups:
        raise GateError(
            f"flashinfer: CUDA-core decode is compiled for groups of {', '.join(map(str, rules.groups))} query heads "
            f"per KV head, not {geo.group}; use path=tensor_cores",
            "group_size_not_compiled_for_cuda_cores",
        )
    if batches.max_q_len.max() > 1:
        raise GateError("flashinfer: several query tokens need path=tensor_cores", "q_len_needs_tensor_cores")
    if options.fixed_split_size_pages is not None:
        raise GateError("flashinfer: fixed_split_size needs path=tensor_cores", "fixed_split_needs_tensor_cores")
    element = cache_bytes(kv)
    width = geo.head_dim // max(16 // element, geo.head_dim // 32)  # threads that share a key (bdx)
    block_threads = max(128, width * geo.group)
    depth = max(block_threads // (width * geo.group), 1)  # key groups that a block walks side by side (bdz)
    keys_per_thread = (2 if element == 1 else 4) if geo.group == 1 else 1
    tile_keys = keys_per_thread * geo.group * depth
    threads = width * geo.group * depth
    stages = 1 if gpu.compute_capability is not None and gpu.compute_capability[0] < 8 else 2
    smem = 2 * stages * tile_keys * geo.head_dim * element + max(
        keys_per_thread * block_threads * 8, 2 * geo.group * depth * 4
    )
    registers = decode_registers(geo.head_dim, geo.group, element)
    occupancy = options.blocks_per_sm or blocks_per_sm(block_threads, smem, registers, gpu)
    max_grid = occupancy * gpu.sm_count
    slots = max_grid // geo.kv_heads
    full = batches.batch * geo.kv_heads >= max_grid
    pages = cdiv(batches.seq_lens, kv.page_size)
    ones = np.ones_like(pages)
    chunk = smallest_chunk(batches, pages, ones, slots, max(MIN_CHUNK_KEYS // kv.page_size, 1))
    chunk = np.where(full, np.maximum(batches.largest(pages), 1), chunk)
    chunks = cdiv(np.maximum(pages, 1), chunk[:, None])
    items = batches.total(chunks)
    is_split = ~full & (options.cuda_graph | (items != batches.batch))
    padded = np.where(is_split & options.cuda_graph, slots, items)
    found = _Chunked(
        geo=geo, batches=batches, gpu=gpu, is_split=is_split, chunk_keys=chunk * kv.page_size, chunks=chunks,
        columns=ones, items=items, padded=padded, first_key=np.zeros_like(pages),
    )  # fmt: skip
    return found.launches(
        kernel=KernelArray(
            name="BatchDecodeWithPagedKVCacheKernel", role="stage1", grid=(padded, geo.kv_heads, 1),
            threads=threads, live_blocks=found.live_blocks, tile_keys=tile_keys,
        ),
        merge_rows=batches.batch,
        tile_keys=tile_keys,
        block_rows=geo.group,
        live_rows=geo.group,
        resident_blocks=blocks_per_sm(threads, smem, registers, gpu),
        scratch_rows=padded,
        determinism="batch-dependent",
        detail=FlashInferDetail(
            kernel_path="cuda_cores", kv_chunk_tokens=chunk * kv.page_size, chunks_per_request=chunks,
            work_items=items, padded_batch_size=padded, max_batch_size_if_split=slots, max_grid_size=max_grid,
            blocks_per_sm=occupancy,
        ),
        gates=(
            GateArray(
                name="tensor_cores",
                passed=False,
                reason=lambda n: "the path is cuda_cores, where a block walks the keys of a whole group",
            ),
            GateArray(
                name="split",
                passed=is_split,
                reason=lambda n: (
                    f"{at(batches.batch, n)} requests x {geo.kv_heads} KV heads "
                    + (
                        f"fill the grid of {occupancy} x {gpu.sm_count} = {max_grid} blocks"
                        if at(full, n)
                        else f"leave room in a grid of {occupancy} x {gpu.sm_count} = {max_grid} blocks, and chunks of "
                        f"{at(chunk, n)} pages make {at(items, n)} work items"
                    )
                ),
            ),
            _graph_gate(options.cuda_graph, items, padded, is_split),
        ),
    )  # fmt: skip


def tensor_core_launches(
    geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: FlashInferOptions, rules: FlashInferRules
) -> Launches:
    """PrefillPlan as the decode wrapper calls it: it packs query rows by the group and assumes two blocks per SM."""
    fixed, disabled, graph = options.fixed_split_size_pages, options.disable_split_kv, options.cuda_graph
    if not rules.fixed_split and (fixed is not None or disabled):
        raise GateError("flashinfer: fixed_split_size and disable_split_kv came with version 0.4.0", "no_fixed_split")
    missing = np.where(batches.counts > 0, batches.q_lens - batches.seq_lens, 0)
    holds = (batches.max_q_len <= 1) | (batches.largest(missing) <= 0) | (not rules.checks_lengths)
    if not holds.any():
        raise GateError(
            f"flashinfer: a request has {at(batches.largest(missing), 0)} keys fewer than query tokens, but the cache "
            "must hold the keys of its query tokens",
            "kv_shorter_than_q_len",
        )
    max_grid = TENSOR_CORE_BLOCKS_PER_SM * gpu.sm_count
    slots = max_grid // geo.kv_heads
    packed = batches.q_lens * geo.group
    least_promised = 1 if rules.fixed_uniform_q_len else 2
    is_uniform = (batches.smallest(batches.q_lens) == batches.max_q_len) & (batches.max_q_len >= least_promised)
    promised = np.where(is_uniform & rules.uniform_q_len, batches.max_q_len, 0)
    if graph:
        # A promised uniform length sizes the tile; without one the ragged worst case does: one request has every row
        # but one of each other request.
        uniform = promised > 0
        ragged_rows = (batches.query_tokens - batches.batch + 1) * geo.group
        tile = query_tile(np.where(uniform, batches.max_q_len * geo.group, ragged_rows), geo, kv, gpu, rules)
        q_tiles = cdiv(packed, tile[:, None])
        bound = cdiv(batches.query_tokens * geo.group, tile) + batches.batch - 1
        all_tiles = np.where(uniform, batches.total(q_tiles), bound)
    else:
        tile = query_tile(batches.total(packed) // batches.batch, geo, kv, gpu, rules)
        q_tiles = cdiv(packed, tile[:, None])
        all_tiles = batches.total(q_tiles)
    pages = cdiv(batches.seq_lens, kv.page_size)
    first_key = np.zeros_like(pages)
    if geo.window is not None and rules.window_clamp:
        pages = np.minimum(pages, cdiv(geo.window - 1 + tile, kv.page_size)[:, None])
        first_key = visible_start(batches, geo.window)
    pages = np.maximum(pages, 1)
    # Every replay has this many query tiles, and past the budget the search below never splits.
    unsplit_graph = (promised > 0) & (all_tiles > slots) & (graph and rules.fixed_uniform_q_len and fixed is None)
    if disabled:
        chunk, chunks = batches.largest(pages), np.ones_like(pages)
    else:
        if fixed is None:
            chunk = smallest_chunk(batches, pages, q_tiles, slots, max(MIN_CHUNK_KEYS // kv.page_size, 1))
        else:
            chunk = np.full_like(tile, fixed)
        chunks = cdiv(pages, chunk[:, None])
    items = batches.total(q_tiles * chunks)
    if disabled:
        is_split = np.zeros_like(tile, dtype=bool)
    elif fixed is not None:
        is_split = batches.largest(chunks) > 1
    else:
        is_split = graph | (chunk < batches.largest(pages))
        is_split &= ~unsplit_graph
    padded = np.maximum(slots, all_tiles) if graph else items
    fits = items <= padded
    if not fits.any():
        raise GateError(
            f"flashinfer: chunks of {fixed} pages make {at(items, 0)} work items for a CUDA graph padded to "
            f"{at(padded, 0)}; plan without cuda_graph or with a larger fixed_split_size",
            "work_items_exceed_padded_batch_size",
        )
    # The tile follows the mean number of packed rows of the launch (FA2DetermineCtaTileQ), whatever the splits.
    determinism = "tile-dependent" if disabled else "batch-dependent" if fixed is None else "fixed size"
    tile_keys = np.zeros_like(tile)
    for rows in distinct(tile):
        tile_keys[tile == rows] = key_tile(rows, geo, kv, gpu)
    chunk_keys = chunk * kv.page_size
    found = _Chunked(
        geo=geo, batches=batches, gpu=gpu, is_split=is_split, chunk_keys=chunk_keys, chunks=chunks, columns=q_tiles,
        items=items, padded=padded, first_key=first_key,
    )  # fmt: skip
    longest = batches.largest(pages)
    partial_rows = cdiv(padded * tile, geo.group) if rules.bounds_partials else padded * tile
    int_workspace = _int_workspace_bytes(padded, batches, graph, is_split) if rules.bounds_partials else None
    return found.launches(
        kernel=KernelArray(
            name="BatchPrefillWithPagedKVCacheKernel", role="stage1", grid=(padded, 1, geo.kv_heads), threads=128,
            live_blocks=found.live_blocks, tile_keys=tile_keys,
        ),
        merge_rows=batches.query_tokens,
        tile_keys=tile_keys,
        block_rows=tile,
        live_rows=np.minimum(batches.max_q_len * geo.group, tile),
        scratch_rows=partial_rows,
        determinism=determinism,
        detail=FlashInferDetail(
            kernel_path="tensor_cores", kv_chunk_tokens=0 if disabled else chunk_keys, chunks_per_request=chunks,
            q_tiles_per_request=q_tiles, cta_tile_q=tile, work_items=items, padded_batch_size=padded,
            max_batch_size_if_split=slots, max_grid_size=max_grid, blocks_per_sm=TENSOR_CORE_BLOCKS_PER_SM,
            total_num_rows=batches.query_tokens, uniform_q_len=promised,
            fixed_uniform_q_len=rules.fixed_uniform_q_len, causal=batches.max_q_len > 1,
            partial_rows=is_split * batches.total(batches.q_lens * chunks),
            float_workspace_bytes=is_split * float_workspace_bytes(partial_rows, geo),
            int_workspace_bytes=int_workspace,
        ),
        gates=(
            GateArray(
                name="tensor_cores",
                passed=True,
                reason=lambda n: (
                    f"the prefill planner puts {at(batches.max_q_len, n)} x {geo.group} query rows into tiles of "
                    f"{at(tile, n)}"
                ),
            ),
            GateArray(
                name="split",
                passed=is_split,
                reason=lambda n: (
                    "disable_split_kv is set"
                    if disabled
                    else f"{at(all_tiles, n)} query tiles of every replay exceed the {slots} work items of a split "
                    "plan, so the graph is planned unsplit"
                    if at(unsplit_graph, n)
                    else f"chunks of {at(chunk, n)} pages, where the longest request has {at(longest, n)}, make "
                    f"{at(items, n)} work items; {slots} = 2 x {gpu.sm_count} SMs // {geo.kv_heads} KV heads fit"
                ),
            ),
            _graph_gate(graph, items, padded, is_split),
            GateArray(
                name="keys_hold_queries",
                passed=holds,
                reason=lambda n: (
                    f"a request has up to {at(batches.max_q_len, n)} query tokens, and its keys "
                    + ("include theirs" if at(holds, n) else "do not include theirs, so the wrapper refuses")
                ),
            ),
            GateArray(
                name="fits_padded_grid",
                passed=fits,
                reason=lambda n: f"there are {at(items, n)} work items in a grid of {at(padded, n)}, and a graph "
                f"refuses more",
            ),
        ),
    )  # fmt: skip


def float_workspace_bytes(rows: Any, geo: Geometry) -> Any:
    """Bytes of `rows` partial states of every query head: values from a 16-byte boundary on, then one sum each."""
    return round_up(rows * geo.q_heads * geo.v_dim * 4, 16) + rows * geo.q_heads * 4


def _int_workspace_bytes(padded: Any, batches: Batches, graph: bool, is_split: Any) -> Any:
    """Bytes of the plan's own arrays: what PrefillPlanImpl takes of the int workspace, in its order."""
    taken = 3 * round_up(padded * 4, 16) + 4 * (batches.batch + 1)  # three index lists, o_indptr
    taken = taken + 4  # kv_chunk_size, not aligned
    if graph:
        taken = round_up(taken, 16) + 4  # total_num_rows
    taken = np.where(is_split, round_up(taken, 16) + 4 * (batches.query_tokens + 1), taken)  # merge_indptr
    return round_up(taken, 16) + padded if graph else taken  # block_valid_mask


def _graph_gate(graph: bool, items: Any, padded: Any, is_split: Any) -> GateArray:
    """The captured grid against this step. Only a split plan has `block_valid_mask`, which lets padding return at once
    (scheduler.cuh, PrefillPlan: `if (plan_info.split_kv)`; FlashInfer #4002, open in 0.7.4)."""

    def reason(n: int) -> str:
        filled, held = at(items, n), at(padded, n)
        if not graph:
            return f"the launch is not captured, so the grid holds the {filled} work items of this step"
        captured = f"the graph was captured at {held} work items per KV head, and this step fills {filled}"
        if filled == held:
            return captured
        if at(is_split, n):
            return f"{captured}; the others return at once"
        return (
            f"{captured}; an unsplit plan has no mask for the others, so they walk the first request's keys again, or "
            "read what an earlier plan left there (FlashInfer #4002)"
        )

    return GateArray(name="cuda_graph", passed=graph, reason=reason)


class _Chunked(NamedTuple):
    """Work items of a step and their consequences for either kernel; chunks, columns and first_key are [N, R]."""

    geo: Geometry
    batches: Batches
    gpu: Gpu
    is_split: Any
    chunk_keys: IntArray
    chunks: IntArray
    columns: IntArray
    items: IntArray
    padded: Any
    first_key: IntArray

    @property
    def keys(self) -> IntArray:
        """Keys that a request's chunks cover [N, R]."""
        return self.batches.seq_lens - self.first_key

    @property
    def split_keys(self) -> IntArray:
        """Keys of a chunk [N, R]; all keys of a request where nothing is split."""
        return np.where(self.is_split[:, None], self.chunk_keys[:, None], np.maximum(self.keys, 1))

    @property
    def live(self) -> IntArray:
        """Chunks that own keys [N, R]: a planned chunk past the window's end is empty."""
        return cdiv(self.keys, self.split_keys)

    @property
    def live_blocks(self) -> IntArray:
        """Blocks whose chunk owns keys [N]."""
        return self.geo.kv_heads * self.batches.total(self.columns * np.minimum(self.live, self.chunks))

    def launches(
        self,
        kernel: KernelArray,
        merge_rows: Any,
        tile_keys: Any,
        block_rows: Any,
        live_rows: Any,
        scratch_rows: Any,
        determinism: str,
        detail: FlashInferDetail,
        gates: tuple[GateArray, ...],
        resident_blocks: int = 0,
    ) -> Launches:
        geo, batches, live = self.geo, self.batches, self.live
        hidden = np.maximum(visible_start(batches, geo.window) - self.first_key, 0)
        smem = 4 * MERGE_THREADS * 8 * OUTPUT_BYTES + MERGE_THREADS * 4
        merge_blocks = blocks_per_sm(MERGE_THREADS, smem, MERGE_REGISTERS, self.gpu)
        merge_grid = self.gpu.sm_count * np.minimum(merge_blocks, cdiv(merge_rows * geo.q_heads, self.gpu.sm_count))
        columns = geo.kv_heads * self.columns
        return Launches(
            is_split=self.is_split,
            kernels=(
                kernel,
                KernelArray(
                    name="PersistentVariableLengthMergeStatesKernel", role="merge", grid=(merge_grid,),
                    threads=MERGE_THREADS, live_blocks=np.minimum(merge_grid, batches.query_tokens * geo.q_heads),
                    when=self.is_split,
                ),
            ),
            requested=self.chunks,
            launched=np.where(self.is_split, self.padded, 1),
            live=live,
            working=live - hidden // self.split_keys,
            split_keys=self.split_keys,
            first_key=self.first_key,
            keys_read=self.keys,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (batches.seq_lens > 0)),
            repeating_blocks=np.where(self.is_split, 0, geo.kv_heads * np.maximum(self.padded - self.items, 0)),
            tile_keys=tile_keys,
            block_rows=block_rows,
            live_rows=live_rows,
            resident_blocks=resident_blocks,
            state_values=cdiv(geo.v_dim * OUTPUT_BYTES, 4) + 1,
            shared_slots=True,
            scratch_bytes=self.is_split * float_workspace_bytes(scratch_rows, geo),
            determinism=determinism,
            detail=detail,
            gates=gates,
        )  # fmt: skip
