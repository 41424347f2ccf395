"""flex-decoding: the split kernel that torch.compile gives `flex_attention` for few query tokens.

Inputs are dense, [B, heads, KV_LEN, D]: KV_LEN is the cache's capacity, and a BlockMask (blocks of 128 keys) holds each
request's own length. The split count is fixed at compile time from the batch and the SMs. A split owns TILE_KV keys of
the list of blocks that the mask leaves, so with a window only the first splits of that list have work. The merge is not
a kernel of its own: inductor generates a reduction over the partials, and it runs even for one split.

Four things that users meet: a group that is no power of two (Qwen2.5-7B: 7) or 128 or more query tokens fall back to
the unsplit flex_attention kernel, where every query head reads the keys again; since 2.11, without a BlockMask the
"mask" is one block of 2^30 keys, TILE_KV is that over the splits, and the first split reads everything; 2.6 counted on
128 SMs whatever the device; vLLM's FlexAttention backend forces the unsplit kernel (FORCE_USE_FLEX_ATTENTION).

Source: torch wheels 2.6.0, 2.7.0, 2.8.0, 2.9.0, 2.9.1, 2.10.0, 2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, folder
torch/_inductor: kernel/flex/flex_decoding.py (_use_flex_decoding, get_split_k, flex_decoding_grid,
create_flex_decoding_kernel), kernel/flex/templates/flex_decode.py.jinja (both in kernel/flex_decoding.py up to 2.8),
kernel/flex/flex_attention.py (flex_attention_grid), template_heuristics/triton.py (get_flex_decode_configs,
get_flex_attn_fwd_configs, without max-autotune); torch/nn/attention/flex_attention.py (create_block_mask: a mask with
fewer query rows than a block has no full blocks; the list keeps the keys' order).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flex.releases import RELEASES
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SIXTEEN_BITS, Numbers, Takes
from decodecalc.launch.traits import SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MIN_ROWS = 16  # BLOCK_M of create_flex_decoding_kernel
MOST_QUERY_TOKENS = 127  # _use_flex_decoding: fewer than 128
NO_MASK_BLOCK = 1 << 30  # _LARGE_SPARSE_BLOCK_SIZE
# (BLOCK_M, BLOCK_N, warps) of the unsplit kernel for 2-byte elements, by lowest compute capability and head dim:
# template_heuristics/triton.py of 2.13 (older releases lack D 192, and Thor's). Thor takes sm_120's; a head dim that is
# not listed takes the default.
_UNSPLIT_DEFAULT, _UNSPLIT_WIDE = (64, 64, 4), (64, 32, 4)
_UNSPLIT = (
    ((11, 0), {64: (128, 64, 4), 128: (128, 64, 8), 256: (32, 64, 4)}),
    ((10, 0), {64: (128, 128, 4), 128: (128, 64, 8), 192: (128, 128, 8), 256: (64, 32, 4)}),
    ((9, 0), {64: (128, 128, 4), 128: (128, 64, 8), 256: (64, 32, 4)}),
    ((8, 0), {64: (128, 64, 4), 128: (128, 64, 8), 192: (128, 32, 8), 256: (32, 64, 4)}),
)

_UNSPLIT_HIP = {
    ("gfx942", "bf16"): {64: (64, 64, 8), 128: (64, 64, 8), 256: (32, 64, 8)},
    ("gfx942", "fp16"): {64: (64, 32, 8), 128: (64, 32, 8), 256: (32, 32, 8)},
    ("gfx950", "bf16"): {64: (128, 64, 4), 128: (128, 64, 4), 256: (32, 64, 4)},
    ("gfx950", "fp16"): {64: (128, 64, 4), 128: (128, 64, 4), 256: (32, 64, 4)},
}
_UNSPLIT_SM100_SINCE_2_14 = {**_UNSPLIT[1][1], 64: (128, 64, 4), 128: (128, 128, 8)}


class FlexRules(NamedTuple):
    """The differences between releases."""

    splits_per_sm: int = 2
    """The factor of get_split_k."""
    fixed_sms: int | None = None
    """SMs that get_split_k counts on; None stands for those of the device."""
    rows_first: bool = True
    """Whether the grid is (row tiles, requests x KV heads, splits) and not (requests x KV heads, splits, 1)."""
    cuts_mask_blocks: bool = True
    """Whether a split is cut from the mask's blocks where there are no full blocks, and not always from KV_LEN."""
    odd_groups_fall_back: bool = True
    """Whether a group that is no power of two takes the unsplit kernel, and does not fail to compile."""
    sm100_since_2_14: bool = False
    """Whether compute capability 10 has the newer tiles of the unsplit kernel."""


@dataclass(frozen=True, slots=True)
class FlexDecodingOptions(EngineOptions):
    """How flex_attention is called."""

    kv_len: int | None = option(
        None, "int?", "KV_LEN, the capacity of the dense K and V; the longest request by default", low=1
    )
    block_mask: bool = option(True, "bool", "a BlockMask holds each request's length and window", flag="block_mask")
    sparse_block_size: int = option(128, "int", "keys of a block of the BlockMask", flag="BLOCK_SIZE", low=16)
    has_full_blocks: bool = option(
        True,
        "bool",
        "the mask separates full blocks (create_block_mask's default), and pieces are cut from KV_LEN; when off, "
        "from the request's own blocks",
        flag="separate_full_blocks",
    )
    split_kv: int | None = option(
        None,
        "int?",
        "split count; by default twice the SMs per (request, KV head)",
        flag="kernel_options SPLIT_KV",
        low=1,
    )
    block_n: int | None = option(
        None, "int?", "keys of a tile; those of the configuration by default", flag="kernel_options BLOCK_N", low=16
    )
    force_flex_attention: bool = option(
        False,
        "bool",
        "force the unsplit kernel, as vLLM's FlexAttention backend does",
        flag="kernel_options FORCE_USE_FLEX_ATTENTION",
    )


class FlexDecodingDetail(NamedTuple):
    """The engine's quantities under its names."""

    use_decode: Any
    counted_sms: int
    SPLIT_KV: Any
    BLOCK_M: Any
    BLOCK_N: Any
    TILE_KV: Any
    KV_LEN: Any
    GQA_SHARED_HEADS: int
    kv_num_blocks: Any
    kv_reads_per_key: Any


def _warp(gpu: Gpu) -> int:
    return gpu.warp_size or (64 if gpu.is_hip else 32)


def _decode_block_n(gpu: Gpu, options: FlexDecodingOptions) -> tuple[int, int]:
    """(BLOCK_N, threads) of the decode kernel: get_flex_decode_configs without autotuning."""
    block_n = options.block_n or (16 if gpu.compute_capability == (11, 0) else 64)
    if options.block_mask:
        block_n = min(block_n, options.sparse_block_size)
    return block_n, (4 if gpu.is_hip else 2) * _warp(gpu)


def _unsplit_tile(geo: Geometry, kv: KvCache, gpu: Gpu, rules: FlexRules) -> tuple[int, int, int]:
    """(BLOCK_M, BLOCK_N, threads) of the unsplit kernel: get_flex_attn_fwd_configs without autotuning."""
    if gpu.is_hip:
        listed = _UNSPLIT_HIP.get((gpu.gfx or "", kv.dtype), {})
        m, n, warps = listed.get(geo.head_dim, (128, 64, 4)) if geo.head_dim <= 256 else _UNSPLIT_WIDE
        return m, n, warps * _warp(gpu)
    found = _UNSPLIT_DEFAULT if geo.head_dim <= 256 else _UNSPLIT_WIDE
    for lowest, tiles in _UNSPLIT:
        if (gpu.compute_capability or (9, 0)) >= lowest:
            tiles = _UNSPLIT_SM100_SINCE_2_14 if lowest == (10, 0) and rules.sm100_since_2_14 else tiles
            found = tiles.get(geo.head_dim, found) if geo.head_dim <= 256 else found
            break
    return found[0], found[1], found[2] * _warp(gpu)


class FlexDecoding(Policy):
    """PyTorch FlexAttention's decode launches."""

    name = "flex-decoding"
    title = "PyTorch FlexAttention, decode kernel"
    releases = RELEASES
    word_for_split = "split (SPLIT_KV)"
    versions = (
        PolicyVersion(
            "2.14",
            "torch 2.14.1 and 2.15.0 torch/_inductor/kernel/flex/flex_decoding.py get_split_k, "
            "templates/flex_decode.py.jinja, heuristics/template/triton.py",
            ("2.14.0", "2.15.0"),
            FlexRules(sm100_since_2_14=True),
            "as 2.13, with other unsplit tiles on compute capability 10",
        ),
        PolicyVersion(
            "2.13",
            "torch 2.11.0, 2.12.1 and 2.13.0 torch/_inductor/kernel/flex/flex_decoding.py get_split_k, "
            "flex_decoding_grid; templates/flex_decode.py.jinja",
            ("2.11.0", "2.13.0"),
            FlexRules(),
            "since 2.11: three-axis grid; without full blocks a split is cut from the mask's blocks",
        ),
        PolicyVersion(
            "2.10",
            "torch 2.9.0, 2.9.1 and 2.10.0 torch/_inductor/kernel/flex/flex_decoding.py, "
            "templates/flex_decode.py.jinja",
            ("2.9.0", "2.10.0"),
            FlexRules(rows_first=False, cuts_mask_blocks=False),
            "two-axis grid; a split is always cut from KV_LEN",
        ),
        PolicyVersion(
            "2.8",
            "torch 2.7.0 and 2.8.0 torch/_inductor/kernel/flex_decoding.py get_split_k, flex_decoding_template",
            ("2.7.0", "2.8.0"),
            FlexRules(rows_first=False, cuts_mask_blocks=False, odd_groups_fall_back=False),
            "as 2.10; a group that is no power of two fails to compile",
        ),
        PolicyVersion(
            "2.6",
            "torch 2.6.0 torch/_inductor/kernel/flex_decoding.py get_split_k(SM=128), flex_decoding_template",
            ("2.6.0", "2.6.0"),
            FlexRules(1, 128, rows_first=False, cuts_mask_blocks=False, odd_groups_fall_back=False),
            "one split per SM of a device of 128 SMs",
        ),
    )
    options_type = FlexDecodingOptions
    split_flag = "kernel_options={'SPLIT_KV': n}"
    traits = Traits(
        split_setting=SplitSetting("kernel_options={{'SPLIT_KV': {splits}}}", "split_kv"),
        by_hand_option="split_kv",
        frozen_option="kv_len",
        returns_lse=True,
    )
    rule = (
        "SPLIT_KV = max(SMs // (B x kv_heads) x 2, 1); grid (1, B x kv_heads, SPLIT_KV). A split owns TILE_KV = "
        "ceil(ceil(KV_LEN / SPLIT_KV) / BLOCK_N) x BLOCK_N keys of the blocks that the mask leaves. Only for less than "
        "128 query tokens and a group that is a power of two; else the unsplit flex_attention kernel, grid "
        "(ceil(q / BLOCK_M), B, q_heads)."
    )

    def combinations(self, options: FlexDecodingOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        rules: FlexRules = version.rules
        any_group = rules.odd_groups_fall_back or options.force_flex_attention
        groups = Numbers() if any_group else Numbers(powers_of_2=True)
        return (Takes(cache_dtypes=SIXTEEN_BITS, query_dtypes=SIXTEEN_BITS, groups=groups),)

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlexDecodingOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays."""
        if kv.dtype not in ("bf16", "fp16"):
            raise GateError(f"flex-decoding is modelled for bf16 and fp16 K and V, not {kv.dtype}", code="dtype")
        rules: FlexRules = version.rules
        kv_len = self._kv_len(geo, batches, options)
        q_len = batches.max_q_len
        group_fits = geo.group & (geo.group - 1) == 0
        use_decode = (q_len <= MOST_QUERY_TOKENS) & (not options.force_flex_attention)
        if not group_fits and not rules.odd_groups_fall_back and use_decode.any():
            raise GateError(
                f"flex-decoding: before torch 2.9 a group must be a power of two, not {geo.group}: FlexAttention fails "
                f"to compile; force_flex_attention takes the unsplit kernel",
                code="group_not_power_of_2",
            )
        use_decode = use_decode & group_fits
        decode_n, decode_threads = _decode_block_n(gpu, options)
        unsplit_m, unsplit_n, unsplit_threads = _unsplit_tile(geo, kv, gpu, rules)
        rows = q_len * geo.group
        decode_m = np.maximum(next_power_of_2(rows), MIN_ROWS)
        self._check_mask_blocks(use_decode, decode_m, decode_n, options)
        block_m = np.where(use_decode, decode_m, unsplit_m)
        block_n = np.where(use_decode, decode_n, unsplit_n)

        pairs = batches.batch * geo.kv_heads
        sms = rules.fixed_sms or gpu.sm_count
        by_rule = np.maximum(sms // np.maximum(pairs, 1) * rules.splits_per_sm, 1)
        asked = by_rule if options.split_kv is None else np.full_like(by_rule, options.split_kv)
        count = np.where(use_decode, asked, 1)

        # The blocks that the mask leaves, in the keys' order, and the piece of that list which a split owns.
        lens = batches.seq_lens
        block = options.sparse_block_size
        if options.block_mask:
            first = visible_start(batches, geo.window) // block * block
            n_blocks = cdiv(lens, block) - first // block
            from_capacity = options.has_full_blocks or not rules.cuts_mask_blocks
        else:
            first, block = np.zeros_like(lens), NO_MASK_BLOCK
            n_blocks = np.ones_like(lens)
            from_capacity = not rules.cuts_mask_blocks
        whole = np.broadcast_to(kv_len[:, None], lens.shape) if from_capacity else n_blocks * block
        split_keys = np.maximum(round_up(cdiv(whole, count[:, None]), block_n[:, None]), block_n[:, None])
        split_keys = np.where(use_decode[:, None], split_keys, round_up(kv_len, block_n)[:, None])
        live = cdiv(lens - first, split_keys)
        loaded = np.minimum(n_blocks * block, kv_len[:, None] - first) * (lens > 0)
        busy = cdiv(loaded, split_keys)

        tiles = cdiv(np.where(use_decode, rows, q_len), block_m)
        heads = np.where(use_decode, geo.kv_heads, geo.q_heads)
        columns = np.broadcast_to((heads * tiles)[:, None], lens.shape)
        live_blocks = batches.total(columns * busy)
        state = geo.v_dim + 2
        outputs = batches.batch * geo.q_heads * q_len
        detail = FlexDecodingDetail(
            use_decode=use_decode,
            counted_sms=sms,
            SPLIT_KV=count,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            TILE_KV=split_keys,
            KV_LEN=kv_len,
            GQA_SHARED_HEADS=geo.group,
            kv_num_blocks=n_blocks,
            kv_reads_per_key=heads * tiles // geo.kv_heads,
        )
        grid = (tiles, pairs, count) if rules.rows_first else (pairs, count, 1)
        unsplit_grid = (tiles, batches.batch, geo.q_heads)
        return Launches(
            is_split=use_decode,
            kernels=(
                KernelArray(
                    name="flex_decoding",
                    role="stage1",
                    grid=grid,
                    threads=decode_threads,
                    live_blocks=live_blocks,
                    tile_keys=block_n,
                    when=use_decode,
                ),
                KernelArray(
                    name="flex_attention",
                    role="stage1",
                    grid=unsplit_grid,
                    threads=unsplit_threads,
                    live_blocks=live_blocks,
                    tile_keys=block_n,
                    when=~use_decode,
                ),
                # Inductor chooses the reduction's grid: one block per output row stands for it.
                KernelArray(
                    name="inductor reduction",
                    role="merge",
                    grid=(outputs, 1, 1),
                    threads=None,
                    live_blocks=outputs,
                    when=use_decode,
                ),
            ),
            requested=count[:, None],
            launched=count,
            live=live,
            split_keys=split_keys,
            first_key=first,
            keys_read=loaded,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (lens > 0)),
            tile_keys=block_n,
            block_rows=block_m,
            live_rows=np.minimum(np.where(use_decode, rows, q_len), block_m),
            state_values=state,
            scratch_bytes=use_decode * outputs * count * state * 4,
            determinism=_determinism(options, use_decode),
            gates=_gates(geo, batches, options, detail, live),
            detail=detail,
        )

    @staticmethod
    def _kv_len(geo: Geometry, batches: Batches, options: FlexDecodingOptions) -> IntArray:
        longest = batches.max_seq_len
        kv_len = longest if options.kv_len is None else np.full_like(longest, options.kv_len)
        if (kv_len < longest).any():
            raise InputError(
                f"kv_len ({options.kv_len}) is less than the longest request ({int(longest.max())} keys), but "
                f"the cache must hold every request"
            )
        if not options.block_mask:
            if geo.window:
                raise InputError("flex-decoding: a window needs a BlockMask (block_mask)")
            if (batches.seq_lens != kv_len[:, None]).any():
                raise InputError(
                    "flex-decoding: without a BlockMask every request has KV_LEN keys, so give equal lengths"
                )
        return kv_len

    @staticmethod
    def _check_mask_blocks(use_decode: BoolArray, rows: IntArray, block_n: int, options: FlexDecodingOptions) -> None:
        block = options.sparse_block_size
        if not options.block_mask or not use_decode.any():
            return
        if (block % rows[use_decode]).any() or block % block_n:
            raise GateError(
                f"flex-decoding: no configuration fits, because mask blocks of {block} must be multiples of "
                f"BLOCK_M (query tokens x group, up to {int(rows[use_decode].max())}) and of BLOCK_N ({block_n})",
                code="mask_block_size",
            )


def _determinism(options: FlexDecodingOptions, use_decode: BoolArray) -> str:
    if options.split_kv == 1 or not use_decode.any():
        return "invariant"
    return "fixed count" if options.split_kv else "batch-dependent"


def _gates(
    geo: Geometry,
    batches: Batches,
    options: FlexDecodingOptions,
    d: FlexDecodingDetail,
    live: IntArray,
) -> tuple[GateArray, ...]:
    def why_decode(n: int) -> str:
        if at(d.use_decode, n):
            return (
                f"there are {at(batches.max_q_len, n)} query tokens (below 128), and the group of {geo.group} "
                f"is a power of two"
            )
        if options.force_flex_attention:
            return "FORCE_USE_FLEX_ATTENTION is set, so the unsplit kernel runs"
        tokens = at(batches.max_q_len, n)
        said = (
            f"there are {tokens} query tokens"
            if tokens > MOST_QUERY_TOKENS
            else f"group {geo.group} is no power of two"
        )
        return f"{said}, so the unsplit kernel runs and reads K and V {at(d.kv_reads_per_key, n)} times"

    def why_split(n: int) -> str:
        if not at(d.use_decode, n):
            return "the unsplit kernel runs"
        if options.split_kv is not None:
            return f"SPLIT_KV = {options.split_kv} is given"
        pairs = at(batches.batch, n) * geo.kv_heads
        return f"{d.counted_sms} SMs for {pairs} (request, KV head) pairs give {at(d.SPLIT_KV, n)} splits"

    def why_live(n: int) -> str:
        most, splits = int(live[n].max()), at(d.SPLIT_KV, n)
        if not options.block_mask and most < splits:
            return f"there is no BlockMask, so pieces are cut from 2^30 keys and {most} of {splits} splits have keys"
        cut = "KV_LEN" if options.has_full_blocks else "each request's blocks"
        return f"pieces of {int(d.TILE_KV[n].max())} keys are cut from {cut}, and {most} of {splits} splits have keys"

    def why_invariant(n: int) -> str:
        if not at(d.use_decode, n):
            return "there is one split whatever the batch"
        if options.split_kv is not None:
            return f"SPLIT_KV = {options.split_kv} is a fixed count, but pieces grow with KV_LEN"
        return "SPLIT_KV is compiled from the batch; kernel_options={'SPLIT_KV': n} fixes the count"

    return (
        GateArray("flex_decoding", d.use_decode, why_decode),
        GateArray("split", d.SPLIT_KV > 1, why_split),
        GateArray("all_splits_live", live.max(axis=1) >= d.SPLIT_KV, why_live),
        GateArray("batch_invariant", ~d.use_decode | (options.split_kv == 1), why_invariant),
        GateArray(
            "merge_grid_known",
            ~d.use_decode,
            lambda n: "inductor generates the merge as a reduction, and the source does not fix its grid",
        ),
    )


POLICY = FlexDecoding()
