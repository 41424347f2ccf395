"""tensorrt-llm-mmha: TensorRT-LLM's masked multi-head attention, which runs when XQA does not.

A block serves one query head, so that a group reads its keys once for each query head. Keys are cut into tiles of the
same size for all requests (`timesteps_per_block`); the last block of a sequence to finish combines the partial states.
The thread count grows while the heads leave SMs idle, and the tiles fill what occupancy then leaves. All scores of a
block lie in shared memory: long contexts force several tiles even where multi-block mode is off.

Read from NVIDIA/TensorRT-LLM, main of 2025 and 2026:
cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention/decoderMaskedMultiheadAttentionLaunch.h
(`mmha_launch_kernel_ex`, `multi_block_grid_setup`, `smem_size_in_bytes`), decoderMaskedMultiheadAttentionTemplate.h
(keys of a tile), kernels/decoderMaskedMultiheadAttention.{h,cu} (`estimate_min_multi_block_count`, head sizes) and
common/attentionOp.cpp (tile bounds, `getMaxNumSeqLenTile`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.tensorrt_llm import choice
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import LAST_BLOCK
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import NVIDIA, Numbers, Takes, only

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

THREADS = (256, 512, 1024)
SMEM_RESERVED = 2048  # taken off the opt-in limit before the least tile count is estimated
SMEM_OF_DRIVER = 1024  # bytes of shared memory that the driver keeps for every block
SMEM_ATTRIBUTE = 46 * 1024  # from here on the launcher raises the kernel's limit, which can fail
UNROLL = 8  # keys that a thread group loads at once
ENOUGH_BLOCKS = 4  # single-block launches with this many blocks for each SM keep 256 threads
RESERVED_TILES = 64  # kReservedMaxSeqLenTilePerSeq
HEAD_DIMS = (32, 48, 64, 80, 96, 104, 112, 128, 144, 160, 192, 224, 256)
QUERY_DTYPES = ("fp16", "bf16", "fp32")
CACHE_DTYPES = ("fp16", "bf16", "fp32", "int8", "fp8")
ASSUMED_OCCUPANCY = (4, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MmhaOptions(EngineOptions):
    """Settings of the engine's build and of the environment, and the driver's answers."""

    multi_block_mode: bool = option(True, "bool", "cut sequences over several blocks", flag="--multi_block_mode")
    cyclic_attention_window: int | None = option(
        None,
        "int?",
        "the engine's maximum sequence length, for layers without a window; by default the longest request + 1",
        low=1,
    )
    beam_width: int = option(1, "int", "beams that a request has", flag="--max_beam_width", low=1)
    register_limited_blocks_per_sm: tuple[int, ...] = option(
        ASSUMED_OCCUPANCY,
        "ints",
        "blocks of 256, 512 and 1024 threads that an SM's registers hold; 4, 2 and 1 are assumed",
    )
    env_multi_block_debug: bool = option(
        False, "bool", "let the environment fix the tile count", flag="TRTLLM_ENABLE_MMHA_MULTI_BLOCK_DEBUG"
    )
    env_blocks_per_sequence: int = option(
        0,
        "int",
        "tiles of a sequence in debug mode; 0 leaves the count of the rule",
        flag="TRTLLM_MMHA_BLOCKS_PER_SEQUENCE",
    )
    env_kernel_block_size: int = option(
        0, "int", "threads of a block; 0 leaves the count of the rule", flag="TRTLLM_MMHA_KERNEL_BLOCK_SIZE"
    )


class MmhaDetail(NamedTuple):
    """The launch in TensorRT-LLM's words."""

    max_seq_len_tile: Any
    """Most tiles of a sequence [N]."""
    min_seq_len_tile: Any
    """Tiles that the scores need to fit shared memory [N]."""
    enable_multi_block: Any
    """Whether the multi-block variant is prepared [N]."""
    threads: Any
    """Threads of a block [N]."""
    dynamic_smem: Any
    """Bytes of dynamic shared memory [N]."""
    seq_len_tile: Any
    """Tiles launched [N]."""
    timesteps_per_block: Any
    """Keys of a tile [N]; 1 where the single-block path leaves the field alone."""


class Sizes:
    """Sizes of one layer's kernels: shared memory and occupancy, on [N] arrays."""

    def __init__(self, head_dim: int, element: int, smem_per_sm: int, registers: tuple[int, ...]) -> None:
        self.head_dim, self.element = head_dim, element
        self.smem_per_sm, self.registers = smem_per_sm, dict(zip(THREADS, registers))
        self.threads_per_value = max(next_power_of_2(head_dim), 32) * element // 16

    def smem(self, keys: Any, threads: Any, tiles: Any) -> Any:
        """`smem_size_in_bytes`: scores of `keys` keys, the reduction, the rotary transposition, and `tiles` partial
        outputs (0 where the kernel is not a multi-block one)."""
        quads = cdiv(keys + 1, 4)
        scores = quads * 16 + (quads * 4 * self.element if self.element != 4 else 0)
        reduction = threads // self.threads_per_value * self.head_dim * self.element // 2
        rotary = 2 * self.head_dim * self.element
        return np.maximum(np.maximum(scores, reduction), np.maximum(rotary, tiles * self.head_dim * self.element))

    def occupancy(self, threads: int, smem: Any) -> Any:
        """Blocks of `threads` threads and `smem` dynamic bytes that fit an SM."""
        return np.minimum(self.registers[threads], self.smem_per_sm // (smem + SMEM_OF_DRIVER))


class Mmha(Policy):
    """All requests have tiles of one size, and the last block merges them."""

    name = "tensorrt-llm-mmha"
    title = "TensorRT-LLM MMHA decode attention"
    word_for_split = "tile"
    versions = (
        PolicyVersion(
            "2026",
            "NVIDIA/TensorRT-LLM main of 2026: kernels/decoderMaskedMultiheadAttention/"
            "decoderMaskedMultiheadAttentionLaunch.h, common/attentionOp.cpp",
            ("2025", "2026"),
        ),
    )
    options_type = MmhaOptions
    rule = (
        "tiles = clamp(ceil(SMs * occupancy / (B * q_heads)), least for shared memory, "
        "min(ceil((L + 1) / keys of a loop), ceil(SMs / (B * q_heads)))); a tile has "
        "ceil((min(L, window) + 1) / tiles) keys"
    )

    def combinations(self, options: MmhaOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        return (
            Takes(
                devices=(NVIDIA,),
                mla=False,
                cache_dtypes=CACHE_DTYPES,
                query_dtypes=QUERY_DTYPES,
                head_dims=only(*HEAD_DIMS),
                value_dims=None,
                page_sizes=Numbers(powers_of_2=True),
            ),
        )

    def launches(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: MmhaOptions, version: PolicyVersion
    ) -> Launches:
        """Apply the rule to arrays. Raises GateError where the launcher throws, and for layers without a kernel."""
        smem_per_sm, optin = _check(geo, batches, kv, gpu, options)
        element = int(kv.query_element_bytes)
        sizes = Sizes(geo.head_dim, element, smem_per_sm, options.register_limited_blocks_per_sm)
        longest = batches.max_seq_len
        if geo.window is not None:
            window = np.full_like(longest, geo.window)
        elif options.cyclic_attention_window is not None:
            if (longest > options.cyclic_attention_window).any():
                raise InputError(
                    f"tensorrt-llm-mmha: cyclic_attention_window is {options.cyclic_attention_window}, but a request "
                    f"has {int(longest.max())} keys: without a window the engine's maximum holds every request"
                )
            window = np.full_like(longest, options.cyclic_attention_window)
        else:
            window = longest + 1
        sequences = batches.batch * options.beam_width
        blocks = sequences * geo.q_heads
        least = _least_tiles(np.minimum(longest, window), optin, element)
        most = np.maximum(_bound(blocks, gpu.sm_count, options), least)
        enabled = (options.multi_block_mode & (most > 1)) | (least > 1)

        alone = sizes.smem(np.minimum(longest, window), 0, 0)  # scores of a whole sequence, the rest left out
        threads, available = self._threads(sizes, enabled, most, longest, window, blocks, gpu.sm_count)
        fixed = ~enabled & (blocks >= ENOUGH_BLOCKS * gpu.sm_count)
        if options.env_kernel_block_size:
            threads = np.where(fixed, threads, options.env_kernel_block_size)
        balanced = cdiv(gpu.sm_count * available, blocks)
        bound = most
        if options.env_multi_block_debug:
            if options.env_blocks_per_sequence:
                balanced = np.full_like(blocks, options.env_blocks_per_sequence)
        else:
            loop = UNROLL * cdiv(threads, sizes.threads_per_value)
            bound = np.minimum(cdiv(longest + 1, loop), most)
        # std::clamp with a lower bound above the upper one gives whichever is compared first.
        clamped = np.where(balanced < least, least, np.where(bound < balanced, bound, balanced))
        tiles = np.where(enabled, clamped, 1)
        multi = tiles > 1
        tile_keys = np.where(enabled, cdiv(np.minimum(longest, window) + 1, tiles), 1)
        smem = np.where(
            multi,
            sizes.smem(np.minimum(tile_keys, cdiv(window, tiles)), threads, most),
            np.maximum(alone, sizes.smem(0, threads, 0)),
        )
        _throws(tiles, enabled, threads, smem, optin)

        visible = batches.seq_lens if geo.window is None else np.minimum(batches.seq_lens, geo.window)
        split_keys = np.where(multi, tile_keys, np.maximum(batches.largest(visible), 1))[:, None]
        live = cdiv(visible, split_keys)
        columns = geo.q_heads * options.beam_width
        has_keys = batches.seq_lens > 0
        live_blocks = columns * batches.total(live)
        xqa = choice.decide(geo, batches, kv, gpu, choice.XqaCall.of(options))
        return Launches(
            is_split=multi,
            kernels=tuple(
                KernelArray(
                    name="masked_multihead_attention_kernel",
                    role="stage1",
                    grid=(geo.q_heads, sequences, tiles),
                    threads=size,
                    live_blocks=live_blocks,
                    tile_keys=UNROLL * cdiv(size, sizes.threads_per_value),
                    when=threads == size,
                )
                for size in THREADS
            ),
            requested=np.broadcast_to(tiles[:, None], batches.seq_lens.shape),
            launched=tiles,
            live=live,
            split_keys=np.broadcast_to(split_keys, batches.seq_lens.shape),
            first_key=batches.seq_lens - visible,
            keys_read=visible,
            blocks_per_split=np.full_like(batches.seq_lens, columns),
            unsplit_blocks=columns * batches.total(has_keys * 1),
            tile_keys=UNROLL * cdiv(threads, sizes.threads_per_value),
            block_rows=1,
            live_rows=1,
            state_values=geo.head_dim * element // 4 + 2,
            merge_in=LAST_BLOCK,
            scratch_bytes=enabled * blocks * most * (geo.head_dim * element + 8),
            determinism="batch-dependent",
            detail=MmhaDetail(
                max_seq_len_tile=most,
                min_seq_len_tile=least,
                enable_multi_block=enabled,
                threads=threads,
                dynamic_smem=smem,
                seq_len_tile=tiles,
                timesteps_per_block=tile_keys,
            ),
            gates=(
                GateArray(
                    name="split",
                    passed=multi,
                    reason=lambda n: (
                        f"{gpu.sm_count} SMs of {at(available, n)} blocks each for {at(blocks, n)} query heads of the "
                        f"batch ask for {at(balanced, n)} tiles, between {at(least, n)} (shared memory) and "
                        f"{at(bound, n)}, which gives {at(tiles, n)}"
                        + ("" if at(enabled, n) else "; multi-block mode is off")
                    ),
                ),
                GateArray(
                    name="engine_picks_it",
                    passed=~xqa.used,
                    reason=lambda n: "XQA would run: " + xqa.reason(n) if xqa.used[n] else xqa.reason(n),
                ),
                GateArray(
                    name="occupancy_given",
                    passed=options.register_limited_blocks_per_sm != ASSUMED_OCCUPANCY,
                    reason=lambda n: (
                        f"{', '.join(map(str, options.register_limited_blocks_per_sm))} blocks of 256, 512 and 1024 "
                        "threads are taken to fit an SM's registers; the engine asks the driver for its own kernel"
                    ),
                ),
            ),
        )

    @staticmethod
    def _threads(
        sizes: Sizes, enabled: Any, most: IntArray, longest: IntArray, window: IntArray, blocks: IntArray, sms: int
    ) -> tuple[IntArray, IntArray]:
        """(threads of a block, blocks of that size that fit an SM) [N], before the environment overrides them.

        The occupancy check of a multi-block kernel assumes one key per block: the tile size is not known yet.
        """
        keys = np.where(enabled, 1, np.minimum(longest, window))
        fit = sizes.occupancy(256, 0)
        wanted = np.minimum(256 * np.minimum(cdiv(sms * fit, blocks), fit), 1024)
        available = {
            size: sizes.occupancy(size, sizes.smem(keys, size, np.where(enabled, most, 0))) for size in THREADS
        }
        at_512 = np.where(available[512] > 0, 512, 256)
        threads = np.where(wanted < 512, 256, np.where((wanted == 1024) & (available[1024] > 0), 1024, at_512))
        threads = np.where(~enabled & (blocks >= ENOUGH_BLOCKS * sms), 256, threads)
        return threads, np.select([threads == size for size in THREADS], [available[size] for size in THREADS])


def _least_tiles(keys: IntArray, optin: int, element: int) -> IntArray:
    """`estimate_min_multi_block_count`: tiles whose scores fit shared memory."""
    per_quad = 16 + (4 * element if element != 4 else 0)
    return np.maximum(cdiv(cdiv(keys + 1, 4), (optin - SMEM_RESERVED) // per_quad), 1)


def _bound(blocks: IntArray, sm_count: int, options: MmhaOptions) -> IntArray:
    """`getMaxNumSeqLenTile`: one wave of blocks, or what the debug variables ask for; 0 with multi-block mode off."""
    if not options.multi_block_mode:
        return np.zeros_like(blocks)
    if options.env_multi_block_debug:
        return np.full_like(blocks, max(RESERVED_TILES, options.env_blocks_per_sequence))
    return cdiv(sm_count, blocks)


def _throws(tiles: IntArray, enabled: Any, threads: IntArray, smem: IntArray, optin: int) -> None:
    if (enabled & (tiles > threads)).any():
        raise GateError(
            f"tensorrt-llm-mmha: {int(tiles.max())} tiles of a sequence exceed the threads of a block", "too_many_tiles"
        )
    if not np.isin(threads, THREADS).all():
        raise GateError("tensorrt-llm-mmha: TRTLLM_MMHA_KERNEL_BLOCK_SIZE must be 256, 512 or 1024", "block_size")
    if ((smem >= SMEM_ATTRIBUTE) & (smem > optin)).any():
        raise GateError(
            f"tensorrt-llm-mmha: the scores need {int(smem.max())} bytes of shared memory, and a block may have "
            f"{optin}",
            "shared_memory",
        )


def _check(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: MmhaOptions) -> tuple[int, int]:
    """(shared memory of an SM, of a block). GateError for layers and devices without a kernel."""
    if gpu.is_hip:
        raise GateError(f"tensorrt-llm-mmha runs on NVIDIA GPUs only, not on {gpu.label}", "not_nvidia")
    if geo.mla:
        raise GateError("tensorrt-llm-mmha has no MLA kernel", "mla")
    if (batches.max_q_len > 1).any():
        raise GateError("tensorrt-llm-mmha takes one query token per request", "q_len")
    if geo.head_dim not in HEAD_DIMS or geo.v_dim != geo.head_dim:
        raise GateError(
            f"tensorrt-llm-mmha takes head sizes of {', '.join(map(str, HEAD_DIMS))}, not {geo.head_dim}/{geo.v_dim}",
            "head_dim",
        )
    if kv.query_dtype not in QUERY_DTYPES:
        raise GateError(f"tensorrt-llm-mmha takes queries of fp16, bf16 or fp32, not {kv.query_dtype}", "dtype")
    if kv.dtype not in CACHE_DTYPES:
        raise GateError(f"tensorrt-llm-mmha takes caches of fp16, bf16, fp32, int8 or fp8, not {kv.dtype}", "kv_dtype")
    if kv.page_size & (kv.page_size - 1):
        raise GateError(
            f"tensorrt-llm-mmha: tokens_per_block must be a power of two, not {kv.page_size}; this is an error "
            f"at start-up",
            "page_size",
        )
    if len(options.register_limited_blocks_per_sm) != len(THREADS):
        raise GateError(
            "tensorrt-llm-mmha: register_limited_blocks_per_sm needs three counts, for 256, 512 and 1024 threads",
            "occupancy",
        )
    if gpu.smem_bytes_per_sm is None or gpu.max_smem_bytes_per_block is None:
        raise GateError(
            f"tensorrt-llm-mmha: the shared memory of {gpu.label} is not known, and the tile count depends on it",
            "shared_memory_unknown",
        )
    return gpu.smem_bytes_per_sm, gpu.max_smem_bytes_per_block


POLICY = Mmha()
