"""flash-attention-2: split-KV decode of FlashAttention 2, upstream and in vLLM's fork.

With one query token per request the group is moved to the query axis (heads = KV heads, rows = group). Without this
swap (several query tokens, a window, ALiBi, or no group) every query head has blocks of its own, and the keys are read
once per query head. The split count follows from the 85 % rule with two blocks per SM. The varlen API, which serving
engines call, applies that rule only when the group was swapped; otherwise it never splits.

Sources: Dao-AILab/flash-attention HEAD 0251105a (2026-08-15, version 2.8.4), the source distributions of flash-attn
2.6.3, 2.7.0.post2, 2.7.3, 2.7.4.post1, 2.8.0.post2, 2.8.3, 2.8.3.post1 and 2.8.3.post2, and
vllm-project/flash-attention HEAD 617264c (2026-08-06). In csrc/flash_attn: flash_api.cpp (mha_fwd_kvcache,
mha_varlen_fwd, set_params_splitkv), src/flash_fwd_launch_template.h (tiles, grids), src/flash_fwd_kernel.h
(compute_attn_1rowblock_splitkv: key ranges).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flash_attention.wave_efficiency import fills_without_split, splits_by_wave_efficiency
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SIXTEEN_BITS, UNKNOWN, Numbers, Takes
from decodecalc.launch.traits import COUNT, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

SPLIT_ROWS = 64  # query rows of a split-KV tile, also what the rule counts m blocks with
MOST_SPLITS = 128  # TORCH_CHECK in set_params_splitkv
BLOCKS_PER_SM = 2  # set_params_splitkv multiplies the SMs by this ("128 threads per block")
_HEAD_DIMS = (32, 64, 96, 128, 192, 256)  # HEADDIM_SWITCH
_HEAD_DIMS_BEFORE_2_8 = (32, 64, 96, 128, 160, 192, 256)
# Shared memory per SM and largest opt-in block, by compute capability (CUDA C++ programming guide, technical
# specifications): used only for a GPU that does not say. The D 256 tile depends on both.
_SMEM_BYTES = {(8, 0): (167_936, 166_912), (8, 7): (167_936, 166_912), (8, 6): (102_400, 101_376)}
_SMEM_BYTES_SINCE_9 = (233_472, 232_448)


@dataclass(frozen=True, slots=True)
class Fa2Rules:
    """What differs between the code bases.

    page_multiple: keys that a page must be a multiple of. splits_live_length: pieces are cut from a request's own
    length (vLLM's fork) and not from the length that the rule saw. aligned_single_split: one split of the split-KV
    kernel takes the standard kernel's key tile. varlen_num_splits: most splits that the varlen entry point takes as an
    argument. head_dims: widths that kernels are compiled for. newest_capability: the last one that the entry points let
    through; None for all. pads_heads: the varlen API too pads a head dim that is no multiple of 8.
    """

    name: str
    page_multiple: int
    splits_live_length: bool
    aligned_single_split: bool
    varlen_num_splits: int
    default_api: str
    head_dims: tuple[int, ...] = _HEAD_DIMS
    newest_capability: tuple[int, int] | None = None
    pads_heads: bool = False


@dataclass(frozen=True, slots=True)
class FlashAttention2Options(EngineOptions):
    """How the entry point is called."""

    api: str | None = option(
        None,
        "str?",
        "entry point: kvcache (flash_attn_with_kvcache) or varlen (flash_attn_varlen_func); default: what the "
        "version's users call, varlen for vLLM and kvcache upstream",
        choices=("kvcache", "varlen"),
    )
    seqlen_k: int | None = option(
        None,
        "int?",
        "keys that the rule sees: cache (or block table) capacity for kvcache, max_seqlen_k for varlen; under a CUDA "
        "graph the value at capture. Default: the longest request",
        low=1,
    )
    num_splits_arg: int = option(0, "int", "num_splits argument; 0: the rule decides", flag="num_splits")
    causal: bool = option(True, "bool", "causal argument", flag="causal")
    window_left: int | None = option(
        None, "int?", "window_size[0]; default: the layer's window - 1, or -1", flag="window_size", low=-1
    )
    window_right: int | None = option(
        None, "int?", "window_size[1]; default: 0 with a window, else -1", flag="window_size", low=-1
    )
    alibi: bool = option(False, "bool", "ALiBi slopes are given: prevents the group swap", flag="alibi_slopes")
    paged: bool = option(True, "bool", "the cache has a block table; off: dense K and V", flag="block_table")
    batch_invariant: bool = option(
        False, "bool", "num_splits is 1 in any batch", flag="VLLM_BATCH_INVARIANT=1 (vLLM), num_splits=1"
    )


class FlashAttention2Detail(NamedTuple):
    """The engine's quantities. num_splits 0: the rule was not consulted; heuristic_* then do not apply."""

    fork: str
    api: str
    num_splits: Any
    effective_splits: Any
    rule_consulted: Any
    gqa_swapped: Any
    seqlen_k_seen: Any
    heuristic_block_n: int
    num_n_blocks: Any
    num_m_blocks: Any
    batch_nheads_mblocks: Any
    heuristic_sm_slots: int
    kernel: Any
    kernel_block_m: Any
    kernel_block_n: Any
    kernel_head_dim: int
    combine_block_m: int
    combine_grid_x: Any
    n_blocks_per_split: Any
    kv_reads_per_key: Any


def _check_supported(geo: Geometry, kv: KvCache, gpu: Gpu, options: FlashAttention2Options, rules: Fa2Rules) -> None:
    """Raises GateError for what the entry point refuses, in its order."""
    if gpu.is_hip:
        raise GateError(
            "flash-attention-2: this rule is that of the CUDA kernels; ROCm builds launch other kernels (CK, Triton)",
            code="not_cuda",
        )
    if gpu.compute_capability is not None and gpu.compute_capability < (8, 0):
        raise GateError(
            f"flash-attention-2 needs Ampere or newer (compute capability 8.0); {gpu.label} has "
            f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}",
            code="compute_capability",
        )
    if rules.newest_capability is not None and (gpu.compute_capability or (0, 0)) > rules.newest_capability:
        raise GateError(
            f"flash-attention-2 ({rules.name}) knows compute capabilities up to "
            f"{rules.newest_capability[0]}.{rules.newest_capability[1]}, not that of {gpu.label}; flash-attn 2.7.3 and "
            "later take newer ones",
            code="compute_capability",
        )
    if kv.dtype not in ("bf16", "fp16"):
        raise GateError(f"flash-attention-2 takes fp16 and bf16 caches only, not {kv.dtype}", code="dtype")
    if geo.sinks:
        raise GateError(
            "flash-attention-2 has no attention sinks (FlashAttention 3 in vLLM's fork has them)", code="sinks"
        )
    if options.paged and kv.page_size % rules.page_multiple:
        other = "upstream needs 256" if rules.page_multiple == 16 else "vLLM's fork (@vllm-0.33) needs only 16"
        raise GateError(
            f"flash-attention-2 ({rules.name}): page size must be a multiple of {rules.page_multiple}, not "
            f"{kv.page_size} ({other}); this is an error at start-up and not a slow path",
            code=f"page_size_not_multiple_of_{rules.page_multiple}",
        )
    if geo.head_dim > 256:
        raise GateError(
            f"flash-attention-2 takes head dims up to 256, not {geo.head_dim}; this is an error at start-up",
            code="head_dim_too_large",
        )
    if geo.v_dim != geo.head_dim:
        raise GateError(
            f"flash-attention-2 needs K and V of one width, not {geo.head_dim} and {geo.v_dim}", code="head_dim_v"
        )
    if geo.head_dim % 8 and _api(options, rules) == "varlen" and not rules.pads_heads:
        raise GateError(
            f"flash-attention-2: the varlen API needs a head dim that is a multiple of 8, not {geo.head_dim}",
            code="head_dim_not_multiple_of_8",
        )


def _api(options: FlashAttention2Options, rules: Fa2Rules) -> str:
    return options.api or rules.default_api


def _windows(geo: Geometry, options: FlashAttention2Options) -> tuple[int, int]:
    left = (geo.window - 1 if geo.window else -1) if options.window_left is None else options.window_left
    right = (0 if geo.window else -1) if options.window_right is None else options.window_right
    return left, right


def _standard_tile(head_dim: int, causal: BoolArray, gpu: Gpu) -> tuple[Any, Any, Any]:
    """(block_m, block_n, warps) of the unsplit kernel: run_mha_fwd_hdim* in flash_fwd_launch_template.h."""
    cc = gpu.compute_capability or (9, 0)
    sm8x = cc[0] == 8 and cc[1] > 0
    if head_dim <= 64:
        return 128, 128, 4
    if head_dim == 96:
        return np.where(causal & sm8x, 64, 128), 64, 4
    if head_dim == 160:
        return np.where(causal & sm8x, 64, 128), 64 if sm8x else 32, np.where(~causal & sm8x, 8, 4)
    if head_dim == 128:
        return np.where(causal & sm8x, 64, 128), np.where(~causal & sm8x, 32, 64), 4
    if head_dim == 192:
        return 128, 64, 8
    default_sm, default_block = _SMEM_BYTES.get(cc, _SMEM_BYTES_SINCE_9 if cc[0] in (9, 10, 11) else _SMEM_BYTES[8, 6])
    per_sm = gpu.smem_bytes_per_sm or default_sm
    per_block = gpu.max_smem_bytes_per_block or default_block
    # 128 rows where they fit in a block and two blocks of 64 rows would not fit on an SM (A100).
    if per_block >= 2 * 256 * (128 + 2 * 64) and per_sm < 4 * 256 * (64 + 2 * 64):
        return 128, 64, 8
    return 64, 64, 4


_V283 = Fa2Rules("upstream flash-attn", 256, False, False, 0, "kvcache")
_V274 = replace(_V283, head_dims=_HEAD_DIMS_BEFORE_2_8)
_V272 = replace(_V274, newest_capability=(9, 0))


class FlashAttention2(Policy):
    """FlashAttention 2's decode launches."""

    name = "flash-attention-2"
    title = "FlashAttention 2, split-KV"
    word_for_split = "split (num_splits)"
    versions = (
        PolicyVersion(
            "vllm-0.33",
            "vllm-project/flash-attention@617264c csrc/flash_attn/flash_api.cpp mha_varlen_fwd, "
            "csrc/flash_attn/src/flash_fwd_kernel.h compute_attn_1rowblock_splitkv; the fork that vLLM builds",
            ("0.33", "0.33"),
            Fa2Rules("vLLM's fork", 16, True, True, 1, "varlen"),
            "page multiple 16; each request's own length is cut; block addresses are resolved per thread",
        ),
        PolicyVersion(
            "2.8.4",
            "Dao-AILab/flash-attention@0251105a csrc/flash_attn/flash_api.cpp set_params_splitkv, num_splits_heuristic",
            ("2.8.4", "2.8.4"),
            Fa2Rules("upstream flash-attn", 256, False, True, MOST_SPLITS, "kvcache"),
            "page multiple 256; cuts the capacity, so short requests leave splits empty",
        ),
        PolicyVersion(
            "2.8.3",
            "Dao-AILab/flash-attention@v2.8.3 csrc/flash_attn/flash_api.cpp, flash_fwd_launch_template.h",
            ("2.8.0", "2.8.3.post2"),
            _V283,
            "the varlen API takes no num_splits (added 2026-04-16, b322ae26); one split keeps the 256/128/64 key tile",
        ),
        PolicyVersion(
            "2.7.4.post1",
            "flash-attn 2.7.3, 2.7.4.post1: csrc/flash_attn/flash_api.cpp, src/static_switch.h HEADDIM_SWITCH",
            ("2.7.3", "2.7.4.post1"),
            _V274,
            "has kernels of head dim 160",
        ),
        PolicyVersion(
            "2.7.2.post1",
            "flash-attn 2.7.0.post2: the same files",
            ("2.7.0.post2", "2.7.2.post1"),
            _V272,
            "refuses compute capabilities above 9.0",
        ),
        PolicyVersion(
            "2.6.3",
            "flash-attn 2.6.3: the same files",
            ("2.6.3", "2.6.3"),
            replace(_V272, pads_heads=True),
            "every API pads head dims to multiples of 8",
        ),
    )
    options_type = FlashAttention2Options
    split_flag = "num_splits"
    traits = Traits(
        split_setting=SplitSetting("num_splits={splits}", "num_splits_arg"),
        invariant_option=("batch_invariant", True),
        frozen_option="seqlen_k",
        partition=Partition(rule=COUNT),
        returns_lse=True,
        own_keys_apart=True,  # vLLM's _forward_with_dcp (flash_attn.py) is the one server's path that divides keys
    )
    rule = (
        "One query token, a group, no window, no ALiBi: the group becomes query rows (heads = kv_heads, rows = group). "
        "m = B x heads x ceil(rows / 64) blocks against P = 2 x SMs slots; n = ceil(seqlen_k / block_n), block_n 256, "
        "128, 64 for D <= 64, <= 128, above. m >= 0.8 P: 1 split. Else, of s = 1 .. min(128, P, n) with ceil(n/s) != "
        "ceil(n/(s-1)), the smallest with eff(s) >= 0.85 max eff; eff = w / ceil(w), w = m s / P, in float32. The "
        "varlen API applies this only when the group was swapped."
    )

    def combinations(self, options: FlashAttention2Options, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        rules: Fa2Rules = version.rules
        varlen = _api(options, rules) == "varlen"
        return (
            Takes(
                devices=(*(("sm80+",) if rules.newest_capability is None else ("sm8x", "sm90")), UNKNOWN),
                mla=False,
                sinks=False,
                cache_dtypes=SIXTEEN_BITS,
                query_dtypes=SIXTEEN_BITS,
                head_dims=Numbers(step=8 if varlen and not rules.pads_heads else 1, high=256),
                value_dims=None,
                page_sizes=Numbers(step=rules.page_multiple if options.paged else 1),
            ),
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashAttention2Options,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays."""
        rules: Fa2Rules = version.rules
        _check_supported(geo, kv, gpu, options, rules)
        api = _api(options, rules)
        asked = 1 if options.batch_invariant else options.num_splits_arg
        longest = batches.max_seq_len
        capacity = longest if options.seqlen_k is None else np.full_like(longest, options.seqlen_k)
        if (capacity < longest).any():
            raise InputError(
                f"seqlen_k ({options.seqlen_k}) is less than the longest request ({int(longest.max())} keys): the "
                f"cache must hold every request"
            )
        seen = round_up(capacity, kv.page_size) if options.paged and api == "kvcache" else capacity

        # The arguments as the entry point rewrites them.
        q_len = batches.max_q_len
        window_left, window_right = _windows(geo, options)
        one_token = q_len == 1
        causal_arg = options.causal & ~(one_token & (not options.alibi))
        right = np.where(causal_arg, 0, window_right)
        can_swap = geo.group > 1 and window_left < 0 and geo.head_dim % 8 == 0 and not options.alibi
        swapped = one_token & (right < 0) & can_swap
        left = np.where(window_left >= seen, -1, window_left)
        right = np.where(right >= seen, -1, right)
        is_causal = (left < 0) & (right == 0)
        is_local = ((left >= 0) | (right >= 0)) & ~is_causal
        heads = np.where(swapped, geo.kv_heads, geo.q_heads)
        seqlen_q = np.where(swapped, geo.group, q_len)

        # The split count.
        slots = BLOCKS_PER_SM * gpu.sm_count
        head_dim = round_up(geo.head_dim, 8)
        rule_block_n = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
        n_blocks = cdiv(seen, rule_block_n)
        m_blocks = cdiv(seqlen_q, SPLIT_ROWS)
        blocks = batches.batch * heads * m_blocks
        consulted = np.ones_like(swapped) if api == "kvcache" else swapped
        _check_num_splits(asked, api, options.paged, consulted, rules)
        if asked >= 1:
            num_splits = np.where(consulted, asked, 1 if options.paged and asked == 1 else 0)
        else:
            num_splits = np.where(consulted, splits_by_wave_efficiency(blocks, slots, n_blocks, True), 0)
        count = np.maximum(num_splits, 1)
        is_split = num_splits > 1

        # The kernel and its tile.
        kernel_dim = next(d for d in rules.head_dims if head_dim <= d)
        std_m, std_n, std_warps = _standard_tile(kernel_dim, is_causal, gpu)
        split_n = np.full_like(count, 256 if kernel_dim <= 64 else 128 if kernel_dim <= 128 else 64)
        if rules.aligned_single_split:
            split_n = np.where(num_splits == 1, 128 if kernel_dim <= 64 else 64, split_n)
        splitkv = is_split | options.paged
        block_m = np.where(splitkv, SPLIT_ROWS, std_m)
        block_n = np.where(splitkv, split_n, std_n)

        # Which keys each split owns.
        lens = batches.seq_lens
        cut = lens if rules.splits_live_length else np.broadcast_to(seen[:, None], lens.shape)
        per_split = np.maximum(cdiv(cdiv(cut, block_n[:, None]), count[:, None]), 1)
        split_keys = per_split * block_n[:, None]
        live = cdiv(lens, split_keys)
        tokens = batches.q_lens if api == "varlen" else np.broadcast_to(q_len[:, None], lens.shape)
        start = np.where(
            (is_local & (left >= 0))[:, None], np.maximum(lens - tokens - left[:, None], 0), 0
        )  # first key inside the window
        start = np.minimum(start // block_n[:, None] * block_n[:, None], lens)
        working = live - np.minimum(start // split_keys, live)
        rows = np.where(swapped[:, None], geo.group, tokens)
        columns = heads[:, None] * cdiv(rows, block_m[:, None])
        live_blocks = batches.total(columns * working)

        q_tiles = cdiv(seqlen_q, block_m)
        split_grid = (
            q_tiles,
            np.where(is_split, count, batches.batch),
            np.where(is_split, batches.batch * heads, heads),
        )
        combine_m = 4 if kernel_dim % 128 == 0 else 8 if kernel_dim % 64 == 0 else 16
        combine_x = cdiv(batches.batch * heads * seqlen_q, combine_m)
        narrow = 192 if 160 in rules.head_dims else 128  # head_size_rounded is a multiple of 32 up to here
        dim_rounded = round_up(head_dim, 32 if head_dim <= narrow else 64)
        detail = FlashAttention2Detail(
            fork=rules.name,
            api=api,
            num_splits=num_splits,
            effective_splits=count,
            rule_consulted=consulted,
            gqa_swapped=swapped,
            seqlen_k_seen=seen,
            heuristic_block_n=rule_block_n,
            num_n_blocks=n_blocks,
            num_m_blocks=m_blocks,
            batch_nheads_mblocks=blocks,
            heuristic_sm_slots=slots,
            kernel=np.where(splitkv, "splitkv", "standard"),
            kernel_block_m=block_m,
            kernel_block_n=block_n,
            kernel_head_dim=kernel_dim,
            combine_block_m=combine_m,
            combine_grid_x=np.where(is_split, combine_x, 0),
            n_blocks_per_split=per_split,
            kv_reads_per_key=heads * q_tiles // geo.kv_heads,
        )
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name="flash_fwd_splitkv_kernel",
                    role="stage1",
                    grid=split_grid,
                    threads=128,
                    live_blocks=live_blocks,
                    tile_keys=block_n,
                    when=splitkv,
                ),
                KernelArray(
                    name="flash_fwd_kernel",
                    role="stage1",
                    grid=(q_tiles, batches.batch, heads),
                    threads=32 * std_warps,
                    live_blocks=live_blocks,
                    tile_keys=block_n,
                    when=~splitkv,
                ),
                KernelArray(
                    name="flash_fwd_splitkv_combine_kernel",
                    role="merge",
                    grid=(combine_x, 1, 1),
                    threads=128,
                    live_blocks=combine_x,
                    when=is_split,
                ),
            ),
            requested=count[:, None],
            launched=count,
            live=live,
            working=working,
            split_keys=split_keys,
            keys_read=lens - start,
            # The swap moves the group in front of the KV heads: a view for one request or one KV head, else a copy of
            # the queries before and of the output behind (reshape in mha_varlen_fwd and mha_fwd_kvcache).
            copies=np.where(swapped & (batches.batch > 1) & (geo.kv_heads > 1), 2, 0),
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (lens > 0)),
            tile_keys=block_n,
            block_rows=block_m,
            live_rows=np.minimum(seqlen_q, block_m),
            state_values=geo.head_dim + 1,
            scratch_bytes=is_split * count * batches.batch * heads * seqlen_q * (dim_rounded + 1) * 4,
            determinism=_determinism(asked, consulted),
            gates=_gates(geo, batches, kv, options, rules, detail, live, window_left),
            detail=detail,
        )


def _check_num_splits(asked: int, api: str, paged: bool, consulted: BoolArray, rules: Fa2Rules) -> None:
    if api == "varlen" and asked > rules.varlen_num_splits and rules.varlen_num_splits <= 1:
        most = "no num_splits" if rules.varlen_num_splits == 0 else "num_splits of at most 1"
        raise GateError(
            f"flash-attention-2 ({rules.name}): the varlen API takes {most}, not {asked}", code="num_splits_varlen"
        )
    if asked > MOST_SPLITS and consulted.any():
        raise GateError(
            f"flash-attention-2 takes at most {MOST_SPLITS} splits, not {asked}; this is an error at start-up",
            code="too_many_splits",
        )
    if asked > 1 and paged and not consulted.all():
        raise GateError(
            f"flash-attention-2: num_splits ({asked}) above 1 is not supported by the varlen API with a block table "
            f"unless the group is swapped into the query axis",
            code="num_splits_varlen_paged",
        )


def _determinism(asked: int, consulted: BoolArray) -> str:
    if asked == 1 or not consulted.any():
        return "invariant"
    return "fixed count" if asked > 1 else "batch-dependent"


def _gates(
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    options: FlashAttention2Options,
    rules: Fa2Rules,
    d: FlashAttention2Detail,
    live: IntArray,
    window_left: int,
) -> tuple[GateArray, ...]:
    asked = 1 if options.batch_invariant else options.num_splits_arg

    def why_not_swapped(n: int) -> str:
        if at(d.gqa_swapped, n):
            return f"there is one query token, so the group of {geo.group} becomes query rows; K and V are read once"
        reasons = [
            (geo.group == 1, "group is 1"),
            (at(batches.max_q_len, n) > 1, f"{at(batches.max_q_len, n)} query tokens"),
            (window_left >= 0, f"window ({window_left} keys to the left, even where it is longer than the request)"),
            (options.alibi, "ALiBi"),
            (geo.head_dim % 8 != 0, "head dim is not a multiple of 8"),
        ]
        said = ", ".join(text for holds, text in reasons if holds) or "a right window"
        return f"the group is not swapped ({said}), so K and V are read {at(d.kv_reads_per_key, n)} times"

    def why_split(n: int) -> str:
        if not at(d.rule_consulted, n):
            return "the varlen API applies the rule only when the group was swapped, so there is 1 split"
        if asked >= 1:
            return f"num_splits = {asked} is given, so the rule is not applied"
        m, slots, splits = at(d.batch_nheads_mblocks, n), d.heuristic_sm_slots, at(d.effective_splits, n)
        if fills_without_split(m, slots):
            return f"{m} blocks >= 0.8 x {slots} slots, so there is 1 split"
        return f"{m} blocks for {slots} slots and {at(d.num_n_blocks, n)} key blocks give {splits} splits (85 % rule)"

    def why_live(n: int) -> str:
        most, splits = int(live[n].max()), at(d.effective_splits, n)
        from_ = "its own length" if rules.splits_live_length else f"the capacity of {at(d.seqlen_k_seen, n)} keys"
        return f"each request is cut by {from_}; {most} of {splits} splits have keys in the longest request"

    def why_invariant(n: int) -> str:
        if asked == 1:
            return "num_splits = 1: every request is one split in any batch"
        if asked > 1:
            return f"num_splits = {asked}: a fixed count, the same in any batch but not as the request grows"
        if not at(d.rule_consulted, n):
            return "every request has one split in any batch"
        unsplit = at(d.batch_nheads_mblocks, n)
        return (
            f"the count depends on the batch; num_splits=1 (vLLM: VLLM_BATCH_INVARIANT=1) fixes it and leaves "
            f"{unsplit} of {unsplit * at(d.effective_splits, n)} blocks"
        )

    pages = f"page {kv.page_size} is a multiple of {rules.page_multiple}" if options.paged else "dense cache"
    return (
        GateArray("fork", True, lambda n: f"{rules.name}, {d.api} API: {pages} (upstream needs 256, vLLM's fork 16)"),
        GateArray("gqa_swap", d.gqa_swapped, why_not_swapped),
        GateArray("split", d.num_splits > 1, why_split),
        GateArray("all_splits_live", live.max(axis=1) >= d.effective_splits, why_live),
        GateArray("batch_invariant", ~d.rule_consulted | (asked == 1), why_invariant),
    )


POLICY = FlashAttention2()
