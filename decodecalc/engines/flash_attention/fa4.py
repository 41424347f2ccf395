"""flash-attention-4: decode of FlashAttention 4 (CuTe DSL), the flash-attn-4 wheel and the copy inside vLLM.

There is no 85 % rule any more: the split count is the SMs over the blocks before splitting, bounded by the key blocks.
With packed queries on Blackwell that count is a bound only, and a kernel on the device picks each request's count from
all lengths. The wheel cannot split on Hopper; vLLM's copy can, with one count for all requests.

Three counts, never mixed: `detail.config_num_splits` is what the rule of the generic kernels says, `num_splits`
(launched) the extent of the partial buffers, and `detail.dynamic_splits` (requested) what the device kernel picks.

Sources: flash-attn-4 4.0.0b36, flash_attn/cute/interface.py (_flash_attn_fwd, _get_fwd_config, num_splits_heuristic,
_mla_fwd_plan, _get_scheduler_metadata, _flash_attn_fwd_combine), prepare_scheduler.py, block_info.py,
tile_scheduler.py, flash_fwd_sm100.py, flash_fwd_sm90.py, flash_fwd_combine.py; vLLM 0.33.0, the same files in
vllm/vllm_flash_attn/cute, flash_fwd_mla_decode_sm100.py, sm100_hd256_2cta_fmha_forward.py and
vllm/v1/attention/backends/flash_attn.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.batch import Batch
from decodecalc.engines.flash_attention import fa4_grid as grids
from decodecalc.engines.flash_attention import fa4_mla as mla
from decodecalc.engines.flash_attention.fa4_call import (
    Call,
    Fa4Rules,
    FlashAttention4Options,
    ForwardConfig,
    configuration,
    rewritten,
)
from decodecalc.engines.flash_attention.fa4_takes import combinations
from decodecalc.engines.flash_attention.fa4_tiles import sm90_threads
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, distinct, next_power_of_2, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, GateArray, KernelArray, Launches, at
from decodecalc.launch.plan import KeyRange
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import Takes
from decodecalc.launch.traits import COUNTS, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

SM80, SM90, SM100, SM120 = (f"FlashAttentionForwardSm{n}" for n in (80, 90, 100, 120))
HD256 = "BlackwellFusedMultiHeadAttentionForward"
MOST_SPLITS = 256  # assert in _flash_attn_fwd_combine
BATCHES_PER_BLOCK = 992  # of the scheduler kernel: 31 per warp, 32 warps; above it nothing is split
# S_PING_PONG_MIN_N_BLOCKS_PER_SPLIT: key blocks that each split needs; D 256 never when split.
PING_PONG_BLOCKS = {64: 16, 128: 64}


class FlashAttention4Detail(NamedTuple):
    """The engine's quantities, under its names where it has one."""

    code: str
    """Whose code it is."""
    kernel: str
    """Class of the forward kernel."""
    num_splits: Any
    """Splits of the partial buffers; 1 without them [N]."""
    config_num_splits: Any
    """What the rule of the generic kernels says, or the argument; vLLM's copy may say 0 [N]."""
    tile_m: int
    """Rows of the generic tile."""
    tile_n: Any
    """Keys of the generic tile [N]."""
    q_stage: Any
    """Q tiles of the generic configuration [N]."""
    pack_gqa: Any
    """The group shares a tile [N]."""
    head_groups: Any
    """Head groups of vLLM's sparse decode kernel [N]; None elsewhere."""
    seqlen_k_loaded: Any
    """Keys that the rule counts [N]."""
    num_n_blocks: Any
    """Key blocks that the rule counts [N]."""
    total_mblocks: Any
    """Blocks before splitting, as the rule counts them [N]."""
    two_cta: Any
    """Pairs of blocks share a tile [N]; None where the kernel has no such choice."""
    static_persistent: Any
    """One block for each SM takes tile after tile [N]; None where the kernel has no such choice."""
    clc_scheduler: Any
    """Cluster launch control hands out the tiles [N]; None where the kernel has no such choice."""
    s_ping_pong: Any
    """Two score buffers alternate [N]; None where the kernel has no such choice."""
    paged_non_tma: bool | None
    """Pages are no whole tile, so that threads copy them; None where the kernel has no such choice."""
    prepare_kernel_launched: Any
    """A kernel on the device picks each request's count [N]."""
    dynamic_splits: Any
    """The counts that are in force for each request [N, R]."""
    m_blocks: Any
    """Row blocks of each request as the device kernel counts them [N, R]."""
    combine_tile_m: int
    """Rows of a combine block."""
    combine_k_block: int
    """Columns of a combine block."""
    combine_log_max_splits: Any
    """The combine kernel is built for this power of two of splits [N]."""
    partial_bytes: Any
    """fp32 partial outputs and log-sum-exps [N]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """The forward kernel that runs. Arrays are [N]."""

    name: str
    """Class of the kernel."""
    threads: int | None
    """Threads of a block."""
    tile_rows: Any
    """Rows of a block."""
    tile_keys: Any
    """Keys of a tile."""
    splits: IntArray
    """Split extent, at least 1."""
    when: BoolArray
    """Steps that it serves."""
    cluster: Any = 1
    """Blocks that share a tile of cluster * tile_rows rows."""
    head_groups: IntArray | None = None
    """Head groups of the sparse decode kernel."""


class FlashAttention4(Policy):
    """FlashAttention 4's decode launches."""

    name = "flash-attention-4"
    title = "FlashAttention 4 (CuTe DSL)"
    word_for_split = "split (num_splits)"
    versions = (
        PolicyVersion(
            "4.0.0b36",
            "flash-attn-4 4.0.0b36 flash_attn/cute/interface.py _get_fwd_config, num_splits_heuristic, _mla_fwd_plan; "
            "prepare_scheduler.py",
            ("4.0.0b36", "4.0.0b36"),
            Fa4Rules(label="flash-attn-4", vllm=False, widest_sm90=256, cuda_graph_bound=None),
            "does not split on Hopper; routes MLA between three kernels",
        ),
        PolicyVersion(
            "vllm-0.33",
            "vLLM 0.33.0 vllm/vllm_flash_attn/cute/interface.py _get_fwd_config, num_splits_heuristic, "
            "mla_decode_splits; vllm/v1/attention/backends/flash_attn.py",
            ("0.33", "0.33"),
            Fa4Rules(label="vLLM's copy", vllm=True, widest_sm90=512, cuda_graph_bound=32),
            "splits on Hopper, has its own kernels for D 256 and for sparse decode; bound 32 under full CUDA graphs",
        ),
    )
    options_type = FlashAttention4Options
    split_flag = "num_splits"
    rule = (
        "m = batch x heads x ceil(q x group / rows) blocks, heads the KV heads where the group is packed; n = "
        "ceil(keys / tile). n <= 4: 1 split. Else min(SMs // m, 128, n). With packed queries on Blackwell that is the "
        "bound, and request r takes min(ceil(n_r / b), bound), b = max(1, trunc(sum(m_r n_r) x max(SMs / 128, 1.1) x "
        "heads / SMs)), in float32."
    )
    traits = Traits(
        server_names=("fa4", "FLASH_ATTN_MLA_SPARSE_FA4"),
        split_setting=SplitSetting("num_splits={splits}", "num_splits_arg"),
        invariant_option=("num_splits_arg", 1),
        by_hand_option="num_splits_arg",
        graph_option=("cuda_graph", True),
        frozen_option="max_seqlen_k",
        partition=Partition(rule=COUNTS),
        sparse=True,
        returns_lse=True,
        own_keys_apart=True,  # vLLM's _forward_with_dcp (flash_attn.py) is the one server's path that divides keys
    )

    def graph_options(self, version: PolicyVersion) -> Mapping[str, Any]:
        """The bound is vLLM's: the wheel leaves the count to its rule under graphs too."""
        return {} if version.rules.cuda_graph_bound is None else super().graph_options(version)

    def combinations(self, options: FlashAttention4Options, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        return combinations(options, version.rules)

    def config(
        self,
        geo: Geometry,
        batch: Batch,
        kv: KvCache,
        gpu: Gpu,
        options: FlashAttention4Options,
        version: str | None = None,
    ) -> ForwardConfig:
        """The generic configuration of one step, which also exists for calls that are refused later on."""
        rules: Fa4Rules = self.version(version).rules
        return configuration(rewritten(geo, Batches.single(batch), kv, gpu, options, rules))

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashAttention4Options,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays."""
        rules: Fa4Rules = version.rules
        c = rewritten(geo, batches, kv, gpu, options, rules)
        cfg = configuration(c)
        _check_call(geo, kv, c, cfg)
        runs = _forward(c, cfg)
        splits = _merged([(f.when, f.splits) for f in runs])
        is_split = splits > 1
        _check_kernel(kv, c, is_split, splits)
        flags = _flags(c, cfg, options, runs, is_split)
        rows = _merged([(f.when, f.tile_rows * f.cluster) for f in runs])
        tile_keys = _merged([(f.when, f.tile_keys) for f in runs])
        groups = _merged([(f.when, 1 if f.head_groups is None else f.head_groups) for f in runs])

        lens, tokens = _lengths(batches, c)
        keys = lens if c.sparse_topk is None else np.full_like(lens, c.sparse_topk)
        tile_n = cfg.n_block_size[:, None]
        m_blocks = cdiv(tokens * c.rows_per_token[:, None], cfg.m_block_size)
        counts = np.broadcast_to(splits[:, None], lens.shape)
        prepared = flags.prepared
        if prepared.any():
            picked = _dynamic_splits(c, batches, splits, m_blocks, cdiv(lens, tile_n))
            counts = np.where(prepared[:, None], picked, counts)

        # Which keys each split owns: equal runs of key blocks from the first one that the window leaves.
        first = _first_key(c, lens, tokens, tile_keys)
        end = np.minimum(keys, batches.seq_lens) if c.sparse_topk is None else keys
        first = np.minimum(first, end)
        pieces = cdiv(np.maximum(keys - first, 0), tile_keys[:, None])
        split_keys = np.maximum(cdiv(pieces, counts), 1) * tile_keys[:, None]
        live = cdiv(end - first, split_keys)
        columns = c.grid_heads[:, None] * cdiv(tokens * c.rows_per_token[:, None], rows[:, None])
        cluster = _merged([(f.when, f.cluster) for f in runs])
        columns = _mla_columns(c, columns, tokens, groups) * cluster[:, None]
        work = batches.total(columns * live)
        kernels = tuple(_stage1(c, f, flags, work) for f in runs)
        scratch = is_split * splits * c.total_q * c.q_heads * (c.v_dim + 1) * 4
        combine, combine_m, combine_k = _combine(batches, c, is_split, tokens)
        detail = FlashAttention4Detail(
            code=rules.label,
            kernel=next(f.name for f in runs if f.when.any()),
            num_splits=splits,
            config_num_splits=cfg.num_splits,
            tile_m=cfg.m_block_size,
            tile_n=cfg.n_block_size,
            q_stage=cfg.q_stage,
            pack_gqa=c.packed,
            head_groups=groups if any(f.head_groups is not None for f in runs) else None,
            seqlen_k_loaded=cfg.seqlen_k_loaded,
            num_n_blocks=cfg.num_n_blocks,
            total_mblocks=cfg.total_mblocks,
            two_cta=flags.two_cta,
            static_persistent=flags.persistent,
            clc_scheduler=flags.clc,
            s_ping_pong=flags.ping_pong,
            paged_non_tma=flags.paged_non_tma,
            prepare_kernel_launched=prepared,
            dynamic_splits=counts,
            m_blocks=m_blocks,
            combine_tile_m=combine_m,
            combine_k_block=combine_k,
            combine_log_max_splits=_log_max_splits(splits, combine_m),
            partial_bytes=scratch,
        )
        return Launches(
            is_split=is_split,
            kernels=(*((_scheduler(batches, prepared),) if prepared.any() else ()), *kernels, combine),
            requested=counts,
            launched=splits,
            live=live,
            split_keys=split_keys,
            first_key=first,
            keys_read=end - first,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (end > 0)),
            tile_keys=tile_keys,
            block_rows=rows // cluster,
            live_rows=np.minimum(c.q_len * np.where(c.packed, geo.group, 1), rows // cluster),
            state_values=c.v_dim + 1,
            scratch_bytes=scratch,
            determinism=_determinism(c, prepared, detail),
            gates=_gates(c, cfg, detail, options),
            detail=detail,
            key_ranges=None if c.sparse_topk is None else lambda n: _list_ranges(batches, split_keys, live, end, n),
        )


def _merged(parts: list[tuple[BoolArray, Any]]) -> IntArray:
    """One array from kernels that serve different steps [N]."""
    found = np.zeros(len(parts[0][0]), dtype=np.int64)
    for when, value in parts:
        found = np.where(when, value, found)
    return found


def _check_call(geo: Geometry, kv: KvCache, c: Call, cfg: ForwardConfig) -> None:
    """What the interface asserts after the configuration, in its order."""
    if c.mla and c.sparse_topk is not None and not c.rules.vllm and c.num_splits > 1:
        raise GateError(
            f"flash-attention-4: gathered keys are never split in the wheel, num_splits={c.num_splits} is an error",
            code="sparse_split",
        )
    if c.dequant and (c.page_size != cfg.n_block_size).any():
        raise GateError(
            f"flash-attention-4 in vLLM widens an fp8 cache on Hopper in pages of whole tiles "
            f"({int(cfg.n_block_size[0])} keys) only, not {kv.page_size}",
            code="dequant_page_size",
        )
    if c.dequant and c.head_dim != c.v_dim:
        raise GateError("flash-attention-4 in vLLM widens an fp8 cache for equal widths only", code="dequant_widths")
    if not c.mla:
        if c.sparse_topk is not None:
            raise GateError("flash-attention-4 gathers keys for MLA only", code="sparse_not_mla")
        return
    if not c.blackwell:
        raise GateError("flash-attention-4 runs absorbed MLA on Blackwell (10.x, 11.x) only", code="mla_arch")
    if (c.head_dim, c.v_dim) != (64, 512):
        raise GateError(
            f"flash-attention-4: an MLA latent has 512 elements and 64 for positions, not {c.v_dim} with {c.head_dim}",
            code="mla_widths",
        )
    if c.local:
        raise GateError("flash-attention-4 has no sliding window for MLA", code="mla_window")
    if geo.softcap or (geo.sinks and c.rules.vllm):
        raise GateError("flash-attention-4 has no logit cap (in vLLM: no sinks either) for MLA", code="mla_softcap")
    if c.fp8 and c.rules.vllm:
        raise GateError("flash-attention-4 in vLLM takes 16-bit MLA caches only", code="mla_fp8")
    if c.sparse_topk is None:
        return
    if c.page_size is not None:
        raise GateError(
            "flash-attention-4 gathers keys from a cache without pages only (paged=false)", code="sparse_paged"
        )
    if c.sparse_topk % 128:
        raise GateError(
            f"flash-attention-4: sparse_topk must be a multiple of 128, not {c.sparse_topk}",
            code="topk_not_multiple_of_128",
        )


def _check_kernel(kv: KvCache, c: Call, is_split: BoolArray, splits: IntArray) -> None:
    """What the kernel of the architecture refuses."""
    if c.family in (8, 12) and c.page_size is not None:
        raise GateError(
            f"flash-attention-4 reads no paged cache on compute capability {c.family}.x", code=f"paged_sm{c.family}0"
        )
    if (c.family == 8 or (c.family == 9 and not c.rules.vllm)) and is_split.any():
        raise GateError(
            f"flash-attention-4 ({c.rules.label}) cannot split on compute capability {c.family}.0, and the rule or the "
            f"argument asks for {int(splits.max())} splits: pass num_splits=1",
            code=f"split_sm{c.family}0",
        )
    if c.own_hd256_kernel and c.page_size is not None:
        rest = c.max_seqlen_k % c.page_size
        if rest.any():
            raise GateError(
                f"flash-attention-4 in vLLM: D 256 on Blackwell needs a max_seqlen_k of whole pages of {c.page_size}",
                code="hd256_max_seqlen",
            )
        if (c.page_table_width != c.max_seqlen_k // c.page_size).any():
            raise GateError(
                "flash-attention-4 in vLLM: D 256 on Blackwell needs a page table exactly as wide as max_seqlen_k",
                code="hd256_page_table",
            )
    non_tma = c.page_size is not None and c.family in (9, 10, 11) and not c.mla
    if non_tma and (c.head_dim % 16 or c.v_dim % 16) and kv.page_size % 128:
        raise GateError(
            f"flash-attention-4: pages of {kv.page_size} keys are copied by threads, which needs widths in steps of 16",
            code="irregular_head_dim",
        )
    if (splits > MOST_SPLITS).any():
        raise GateError(
            f"flash-attention-4: the combine kernel takes {MOST_SPLITS} splits, not {int(splits.max())}",
            code="too_many_splits",
        )


def _forward(c: Call, cfg: ForwardConfig) -> tuple[_Forward, ...]:
    """The kernels that serve the steps of the array."""
    always = np.ones(len(c.batch), dtype=np.bool_)
    splits = np.maximum(cfg.num_splits, 1)
    rows, keys = cfg.q_stage * cfg.m_block_size, cfg.n_block_size
    if c.mla:
        return _mla_forward(c, cfg)
    if c.own_hd256_kernel:
        return (
            _Forward(
                name=HD256,
                threads=384,
                tile_rows=cfg.m_block_size,
                tile_keys=keys,
                splits=splits,
                when=always,
                cluster=2,
            ),
        )
    name = {8: SM80, 9: SM90, 12: SM120}.get(c.family, SM100)
    threads = {8: 128, 9: sm90_threads(cfg.m_block_size, c.head_dim, c.v_dim), 12: 128}.get(c.family, 512)
    return (_Forward(name=name, threads=threads, tile_rows=rows, tile_keys=keys, splits=splits, when=always),)


def _mla_forward(c: Call, cfg: ForwardConfig) -> tuple[_Forward, ...]:
    one = np.ones_like(c.batch)
    always = np.ones(len(c.batch), dtype=np.bool_)
    sparse = c.sparse_topk is not None
    copied = sparse or c.page_size not in (None, 128)
    pairs = _Forward(
        name=mla.PAIRS,
        threads=512 if copied else 384,
        tile_rows=mla.CTA_ROWS,
        tile_keys=128,
        splits=one,
        when=always,
        cluster=2,
    )
    if c.rules.vllm:
        if not _sparse_decode(c):
            return (pairs,)
        blocks = (c.sparse_topk or 0) // mla.DECODE_TILE
        groups, splits = mla.decode_splits(c.total_q, c.kv_heads, c.q_heads // c.kv_heads, c.sms, blocks)
        heads = c.q_heads // c.kv_heads // groups
        return (
            _Forward(
                name=mla.SPARSE_DECODE,
                threads=512,
                tile_rows=heads,
                tile_keys=mla.DECODE_TILE,
                splits=splits,
                when=always,
                head_groups=groups,
            ),
        )
    single, kb64, splits = mla.wheel_plan(
        mla.MlaCall(
            sparse=sparse,
            heads=c.q_heads // c.kv_heads,
            kv_heads=c.kv_heads,
            fp8=c.fp8,
            num_splits_arg=c.num_splits,
            batch=c.batch,
            total_q=c.total_q,
            q_hint=c.max_seqlen_q,
            keys=c.max_seqlen_k,
            rows_per_token=c.rows_per_token,
            tile_m=cfg.m_block_size,
            q_stage=cfg.q_stage,
            sms=c.sms,
        )
    )
    alone = [
        _Forward(
            name=name,
            threads=512 if copied else 384,
            tile_rows=mla.CTA_ROWS,
            tile_keys=tile_keys,
            splits=splits,
            when=when,
        )
        for name, tile_keys, when in ((mla.SINGLE_KB64, 64, single & kb64), (mla.SINGLE, 128, single & ~kb64))
    ]
    both = (*alone, _Forward(**{f: getattr(pairs, f) for f in pairs.__slots__} | {"when": ~single}))
    return tuple(f for f in both if f.when.any())


def _sparse_decode(c: Call) -> bool:
    """use_sparse_decode: vLLM's kernel for few heads and gathered keys."""
    return (
        c.sparse_topk is not None
        and c.varlen
        and not c.seqused_k
        and not c.fp8
        and c.page_size is None
        and not c.causal
        and not c.local
        and c.q_heads // c.kv_heads in (*mla.DECODE_HEADS, 64)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    """Choices of the kernels' variants; None where the kernel has none. Arrays are [N]."""

    two_cta: Any
    persistent: Any
    clc: Any
    ping_pong: Any
    paged_non_tma: bool | None
    prepared: BoolArray


def _flags(
    c: Call, cfg: ForwardConfig, options: FlashAttention4Options, runs: tuple[_Forward, ...], is_split: BoolArray
) -> _Flags:
    generic = c.blackwell and not c.mla and not c.own_hd256_kernel
    never = np.zeros_like(is_split)
    has_switch = c.family in (9, 10, 11) and not c.mla
    non_tma = c.page_size is not None and bool((c.page_size != cfg.n_block_size).any())
    prepared = is_split & c.varlen & (c.blackwell or not c.rules.vllm) & (not c.mla)
    if not generic:
        two_cta = ~never if c.own_hd256_kernel else None
        clc = _mla_clc(c, options, runs) if c.mla else None
        return _Flags(
            two_cta=two_cta,
            persistent=None,
            clc=clc,
            ping_pong=None,
            paged_non_tma=non_tma if has_switch else None,
            prepared=prepared,
        )
    rows = c.max_seqlen_q * c.rows_per_token
    one_block = rows <= cfg.q_stage * cfg.m_block_size
    two_cta = _two_cta(c, cfg, options, is_split, rows, one_block)
    ordered = c.causal or c.local
    persistent = one_block & ~is_split
    if not c.rules.vllm:
        persistent = persistent & c.q_len_known & ~(two_cta & (not c.varlen and ordered))
    if not ordered and not c.varlen:
        persistent = persistent | ~is_split
    packed_mha = (c.varlen or c.seqused_k) and c.q_heads == c.kv_heads
    dense_full = not c.varlen and not c.seqused_k and not ordered
    clc = np.full_like(never, options.clc_scheduler and not packed_mha and not dense_full)
    if not c.rules.vllm:
        clc = clc & ~(two_cta & c.hd256)
    return _Flags(
        two_cta=two_cta,
        persistent=persistent,
        clc=clc,
        ping_pong=None if c.rules.vllm else _ping_pong(c, cfg, options, is_split),
        paged_non_tma=non_tma,
        prepared=prepared,
    )


def _two_cta(
    c: Call,
    cfg: ForwardConfig,
    options: FlashAttention4Options,
    is_split: BoolArray,
    rows: IntArray,
    one_block: BoolArray,
) -> BoolArray:
    """use_2cta_instrs of the generic Blackwell kernel [N]."""
    fits = ((cfg.m_block_size % c.group == 0) | ~c.pack_gqa) & ~is_split
    if options.disable_2cta or c.page_size not in (None, 128):
        return np.zeros_like(is_split)
    ordered = c.causal or c.local
    widths = (round_up(c.head_dim, 16), round_up(c.v_dim, 16)) in ((128, 128), (192, 128))
    if c.rules.vllm:
        return fits & (rows > 2 * cfg.m_block_size) & (widths and not ordered and not c.varlen)
    one_wave = c.hd256 & (2 * c.batch * c.grid_heads <= c.sms)
    return fits & (~one_block | one_wave) & (c.hd256 or (widths and not ordered and not c.varlen))


def _ping_pong(c: Call, cfg: ForwardConfig, options: FlashAttention4Options, is_split: BoolArray) -> BoolArray:
    """use_s_ping_pong of the wheel [N]."""
    shape = not c.sinks and c.head_dim in (64, 128, 256) and c.head_dim == c.v_dim and c.page_size in (None, 128)
    per_split = cdiv(cfg.num_n_blocks, np.maximum(cfg.num_splits, 1))
    enough = PING_PONG_BLOCKS.get(c.head_dim)
    long = per_split >= enough if enough else np.zeros_like(is_split)
    fits = (cfg.q_stage == 1) & (cfg.n_block_size == 128) & (~is_split | long)
    return fits & (shape and not options.disable_s_ping_pong)


def _mla_clc(c: Call, options: FlashAttention4Options, runs: tuple[_Forward, ...]) -> Any:
    """use_clc of the single-block kernels [N]; None where only others run, which have no such choice."""
    if not any(f.name in (mla.SINGLE, mla.SINGLE_KB64) for f in runs):
        return None
    if c.sparse_topk is not None:
        return np.ones(len(c.batch), dtype=np.bool_)
    several = (c.q_len > 1) & c.q_len_known
    kb64 = np.zeros_like(several)
    for f in runs:
        kb64 = kb64 | (f.when & (f.name == mla.SINGLE_KB64))
    return np.where(kb64, several, options.clc_scheduler)


def _lengths(batches: Batches, c: Call) -> tuple[IntArray, IntArray]:
    """(keys, query tokens) of each request as the kernels see them [N, R]."""
    shape = batches.seq_lens.shape
    tokens = batches.q_lens if c.varlen else np.broadcast_to(c.q_len[:, None], shape)
    known = c.seqused_k or c.varlen
    lens = batches.seq_lens if known else np.broadcast_to(c.cache_keys[:, None], shape)
    return lens, tokens


def _first_key(c: Call, lens: IntArray, tokens: IntArray, tile_keys: IntArray) -> IntArray:
    """First key that is read: the start of the tile that holds the window's first key [N, R]."""
    if not c.local or c.window_left is None:
        return np.zeros_like(lens)
    first = np.maximum(lens - tokens - c.window_left, 0)
    return first // tile_keys[:, None] * tile_keys[:, None]


def _dynamic_splits(c: Call, batches: Batches, bound: IntArray, m_blocks: IntArray, n_blocks: IntArray) -> IntArray:
    """Splits of each request [N, R]: FlashPrepareScheduler, in its float32."""
    sms = np.float32(c.sms)
    margin = np.maximum(sms / np.float32(128) + np.float32(0.001), np.float32(1.1))
    total = batches.total(m_blocks * n_blocks).astype(np.float32)
    per_sm = (total * margin * c.grid_heads.astype(np.float32) / sms).astype(np.int64)
    wanted = cdiv(n_blocks, np.maximum(per_sm, 1)[:, None])
    picked = np.maximum(np.minimum(wanted, bound[:, None]), 1)
    return np.where((batches.batch > BATCHES_PER_BLOCK)[:, None], 1, picked)


def _mla_columns(c: Call, columns: IntArray, tokens: IntArray, groups: IntArray) -> IntArray:
    """Blocks over all heads and row tiles of each request [N, R]: gathered keys tile every token by itself."""
    if not c.mla or c.sparse_topk is None:
        return columns
    if c.rules.vllm and _sparse_decode(c):
        return tokens * groups[:, None] * c.kv_heads
    return tokens * cdiv(c.rows_per_token, 128)[:, None] * c.kv_heads


def _stage1(c: Call, f: _Forward, flags: _Flags, work: IntArray) -> KernelArray:
    """The forward kernel with its grid."""
    grid = _grid(c, f, flags)
    blocks = grid[0] * grid[1] * grid[2]
    return KernelArray(
        name=f.name,
        role="stage1",
        grid=grid,
        threads=f.threads,
        live_blocks=np.minimum(work, blocks),
        tile_keys=f.tile_keys,
        when=f.when,
    )


def _grid(c: Call, f: _Forward, flags: _Flags) -> grids.Grid:
    per_token = c.rows_per_token
    if f.name == mla.SINGLE_KB64:
        per_token = np.full_like(c.batch, mla.CTA_ROWS)
    cluster = f.cluster
    if flags.two_cta is not None and not c.own_hd256_kernel:
        cluster = np.where(flags.two_cta, 2, 1)
    w = grids.GridWork(
        batch=c.batch,
        heads=c.grid_heads,
        q_rows=c.q_len * per_token,
        total_rows=c.total_q * per_token,
        tile_rows=np.broadcast_to(f.tile_rows, c.batch.shape),
        splits=f.splits,
        cluster=cluster,
    )
    if f.name == mla.SPARSE_DECODE:
        one = np.ones_like(c.batch)
        groups = one if f.head_groups is None else f.head_groups
        return c.total_q * groups * f.splits, c.kv_heads * one, one
    if c.mla:
        return _mla_grid(c, f, w, flags.clc)
    if c.own_hd256_kernel:
        alone = c.batch == 1
        flat = grids.single(w)
        return grids.chosen([(alone, flat)], grids.varlen(w)) if c.varlen else flat
    if f.name != SM100:
        # Hopper's scheduler for dense queries puts the longest first only when there is no window.
        return grids.plain(w, c.varlen, c.family == 9 and c.causal)
    w_longest = grids.GridWork(**{n: getattr(w, n) for n in w.__slots__} | {"q_rows": c.max_seqlen_q * per_token})
    clc = flags.clc & (not flags.paged_non_tma)
    return grids.sm100(
        w_longest,
        c.sms,
        varlen_q=c.varlen,
        ordered=c.causal or c.local,
        clc=clc,
        persistent=flags.persistent,
        dynamic=flags.prepared & ~flags.clc,
    )


def _mla_grid(c: Call, f: _Forward, w: grids.GridWork, clc: Any) -> grids.Grid:
    """Grids of the MLA kernels. Where every tile is one token, packed queries are one flat request."""
    full_tile = c.q_heads == 128 * c.kv_heads and bool(c.pack_gqa.all())
    one_token = f.name == mla.SINGLE_KB64 or c.sparse_topk is not None or (f.name == mla.PAIRS and full_tile)
    if c.varlen and not one_token:
        return grids.varlen(w)
    if c.varlen:
        flat = {"batch": np.ones_like(c.batch), "q_rows": w.total_rows}
        w = grids.GridWork(**{n: getattr(w, n) for n in w.__slots__} | flat)
    handed_out = grids.cluster_launch_control(w)
    return handed_out if clc is None or f.name == mla.PAIRS else grids.chosen([(clc, handed_out)], grids.single(w))


def _scheduler(batches: Batches, when: BoolArray) -> KernelArray:
    """The kernel that picks the counts: blocks of up to 32 warps, 31 requests a warp."""
    warps = min(int(next_power_of_2(cdiv(int(batches.batch.max()), 31))), 32)
    blocks = cdiv(batches.batch, BATCHES_PER_BLOCK)
    threads = 32 * warps if batches.n == 1 else None
    return KernelArray(
        name="FlashPrepareScheduler",
        role="scheduler",
        grid=(blocks, 1, 1),
        threads=threads,
        live_blocks=blocks,
        when=when,
    )


def _combine(batches: Batches, c: Call, is_split: BoolArray, tokens: IntArray) -> tuple[KernelArray, int, int]:
    """The combine kernel with its tile. Every request is combined, also one that took a single split."""
    rows, width = (16, 64) if c.v_dim <= 64 else (8, 128)
    columns = cdiv(c.v_dim, width)
    one = np.ones_like(c.batch)
    if c.varlen:
        most = (c.total_q * c.q_heads + c.batch * (rows - 1)) // rows
        grid: tuple[Any, ...] = (most * columns, one, one)
    else:
        grid = (cdiv(c.q_len * c.q_heads, rows), columns * one, c.batch)
    live = batches.total(cdiv(tokens * c.q_heads, rows)) * columns
    kernel = KernelArray(
        name="FlashAttentionForwardCombine", role="merge", grid=grid, threads=256, live_blocks=live, when=is_split
    )
    return kernel, rows, width


def _log_max_splits(splits: IntArray, tile_m: int) -> IntArray:
    """Exponent of the power of two that the combine kernel is built for [N]."""
    exponents = {s: (s - 1).bit_length() for s in distinct(splits)}
    found = np.array([exponents[s] for s in splits.tolist()], dtype=np.int64)
    return np.maximum(found, 5 if tile_m == 8 else 4)


def _list_ranges(batches: Batches, split_keys: IntArray, live: IntArray, end: IntArray, n: int) -> list[list[KeyRange]]:
    """Ranges of the gathered list of every request of step n."""
    ranges: list[list[KeyRange]] = []
    for r, count in enumerate(batches.counts[n].tolist()):
        size, last = int(split_keys[n, r]), int(end[n, r])
        one = [(i * size, min((i + 1) * size, last)) for i in range(int(live[n, r]))]
        ranges += [one] * count
    return ranges


def _determinism(c: Call, prepared: BoolArray, d: FlashAttention4Detail) -> str:
    if d.head_groups is not None:
        return "batch-dependent"
    if c.never_splits or c.num_splits == 1:  # more rows (tokens x group) than a tile take a second stage of queries
        return "tile-dependent"
    return "batch-dependent" if c.num_splits < 1 or prepared.any() else "fixed count"


def _gates(
    c: Call, cfg: ForwardConfig, d: FlashAttention4Detail, options: FlashAttention4Options
) -> tuple[GateArray, ...]:
    def why_arch(n: int) -> str:
        return f"{c.rules.label}, kernel {d.kernel} for compute capability {c.arch // 10}.{c.arch % 10}"

    def why_packed(n: int) -> str:
        rows = at(c.max_seqlen_q * c.rows_per_token, n)
        if at(d.pack_gqa, n):
            return f"{rows} rows (tokens x group) share tiles of {d.tile_m} rows, so K and V are read once"
        return f"each query head has tiles of its own, so K and V are read {c.q_heads // c.kv_heads} times"

    def why_split(n: int) -> str:
        if d.head_groups is not None:
            return (
                f"sparse decode kernel: {at(d.head_groups, n)} head groups and {at(d.num_splits, n)} splits fill the "
                f"waves of {c.sms} SMs best"
            )
        blocks, pieces = at(cfg.total_mblocks, n), at(cfg.num_n_blocks, n)
        if c.own_hd256_kernel:
            return f"the kernel for D 256 on compute capability {c.arch // 10}.x has no split form"
        if c.num_splits >= 1:
            return f"num_splits = {c.num_splits} is given, and {at(d.num_splits, n)} is in force"
        return (
            f"{blocks} blocks before splitting, {pieces} key blocks (up to {mla.FEWEST_BLOCKS} are never split), "
            f"{c.sms} SMs give {at(d.num_splits, n)} splits"
        )

    def why_dynamic(n: int) -> str:
        if not at(d.prepare_kernel_launched, n):
            return f"no scheduler kernel runs, so every request takes num_splits = {at(d.num_splits, n)}"
        picked = d.dynamic_splits[n]
        return (
            f"num_splits {at(d.num_splits, n)} is a bound; a kernel on the device chooses {int(picked.min())} to "
            f"{int(picked.max())} splits for each request"
        )

    def why_invariant(n: int) -> str:
        if c.num_splits == 1 and d.head_groups is None:
            return "num_splits = 1: every request is one split in any batch"
        return f"num_splits = 1 fixes the splits of every request; this step has num_splits {at(d.num_splits, n)}"

    split = d.num_splits > 1
    # The pairs of blocks gather keys for 128 heads only; vLLM's sparse decode kernel takes the others.
    unserved = c.rules.vllm and c.sparse_topk is not None and d.kernel == mla.PAIRS and c.q_heads != 128 * c.kv_heads
    return (
        GateArray("arch", True, why_arch),
        GateArray("pack_gqa", d.pack_gqa, why_packed),
        GateArray("split", split, why_split),
        GateArray("dynamic_splits", d.prepare_kernel_launched, why_dynamic),
        GateArray("batch_invariant", c.num_splits == 1 and d.head_groups is None, why_invariant),
        GateArray(
            "kernel_supported",
            not unserved,
            lambda n: (
                f"gathered keys need 128 heads in {mla.PAIRS}, not {c.q_heads}" if unserved else f"{d.kernel} takes it"
            ),
        ),
    )


POLICY = FlashAttention4()
