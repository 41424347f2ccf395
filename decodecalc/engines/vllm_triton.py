"""vllm-triton: vLLM's Triton attention backend, the unified kernel with its unsplit (2D) and split (3D) path.

A query block holds BLOCK_M rows: the group of one KV head times BLOCK_Q query tokens. The 2D grid is (query blocks, KV
heads); the 3D grid adds 16 segments of whole tiles, whose partial states `reduce_segments` merges. Which path runs is
decided on the host from batch size, query length and buffers. Segments always cut the full length: under a sliding
window those outside it are launched, pass the early exit and write neutral states. Versions and sources:
vllm_triton_rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at
from decodecalc.engines.base import Policy, PolicyVersion
from decodecalc.engines.options import EngineOptions, option
from decodecalc.engines.vllm_capture import MODES, capture_sizes, round_for_drafts
from decodecalc.engines.vllm_triton_rules import MIN_BLOCKS_2D, SEGMENTS, VERSIONS, VllmTritonRules
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2, round_up
from decodecalc.kvcache import KvCache

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MIN_BLOCK_ROWS = 16  # BLOCK_M for groups up to 16
PAGE_MULTIPLE = 16  # get_supported_kernel_block_sizes: MultipleOf(16)
MIN_HEAD_DIM = 32  # supports_head_size
DECODE_TILE, WIDE_TILE = 16, 32  # keys; the wide one for 1-byte queries, the 2D path and Gemma 3
LARGE_HEAD_DIM, LARGE_ROWS, LARGE_TILE, LARGE_WARPS = 256, 32, 128, 8
DEFAULT_WARPS = 4  # Triton's default num_warps


@dataclass(frozen=True)
class VllmTritonOptions(EngineOptions):
    """What a server's settings add to the launch."""

    capture_sizes: tuple[int, ...] | str | None = option(
        "default",
        "ints?",
        "CUDA-graph sizes of full decode graphs; none: no full graphs; default: the list a server makes itself",
        "--compilation-config '{\"cudagraph_capture_sizes\": […]}'",
        ("default",),
        low=1,
    )
    max_num_seqs: int = option(256, "int", "most requests of a step", "--max-num-seqs", low=1)
    max_num_batched_tokens: int = option(
        8192, "int", "most tokens of a step (used for the default capture sizes)", "--max-num-batched-tokens", low=1
    )
    num_speculative_tokens: int | None = option(
        None, "int?", "draft tokens of a request; none: no speculative decoding", "--speculative-config"
    )
    parallel_drafting: bool = option(False, "bool", "drafts of a parallel drafter", "--speculative-config")
    batch_invariant: bool = option(False, "bool", "results do not depend on the batch", "VLLM_BATCH_INVARIANT=1")
    padded_num_seqs: int | str | None = option(
        None,
        "int?",
        "requests after padding for a CUDA graph; none: not padded; auto: to the next capture size",
        None,
        ("auto",),
        low=1,
    )
    model_kv_heads: int | None = option(
        None, "int?", "KV heads per rank that the model reports, where its layers differ; none: this layer's", low=1
    )
    causal: bool = option(True, "bool", "causal mask (diffusion models have passes without)")
    performance_mode: str = option("balanced", "str", "capture-size profile", "--performance-mode", MODES)
    model_runner: str | None = option(
        None,
        "str?",
        "v1 rounds capture sizes to whole speculative batches; none: the version's default",
        "VLLM_USE_V2_MODEL_RUNNER",
        ("v1", "v2"),
    )


@dataclass(frozen=True)
class VllmTritonDetail:
    """The engine's quantities of one step. [N] numbers; tiles_per_segment … first_visited_key are [N, R].

    num_seqs, num_tokens: after padding. threshold: seq_threshold_3D (None where the version tests the grid).
    scratch_rows, scratch_segments: the layout this step sees. num_segments: the kernel's constant, 1 in 2D.
    tiles_per_segment: 0 in 2D. live_programs: stage-1 blocks that do not exit early; programs_with_tiles: those that
    load at least one tile. first_visited_key: where the first tile of the window starts (0 without a window); the
    request's last key is always visited.
    """

    block_m: Any
    block_q: Any
    tile_size: Any
    num_seqs: Any
    num_tokens: Any
    threshold: Any
    capture_sizes: Any
    scratch_rows: Any
    scratch_segments: Any
    num_segments: Any
    head_dim_padded: int
    num_warps_override: Any
    tiles_per_segment: Any
    live_q_blocks: Any
    first_visited_key: Any
    live_programs: Any
    programs_with_tiles: Any


@dataclass(frozen=True)
class _Scratch:
    """Buffers the metadata builder allocates once; `rows` at `segments`, or rows * segments / 16 at 16."""

    rows: int
    segments: int
    max_seqs_small_grid: int


class VllmTriton(Policy):
    """16 segments of whole tiles, or none."""

    name = "vllm-triton"
    title = "vLLM Triton unified attention (TRITON_ATTN)"
    word_for_split = "segment"
    versions = VERSIONS
    options_type = VllmTritonOptions
    rule = (
        "split (3D) while requests * ceil(q / BLOCK_Q) <= threshold = 128 // KV heads, snapped to the nearest "
        "CUDA-graph size, q <= 8, causal, scratch rows >= query tokens, not batch-invariant; 16 segments of "
        "ceil(L / (16 * tile)) tiles each (64 on an SM120 that 16 would leave idle); "
        "grid (tokens // BLOCK_Q + requests, KV heads[, segments])"
    )
    split_flag = "VLLM_BATCH_INVARIANT=1 (never splits)"

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: VllmTritonOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. GateError codes: page_size, allocator_page_size, head_dim, mla, kv_dtype, causal."""
        rules: VllmTritonRules = version.rules
        check_start_up(geo, kv, gpu, options, rules)
        group, q_lens, seq_lens = geo.group, batches.q_lens, batches.seq_lens
        max_q = batches.max_q_len
        int4 = kv.dtype == "int4"
        captured = _capture_sizes(options, gpu, rules)
        num_seqs, tokens = _padded(batches, options, captured)

        large = self._is_large_head(geo, max_q, gpu, rules) & (not int4)
        small_rows = MIN_BLOCK_ROWS if group <= MIN_BLOCK_ROWS else next_power_of_2(group)
        block_m = np.where(large, LARGE_ROWS, small_rows) if large.any() else small_rows
        block_q = block_m // group
        q_blocks = tokens // block_q + num_seqs

        model_kv = options.model_kv_heads or geo.kv_heads
        threshold = MIN_BLOCKS_2D // model_kv
        unsnapped = threshold
        if captured:
            threshold = min(captured, key=lambda size: abs(size - unsnapped))
        scratch = _scratch(threshold, model_kv, options, gpu, rules, int4)
        fits_small = (num_seqs <= scratch.max_seqs_small_grid) & (tokens <= scratch.rows)
        step_segments = np.where(fits_small, scratch.segments, SEGMENTS) if scratch.max_seqs_small_grid else SEGMENTS
        step_rows = scratch.rows * scratch.segments // step_segments

        blocks_of_longest = cdiv(max_q, block_q)
        if rules.gates_on_grid:
            few = q_blocks * geo.kv_heads <= MIN_BLOCKS_2D
        else:
            few = num_seqs * blocks_of_longest <= threshold
        max_query_len = 1 if int4 else rules.max_query_len_3d
        short = max_q <= max_query_len
        one_mask = options.causal | (max_q <= 1)
        has_rows = step_rows >= tokens if rules.scratch_per_query and not int4 else True
        may_vary = not (options.batch_invariant and rules.batch_invariant_gate)
        is_3d = few & short & one_mask & ~large & has_rows & may_vary

        wide = _tile(geo, kv, gpu, rules, decode=False)
        decode = _tile(geo, kv, gpu, rules, decode=True)
        tile = np.where(is_3d, decode, np.where(large, LARGE_TILE, wide))
        segments = np.where(is_3d, step_segments, 1)

        # Partition: segments of whole tiles from key 0 in 3D, one walk over the visible tiles in 2D.
        split, tile_ = is_3d[:, None], tile[:, None]
        has_work = (q_lens > 0) & (seq_lens > 0)
        tiles_per_segment = cdiv(seq_lens, (segments * tile)[:, None]) * split
        segment_keys = np.maximum(tiles_per_segment, 1) * tile_
        first_tile = _first_tile(batches, geo.window, tile_)
        if not rules.prunes_segments and geo.window is not None:
            first_tile = np.where(split, 0, first_tile)
        visited = first_tile * tile_
        live = np.where(split, cdiv(seq_lens, segment_keys), 1) * has_work
        working = live - np.where(split, visited // segment_keys, 0) * has_work
        live_q_blocks = cdiv(q_lens, np.reshape(block_q, (-1, 1)))
        columns = live_q_blocks * geo.kv_heads
        live_programs = batches.total(columns * live)
        with_tiles = self._programs_with_tiles(
            geo, batches, options, rules, block_m, block_q, tile_, segment_keys, is_3d, working, columns
        )

        padded = next_power_of_2(geo.head_dim)
        state_bytes = geo.q_heads * (padded + 2) * 4
        if rules.gates_on_grid:
            step_rows = tokens * is_3d
            scratch_bytes: Any = step_rows * SEGMENTS * state_bytes
        else:
            scratch_bytes = scratch.rows * scratch.segments * state_bytes
        kernels = self._kernels(
            geo, batches, gpu, rules, int4, q_blocks, segments, tokens, live_programs, tile, is_3d, large
        )
        return Launches(
            is_split=is_3d,
            kernels=kernels,
            requested=segments[:, None],
            launched=segments,
            live=live,
            working=working,
            first_key=np.where(split, 0, visited),
            split_keys=np.where(split, segment_keys, np.maximum(seq_lens - visited, 1)),
            keys_read=(seq_lens - visited) * has_work,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * has_work),
            tile_keys=tile,
            block_rows=block_m,
            live_rows=np.minimum(max_q, block_q) * group,
            state_values=geo.head_dim + 2,
            scratch_bytes=scratch_bytes,
            determinism="batch-dependent" if may_vary else "invariant",
            path_names=("2d", "3d"),
            gates=self._gates(
                geo, kv, gpu, options, rules, captured, unsnapped, threshold, model_kv, scratch, int4,
                _Step(num_seqs, tokens, max_q, block_q, q_blocks, step_rows, few, short, one_mask, large, has_rows,
                      may_vary, fits_small),
            ),
            detail=VllmTritonDetail(
                block_m=block_m,
                block_q=block_q,
                tile_size=tile,
                num_seqs=num_seqs,
                num_tokens=tokens,
                threshold=None if rules.gates_on_grid else threshold,
                capture_sizes=captured,
                scratch_rows=step_rows,
                scratch_segments=step_segments,
                num_segments=segments,
                head_dim_padded=padded,
                num_warps_override=LARGE_WARPS if large.all() else None,
                tiles_per_segment=tiles_per_segment,
                live_q_blocks=live_q_blocks,
                first_visited_key=visited,
                live_programs=live_programs,
                programs_with_tiles=with_tiles,
            ),
        )  # fmt: skip

    @staticmethod
    def _is_large_head(geo: Geometry, max_q: IntArray, gpu: Gpu, rules: VllmTritonRules) -> BoolArray:
        applies = (
            rules.tuned_large_head
            and geo.head_dim == LARGE_HEAD_DIM
            and geo.group <= MIN_BLOCK_ROWS
            and gpu.is_sm_family(100)
        )
        return (max_q > 1) & applies

    @staticmethod
    def _programs_with_tiles(
        geo: Geometry,
        batches: Batches,
        options: VllmTritonOptions,
        rules: VllmTritonRules,
        block_m: Any,
        block_q: Any,
        tile: IntArray,
        segment_keys: IntArray,
        is_3d: BoolArray,
        working: IntArray,
        columns: IntArray,
    ) -> IntArray:
        """Blocks that load a tile [N]. Query blocks of one request see different keys, so 3D counts each alone."""
        blocks = cdiv(batches.max_q_len, block_q)
        most = int((blocks * is_3d).max(initial=0))
        if most <= 1:
            return batches.total(columns * working)
        rows, per_block = np.reshape(block_m, (-1, 1)), np.reshape(block_q, (-1, 1))
        context = batches.seq_lens - batches.q_lens
        count = np.zeros_like(working)
        for block in range(most):
            first_query = block * per_block
            last_query: Any = first_query + (rows - 1) // geo.group
            end: Any = batches.seq_lens
            if options.causal:
                end = np.minimum(context + last_query + 1, end)
            start = np.zeros_like(end)
            if geo.window is not None and rules.prunes_segments:
                start = np.maximum(context + first_query - geo.window + 1, 0)
                if not options.causal:
                    last_query = np.minimum(last_query, batches.q_lens - 1)
                    end = np.minimum(end, context + last_query + geo.window)
            first_segment = start // tile * tile // segment_keys
            segments = cdiv(end, segment_keys) - first_segment
            count += np.where((first_query < batches.q_lens) & (end > start), segments, 0)
        return np.where(is_3d, batches.total(count) * geo.kv_heads, batches.total(columns * working))

    @staticmethod
    def _kernels(
        geo: Geometry,
        batches: Batches,
        gpu: Gpu,
        rules: VllmTritonRules,
        int4: bool,
        q_blocks: IntArray,
        segments: IntArray,
        tokens: IntArray,
        live_programs: IntArray,
        tile: IntArray,
        is_3d: BoolArray,
        large: BoolArray,
    ) -> tuple[KernelArray, ...]:
        warp = gpu.warp_size or 32
        names = ("_attn_packed", "_attn_packed") if int4 else rules.kernels
        unsplit = (q_blocks, geo.kv_heads)
        stage1 = [
            KernelArray(names[1], "stage1", (*unsplit, segments), DEFAULT_WARPS * warp, live_programs, tile, is_3d),
            KernelArray(names[0], "stage1", unsplit, DEFAULT_WARPS * warp, live_programs, tile, ~is_3d & ~large),
        ]
        if large.any():
            stage1.append(KernelArray(names[0], "stage1", unsplit, LARGE_WARPS * warp, live_programs, tile, large))
        merged = batches.query_tokens * geo.q_heads
        merge = KernelArray("reduce_segments", "merge", (tokens, geo.q_heads), DEFAULT_WARPS * warp, merged, when=is_3d)
        return (*stage1, merge)

    @staticmethod
    def _gates(
        geo: Geometry,
        kv: KvCache,
        gpu: Gpu,
        options: VllmTritonOptions,
        rules: VllmTritonRules,
        captured: tuple[int, ...],
        unsnapped: int,
        threshold: int,
        model_kv: int,
        scratch: _Scratch,
        int4: bool,
        step: _Step,
    ) -> tuple[GateArray, ...]:
        """Conditions in the order of the launcher, then what bears on them."""

        def few(n: int) -> str:
            seqs = at(step.num_seqs, n)
            if rules.gates_on_grid:
                blocks = at(step.q_blocks, n)
                got = blocks * geo.kv_heads
                return f"{blocks} query blocks x {geo.kv_heads} KV heads = {got} blocks {_vs(got, MIN_BLOCKS_2D)}"
            per_seq = -(-at(step.max_q, n) // at(step.block_q, n))
            got = seqs * per_seq
            origin = f"128 // {model_kv} KV heads = {unsnapped}"
            snapped = f", nearest capture size {threshold}" if captured else ", no full CUDA graphs"
            return f"{seqs} requests x {per_seq} query blocks = {got} {_vs(got, threshold)} ({origin}{snapped})"

        longest = 1 if int4 else rules.max_query_len_3d
        gates = [
            GateArray("threshold", step.few, few),
            GateArray(
                "query_len",
                step.short,
                lambda n: (
                    f"longest query {at(step.max_q, n)} {_vs(at(step.max_q, n), longest)}"
                    + (" (packed INT4 cache)" if int4 else "")
                ),
            ),
        ]
        if rules.max_query_len_3d > 1 and not int4:
            gates.append(
                GateArray(
                    "causal",
                    step.one_mask,
                    lambda n: (
                        "causal mask"
                        if options.causal
                        else f"non-causal mask: split only for single queries, here {at(step.max_q, n)}"
                    ),
                )
            )
        if rules.scratch_per_query and not int4:
            gates.append(
                GateArray(
                    "scratch_rows",
                    step.has_rows,
                    lambda n: (
                        f"{at(step.tokens, n)} query tokens {_vs(at(step.tokens, n), at(step.step_rows, n))} "
                        f"scratch rows (min(threshold {threshold}, max_num_seqs {options.max_num_seqs}) x "
                        f"{_scratch_queries(options, rules, int4)} tokens)"
                    ),
                )
            )
        if rules.batch_invariant_gate:
            gates.append(
                GateArray(
                    "batch_invariant",
                    step.may_vary,
                    lambda n: (
                        "batch-invariant mode is off"
                        if step.may_vary
                        else "batch-invariant mode: always the unsplit 2D grid"
                    ),
                )
            )
        if step.large.any():
            gates.append(
                GateArray(
                    "large_head",
                    ~step.large,
                    lambda n: (
                        f"head dim 256, {at(step.max_q, n)} query tokens, group {geo.group} <= 16 on compute "
                        f"capability 10.x: BLOCK_M 32, tile 128, 8 warps, 2D"
                        if at(step.large, n)
                        else "single query: the usual tiles"
                    ),
                )
            )
        if scratch.max_seqs_small_grid or (rules.small_grid_segments > SEGMENTS and gpu.is_sm(120)):
            gates.append(
                GateArray(
                    "sm120_segments",
                    step.fits_small,
                    lambda n: (
                        f"{at(step.num_seqs, n)} requests {_vs(at(step.num_seqs, n), scratch.max_seqs_small_grid)} = "
                        f"({gpu.sm_count} - 1) // (16 x {model_kv}), {at(step.tokens, n)} query tokens "
                        f"{_vs(at(step.tokens, n), scratch.rows)} rows: "
                        f"{scratch.segments if at(step.fits_small, n) else SEGMENTS} segments"
                    ),
                )
            )
        if model_kv != geo.kv_heads and not rules.gates_on_grid:
            own = MIN_BLOCKS_2D // geo.kv_heads
            gates.append(
                GateArray(
                    "model_kv_heads",
                    False,
                    lambda n: (
                        f"the builder sees the model's {model_kv} KV heads, this layer has {geo.kv_heads}: "
                        f"threshold from {unsnapped}, not {own}"
                    ),
                )
            )
        gates.append(
            GateArray(
                "page_size",
                True,
                lambda n: (
                    f"page size {kv.page_size} is a multiple of {PAGE_MULTIPLE} (anything else stops the start-up)"
                ),
            )
        )
        return tuple(gates)


@dataclass(frozen=True)
class _Step:
    """What the gates of a step put into words; [N] each."""

    num_seqs: IntArray
    tokens: IntArray
    max_q: IntArray
    block_q: Any
    q_blocks: IntArray
    step_rows: Any
    few: BoolArray
    short: BoolArray
    one_mask: Any
    large: BoolArray
    has_rows: Any
    may_vary: bool
    fits_small: BoolArray


def _vs(value: int, limit: int) -> str:
    return f"<= {limit}" if value <= limit else f"> {limit}"


def check_start_up(geo: Geometry, kv: KvCache, gpu: Gpu, options: VllmTritonOptions, rules: VllmTritonRules) -> None:
    """GateError for what makes the server refuse to start with this backend."""
    refuse = "vllm-triton refuses to start (an error, not a slow path): "
    check_pages("vllm-triton", kv)
    if geo.mla:
        raise GateError(refuse + "MLA models take another backend; see vllm-triton-mla", "mla")
    if geo.v_dim != geo.head_dim:
        raise GateError(f"{refuse}keys ({geo.head_dim}) and values ({geo.v_dim}) must be equally wide", "head_dim_v")
    if geo.head_dim < MIN_HEAD_DIM:
        raise GateError(f"{refuse}head dim {geo.head_dim} is below {MIN_HEAD_DIM}", "head_dim")
    if kv.dtype not in rules.cache_dtypes:
        raise GateError(f"{refuse}KV cache dtype {kv.dtype}; valid: {', '.join(rules.cache_dtypes)}", "kv_dtype")
    if kv.dtype == "fp8" and rules.fp8_needs_sm89 and gpu.sm is not None and gpu.sm < 89:
        raise GateError(
            f"{refuse}an FP8 KV cache needs compute capability 8.9, {gpu.label} has {gpu.sm / 10}; use bf16", "kv_dtype"
        )
    if not options.causal and (not rules.non_causal or kv.dtype == "int4"):
        what = "packed INT4 caches" if rules.non_causal else "this version"
        raise GateError(f"{refuse}{what} only know causal masks", "causal")


def check_pages(engine: str, kv: KvCache) -> None:
    """GateError unless the kernel's page is a multiple of 16 and the allocator's a multiple of the kernel's."""
    refuse = f"{engine} refuses to start (an error, not a slow path): "
    if kv.page_size % PAGE_MULTIPLE:
        raise GateError(
            f"{refuse}page size {kv.page_size} is not a multiple of {PAGE_MULTIPLE}; use "
            f"{round_up(kv.page_size, PAGE_MULTIPLE)}",
            "page_size",
        )
    if kv.allocator_page_size is not None and kv.allocator_page_size % kv.page_size:
        raise GateError(
            f"{refuse}allocator page {kv.allocator_page_size} is not a multiple of the kernel's {kv.page_size}; use "
            f"{round_up(kv.allocator_page_size, kv.page_size)}",
            "allocator_page_size",
        )


def _capture_sizes(options: VllmTritonOptions, gpu: Gpu, rules: VllmTritonRules) -> tuple[int, ...]:
    """Capture sizes in effect; empty without full decode graphs."""
    if not isinstance(options.capture_sizes, str):
        return options.capture_sizes or ()
    drafts = options.num_speculative_tokens or 0
    sizes = capture_sizes(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        num_speculative_tokens=drafts,
        is_data_center_blackwell=gpu.is_sm_family(100),
        performance_mode=options.performance_mode,
        rules=rules.capture,
    )
    runner = options.model_runner or rules.model_runner
    return round_for_drafts(sizes, 1 + drafts) if runner == "v1" else sizes


def _padded(batches: Batches, options: VllmTritonOptions, captured: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """Requests and query tokens [N] of the launch. Padding rows have no keys and no query token of their own."""
    wanted = options.padded_num_seqs
    if wanted is None:
        return batches.batch, batches.query_tokens
    if isinstance(wanted, str):
        return _padded_to_capture(batches, captured)
    too_many = batches.batch > wanted
    if too_many.any():
        raise InputError(
            f"vllm-triton option padded_num_seqs ({wanted}) is below the batch ({int(batches.batch.max())} requests)"
        )
    seqs = np.full_like(batches.batch, wanted)
    return seqs, seqs * batches.max_q_len


def _padded_to_capture(batches: Batches, captured: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """The next capture size that holds whole uniform requests; unpadded where there is none (the step runs eagerly)."""
    seqs, tokens, longest = batches.batch, batches.query_tokens, np.maximum(batches.max_q_len, 1)
    if not captured:
        return seqs, tokens
    uniform = tokens == seqs * longest
    sizes = np.array(sorted(captured), dtype=np.int64)
    index = np.searchsorted(sizes, tokens)
    found = round_up(sizes[np.minimum(index, len(sizes) - 1)], longest)
    use = uniform & (index < len(sizes))
    return np.where(use, found // longest, seqs), np.where(use, found, tokens)


def _scratch_queries(options: VllmTritonOptions, rules: VllmTritonRules, int4: bool) -> int:
    """Query tokens of a request that scratch has rows for."""
    if options.num_speculative_tokens is None or int4 or not rules.scratch_per_query:
        return 1
    drafts = options.num_speculative_tokens * (2 if options.parallel_drafting else 1)
    return min(1 + drafts, rules.max_query_len_3d)


def _scratch(
    threshold: int, model_kv: int, options: VllmTritonOptions, gpu: Gpu, rules: VllmTritonRules, int4: bool
) -> _Scratch:
    seqs = min(threshold, options.max_num_seqs) if rules.scratch_per_query else threshold
    queries = _scratch_queries(options, rules, int4)
    if rules.small_grid_segments > SEGMENTS and gpu.is_sm(120):
        small = (gpu.sm_count - 1) // (SEGMENTS * model_kv)
        if small > 0:
            rows = max(min(small, seqs) * queries, cdiv(seqs * queries, rules.small_grid_segments // SEGMENTS))
            return _Scratch(rows, rules.small_grid_segments, small)
    return _Scratch(seqs * queries, SEGMENTS, 0)


def _tile(geo: Geometry, kv: KvCache, gpu: Gpu, rules: VllmTritonRules, decode: bool) -> int:
    if rules.gemma3_tile and geo.window == 1024 and geo.head_dim in (128, 256):
        return WIDE_TILE
    return DECODE_TILE if decode and not _query_is_fp8(kv, gpu, rules) else WIDE_TILE


def _query_is_fp8(kv: KvCache, gpu: Gpu, rules: VllmTritonRules) -> bool:
    """Whether Q has 1-byte elements: given so, or quantised because the cache is FP8 (supports_quant_query_input)."""
    if kv.query_dtype == "fp8":
        return True
    if kv.dtype != "fp8":
        return False
    if not gpu.is_hip:
        return True
    return rules.rocm_fp8_query and not (gpu.gfx or "").startswith(("gfx90a", "gfx11"))


def _first_tile(batches: Batches, window: int | None, tile: IntArray) -> IntArray:
    """First tile that the first query of each request may see [N, R]."""
    if window is None:
        return np.zeros_like(batches.seq_lens)
    return np.maximum(batches.seq_lens - batches.q_lens - window + 1, 0) // tile


POLICY = VllmTriton()
