"""tensorrt-llm-xqa: TensorRT-LLM's decode kernels for grouped queries, cut into sub-sequences.

The number of sub-sequences (`multi_block`) is one for the batch. It grows with the square root of the longest request,
so that the last block's merge does not dominate, and it is cut back where the launch would exceed eight waves. A
request's tiles are dealt to its sub-sequences in turn, and the last block to finish combines the partial states: there
is no merge kernel. There are three kernels: an Ampere-style one (HMMA), Hopper's (GMMA, FP8 caches) and one for MLA on
compute capability 12.0.

Read from NVIDIA/TensorRT-LLM, main of 2026:
cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention/decoderXQAImplCommon.h at 1245321 (`computeMultiBlockCount`,
`computeMultiBlockCountForMLA`, `computeMultiBlockCountSpecDecGMMA`), decoderXQAConstants.h, decoderXQARunner.cpp
(`runImpl`), xqaDispatcher.cpp (`getWorkspaceSize`), and cpp/kernels/xqa/{mha.cu, mha_sm90.cu, mla_sm120.cu} (which
tiles a sub-sequence walks). `choice` has the rule that picks XQA or MMHA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.tensorrt_llm import choice
from decodecalc.engines.tensorrt_llm.choice import GMMA, HMMA, MLA
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import LAST_BLOCK
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import Takes
from decodecalc.launch.traits import IRREGULAR, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

TARGET_WAVES = 8  # kTargetWaveFactor
MAX_SUB_SEQS, MAX_SUB_SEQS_MLA = 6000, 500  # getXqaMaxNumSubSeq
SPEC_MAX_BATCH, SPEC_MIN_KEYS, SPEC_LONG_KEYS, SPEC_MAX_SPLITS = 32, 2048, 65536, 64
MLA_TILE, MLA_TILES_PER_SPLIT, MLA_CTAS = 64, 2, 4  # keys of a tile, tiles of a CGA's turn, blocks of a CGA
TILE_KEYS = {HMMA: 256, GMMA: 64, MLA: MLA_TILE}
THREADS = {HMMA: 256, GMMA: 384, MLA: 384}
BLOCK_SHAPES = {HMMA: (128, 1, 2), GMMA: (128, 1, 3), MLA: (384, 1, 1)}
GMMA_ROWS = 64  # query rows of a Hopper block under speculative decoding
MAX_BEAMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class XqaOptions(EngineOptions):
    """Settings of the engine's build and of the environment."""

    multi_block_mode: bool = option(
        True,
        "bool",
        "cut sequences over several blocks; forced deterministic attention turns it off",
        "--multi_block_mode",
    )
    env_blocks_per_sequence: int | None = option(
        None,
        "int?",
        "number of sub-sequences, which replaces the count of the rule",
        flag="TRTLLM_XQA_BLOCKS_PER_SEQUENCE",
        low=1,
    )
    force_xqa: bool = option(False, "bool", "take XQA wherever it is supported", flag="TRTLLM_FORCE_XQA")
    beam_width: int = option(1, "int", "beams that a request has", flag="--max_beam_width", low=1)
    spec_decoding: bool | None = option(
        None, "bool?", "several query tokens are speculative drafts; by default they are wherever there are several"
    )
    spec_lengths_variable: bool = option(False, "bool", "requests have drafts of different lengths")
    paged_kv_cache: bool = option(True, "bool", "the cache is paged", flag="--kv_cache_type")
    position_embedding_type: str = option(
        "rope_gpt_neox", "str", "the model's position embedding", choices=(*choice.ROPE_TYPES, "alibi", "relative")
    )
    chunked_attention: bool = option(False, "bool", "the layer attends to its own chunk only")


@dataclass(frozen=True, slots=True, kw_only=True)
class XqaRules:
    """What differs between versions."""

    mla_splits: bool = True
    """Whether the MLA kernel cuts sequences at all."""


class XqaDetail(NamedTuple):
    """The launch in TensorRT-LLM's words."""

    kernel: Any
    """`ampere_hmma`, `hopper_gmma` or `sm120_mla`."""
    multi_block: Any
    """Sub-sequences launched for a sequence [N]."""
    may_have_perf_gain: Any
    """Whether the engine expects XQA to be faster than MMHA [N]."""
    xqa_used: Any
    """Whether the engine runs XQA [N]; MMHA otherwise."""
    block: Any
    """Threads of a block along its three axes."""
    m_tile_size: Any
    """Query rows of a block."""


def sub_sequences(keys: IntArray, batch: IntArray, kv_heads: int, sm_count: int) -> IntArray:
    """`computeMultiBlockCount` on arrays [N]: the square root is a float32, the waves are a double."""
    pieces = keys // choice.KEYS_PER_BLOCK
    root = np.sqrt(pieces.astype(np.float32) * np.float32(8))
    count = np.maximum(np.minimum(pieces, np.floor(root + np.float64(0.5)).astype(np.int64)), 1)
    factor = (batch * kv_heads * count).astype(np.float64) / sm_count / TARGET_WAVES
    cut = np.floor(count / np.maximum(factor, 1.0)).astype(np.int64)
    count = np.maximum(np.where(factor > 1.0, cut, count), 1)
    return np.maximum(np.minimum(count, MAX_SUB_SEQS // batch), 1)


def sub_sequences_mla(keys: IntArray, batch: IntArray, sm_count: int) -> IntArray:
    """`computeMultiBlockCountForMLA` on arrays [N]."""
    ratio = np.float32(sm_count) / batch.astype(np.float32)
    by_sm = np.maximum(np.floor(ratio.astype(np.float64) + 0.5).astype(np.int64), 1)
    by_keys = np.maximum(cdiv(keys, MLA_TILE * MLA_TILES_PER_SPLIT), 1)
    return np.minimum(np.minimum(by_sm, by_keys), np.maximum(MAX_SUB_SEQS_MLA // batch, 1))


def sub_sequences_speculative(keys: IntArray, batch: IntArray, blocks: IntArray, sm_count: int) -> IntArray:
    """`computeMultiBlockCountSpecDecGMMA` on arrays [N]; `blocks` are those of the launch without a split."""
    most = np.maximum(sm_count // blocks, 1)
    power = np.minimum(np.int64(1) << _log2(most), SPEC_MAX_SPLITS)
    shift = 3 - (_log2(keys) - 10) // 2
    short = np.where((blocks == 8) & (keys <= 8192), 1, np.clip(shift, 0, 62))
    tuned = (blocks <= 8) & (power >= 16) & (keys < SPEC_LONG_KEYS)
    count = np.where(tuned, power >> short, power)
    split = (batch <= SPEC_MAX_BATCH) & (keys >= SPEC_MIN_KEYS) & (blocks < sm_count)
    return np.where(split, count, 1)


def _log2(n: Any) -> IntArray:
    """Floor of the binary logarithm of positive numbers below 2^53."""
    return np.asarray(np.frexp(np.maximum(n, 1).astype(np.float64))[1] - 1, dtype=np.int64)


class Xqa(Policy):
    """Sub-sequences by the square root of the longest request."""

    name = "tensorrt-llm-xqa"
    title = "TensorRT-LLM XQA decode attention"
    word_for_split = "sub-sequence"
    split_flag = "TRTLLM_XQA_BLOCKS_PER_SEQUENCE"
    versions = (
        PolicyVersion(
            "2026",
            "NVIDIA/TensorRT-LLM@1245321: kernels/decoderMaskedMultiheadAttention/{decoderXQAImplCommon.h, "
            "decoderXQAConstants.h, decoderXQARunner.cpp, decoderXQAImplJIT/kernelUtils.cpp}",
            rules=XqaRules(),
        ),
        PolicyVersion(
            "2026-early",
            "an earlier revision of NVIDIA/TensorRT-LLM main of 2026: "
            "kernels/decoderMaskedMultiheadAttention/decoderXQAImplCommon.h (computeMultiBlockCountForMLA returns 1)",
            rules=XqaRules(mla_splits=False),
            note="the MLA kernel never cuts a sequence",
        ),
    )
    options_type = XqaOptions
    traits = Traits(
        split_setting=SplitSetting(
            "TRTLLM_XQA_BLOCKS_PER_SEQUENCE={splits}", "env_blocks_per_sequence", "TensorRT-LLM"
        ),
        invariant_option=("multi_block_mode", False),
        partition=Partition(rule=IRREGULAR),
    )
    rule = (
        "t = L / 128; S = min(t, round(sqrt(8 t))); beyond 8 waves of B * kv_heads * S blocks S shrinks to 8; "
        "S <= 6000 / B. MLA: min(round(SMs / B), ceil(L / 128), 500 / B)"
    )

    def combinations(self, options: XqaOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        return choice.combinations(choice.XqaCall.of(options))

    def launches(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: XqaOptions, version: PolicyVersion
    ) -> Launches:
        """Apply the rule to arrays.

        Raises GateError where no XQA kernel serves the layer. Where the engine would run MMHA because there is too
        little work, the gate `engine_picks_it` says so and the plan is what XQA would launch.
        """
        call = choice.XqaCall.of(options)
        decision = choice.decide(geo, batches, kv, gpu, call)
        if decision.kernel is None or decision.refusal is not None:
            code, why = decision.refusal or ("", "")
            raise GateError(f"tensorrt-llm-xqa: {why}", code)
        kernel, spec = decision.kernel, decision.speculative
        _check_queries(batches, kernel, spec, call)
        tile, group, batch = TILE_KEYS[kernel], geo.group, batches.batch
        rows, columns, grid_columns = _columns(kernel, geo, batches, options, spec)
        count = self._count(kernel, geo, batches, gpu, options, spec, grid_columns, version.rules)
        first = np.zeros_like(batches.seq_lens) if kernel == MLA else visible_start(batches, geo.window) // tile * tile
        keys = batches.seq_lens - first
        tiles = cdiv(keys, tile)
        if kernel == MLA:
            room = np.where(tiles >= 2 * MLA_TILES_PER_SPLIT, tiles // MLA_TILES_PER_SPLIT, 1)
        else:
            room = tiles
        live = np.where(keys > 0, np.minimum(room, count[:, None]), 0)
        turn = tile * MLA_TILES_PER_SPLIT if kernel == MLA else tile
        is_split = count > 1
        # The HMMA kernel's sub-sequences all write a state, a neutral one where they have no tile; the others return.
        written = np.where(keys > 0, count[:, None], 0) if kernel == HMMA else np.where(live > 1, live, 0)
        if kernel == HMMA:
            grid = (count, grid_columns, batch)
        elif kernel == GMMA:
            grid = (grid_columns // geo.kv_heads, count, geo.kv_heads * batch)
        else:
            grid = (grid_columns, count, batch)
        most_keys = np.maximum(cdiv(cdiv(keys, turn), np.maximum(live, 1)) * turn, 1)
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name=f"kernel_mha_{kernel}",
                    role="stage1",
                    grid=grid,
                    threads=THREADS[kernel],
                    live_blocks=batches.total(columns * live),
                    tile_keys=tile,
                ),
            ),
            requested=np.broadcast_to(count[:, None], batches.seq_lens.shape),
            launched=count,
            live=live,
            split_keys=np.minimum(most_keys, np.maximum(keys, 1)),
            first_key=first,
            interleave_keys=turn,
            keys_read=keys,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (keys > 0)),
            tile_keys=tile,
            block_rows=rows,
            live_rows=np.minimum(rows, batches.max_q_len * group * options.beam_width) if kernel != MLA else group,
            state_values=geo.v_dim // 2 + 2,
            partial_splits=np.where(is_split[:, None], written, 0),
            merge_in=LAST_BLOCK,
            scratch_bytes=_workspace(geo, kernel, options),
            determinism=self._determinism(kernel, spec, options),
            detail=XqaDetail(
                kernel=kernel,
                multi_block=count,
                may_have_perf_gain=decision.perf_gain,
                xqa_used=decision.used,
                block=BLOCK_SHAPES[kernel],
                m_tile_size=rows,
            ),
            gates=(
                GateArray(
                    name="split",
                    passed=is_split,
                    reason=lambda n: (
                        f"{kernel}: {at(batches.max_seq_len, n)} keys, {at(batch, n)} requests and {geo.kv_heads} KV "
                        f"heads on {gpu.sm_count} SMs give {at(count, n)} sub-sequences"
                        + ("" if options.multi_block_mode or kernel == MLA else " (multi-block mode is off)")
                    ),
                ),
                GateArray(name="engine_picks_it", passed=decision.used, reason=decision.reason),
            ),
        )

    @staticmethod
    def _count(
        kernel: str,
        geo: Geometry,
        batches: Batches,
        gpu: Gpu,
        options: XqaOptions,
        spec: BoolArray,
        grid_columns: IntArray,
        rules: XqaRules,
    ) -> IntArray:
        """Sub-sequences of a sequence [N]: `runImpl`'s choice of a rule."""
        keys, batch = batches.max_seq_len, batches.batch
        one = np.ones_like(batch)
        if kernel == MLA:
            if not rules.mla_splits:
                return one
        elif not options.multi_block_mode:
            return one
        if options.env_blocks_per_sequence is not None:
            count = np.full_like(batch, options.env_blocks_per_sequence)
            return np.where(spec, one, count) if kernel == HMMA else count
        if kernel == MLA:
            return sub_sequences_mla(keys, batch, gpu.sm_count)
        # The Ampere-style kernel never cuts a sequence under speculative decoding.
        drafts = one if kernel == HMMA else sub_sequences_speculative(keys, batch, grid_columns * batch, gpu.sm_count)
        return np.where(spec, drafts, sub_sequences(keys, batch, geo.kv_heads, gpu.sm_count))

    @staticmethod
    def _determinism(kernel: str, spec: BoolArray, options: XqaOptions) -> str:
        if kernel != MLA and (not options.multi_block_mode or (spec.all() and kernel == HMMA)):
            return "tile-dependent"  # the rows of its tile follow the longest draft
        return "batch-dependent" if options.env_blocks_per_sequence is None else "fixed count"


def _columns(
    kernel: str, geo: Geometry, batches: Batches, options: XqaOptions, spec: BoolArray
) -> tuple[Any, IntArray, IntArray]:
    """(query rows of a block, blocks of each request without a split [N, R], those of the grid per request [N])."""
    q, longest, group = batches.q_lens, batches.max_q_len, geo.group
    if kernel == MLA:
        return group, MLA_CTAS * q, MLA_CTAS * longest
    if kernel == GMMA:
        tokens = np.where(spec, GMMA_ROWS // group, 1)
        rows = np.where(spec, GMMA_ROWS, round_up(group, 8))
        return rows, geo.kv_heads * cdiv(q, tokens[:, None]), geo.kv_heads * cdiv(longest, tokens)
    rows = np.where(spec, np.where(longest <= 16, 16, 32), round_up(group * options.beam_width, 16))
    one = np.ones_like(longest)
    blocks = np.where(spec[:, None], cdiv(q * group, rows[:, None]), one[:, None])
    return rows, geo.kv_heads * blocks, geo.kv_heads * np.where(spec, cdiv(longest * group, rows), one)


def _workspace(geo: Geometry, kernel: str, options: XqaOptions) -> int:
    """Bytes that the engine reserves for partial states and semaphores: `XqaDispatcher::getWorkspaceSize` without the
    buffers for rotary embeddings and conversion, which hold no partial states."""
    if not options.multi_block_mode and kernel != MLA:
        return 0
    sub_seqs = MAX_SUB_SEQS_MLA if kernel == MLA else MAX_SUB_SEQS
    align = round_up(2 * MAX_BEAMS * geo.group * geo.head_dim, 128)
    rows = 4 * round_up(geo.group, 32) * sub_seqs
    return sum(round_up(size, align) for size in (4 * (sub_seqs // 2), rows, rows, align * sub_seqs)) + align


def _check_queries(batches: Batches, kernel: str, spec: BoolArray, call: choice.XqaCall) -> None:
    if kernel == MLA:
        if spec.any() and call.spec_lengths_variable:
            raise GateError("tensorrt-llm-xqa: MLA drafts must all have one length", "spec_lengths_variable")
        if not (batches.q_lens == batches.max_q_len[:, None]).all():
            raise GateError(
                "tensorrt-llm-xqa: MLA needs the same number of query tokens in every request", "ragged_q_len"
            )
    elif (~spec & (batches.max_q_len > 1)).any():
        raise GateError("tensorrt-llm-xqa takes several query tokens under speculative decoding only", "q_len")


POLICY = Xqa()
