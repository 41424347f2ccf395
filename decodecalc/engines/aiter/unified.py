"""aiter-unified: AMD's unified attention in Triton, with vLLM's kernel names and a gate of its own.

The kernels descend from vLLM's and are called kernel_unified_attention_2d, _3d and reduce_segments too, but the split
path is chosen by the length of the longest request and by how far the unsplit grid fills the device, not by a batch
threshold, the segment count adapts, and the axes of the 2D grid are swapped: (KV heads, query blocks).

Read from ROCm/aiter: aiter/ops/triton/attention/unified_attention.py (use_2d_kernel, select_2d_config,
select_3d_config, unified_attention) and aiter/ops/triton/_triton_kernels/attention/unified_attention.py. gfx1250 runs
other kernels (Gluon) and has no policy here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.vllm.paged_attention import planned_length
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import AMD, Takes
from decodecalc.launch.traits import COUNT, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

BLOCKS_PER_CU = 4  # target_num_prgms = 4 x compute units
MAX_UNSPLIT_KEYS = 512  # up to this length nothing is split
MAX_SEGMENTS = 128
MAX_TILE = 64
PREFILL_QUERIES = 256  # from here on the 2D kernel takes its prefill tile
WIDE_HEAD = 512


@dataclass(frozen=True, slots=True)
class AiterUnifiedRules:
    """The differences between versions."""

    exact_decode_blocks: bool = True
    """Whether a decode step has B query blocks, and not the upper bound tokens // BLOCK_Q + B."""
    occupancy: bool = True
    """Whether the segment count aims at every wave slot of the device and is capped by the number of tiles."""
    wide_heads: bool = True
    """Whether head dims of 256 and more have configurations of their own."""
    page_tile: bool = False
    """Whether a tile is a page."""


@dataclass(frozen=True, slots=True)
class AiterUnifiedOptions(EngineOptions):
    """The length that the step is planned for, when that is more than its longest request."""

    max_seq_len: int | None = option(
        None,
        "int?",
        "keys that the launch is sized for (max_model_len in a captured CUDA graph)",
        "max_seqlen_k",
        low=1,
    )


class AiterUnifiedDetail(NamedTuple):
    """The choice in aiter's words."""

    num_2d_programs: Any
    target_num_programs: int
    block_m: Any
    block_q: Any
    num_segments: Any


class AiterUnified(Policy):
    """2D (unsplit) or 3D (segments), by length and device fill."""

    name = "aiter-unified"
    title = "aiter unified attention (Triton, ROCm)"
    word_for_split = "segment"
    options_type = AiterUnifiedOptions
    versions = (
        PolicyVersion(
            "0.1.20", "ROCm/aiter v0.1.20 (same at e404860)", ("0.1.19.post1", "0.1.20.post1"), AiterUnifiedRules()
        ),
        PolicyVersion(
            "0.1.18",
            "ROCm/aiter v0.1.16, v0.1.18, v0.1.19",
            ("0.1.16", "0.1.19"),
            AiterUnifiedRules(wide_heads=False),
            "there are no configurations for head dims of 256 and more",
        ),
        PolicyVersion(
            "0.1.15",
            "ROCm/aiter v0.1.12, v0.1.15",
            ("0.1.12", "0.1.15"),
            AiterUnifiedRules(exact_decode_blocks=False, occupancy=False, wide_heads=False),
            "decode launches the upper bound of query blocks; segments aim at 4 blocks per compute unit",
        ),
        PolicyVersion(
            "0.1.11",
            "ROCm/aiter v0.1.6.post2 to v0.1.11.post1",
            ("0.1.6.post2", "0.1.11.post1"),
            AiterUnifiedRules(exact_decode_blocks=False, occupancy=False, wide_heads=False, page_tile=True),
            "a tile is a page",
        ),
    )
    rule = (
        "2D iff window, or longest <= 512, or query blocks * kv_heads > 4 * CUs; else 3D with a power of two of "
        "segments near 4 * CUs * waves per SIMD / (query blocks * kv_heads), 8 to 128, at most ceil(longest / tile)"
    )
    traits = Traits(
        server_names=("ROCM_AITER_UNIFIED_ATTN",), partition=Partition(rule=COUNT), frozen_option="max_seq_len"
    )

    def combinations(self, options: AiterUnifiedOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        return (
            Takes(devices=(AMD,), mla=False, cache_dtypes=("bf16", "fp16", "fp8"), value_dims=None, note="not gfx1250"),
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: AiterUnifiedOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays.

        Raises GateError for devices that are not AMD's, gfx1250, MLA, and cache types that the kernels do not take.
        """
        rdna = _is_rdna(gpu)
        if geo.mla:
            raise GateError("aiter-unified does not serve MLA, which runs in other kernels of aiter", "mla")
        if kv.dtype not in ("bf16", "fp16", "fp8"):
            raise GateError(f"aiter-unified takes bf16, fp16 or fp8 keys, not {kv.dtype}", "kv_dtype")
        rules: AiterUnifiedRules = version.rules
        wide = rules.wide_heads and not rdna
        wave = 32 if rdna else 64
        longest = planned_length(self.name, batches, options.max_seq_len)
        decode = batches.max_q_len == 1
        exact = decode & rules.exact_decode_blocks
        block_m = 16 if geo.group <= 16 else next_power_of_2(geo.group)
        block_q = block_m // geo.group
        blocks_3d = np.where(exact, batches.batch, batches.query_tokens // block_q + batches.batch)
        programs, target = blocks_3d * geo.kv_heads, BLOCKS_PER_CU * gpu.sm_count
        unsplit = (longest <= MAX_UNSPLIT_KEYS) | (programs > target)
        if geo.window is not None:
            unsplit = np.ones_like(unsplit)
        elif wide and geo.head_dim >= WIDE_HEAD:
            unsplit = unsplit | ~decode

        fp8 = kv.dtype == "fp8" and kv.query_dtype == "fp8"
        page_tile = kv.page_size if rules.page_tile else min(MAX_TILE, next_power_of_2(kv.page_size))
        segments = _segments(longest, page_tile, target, programs, rules, wide and geo.head_dim >= WIDE_HEAD)
        prefill_m, prefill_tile = _prefill_config(geo, gpu, rdna, rules)
        block_m_2d = np.where(batches.max_q_len >= PREFILL_QUERIES, np.maximum(prefill_m or block_m, block_m), block_m)
        block_m_used = np.where(unsplit, block_m_2d, block_m)
        block_q_used = block_m_used // geo.group
        blocks_2d = np.where(exact, batches.batch, batches.query_tokens // (block_m_2d // geo.group) + batches.batch)
        tile = np.where(unsplit & ~decode, prefill_tile, page_tile)
        if fp8 and not rules.page_tile:
            tile = np.maximum(tile, 32)

        lens = batches.seq_lens
        first = visible_start(batches, geo.window) // tile[:, None] * tile[:, None]
        split_keys = cdiv(lens, (segments * tile)[:, None]) * tile[:, None]
        split_keys = np.maximum(np.where(unsplit[:, None], lens - first, split_keys), 1)
        live = cdiv(lens - first, split_keys)
        columns = geo.kv_heads * cdiv(batches.q_lens, block_q_used[:, None])
        live_blocks = batches.total(columns * live)
        launched = np.where(unsplit, 1, segments)
        state = next_power_of_2(geo.v_dim) + 2
        threads_2d = (4 if rdna or (wide and geo.head_dim >= WIDE_HEAD) else 2) * wave if decode.all() else None
        return Launches(
            is_split=~unsplit,
            kernels=(
                KernelArray(
                    name="kernel_unified_attention_2d",
                    role="stage1",
                    grid=(geo.kv_heads, blocks_2d),
                    threads=threads_2d,
                    live_blocks=live_blocks,
                    tile_keys=tile,
                    when=unsplit,
                ),
                KernelArray(
                    name="kernel_unified_attention_3d",
                    role="stage1",
                    grid=(blocks_3d, geo.kv_heads, segments),
                    threads=_warps_3d(geo, gpu, wide) * wave,
                    live_blocks=live_blocks,
                    tile_keys=tile,
                    when=~unsplit,
                ),
                KernelArray(
                    name="reduce_segments",
                    role="merge",
                    grid=(batches.query_tokens, geo.q_heads),
                    threads=None,
                    live_blocks=batches.query_tokens * geo.q_heads,
                    when=~unsplit,
                ),
            ),
            requested=np.broadcast_to(launched[:, None], lens.shape),
            launched=launched,
            live=live,
            split_keys=split_keys,
            first_key=first,
            keys_read=lens - first,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (lens > 0)),
            tile_keys=tile,
            block_rows=block_m_used,
            live_rows=np.minimum(batches.max_q_len, block_q_used) * geo.group,
            state_values=state,
            scratch_bytes=~unsplit * batches.query_tokens * geo.q_heads * segments * state * 4,
            determinism="batch-dependent",
            detail=AiterUnifiedDetail(programs, target, block_m_used, block_q_used, launched),
            gates=(
                GateArray(
                    "no_window",
                    geo.window is None,
                    lambda n: f"the window is {geo.window}; layers with a window always take the unsplit 2D kernel",
                ),
                GateArray(
                    "long_enough",
                    longest > MAX_UNSPLIT_KEYS,
                    lambda n: f"the longest request has {at(longest, n)} keys; splits begin above {MAX_UNSPLIT_KEYS}",
                ),
                GateArray(
                    "underfilled",
                    programs <= target,
                    lambda n: (
                        f"{at(blocks_3d, n)} query blocks x {geo.kv_heads} KV heads = {at(programs, n)} of "
                        f"4 x {gpu.sm_count} = {target} blocks that fill the device"
                    ),
                ),
                GateArray("split", ~unsplit, lambda n: f"{at(launched, n)} segments are launched"),
            ),
        )


def _is_rdna(gpu: Gpu) -> bool:
    if not gpu.is_hip:
        raise GateError(f"aiter-unified runs on AMD devices only, and {gpu.label} is not one", "not_amd")
    gfx = gpu.gfx or "gfx9"
    if gfx.startswith("gfx1250"):
        raise GateError("aiter-unified: gfx1250 runs Gluon kernels, for which there is no policy here", "gfx1250")
    return not gfx.startswith("gfx9")


def _segments(longest: Any, tile: int, target: int, programs: Any, rules: AiterUnifiedRules, wide_head: bool) -> Any:
    """NUM_SEGMENTS of select_3d_config [N]."""
    if not rules.occupancy:
        least = 16 if tile <= 16 else 8
        return np.clip(next_power_of_2(cdiv(target, programs)), least, MAX_SEGMENTS)
    most = np.minimum(MAX_SEGMENTS, cdiv(longest, tile))
    least = np.minimum(16 if wide_head else 8, most)
    waves = 2 if wide_head else 4  # blocks per SIMD group: 2 waves per SIMD x 4 SIMDs / warps of a block
    return next_power_of_2(np.maximum(np.minimum(cdiv(target * waves, programs), most), least))


def _prefill_config(geo: Geometry, gpu: Gpu, rdna: bool, rules: AiterUnifiedRules) -> tuple[int | None, int]:
    """(BLOCK_M of long prefills, tile) of select_2d_config for steps that are not pure decode."""
    if rules.wide_heads and not rdna and geo.head_dim >= 256:
        return None, 16 if geo.head_dim >= WIDE_HEAD else 32
    if rules.page_tile:
        return 128, MAX_TILE
    return (64, 32 if gpu.gfx == "gfx1201" else 16) if rdna else (128, MAX_TILE)


def _warps_3d(geo: Geometry, gpu: Gpu, wide: bool) -> int:
    if gpu.gfx == "gfx1151":
        return 8
    return 4 if wide and geo.head_dim >= WIDE_HEAD else 2


POLICY = AiterUnified()
