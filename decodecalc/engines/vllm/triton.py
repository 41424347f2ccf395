"""vllm-triton: vLLM's Triton attention backend, the unified kernel with its unsplit (2D) and split (3D) path.

A query block holds BLOCK_M rows: the group of one KV head times BLOCK_Q query tokens. The 2D grid is (query blocks, KV
heads). The 3D grid adds 16 segments of whole tiles, whose partial states `reduce_segments` merges. The host decides
from batch size, query length and buffers which path runs. Segments always cut the full length: under a sliding window
those outside it are still launched, pass the early exit and write neutral states. Versions and sources are in
vllm_triton_rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.vllm.releases import RELEASES
from decodecalc.engines.vllm.triton_path import TritonStep, decide, gates
from decodecalc.engines.vllm.triton_registers import resident_blocks
from decodecalc.engines.vllm.triton_rules import VERSIONS
from decodecalc.engines.vllm.triton_server import Server, VllmTritonOptions, server_takes
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import Takes
from decodecalc.launch.traits import COUNT, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

DEFAULT_WARPS, LARGE_WARPS = 4, 8  # Triton's default num_warps; what the large-head path asks for
LARGE_TILE = 128
STATE_SCALARS = 2  # running max and sum of a partial state


class VllmTritonDetail(NamedTuple):
    """The engine's quantities of one step: numbers or [N]; tiles_per_segment to first_visited_key are [N, R].

    num_seqs, num_tokens: after padding. threshold: seq_threshold_3D (None where the version tests the grid).
    scratch_rows, scratch_segments: the layout this step sees. num_segments: the kernel's constant, 1 in 2D.
    tiles_per_segment: 0 in 2D. first_visited_key: where the first tile of the window starts (0 without a window);
    visited keys end at the request's last. live_programs: stage-1 blocks that do not exit early; programs_with_tiles:
    those that load at least one tile.
    """

    block_m: Any
    block_q: Any
    tile_size: Any
    num_warps: Any
    num_seqs: Any
    num_tokens: Any
    threshold: Any
    capture_sizes: tuple[int, ...]
    scratch_rows: Any
    scratch_segments: Any
    num_segments: Any
    head_dim_padded: int
    tiles_per_segment: Any
    live_q_blocks: Any
    first_visited_key: Any
    live_programs: Any
    programs_with_tiles: Any

    @property
    def num_warps_override(self) -> int | None:
        """Warps that the launcher asks for, None where it leaves them to Triton."""
        return None if self.num_warps == DEFAULT_WARPS else self.num_warps


class Segments(NamedTuple):
    """How keys are cut; [N] or [N, R]. segment_keys: keys of a segment. columns: blocks that walk each live segment."""

    tile: IntArray
    segments: IntArray
    tiles_per_segment: IntArray
    segment_keys: IntArray
    first_visited_key: IntArray
    live: IntArray
    working: IntArray
    live_q_blocks: IntArray
    columns: IntArray


class VllmTriton(Policy):
    """Cuts requests into 16 segments of whole tiles, or not at all."""

    name = "vllm-triton"
    title = "vLLM Triton unified attention (TRITON_ATTN)"
    releases = RELEASES
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
    traits = Traits(
        server_names=("TRITON_ATTN",),
        invariant_option=("batch_invariant", True),
        eager_option=("capture_sizes", None),
        replay_option=("padded_num_seqs", "auto"),
        time_kernels=("vllm-triton-2d", "vllm-triton-3d"),
        partition=Partition(rule=COUNT, pads_grid=True),
    )

    def combinations(self, options: VllmTritonOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        return server_takes(version.rules)

    def settle(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: VllmTritonOptions,
        version: PolicyVersion,
    ) -> tuple[Server, TritonStep]:
        """The server that has started and its launcher's decision."""
        server = Server.start(geo, kv, gpu, options, version.rules)
        return server, decide(geo, batches, server)

    def warps(self, step: TritonStep) -> Any:
        """Warps of a stage-1 block [N]."""
        return np.where(step.large, LARGE_WARPS, DEFAULT_WARPS)

    def kernels(
        self,
        geo: Geometry,
        batches: Batches,
        gpu: Gpu,
        server: Server,
        step: TritonStep,
        cut: Segments,
        live_programs: IntArray,
    ) -> tuple[KernelArray, ...]:
        """The kernels of the step."""
        return _kernels(geo, batches, gpu, server, step, cut, live_programs)

    def resident(self, geo: Geometry, kv: KvCache, gpu: Gpu, step: TritonStep) -> Any:
        """Blocks of stage 1 that an SM holds [N]; 0 where the compiled kernel is not known."""
        known = 0 if gpu.is_hip else resident_blocks(geo, kv, gpu, step.is_3d, DEFAULT_WARPS * 32)
        return np.where(step.large, 0, known)

    def gates(self, geo: Geometry, kv: KvCache, gpu: Gpu, server: Server, step: TritonStep) -> tuple[GateArray, ...]:
        """The launcher's conditions."""
        return gates(geo, kv, gpu, server, step)

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: VllmTritonOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. Raises GateError with the codes of `check_start_up` and with capture_sizes."""
        server, step = self.settle(geo, batches, kv, gpu, options, version)
        cut = _partition(geo, batches, server, step)
        has_work = (batches.q_lens > 0) & (batches.seq_lens > 0)
        live_programs = batches.total(cut.columns * cut.live)
        padded = next_power_of_2(geo.v_dim)
        rows: Any = step.tokens * step.is_3d if server.rules.gates_on_grid else step.rows
        split = step.is_3d[:, None]
        return Launches(
            is_split=step.is_3d,
            kernels=self.kernels(geo, batches, gpu, server, step, cut, live_programs),
            requested=cut.segments[:, None],
            launched=cut.segments,
            live=cut.live,
            working=cut.working,
            first_key=np.where(split, 0, cut.first_visited_key),
            split_keys=np.where(split, cut.segment_keys, np.maximum(batches.seq_lens - cut.first_visited_key, 1)),
            keys_read=(batches.seq_lens - cut.first_visited_key) * has_work,
            blocks_per_split=cut.columns,
            unsplit_blocks=batches.total(cut.columns * has_work),
            tile_keys=cut.tile,
            block_rows=step.block_m,
            live_rows=np.minimum(step.max_q, step.block_q) * geo.group,
            resident_blocks=self.resident(geo, kv, gpu, step),
            state_values=geo.v_dim + STATE_SCALARS,
            scratch_bytes=rows * step.segments * geo.q_heads * (padded + STATE_SCALARS) * 4,
            determinism=_determinism(server),
            path_names=("2d", "3d"),
            gates=self.gates(geo, kv, gpu, server, step),
            detail=VllmTritonDetail(
                block_m=step.block_m,
                block_q=step.block_q,
                tile_size=cut.tile,
                num_warps=self.warps(step),
                num_seqs=step.num_seqs,
                num_tokens=step.tokens,
                threshold=None if server.rules.gates_on_grid else server.threshold,
                capture_sizes=server.captured,
                scratch_rows=rows,
                scratch_segments=step.segments,
                num_segments=cut.segments,
                head_dim_padded=next_power_of_2(geo.head_dim),
                tiles_per_segment=cut.tiles_per_segment,
                live_q_blocks=cut.live_q_blocks,
                first_visited_key=cut.first_visited_key,
                live_programs=live_programs,
                programs_with_tiles=_programs_with_tiles(geo, batches, server, step, cut),
            ),
        )


def _determinism(server: Server) -> str:
    """Batch-invariant mode never splits; the tuned tiles of wide heads still follow the longest query."""
    if server.can_split:
        return "batch-dependent"
    return "tile-dependent" if server.tunes_large_head else "invariant"


def _partition(geo: Geometry, batches: Batches, server: Server, step: TritonStep) -> Segments:
    """Segments of whole tiles from key 0 in 3D, one walk over the visible tiles in 2D."""
    seq_lens, q_lens, split = batches.seq_lens, batches.q_lens, step.is_3d[:, None]
    wide = np.where(step.large, LARGE_TILE, server.wide_tile) if server.tunes_large_head else server.wide_tile
    tile = np.where(step.is_3d, server.narrow_tile, wide)
    segments = np.where(step.is_3d, step.segments, 1)
    tiles_per_segment = cdiv(seq_lens, (segments * tile)[:, None]) * split
    segment_keys = np.maximum(tiles_per_segment, 1) * tile[:, None]
    first = np.zeros_like(seq_lens)
    if geo.window is not None:
        # The first query of a request sits at position L - q and sees `window` keys, itself included.
        first = np.maximum(seq_lens - q_lens - geo.window + 1, 0) // tile[:, None] * tile[:, None]
        if not server.rules.prunes_segments:
            first = np.where(split, 0, first)
    has_work = (q_lens > 0) & (seq_lens > 0)
    live = np.where(split, cdiv(seq_lens, segment_keys), 1) * has_work
    outside = np.where(split, first // segment_keys, 0) * has_work
    live_q_blocks = cdiv(q_lens, np.reshape(step.block_q, (-1, 1)))
    return Segments(
        tile, segments, tiles_per_segment, segment_keys, first, live, live - outside, live_q_blocks,
        live_q_blocks * geo.kv_heads,
    )  # fmt: skip


def _programs_with_tiles(geo: Geometry, batches: Batches, server: Server, step: TritonStep, cut: Segments) -> IntArray:
    """Blocks that load a tile [N].

    Query blocks of one request see different keys: an early one may end before the last segment, and a late one may
    start after the first. 3D therefore counts each query block by itself (compute_tile_loop_bounds).
    """
    of_all_blocks = batches.total(cut.columns * cut.working)
    most = int((cdiv(step.max_q, step.block_q) * step.is_3d).max(initial=0))
    if most <= 1:
        return of_all_blocks
    block_m, block_q = np.reshape(step.block_m, (-1, 1)), np.reshape(step.block_q, (-1, 1))
    tile, causal = cut.tile[:, None], server.options.causal
    context = batches.seq_lens - batches.q_lens
    count = np.zeros_like(cut.working)
    for block in range(most):
        first_query = block * block_q
        last_query = first_query + (block_m - 1) // geo.group  # may point past the block where BLOCK_M has dead rows
        start, end = np.zeros_like(context), batches.seq_lens
        if causal:
            end = np.minimum(context + last_query + 1, end)
        if geo.window is not None and server.rules.prunes_segments:
            start = np.maximum(context + first_query - geo.window + 1, 0)
            if not causal:
                end = np.minimum(end, context + np.minimum(last_query, batches.q_lens - 1) + geo.window)
        segments = cdiv(end, cut.segment_keys) - start // tile * tile // cut.segment_keys
        count += np.where((first_query < batches.q_lens) & (end > start), segments, 0)
    return np.where(step.is_3d, batches.total(count) * geo.kv_heads, of_all_blocks)


def _kernels(
    geo: Geometry, batches: Batches, gpu: Gpu, server: Server, step: TritonStep, cut: Segments, live_programs: IntArray
) -> tuple[KernelArray, ...]:
    warp = gpu.warp_size or 32
    usual, large = DEFAULT_WARPS * warp, LARGE_WARPS * warp
    name_2d, name_3d = server.kernels
    blocks = (step.q_blocks, geo.kv_heads)
    stage1 = [
        KernelArray(
            name=name_3d,
            role="stage1",
            grid=(*blocks, cut.segments),
            threads=usual,
            live_blocks=live_programs,
            tile_keys=cut.tile,
            when=step.is_3d,
        ),
        KernelArray(
            name=name_2d,
            role="stage1",
            grid=blocks,
            threads=usual,
            live_blocks=live_programs,
            tile_keys=cut.tile,
            when=~step.is_3d & ~step.large,
        ),
    ]
    if server.tunes_large_head:
        stage1.append(
            KernelArray(
                name=name_2d,
                role="stage1",
                grid=blocks,
                threads=large,
                live_blocks=live_programs,
                tile_keys=cut.tile,
                when=step.large,
            )
        )
    merged = batches.query_tokens * geo.q_heads  # rows of graph padding return at once
    merge = KernelArray(
        name="reduce_segments",
        role="merge",
        grid=(step.tokens, geo.q_heads),
        threads=usual,
        live_blocks=merged,
        when=step.is_3d,
    )
    return (*stage1, merge)


POLICY = VllmTriton()
