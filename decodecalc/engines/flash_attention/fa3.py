"""flash-attention-3: split decode of FlashAttention 3 (Hopper), upstream and in vLLM's fork.

The group always shares a block when the keys are split (PackGQA): rows = query tokens x group. When per-request lengths
are passed (`seqused_k` or `cu_seqlens_q`, as every serving engine does), the batch counts as one request, the split
count of the 85 % rule is only an upper bound, and a kernel on the device chooses each request's count from all lengths.
That kernel ignores windows. The main kernel is persistent: one block per SM takes work tiles until none is left.

Three counts are kept apart. `detail.heuristic_splits` is what the rule would choose. `num_splits` (launched) is the
bound in force, which sizes the buffers and is frozen in a CUDA graph. `detail.dynamic_splits` (requested) is what the
device kernel chooses at every replay.

Sources, folder hopper of Dao-AILab/flash-attention HEAD 0251105a (2026-08-15) and vllm-project/flash-attention HEAD
617264c (2026-08-06): flash_api.cpp (mha_fwd, get_num_splits, get_pack_gqa, get_pagedkv_tma), heuristics.h, tile_size.h,
flash_prepare_scheduler.cu, block.h, flash_fwd_launch_template.h, flash_fwd_combine_kernel.h. vLLM's arguments:
vllm/v1/attention/backends/flash_attn.py of the 0.33.0 wheel. Grids and blocks seen on an H200 agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flash_attention.fa3_tiles import KERNEL_DIMS, kernel_tile_dims, sm8x_tile, sm90_tile
from decodecalc.engines.flash_attention.wave_efficiency import (
    MAX_SPLITS,
    fills_without_split,
    splits_by_wave_efficiency,
)
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, distinct, next_power_of_2, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SIXTEEN_BITS, UNKNOWN, Numbers, Takes
from decodecalc.launch.traits import COUNTS, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MOST_SPLITS = 256  # TORCH_CHECK in mha_fwd
FEWEST_BLOCKS = 4  # num_splits_heuristic: this many key blocks are never split
L2_BYTES = 50 * 1024 * 1024  # num_splits_heuristic assumes an H100's L2
BATCHES_PER_BLOCK = 992  # of the scheduler kernel: 31 per warp, 32 warps; above it nothing is split
COMBINE_ROWS = {True: 16, False: 8}  # rows of a block of the combine kernel: for V of at most 64 elements, and above
MARGIN = np.float32(1.1)  # flash_prepare_scheduler.cu, "10% margin"


class Fa3Rules(NamedTuple):
    """What differs between the code bases.

    fork: vLLM's code: its tiles (64 rows for decode with D 64 and 128), packed kernels only, no TMA for paged windows,
    the rule sees max_seqlen_k and not whole pages of the block table, and a window's pieces start at its first key and
    not at the tile that holds it. cuda_graph_bound: num_splits that vLLM passes under full CUDA graphs. archs: compute
    capabilities (as 80, 90) that kernels exist for.
    """

    name: str
    fork: bool
    cuda_graph_bound: int | None
    archs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlashAttention3Options(EngineOptions):
    """How the entry point is called."""

    seqlen_k_capacity: int | None = option(
        None,
        "int?",
        "keys that the rule sees: capacity of the cache or block table upstream, max_seqlen_k in vLLM; under a CUDA "
        "graph the value at capture. Default: the longest request",
        low=1,
    )
    cache_seqlens: bool = option(
        True, "bool", "per-request lengths are passed; off: every request is as long as the cache", flag="cache_seqlens"
    )
    cu_seqlens_q: bool = option(True, "bool", "query tokens are packed (varlen), as serving engines do")
    num_splits_arg: int = option(0, "int", "num_splits argument; 0: the rule decides", flag="num_splits")
    cuda_graph: bool = option(
        False, "bool", "vLLM under full CUDA graphs: num_splits is a fixed bound", flag="cudagraph_mode=FULL (vLLM)"
    )
    max_num_splits_for_cuda_graph: int | None = option(
        None,
        "int?",
        "that bound; default 32, 16 up to vLLM 0.10",
        flag="attention_config.flash_attn_max_num_splits_for_cuda_graph (vLLM)",
        low=1,
    )
    batch_invariant: bool = option(
        False, "bool", "num_splits is 1 in any batch", flag="VLLM_BATCH_INVARIANT=1 (vLLM), num_splits=1"
    )
    causal: bool = option(True, "bool", "causal argument", flag="causal")
    window_left: int | None = option(
        None, "int?", "window_size[0]; default: the layer's window - 1, or -1", flag="window_size", low=-1
    )
    window_right: int | None = option(
        None, "int?", "window_size[1]; default: 0 with a window, else -1", flag="window_size", low=-1
    )
    pack_gqa_arg: bool | None = option(None, "bool?", "pack_gqa argument; default: the engine decides", flag="pack_gqa")
    paged: bool = option(True, "bool", "the cache has a page table; off: dense K and V", flag="page_table")
    sm_margin: int = option(0, "int", "SMs left to other kernels", flag="sm_margin")


class FlashAttention3Detail(NamedTuple):
    """The engine's quantities, under its names where it has one."""

    fork: str
    num_splits: Any
    heuristic_splits: Any
    num_splits_given: int
    varlen: bool
    dynamic_splits: Any
    pack_gqa: Any
    pack_gqa_in_kernel: Any
    paged_kv_tma: Any
    causal_effective: Any
    local_effective: Any
    head_dim_rounded: int
    v_head_dim_rounded: int
    block_m: Any
    block_n: Any
    heuristic_block_m: Any
    heuristic_block_n: Any
    seqlen_k_loaded: Any
    num_n_blocks: Any
    num_m_blocks: Any
    total_mblocks: Any
    size_one_kv_head: Any
    persistent_scheduler: Any
    work_tiles: Any
    live_work_tiles: Any
    requests_combined: Any


class _Call(NamedTuple):
    """The arguments as mha_fwd rewrites them; arrays are [N]."""

    head_dim: int
    v_dim: int
    bytes: int
    arch: int
    sms: int
    q_len: IntArray
    group: int
    seen: IntArray
    causal: BoolArray
    local: BoolArray
    window_left: IntArray
    window_right: IntArray
    paged: bool
    varlen: bool
    softcap: bool
    one_group: BoolArray

    @property
    def packed_rows(self) -> IntArray:
        """Rows of a request's tile column when the group is packed [N]."""
        return self.q_len * self.group


def _widths(geo: Geometry) -> tuple[int, int]:
    """(Q/K width, V width) of the call. MLA passes the positional part as K and the latent as V (with q_v)."""
    return (geo.head_dim - geo.v_dim if geo.mla else geo.head_dim), geo.v_dim


def _arch(gpu: Gpu) -> int:
    return 90 if gpu.sm is None else gpu.sm


def _check_supported(geo: Geometry, kv: KvCache, gpu: Gpu, options: FlashAttention3Options, rules: Fa3Rules) -> None:
    """Raises GateError for what the entry point or the build refuses, in the entry point's order."""
    arch = _arch(gpu)
    if gpu.is_hip or arch not in rules.archs:
        has = "an AMD device" if gpu.is_hip else f"compute capability {arch // 10}.{arch % 10}"
        wants = "9.0 (Hopper)" if rules.archs == (90,) else "8.0 to 8.9 and 9.0 (Hopper)"
        raise GateError(
            f"flash-attention-3 ({rules.name}) has kernels for compute capability {wants}; {gpu.label} is {has}",
            code="arch",
        )
    if kv.dtype not in ("bf16", "fp16", "fp8"):
        raise GateError(f"flash-attention-3 takes fp16, bf16 and fp8 caches, not {kv.dtype}", code="dtype")
    if kv.dtype == "fp8" and arch < 90:
        raise GateError("flash-attention-3 takes fp8 on Hopper only", code="fp8_needs_hopper")
    if options.paged and rules.fork and kv.page_size % 16:
        raise GateError(
            f"flash-attention-3 in vLLM: page size must be a multiple of 16, not {kv.page_size} (upstream takes any); "
            f"this is an error at start-up and not a slow path",
            code="page_size_not_multiple_of_16",
        )
    if geo.sinks and not rules.fork:
        raise GateError("flash-attention-3 upstream has no attention sinks; vLLM's fork has them (s_aux)", code="sinks")
    d, dv = _widths(geo)
    if d > 256:
        raise GateError(
            f"flash-attention-3 takes head dims up to 256, not {d}; this is an error at start-up",
            code="head_dim_too_large",
        )
    if dv != d and not (128 < d <= 192 and 96 < dv <= 128) and not (d <= 64 and dv <= 512):
        raise GateError(
            f"flash-attention-3: K and V widths {d} and {dv} do not fit; they may differ for K in (128, 192] with V in "
            f"(96, 128], or K <= 64 with V <= 512",
            code="v_head_dim_unsupported",
        )
    if dv != d and arch != 90:
        raise GateError("flash-attention-3: only Hopper takes different K and V widths", code="v_head_dim_unsupported")
    if dv > 256 and kv.dtype == "fp8":
        raise GateError("flash-attention-3: V wider than 256 needs fp16 or bf16", code="v_head_dim_unsupported")
    multiple = 16 if kv.dtype == "fp8" else 8
    if d % multiple or dv % multiple:
        raise GateError(
            f"flash-attention-3: head dims must be multiples of {multiple}, not {d} and {dv}",
            code=f"head_dim_not_multiple_of_{multiple}",
        )
    if rules.fork and options.paged is False and not options.cu_seqlens_q:
        raise GateError("vLLM builds flash-attention-3 for packed queries only", code="varlen_only")


def _given_splits(options: FlashAttention3Options, rules: Fa3Rules) -> int:
    """The num_splits argument that reaches the kernel: 0 leaves it to the rule."""
    if options.batch_invariant:
        return 1
    if options.num_splits_arg:
        return options.num_splits_arg
    if options.cuda_graph:
        if rules.cuda_graph_bound is None:
            raise InputError(
                "flash-attention-3: cuda_graph is vLLM's bound (@vllm-0.33); upstream takes num_splits_arg, and "
                "seqlen_k_capacity for the length at capture"
            )
        return options.max_num_splits_for_cuda_graph or rules.cuda_graph_bound
    return 0


def _call(
    geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: FlashAttention3Options, rules: Fa3Rules
) -> _Call:
    d, dv = _widths(geo)
    longest, q_len = batches.max_seq_len, batches.max_q_len
    capacity = longest if options.seqlen_k_capacity is None else np.full_like(longest, options.seqlen_k_capacity)
    if (capacity < longest).any():
        raise InputError(
            f"seqlen_k_capacity ({options.seqlen_k_capacity}) is less than the longest request ({int(longest.max())} "
            f"keys): the cache must hold every request"
        )
    if not options.cache_seqlens and (batches.seq_lens != capacity[:, None]).any():
        raise InputError("without cache_seqlens every request is as long as the cache: give equal lengths")
    # Upstream sees the block table's capacity, vLLM's fork the max_seqlen_k that it is told.
    seen = round_up(capacity, kv.page_size) if options.paged and not rules.fork else capacity
    given_left = (geo.window - 1 if geo.window else -1) if options.window_left is None else options.window_left
    given_right = (0 if geo.window else -1) if options.window_right is None else options.window_right
    left = np.where(given_left >= seen - 1, -1, given_left)
    right = np.where(given_right >= q_len - 1, -1, given_right)
    # One token sees every key either way; only D (64, 128] with pages keeps the causal kernel, for its tile.
    drop_causal = (q_len == 1) & (left == -1) & (right == -1) & (d <= 64 or d > 128 or not options.paged)
    right = np.where(options.causal & ~drop_causal, 0, right)
    causal = (left < 0) & (right == 0)
    local = ((left >= 0) | (right >= 0)) & ~causal
    return _Call(
        head_dim=d,
        v_dim=dv,
        bytes=1 if kv.dtype == "fp8" else 2,
        arch=_arch(gpu),
        sms=max(gpu.sm_count - options.sm_margin, 1),
        q_len=q_len,
        group=geo.group,
        seen=seen,
        causal=causal,
        local=local,
        window_left=np.where(left < 0, seen - 1, left),
        window_right=np.where(right < 0, q_len - 1, right),
        paged=options.paged,
        varlen=options.cache_seqlens or options.cu_seqlens_q,
        softcap=bool(geo.softcap),
        one_group=(d in (64, 128)) & rules.fork & ~local & (q_len * geo.group <= 64),
    )


def _tile(c: _Call, dims: tuple[int, int], rules: Fa3Rules, non_tma: Any, varlen_split: Any) -> tuple[Any, Any, Any]:
    """(block_m, block_n, threads) [N] for K and V widths `dims`, as tile_size.h has them."""
    if c.arch >= 90:
        one = c.one_group
        block_m, block_n = sm90_tile(dims, c.causal, c.local, c.bytes, non_tma, c.softcap, one, rules.fork)
        groups = dims[1] // 256 if dims[1] > 256 else block_m // 64
        return block_m, block_n, 128 * groups + 128
    block_n, warps = sm8x_tile(dims[0], c.arch in (86, 89), c.local, c.paged, varlen_split)
    return np.full_like(block_n, 128), block_n, 32 * warps


def _paged_tma(c: _Call, kv: KvCache, dims: tuple[int, int], rules: Fa3Rules) -> BoolArray:
    """Whether TMA loads pages: they hold whole tiles, and the rows need more than one tile."""
    if c.arch < 90 or not c.paged:
        return np.zeros_like(c.causal)
    block_m, block_n, _ = _tile(c, dims, rules, False, False)
    fits = (kv.page_size % block_n == 0) & (c.packed_rows > block_m)
    return fits & ~c.local if rules.fork else fits


def _heuristic(
    c: _Call, geo: Geometry, batches: Batches, block_m: Any, block_n: Any
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
    """(splits, seqlen_k_loaded, n blocks, m blocks, total m blocks, bytes of one KV head), each [N]: get_num_splits."""
    in_window = np.maximum(np.minimum(c.seen, c.window_right + c.window_left + 1 + block_m), 0)
    loaded = np.where(c.local, in_window, c.seen)
    n_blocks, m_blocks = cdiv(loaded, block_n), cdiv(c.packed_rows, block_m)
    # The engine multiplies in int.
    head_bytes = (c.seen * (c.head_dim + c.v_dim) * c.bytes).astype(np.int32).astype(np.int64)
    total = (1 if c.varlen else batches.batch) * geo.kv_heads * m_blocks
    by_waves = splits_by_wave_efficiency(total, c.sms, n_blocks, False)
    few = np.where(n_blocks <= FEWEST_BLOCKS, 1, by_waves)
    beyond_l2 = (head_bytes > L2_BYTES) & (m_blocks >= 2 * c.sms) & ~(c.causal | c.local)
    full = np.where(beyond_l2, np.minimum(cdiv(head_bytes, L2_BYTES), MAX_SPLITS), 1)
    return np.where(fills_without_split(total, c.sms), full, few), loaded, n_blocks, m_blocks, total, head_bytes


def _pack_gqa(
    c: _Call, geo: Geometry, options: FlashAttention3Options, rules: Fa3Rules, non_tma: BoolArray, is_split: BoolArray
) -> BoolArray:
    """params.pack_gqa [N]: get_pack_gqa and should_pack_gqa, or the argument."""
    if options.pack_gqa_arg is not None:
        packed = np.full_like(is_split, options.pack_gqa_arg)
    elif c.arch < 90:
        packed = np.ones_like(is_split)
    else:
        packed = non_tma | is_split
        if geo.group > 1:
            block_m, _, _ = _tile(c, _rounded(c), rules, non_tma, False)
            packed = packed | options.cu_seqlens_q | _packing_pays(c.q_len, c.packed_rows, block_m)
        if rules.fork and c.head_dim == 64 and c.v_dim == 64 and geo.group == 8:
            packed = packed | c.local
    if rules.fork:
        # vLLM builds only the packed kernels (FLASHATTENTION_PACKGQA_ONLY) where K and V have one width.
        packed = packed | is_split | (c.head_dim == c.v_dim)
    return packed


def _packing_pays(q_len: IntArray, rows: IntArray, block_m: Any) -> BoolArray:
    def filled(n: IntArray) -> Any:
        return n.astype(np.float32) / np.asarray(round_up(n, block_m), dtype=np.float32)

    return filled(q_len).astype(np.float64) < 0.9 * filled(rows).astype(np.float64)


def _rounded(c: _Call) -> tuple[int, int]:
    """d_rounded and dv_rounded of the host code."""
    d = next(w for w in KERNEL_DIMS if c.head_dim <= w)
    return d, d if c.v_dim == c.head_dim else next(w for w in (*KERNEL_DIMS, 512) if c.v_dim <= w)


def _dynamic_splits(
    c: _Call, batches: Batches, bound: IntArray, heads: IntArray, m_blocks: IntArray, n_blocks: IntArray
) -> IntArray:
    """Splits of each request [N, R]: prepare_varlen_num_blocks_kernel, in its float32."""
    total = batches.total(m_blocks * n_blocks).astype(np.float32)
    per_sm = np.ceil(total * MARGIN * heads.astype(np.float32) / np.float32(c.sms)).astype(np.int64)
    wanted = cdiv(n_blocks, np.maximum(per_sm, 1)[:, None])
    picked = np.maximum(np.minimum(wanted, bound[:, None]), 1)
    return np.where(((bound == 1) | (batches.batch > BATCHES_PER_BLOCK))[:, None], 1, picked)


class FlashAttention3(Policy):
    """FlashAttention 3's decode launches."""

    name = "flash-attention-3"
    title = "FlashAttention 3 (Hopper)"
    word_for_split = "split (num_splits)"
    versions = (
        PolicyVersion(
            "vllm-0.33",
            "vllm-project/flash-attention@617264c hopper/flash_api.cpp, heuristics.h, tile_size.h, block.h; "
            "vLLM 0.33.0 vllm/v1/attention/backends/flash_attn.py",
            ("0.11", "0.33"),
            Fa3Rules("vLLM's fork", True, 32, (90,)),
            "decode tiles of 64 rows, packed kernels only, bound 32 under full CUDA graphs. Tiles are of 2026-08: "
            "FP8, K/V widths 64/256 and over 128, and D 128 with more than 64 rows and no pages had others in 2025",
        ),
        PolicyVersion(
            "3.0.0",
            "Dao-AILab/flash-attention@0251105a hopper/flash_api.cpp get_num_splits, heuristics.h, tile_size.h, "
            "flash_prepare_scheduler.cu",
            ("3.0.0", "3.0.0"),
            Fa3Rules("upstream flash-attn", False, None, (80, 86, 87, 89, 90)),
            "tiles of 128 or 192 rows; the rule sees the block table's capacity",
        ),
        PolicyVersion(
            "vllm-0.10",
            "vLLM 0.9.2 and 0.10.2 vllm/v1/attention/backends/flash_attn.py _DEFAULT_MAX_NUM_SPLITS_FOR_CUDA_GRAPH; "
            "kernels as in vllm-0.33",
            ("0.9", "0.10.2"),
            Fa3Rules("vLLM's fork", True, 16, (90,)),
            "bound 16 under full CUDA graphs; tiles as in vllm-0.33, see its note",
        ),
    )
    options_type = FlashAttention3Options
    split_flag = "num_splits"

    def graph_options(self, version: PolicyVersion) -> Mapping[str, Any]:
        """The bound is vLLM's: upstream leaves the count to its rule under graphs too."""
        return {} if version.rules.cuda_graph_bound is None else super().graph_options(version)

    traits = Traits(
        server_names=("fa3",),
        split_setting=SplitSetting(
            text="num_splits={splits}", option="num_splits_arg", checked=(1, 2, 4, 8, 16, 32, 64, 128)
        ),
        invariant_option=("batch_invariant", True),
        graph_setting=SplitSetting(
            text="--attention-config.flash_attn_max_num_splits_for_cuda_graph {splits}",
            option="max_num_splits_for_cuda_graph",
            server="vLLM",
            checked=(4, 8, 16, 32, 64, 128),
        ),
        graph_option=("cuda_graph", True),
        requests_in_turn=True,
        partition=Partition(rule=COUNTS),
        returns_lse=True,
        own_keys_apart=True,  # vLLM's _forward_with_dcp (flash_attn.py) is the one server's path that divides keys
    )
    rule = (
        "m = B' x kv_heads x ceil(q x group / block_m) tiles; B' = 1 when per-request lengths are passed, else B. n = "
        "ceil(keys / block_n); with a window only its keys + block_m. m >= 0.8 SMs: 1 split (more for a KV head over "
        "50 MB with >= 2 SMs query tiles, not causal). n <= 4: 1. Else the smallest s of 1 .. min(128, SMs, n) with "
        "eff(s) >= 0.85 max eff; eff = w / ceil(w), w = m s / SMs, in float32. With per-request lengths that is the "
        "bound, and request r takes min(ceil(n_r / b), bound), b = ceil(1.1 x kv_heads x sum(m_r n_r) / SMs)."
    )

    def combinations(self, options: FlashAttention3Options, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        rules: Fa3Rules = version.rules
        pages = Numbers(step=16 if rules.fork and options.paged else 1)
        sixteen = Takes(
            devices=(*(f"sm{arch}" for arch in rules.archs), UNKNOWN),
            mla=False,
            sinks=rules.fork,
            cache_dtypes=SIXTEEN_BITS,
            head_dims=Numbers(step=8, high=256),
            value_dims=None,
            page_sizes=pages,
        )
        hopper = replace(sixteen, devices=("sm90", UNKNOWN))
        eight = replace(hopper, cache_dtypes=("fp8",), head_dims=Numbers(step=16, high=256))
        wide, narrow = Numbers(step=8, low=129, high=192), Numbers(step=8, high=64)
        return (
            sixteen,
            eight,
            replace(hopper, head_dims=wide, value_dims=Numbers(step=8, low=97, high=128)),
            replace(hopper, head_dims=narrow, value_dims=Numbers(step=8, high=512)),
            replace(
                eight, head_dims=Numbers(step=16, low=129, high=192), value_dims=Numbers(step=16, low=97, high=128)
            ),
            replace(eight, head_dims=Numbers(step=16, high=64), value_dims=Numbers(step=16, high=256)),
            replace(hopper, mla=True, head_dims=Numbers(), value_dims=Numbers(step=8, high=512), rotary_dims=narrow),
            replace(
                eight,
                mla=True,
                head_dims=Numbers(),
                value_dims=Numbers(step=16, high=256),
                rotary_dims=Numbers(step=16, high=64),
            ),
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashAttention3Options,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays."""
        rules: Fa3Rules = version.rules
        _check_supported(geo, kv, gpu, options, rules)
        given = _given_splits(options, rules)
        c = _call(geo, batches, kv, gpu, options, rules)
        rounded = _rounded(c)

        # The bound on the split count, from the host's tile.
        tma = _paged_tma(c, kv, rounded, rules)
        non_tma = ~tma & c.paged
        host_m, host_n, _ = _tile(c, rounded, rules, non_tma, c.varlen)
        rule_splits, loaded, n_seen, m_seen, total_seen, head_bytes = _heuristic(c, geo, batches, host_m, host_n)
        num_splits = np.full_like(rule_splits, given) if given else rule_splits
        if given > MOST_SPLITS:
            raise GateError(
                f"flash-attention-3 takes at most {MOST_SPLITS} splits, not {given}; this is an error at start-up",
                code="too_many_splits",
            )
        pack = _pack_gqa(c, geo, options, rules, non_tma, num_splits > 1)
        if rules.fork and c.varlen:
            num_splits = np.where(batches.batch > BATCHES_PER_BLOCK, 1, num_splits)
        is_split = num_splits > 1

        # The kernel's tile and the device's choice.
        dims = kernel_tile_dims(c.head_dim, c.v_dim, c.arch, c.bytes)
        block_m, block_n, threads = _tile(c, dims, rules, non_tma, is_split & c.varlen)
        packed = pack | (c.arch < 90) | non_tma | is_split
        heads = np.where(packed, geo.kv_heads, geo.q_heads)
        row_group = np.where(packed, geo.group, 1)
        lens = batches.seq_lens
        tokens = batches.q_lens if options.cu_seqlens_q else np.broadcast_to(c.q_len[:, None], lens.shape)
        kernel_lens = lens if options.cache_seqlens else np.broadcast_to(c.seen[:, None], lens.shape)
        m_blocks = cdiv(tokens * row_group[:, None], block_m[:, None])
        bn = block_n[:, None]
        splits = (
            _dynamic_splits(c, batches, num_splits, heads, m_blocks, cdiv(kernel_lens, bn))
            if c.varlen
            else np.broadcast_to(num_splits[:, None], lens.shape)
        )

        # Which keys each split owns: pieces of whole tiles of what the window leaves.
        first = np.where(c.local[:, None], np.maximum(kernel_lens - tokens - c.window_left[:, None], 0), 0)
        first = first if rules.fork else first // bn * bn
        first = np.minimum(first, lens)
        pieces = cdiv(np.maximum(kernel_lens - first, 0), bn)
        split_keys = np.maximum(cdiv(pieces, splits), 1) * bn
        live = cdiv(lens - first, split_keys)
        columns = heads[:, None] * m_blocks
        work_tiles = batches.total(columns * splits)
        live_tiles = batches.total(columns * live)

        if c.arch >= 90:
            persistent = ~(is_split & (not c.varlen))
        else:
            persistent = (c.causal & (not c.varlen)) | (is_split & c.varlen)
        q_tiles = cdiv(c.q_len * row_group, block_m)
        grid = (
            np.where(persistent, c.sms, q_tiles),
            np.where(persistent, 1, num_splits * heads),
            np.where(persistent, 1, batches.batch),
        )
        busy = np.where(persistent, np.minimum(live_tiles, c.sms), live_tiles)
        main_name = "FlashAttnFwdSm90" if c.arch >= 90 else "FlashAttnFwdSm80"
        stage1 = tuple(
            KernelArray(
                name=main_name,
                role="stage1",
                grid=grid,
                threads=int(t),
                live_blocks=busy,
                tile_keys=block_n,
                when=threads == t,
            )
            for t in distinct(threads)
        )
        state_tokens = batches.query_tokens if options.cu_seqlens_q else batches.batch * c.q_len
        combined = (splits > 1) & is_split[:, None]
        detail = FlashAttention3Detail(
            fork=rules.name,
            num_splits=num_splits,
            heuristic_splits=rule_splits,
            num_splits_given=given,
            varlen=c.varlen,
            dynamic_splits=splits,
            pack_gqa=pack,
            pack_gqa_in_kernel=packed,
            paged_kv_tma=tma,
            causal_effective=c.causal,
            local_effective=c.local,
            head_dim_rounded=rounded[0],
            v_head_dim_rounded=rounded[1],
            block_m=block_m,
            block_n=block_n,
            heuristic_block_m=host_m,
            heuristic_block_n=host_n,
            seqlen_k_loaded=loaded,
            num_n_blocks=n_seen,
            num_m_blocks=m_seen,
            total_mblocks=total_seen,
            size_one_kv_head=head_bytes,
            persistent_scheduler=persistent,
            work_tiles=work_tiles,
            live_work_tiles=live_tiles,
            requests_combined=batches.total(combined.astype(np.int64)),
        )
        return Launches(
            is_split=is_split,
            kernels=(
                *((_scheduler(batches),) if c.varlen else ()),
                *stage1,
                _combine(geo, batches, c, options, combined, tokens, is_split),
            ),
            requested=splits,
            launched=num_splits,
            live=live,
            split_keys=split_keys,
            first_key=first,
            keys_read=lens - first,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (lens > 0)),
            tile_keys=block_n,
            block_rows=block_m,
            live_rows=np.minimum(c.q_len * row_group, block_m),
            state_values=c.v_dim + 1,
            partial_splits=np.where(combined, live, 0),
            scheduled_once=options.cuda_graph,  # vLLM's metadata builder launches it, before the first layer
            merge_walks=_merge_walks(geo, c, num_splits, batches.largest(np.where(combined, live, 0))),
            scratch_bytes=is_split * num_splits * state_tokens * geo.q_heads * (c.v_dim + 1) * 4,
            determinism=_determinism(given, c.varlen),
            gates=_gates(geo, kv, gpu, options, rules, c, detail, batches.total(columns)),
            detail=detail,
        )


def _scheduler(batches: Batches) -> KernelArray:
    """The kernel that picks the counts: blocks of up to 32 warps, 31 requests a warp."""
    warps = min(int(next_power_of_2(cdiv(int(batches.batch.max()), 31))), 32)
    blocks = cdiv(batches.batch, BATCHES_PER_BLOCK)
    threads = 32 * warps if batches.n == 1 else None
    return KernelArray(
        name="prepare_varlen_num_blocks_kernel",
        role="scheduler",
        grid=(blocks, 1, 1),
        threads=threads,
        live_blocks=blocks,
    )


def _combine(
    geo: Geometry,
    batches: Batches,
    c: _Call,
    options: FlashAttention3Options,
    combined: BoolArray,
    tokens: IntArray,
    is_split: BoolArray,
) -> KernelArray:
    """The combine kernel: flash_fwd_combine_kernel.h. Blocks of requests that took one split return at once."""
    rows, width = COMBINE_ROWS[c.v_dim <= 64], 64 if c.v_dim <= 64 else 128
    columns = cdiv(c.v_dim, width)
    dense = (cdiv(c.q_len * geo.q_heads, rows), columns, batches.batch)
    if options.cu_seqlens_q:
        # Mostly empty grids (by tokens, not rows: the source's own estimate) are flattened over requests.
        flat = 2 * cdiv(batches.query_tokens, rows) < batches.batch * cdiv(c.q_len, rows)
        flat_x = cdiv(batches.query_tokens * geo.q_heads, rows) + batches.batch
        grid: tuple[Any, ...] = (np.where(flat, flat_x, dense[0]), columns, np.where(flat, 1, batches.batch))
    else:
        grid = dense
    live = batches.total(cdiv(tokens * geo.q_heads, rows) * combined) * columns
    return KernelArray(
        name="FlashAttnFwdCombine", role="merge", grid=grid, threads=256, live_blocks=live, when=is_split
    )


def _merge_walks(geo: Geometry, c: _Call, num_splits: Any, most_live: IntArray) -> IntArray:
    """Splits that the combine kernel's loop visits for a row [N].

    It stops behind the last split with a state. Where a block has fewer rows than it holds, nothing clears the sums of
    the missing rows in shared memory, and the loop runs over all splits of the compiled kernel: 16, 32, 64, 128, 256.
    Source: hopper/flash_fwd_combine_kernel.h (the copy of LSE into shared memory, max_valid_split) and
    flash_fwd_combine_launch_template.h; timed on an H200.
    """
    rows = COMBINE_ROWS[c.v_dim <= 64]
    compiled = np.maximum(next_power_of_2(num_splits), 16)
    return np.where((geo.q_heads % rows != 0) & (most_live > 0), compiled, most_live)


def _determinism(given: int, varlen: bool) -> str:
    if given == 1:  # rows (tokens x group) over 64 take a larger tile, and the longest query decides (vLLM #51902)
        return "tile-dependent" if varlen else "invariant"
    return "fixed count" if given and not varlen else "batch-dependent"


def _gates(
    geo: Geometry,
    kv: KvCache,
    gpu: Gpu,
    options: FlashAttention3Options,
    rules: Fa3Rules,
    c: _Call,
    d: FlashAttention3Detail,
    unsplit: IntArray,
) -> tuple[GateArray, ...]:
    given = d.num_splits_given

    def why_arch(n: int) -> str:
        known = "" if gpu.compute_capability else " (it is not known for this GPU, so Hopper is assumed)"
        return f"{rules.name}, kernels of compute capability {c.arch // 10}.{c.arch % 10}{known}"

    def why_packed(n: int) -> str:
        if at(d.pack_gqa_in_kernel, n):
            return (
                f"{at(c.packed_rows, n)} rows (tokens x group) share a tile of {at(d.block_m, n)}: K, V are read once"
            )
        return f"each query head has tiles of its own, so K and V are read {geo.group} times"

    def why_tma(n: int) -> str:
        if not c.paged:
            return "dense cache"
        return (
            f"page {kv.page_size}, tile {at(d.block_n, n)} keys, {at(c.packed_rows, n)} rows: TMA loads pages of whole "
            f"tiles, and only where the rows need more than one tile of {at(d.block_m, n)}"
        )

    def why_split(n: int) -> str:
        if given:
            source = (
                "batch-invariant mode"
                if options.batch_invariant
                else "num_splits argument"
                if options.num_splits_arg
                else "bound under full CUDA graphs"
            )
            return f"{source}: num_splits = {given}; the rule would give {at(d.heuristic_splits, n)}"
        tiles, blocks = at(d.total_mblocks, n), at(d.num_n_blocks, n)
        counted = "the batch counts as 1" if d.varlen else "of the whole batch"
        if fills_without_split(tiles, c.sms):
            return f"{tiles} tiles ({counted}) >= 0.8 x {c.sms} SMs"
        if blocks <= FEWEST_BLOCKS:
            return f"{blocks} key blocks; up to {FEWEST_BLOCKS} are never split"
        return f"{tiles} tiles ({counted}), {blocks} key blocks, {c.sms} SMs: {at(d.num_splits, n)} splits (85 % rule)"

    def why_dynamic(n: int) -> str:
        if not d.varlen:
            return f"no per-request lengths are passed, so every request takes num_splits = {at(d.num_splits, n)}"
        picked = d.dynamic_splits[n]
        return (
            f"num_splits {at(d.num_splits, n)} is a bound; the device chooses {int(picked.min())} to "
            f"{int(picked.max())} splits per request, and {at(d.requests_combined, n)} requests are merged"
        )

    def why_bound(n: int) -> str:
        if not (options.cuda_graph and given and not options.batch_invariant and not options.num_splits_arg):
            return "no bound of a CUDA graph is in force"
        wanted = at(d.heuristic_splits, n)
        return (
            f"captured with num_splits {given} (buffers and kernel are frozen); counts are chosen at every replay; "
            f"the rule would allow {wanted}"
        )

    def why_invariant(n: int) -> str:
        if given == 1:
            return "num_splits = 1: every request is one split in any batch"
        if given and not d.varlen:
            return f"num_splits = {given}: a fixed count, the same in any batch but not as the request grows"
        return (
            f"the counts depend on all lengths of the batch; num_splits=1 (vLLM: VLLM_BATCH_INVARIANT=1) fixes them "
            f"and leaves {at(unsplit, n)} of {at(d.work_tiles, n)} work tiles"
        )

    clamped = options.cuda_graph & (d.num_splits < d.heuristic_splits)
    return (
        GateArray("arch", True, why_arch),
        GateArray("pack_gqa", d.pack_gqa_in_kernel, why_packed),
        GateArray("paged_kv_tma", d.paged_kv_tma, why_tma),
        GateArray("split", d.num_splits > 1, why_split),
        GateArray("dynamic_splits", d.varlen & (d.num_splits > 1), why_dynamic),
        GateArray("cuda_graph_bound", ~clamped, why_bound),
        GateArray("batch_invariant", given == 1, why_invariant),
    )


POLICY = FlashAttention3()
