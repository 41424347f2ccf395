"""The path that vLLM's launcher takes for a step, and the gates that decide it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.vllm.triton_rules import MIN_BLOCKS_2D, SEGMENTS
from decodecalc.engines.vllm.triton_server import PAGE_MULTIPLE, Server
from decodecalc.errors import InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, at

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MIN_BLOCK_ROWS = 16  # BLOCK_M for groups up to 16
LARGE_ROWS = 32


class TritonStep(NamedTuple):
    """What the host knows of a step before it launches; numbers or [N].

    num_seqs, tokens: with padding. rows, segments: the scratch layout of the step. few … can_split: one gate each.
    """

    num_seqs: IntArray
    tokens: IntArray
    max_q: IntArray
    block_m: Any
    block_q: Any
    q_blocks: IntArray
    rows: Any
    segments: Any
    on_small_grid: BoolArray
    few: BoolArray
    short: BoolArray
    one_mask: BoolArray
    large: BoolArray
    has_rows: BoolArray
    is_3d: BoolArray


def decide(geo: Geometry, batches: Batches, server: Server) -> TritonStep:
    """The launcher's decision."""
    max_q = batches.max_q_len
    num_seqs, tokens = _padded(batches, server)
    large = (max_q > 1) & server.tunes_large_head
    block_m: Any = MIN_BLOCK_ROWS if geo.group <= MIN_BLOCK_ROWS else next_power_of_2(geo.group)
    if server.tunes_large_head:
        block_m = np.where(large, LARGE_ROWS, block_m)
    block_q = block_m // geo.group
    q_blocks = tokens // block_q + num_seqs

    on_small_grid = (num_seqs <= server.max_seqs_small_grid) & (tokens <= server.scratch_rows)
    rows: Any = server.scratch_rows
    segments: Any = server.scratch_segments
    if server.max_seqs_small_grid:
        segments = np.where(on_small_grid, segments, SEGMENTS)
        rows = rows * server.scratch_segments // segments

    if server.rules.gates_on_grid:
        few = q_blocks * geo.kv_heads <= MIN_BLOCKS_2D
    else:
        few = num_seqs * cdiv(max_q, block_q) <= server.threshold
    short = max_q <= server.max_query_len_3d
    one_mask = (max_q <= 1) | server.options.causal
    has_rows = (tokens <= rows) | (not server.checks_scratch)
    is_3d = few & short & one_mask & ~large & has_rows & server.can_split
    return TritonStep(
        num_seqs, tokens, max_q, block_m, block_q, q_blocks, rows, segments, on_small_grid,
        few, short, one_mask, large, has_rows, is_3d,
    )  # fmt: skip


def _padded(batches: Batches, server: Server) -> tuple[IntArray, IntArray]:
    """Requests and query tokens [N] of the launch. Padding rows have no keys and no query token."""
    wanted = server.options.padded_num_seqs
    if wanted is None:
        return batches.batch, batches.query_tokens
    if isinstance(wanted, str):
        return _padded_to_capture(batches, server.captured)
    largest = int(batches.batch.max())
    if largest > wanted:
        raise InputError(f"vllm-triton option padded_num_seqs ({wanted}) is below the batch ({largest} requests)")
    seqs = np.full_like(batches.batch, wanted)
    return seqs, seqs * batches.max_q_len


def _padded_to_capture(batches: Batches, captured: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """The next capture size, rounded to whole uniform requests; the step's own size where there is none, because it
    then runs eagerly."""
    seqs, tokens, longest = batches.batch, batches.query_tokens, np.maximum(batches.max_q_len, 1)
    if not captured:
        return seqs, tokens
    sizes = np.array(sorted(captured), dtype=np.int64)
    index = np.searchsorted(sizes, tokens)
    padded = round_up(sizes[np.minimum(index, len(sizes) - 1)], longest)
    use = (tokens == seqs * longest) & (index < len(sizes))
    return np.where(use, padded // longest, seqs), np.where(use, padded, tokens)


def gates(geo: Geometry, kv: KvCache, gpu: Gpu, server: Server, step: TritonStep) -> tuple[GateArray, ...]:
    """The conditions in the order of the launcher, followed by what else influences them."""
    rules, options, limit = server.rules, server.options, server.threshold

    def threshold(n: int) -> str:
        if rules.gates_on_grid:
            blocks = at(step.q_blocks, n)
            got = blocks * geo.kv_heads
            return f"{blocks} query blocks x {geo.kv_heads} KV heads = {got} blocks {_vs(got, MIN_BLOCKS_2D)}"
        seqs, per_seq = at(step.num_seqs, n), cdiv(at(step.max_q, n), at(step.block_q, n))
        snapped = f"nearest capture size {limit}" if server.captured else "there are no full CUDA graphs"
        return (
            f"{seqs} requests x {per_seq} query blocks = {seqs * per_seq} {_vs(seqs * per_seq, limit)} "
            f"(128 // {server.model_kv_heads} KV heads = {server.unsnapped}, {snapped})"
        )

    def query_len(n: int) -> str:
        longest = at(step.max_q, n)
        packed = " (packed INT4 cache)" if server.int4 and rules.max_query_len_3d > 1 else ""
        return f"longest query {longest} {_vs(longest, server.max_query_len_3d)}{packed}"

    def causal(n: int) -> str:
        if options.causal:
            return "causal mask"
        return f"non-causal mask, longest query {at(step.max_q, n)} {_vs(at(step.max_q, n), 1)}"

    def scratch_rows(n: int) -> str:
        tokens, rows = at(step.tokens, n), at(step.rows, n)
        return (
            f"{tokens} query tokens {_vs(tokens, rows)} scratch rows (min(threshold {limit}, max_num_seqs "
            f"{options.max_num_seqs}) x {server.queries_per_seq} tokens)"
        )

    def batch_invariant(n: int) -> str:
        return f"batch-invariant mode is {'off' if server.can_split else 'on, which always takes the unsplit 2D grid'}"

    def large_head(n: int) -> str:
        if not at(step.large, n):
            return "each request has one query token, which takes the usual tiles"
        return (
            f"head dim {geo.head_dim}, {at(step.max_q, n)} query tokens, group {geo.group} <= 16 on compute capability "
            f"10.x: 32 rows, tiles of 128 keys, 8 warps, 2D"
        )

    def sm120_segments(n: int) -> str:
        seqs, tokens = at(step.num_seqs, n), at(step.tokens, n)
        return (
            f"{seqs} requests {_vs(seqs, server.max_seqs_small_grid)} = ({gpu.sm_count} - 1) // "
            f"(16 x {server.model_kv_heads}), {tokens} query tokens {_vs(tokens, server.scratch_rows)} rows: "
            f"{at(step.segments, n)} segments"
        )

    def model_kv_heads(n: int) -> str:
        return (
            f"the threshold counts {server.model_kv_heads} KV heads of the model, and this layer has {geo.kv_heads}: "
            f"128 // {server.model_kv_heads} = {server.unsnapped} instead of {MIN_BLOCKS_2D // geo.kv_heads}"
        )

    def page_size(n: int) -> str:
        width = (kv.allocator_page_size or kv.page_size) // kv.page_size
        wider = f"; each allocator page of {kv.allocator_page_size} is {width} of them" if width > 1 else ""
        return f"page size {kv.page_size} is a multiple of {PAGE_MULTIPLE}{wider}"

    mixes_layers = server.model_kv_heads != geo.kv_heads
    found: list[tuple[bool, str, Any, Any]] = [
        (True, "threshold", step.few, threshold),
        (True, "query_len", step.short, query_len),
        (rules.non_causal, "causal", step.one_mask, causal),
        (server.checks_scratch, "scratch_rows", step.has_rows, scratch_rows),
        (rules.batch_invariant_gate, "batch_invariant", server.can_split, batch_invariant),
        (server.tunes_large_head, "large_head", ~step.large, large_head),
        (server.max_seqs_small_grid > 0, "sm120_segments", step.on_small_grid, sm120_segments),
        (mixes_layers and not rules.gates_on_grid, "model_kv_heads", False, model_kv_heads),
        (True, "page_size", True, page_size),
    ]
    return tuple(GateArray(name, passed, reason) for applies, name, passed, reason in found if applies)


def _vs(value: int, limit: int) -> str:
    return f"<= {limit}" if value <= limit else f"> {limit}"
