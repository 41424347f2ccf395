"""MLA in FlashAttention 4: which kernel a call takes on Blackwell, and how many splits it gets.

The wheel routes between a kernel of cluster pairs (2CTA, never split) and two of single blocks (1CTA), one with tiles
of 64 keys and one with tiles of 128. vLLM's copy has the pairs only, and a kernel of its own for sparse decode.

Source: flash_attn/cute/interface.py of flash-attn-4 4.0.0b36 (_mla_1cta_route, _mla_fwd_plan) with
flash_fwd_mla_1cta_kb64_sm100.py (can_implement, TILE_MN, MIN_BLOCKS_PER_SPLIT), and
vllm/vllm_flash_attn/cute/interface.py of vLLM 0.33.0 (mla_decode_splits, use_sparse_decode) with
flash_fwd_mla_decode_sm100.py (SUPPORTED_HEADS).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.intmath import IntArray, cdiv, distinct
from decodecalc.launch.arrays import BoolArray

PAIRS = "FlashAttentionMLAForwardSm100"
SINGLE = "FlashAttentionMLAForward1CtaSm100"
SINGLE_KB64 = "FlashAttentionMLAForward1CtaKb64Sm100"
SPARSE_DECODE = "FlashAttentionMLADecodeSm100"

CTA_ROWS = 64  # rows of a block in every MLA kernel
FEWEST_BLOCKS = 4  # num_splits_heuristic: this many key blocks are never split
MOST_SPLITS = 128
KB64_BLOCKS_PER_SPLIT = 4  # MIN_BLOCKS_PER_SPLIT
WORTH_IT = {SINGLE_KB64: 2, SINGLE: 5}  # fewer splits than this send the call back to the unsplit routing
DECODE_HEADS = (8, 16, 32)  # heads of a group in the sparse decode kernel
DECODE_TILE = 128


def num_splits(blocks: IntArray, sms: int, n_blocks: IntArray, most: Any, at_least_one: bool) -> IntArray:
    """num_splits_heuristic [N]: SMs over blocks before splitting, at most `most` and one key block each.

    at_least_one: the wheel's floor; vLLM's copy returns 0 when there are more blocks than SMs.
    """
    wanted = np.minimum(np.minimum(sms // np.maximum(blocks, 1), most), n_blocks)
    wanted = np.maximum(wanted, 1) if at_least_one else wanted
    return np.where((n_blocks <= FEWEST_BLOCKS) | (blocks == 0), 1, wanted)


def sparse_single(heads: int, total_q: IntArray, sms: int, needed: bool) -> BoolArray:
    """Whether gathered keys take the kernel of single blocks [N]: up to 64 heads (one KV head), and a pair of blocks
    for each token would be more than one wave. needed: fp8, or a split count was asked for."""
    past_one_wave = np.asarray(2 * total_q > sms)
    return (past_one_wave | needed) & (heads <= 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaCall:
    """What the wheel's routing looks at. Arrays are [N]."""

    sparse: bool
    """A list of keys is gathered."""
    heads: int
    """Query heads of a KV head, without padding."""
    kv_heads: int
    """KV heads."""
    fp8: bool
    """The elements are fp8."""
    num_splits_arg: int
    """The num_splits argument; below 1 the heuristic decides."""
    batch: IntArray
    """Requests."""
    total_q: IntArray
    """Query tokens of the batch."""
    q_hint: IntArray
    """The most query tokens of a request, as the host knows it."""
    keys: IntArray
    """The most keys of a request, as the host knows it."""
    rows_per_token: IntArray
    """Rows of a token under the 128-key kernel (the heads, where they are packed)."""
    tile_m: int
    """Rows of the generic tile."""
    q_stage: IntArray
    """Q tiles of the generic configuration."""
    sms: int
    """Multiprocessors."""

    def single(self, split: bool) -> BoolArray:
        """_mla_1cta_route: whether the call takes a kernel of single blocks. split: the heuristic may split it."""
        needed = self.fp8 or self.num_splits_arg > 1
        if self.sparse:
            return sparse_single(self.heads, self.total_q, self.sms, needed)
        past_one_wave = 2 * self.kv_heads * self.batch > self.sms  # the pairs, one for each request
        if needed or split:
            return np.ones_like(past_one_wave)
        return np.asarray((self.q_hint * self.heads <= 64) & past_one_wave)

    @property
    def kb64(self) -> BoolArray:
        """can_implement of the 64-key kernel: one token of up to 64 heads in a tile."""
        like = np.ones(len(self.batch), dtype=np.bool_)
        if self.fp8 or self.heads > 64:
            return ~like
        return like if self.sparse or self.heads == 64 else (self.q_hint == 1) & (self.kv_heads == 1)


def wheel_plan(call: MlaCall) -> tuple[BoolArray, BoolArray, IntArray]:
    """(single, kb64, splits) [N]: _mla_fwd_plan. kb64 says which of the single-block kernels runs."""
    kb64, auto = call.kb64, call.num_splits_arg < 1
    single = call.single(split=auto)
    if call.sparse:
        return single, kb64, np.ones_like(call.batch)
    if not auto:
        return single, kb64, np.where(single, call.num_splits_arg, 1)
    splits = _dense_splits(call, kb64)
    worth = splits >= np.where(kb64, WORTH_IT[SINGLE_KB64], WORTH_IT[SINGLE])
    single = single & (worth | call.single(split=False))
    return single, kb64, np.where(single, splits, 1)


def _dense_splits(call: MlaCall, kb64: BoolArray) -> IntArray:
    """The split heuristic on the tiles of the kernel that would run [N]."""
    tile_m = np.where(kb64, CTA_ROWS, call.q_stage * call.tile_m)
    token_rows = np.where(kb64, CTA_ROWS, call.rows_per_token)
    n_blocks = cdiv(call.keys, np.where(kb64, 64, 128))
    # Tiles never straddle requests: each but one may end in a partial tile, unless a token fills whole tiles.
    partial = np.where(token_rows % tile_m == 0, 0, call.batch - 1)
    tiles = call.kv_heads * np.minimum(
        call.batch * cdiv(call.q_hint * token_rows, tile_m), cdiv(call.total_q * token_rows, tile_m) + partial
    )
    most = np.minimum(np.maximum(n_blocks // np.where(kb64, KB64_BLOCKS_PER_SPLIT, 1), 1), MOST_SPLITS)
    return num_splits(tiles, call.sms, n_blocks, most, True)


def decode_splits(total_q: IntArray, kv_heads: int, heads: int, sms: int, n_blocks: int) -> tuple[IntArray, IntArray]:
    """(head groups, splits) [N] of vLLM's sparse decode kernel; every distinct token count is solved once."""
    known = {tokens: _decode_splits(tokens * kv_heads, heads, sms, n_blocks) for tokens in distinct(total_q)}
    found = np.array([known[tokens] for tokens in total_q.tolist()], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _decode_splits(tiles: int, heads: int, sms: int, n_blocks: int) -> tuple[int, int]:
    """mla_decode_splits: fewest waves for each split, then head groups and splits that fill the last wave."""

    def waves(groups: int, splits: int) -> int:
        return cdiv(tiles * groups * splits, sms)

    def more_groups(groups: int, fewest_heads: int) -> int:
        while (
            (half := heads // (2 * groups)) in DECODE_HEADS
            and half >= fewest_heads
            and waves(2 * groups, splits) == waves(groups, splits)
        ):
            groups *= 2
        return groups

    groups = next(g for g in (1, 2, 4, 8) if heads // g in DECODE_HEADS)
    fewest, extra_waves = (heads // 8, 0) if heads > 16 else (2, 1)
    most_waves = waves(groups, 1) + extra_waves
    candidates = [1]
    for i in range(n_blocks.bit_length()):
        s = fewest << i
        if n_blocks % s == 0 and n_blocks // s >= 2 and waves(groups, s) <= most_waves:
            candidates.append(s)
    splits = min(candidates, key=lambda s: waves(groups, s) / s)
    groups = more_groups(groups, 16)
    if 2 * splits == n_blocks and waves(groups, n_blocks) == waves(groups, splits):
        splits = n_blocks
    return more_groups(groups, 8), splits
