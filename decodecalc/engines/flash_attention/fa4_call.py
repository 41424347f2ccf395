"""One call of FlashAttention 4's forward: its arguments as the interface rewrites them, and the generic configuration.

Source: flash_attn/cute/interface.py of flash-attn-4 4.0.0b36 and vllm/vllm_flash_attn/cute/interface.py of vLLM 0.33.0,
_flash_attn_fwd, _resolve_causal_local_window, _get_fwd_config and num_splits_heuristic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.flash_attention import fa4_mla as mla
from decodecalc.engines.flash_attention.fa4_tiles import SPLIT_TILE_N, tile, widths_fit
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray
from decodecalc.launch.options import EngineOptions, option

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

FEWEST_64_KEY_BLOCKS = 64  # K and V of different widths are split from this many key blocks on


@dataclass(frozen=True, slots=True, kw_only=True)
class Fa4Rules:
    """What differs between the wheel and vLLM's copy."""

    label: str
    """Whose code it is."""
    vllm: bool
    """vLLM's copy: it sees the whole pool where no length is given, does not count query heads that are not packed,
    takes a right bound of 0 for no bound, may choose 0 splits, splits on Hopper, has its own kernels for D 256 and for
    sparse decode, and none of the wheel's single-block MLA kernels."""
    widest_sm90: int
    """Widest head on Hopper."""
    cuda_graph_bound: int | None
    """num_splits under full CUDA graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashAttention4Options(EngineOptions):
    """How the interface is called."""

    varlen: bool = option(True, "bool", "query tokens are packed (cu_seqlens_q), as serving engines do")
    seqused_k: bool = option(
        True, "bool", "lengths of the requests are passed; off: packed keys, or a cache that every request fills"
    )
    paged: bool = option(True, "bool", "the cache has a page table; off: dense or packed K and V", flag="page_table")
    pages: int | None = option(None, "int?", "pages of the pool; default: what the requests need", low=1)
    page_table_width: int | None = option(
        None, "int?", "pages in a row of the page table; default: what the longest request needs", low=1
    )
    max_seqlen_given: bool = option(True, "bool", "max_seqlen_q and max_seqlen_k are passed")
    max_seqlen_k: int | None = option(
        None, "int?", "max_seqlen_k argument; default: the longest request", flag="max_seqlen_k", low=1
    )
    causal: bool = option(True, "bool", "causal argument", flag="causal")
    window_left: int | None = option(
        None, "int?", "window_size_left; default: the layer's window - 1, or -1", flag="window_size", low=-1
    )
    window_right: int | None = option(
        None, "int?", "window_size_right; default: 0 with a window, else -1", flag="window_size", low=-1
    )
    num_splits_arg: int = option(0, "int", "num_splits argument; below 1 the rule decides", flag="num_splits")
    cuda_graph: bool = option(
        False, "bool", "vLLM under full CUDA graphs: num_splits is a fixed bound", flag="cudagraph_mode=FULL (vLLM)"
    )
    max_num_splits_for_cuda_graph: int | None = option(
        None,
        "int?",
        "that bound; default 32",
        flag="attention_config.flash_attn_max_num_splits_for_cuda_graph (vLLM)",
        low=1,
    )
    pack_gqa_arg: bool | None = option(None, "bool?", "pack_gqa argument; default: the engine decides", flag="pack_gqa")
    sparse_topk: int | None = option(
        None,
        "int?",
        "keys that every query token gathers (MLA only); default: those of a sparse layer's list, else all keys",
        flag="gather_kv_indices",
        low=1,
    )
    clc_scheduler: bool = option(
        False, "bool", "cluster launch control hands out the tiles (Blackwell)", flag="FA_CLC=1"
    )
    disable_2cta: bool = option(
        False,
        "bool",
        "no pairs of blocks in the generic Blackwell kernel (CUDA 12 does this)",
        flag="FA_DISABLE_2CTA=1",
    )
    disable_s_ping_pong: bool = option(
        False, "bool", "one score buffer in the generic Blackwell kernel (wheel)", flag="FA_DISABLE_S_PING_PONG=1"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments as the interface rewrites them; arrays are [N]."""

    rules: Fa4Rules
    """The code base."""
    mla: bool
    """The latent goes in as qv and V, its rope part as q and K."""
    sparse_topk: int | None
    """Keys of the gathered lists."""
    arch: int
    """Compute capability, as 100."""
    sms: int
    """Multiprocessors."""
    head_dim: int
    """Width of q and K."""
    v_dim: int
    """Width of V."""
    fp8: bool
    """The kernel computes in fp8."""
    dequant: bool
    """vLLM on Hopper: an fp8 cache is widened to fp16 in the kernel."""
    q_heads: int
    """Query heads."""
    kv_heads: int
    """KV heads."""
    group: IntArray
    """Query heads of a KV head, with the padding of sparse MLA."""
    pack_gqa: BoolArray
    """The group shares a tile."""
    batch: IntArray
    """Requests."""
    q_len: IntArray
    """Query tokens of the request with most of them."""
    total_q: IntArray
    """Query tokens of the batch, in the layout of the call."""
    max_seqlen_q: IntArray
    """The bound that the host knows: all tokens of the batch where none is passed."""
    q_len_known: bool
    """A bound on the query tokens was passed, or follows from the layout."""
    cache_keys: IntArray
    """Keys of a row of a dense cache: where no lengths are passed, every request has that many."""
    max_seqlen_k: IntArray
    """The bound on the keys that the rule sees."""
    page_table_width: IntArray
    """Pages in a row of the page table."""
    causal: bool
    """The causal kernel runs."""
    local: bool
    """The window kernel runs."""
    window_left: int | None
    """Keys to the left; None is unbounded."""
    window_right: int | None
    """Keys to the right; None is unbounded."""
    varlen: bool
    """Query tokens are packed."""
    seqused_k: bool
    """Lengths of the requests are passed."""
    page_size: int | None
    """Keys of a page; None without a page table."""
    num_splits: int
    """The num_splits argument."""
    sinks: bool
    """The softmax has a learned sink for each head."""

    @property
    def family(self) -> int:
        """Architecture family: 8, 9, 10, 11 or 12."""
        return self.arch // 10

    @property
    def blackwell(self) -> bool:
        """Data-centre Blackwell and Thor."""
        return self.family in (10, 11)

    @property
    def hd256(self) -> bool:
        """K and V of 256 elements."""
        return self.head_dim == 256 and self.v_dim == 256

    @property
    def own_hd256_kernel(self) -> bool:
        """vLLM's copy has a kernel of its own for them on Blackwell."""
        return self.rules.vllm and self.blackwell and self.hd256

    @property
    def never_splits(self) -> bool:
        """No kernel of this code base splits such a call (or the wheel raises where it would have to)."""
        if self.mla:
            return self.rules.vllm or self.sparse_topk is not None
        return self.own_hd256_kernel or self.family in (8, 12) or (self.family == 9 and not self.rules.vllm)

    @property
    def packed(self) -> BoolArray:
        """The kernel packs the group; vLLM's own D 256 kernel never does [N]."""
        return self.pack_gqa & (not self.own_hd256_kernel)

    @property
    def rows_per_token(self) -> IntArray:
        """Rows of a tile that a token takes [N]."""
        return np.where(self.packed, self.group, 1)

    @property
    def grid_heads(self) -> IntArray:
        """Heads of the grid [N]."""
        return np.where(self.packed, self.kv_heads, self.q_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardConfig:
    """FwdConfig: the generic tile and split count."""

    m_block_size: int
    """Rows of a tile."""
    n_block_size: Any
    """Keys of a tile [N]."""
    q_stage: IntArray
    """Q tiles of a block [N]."""
    num_splits: IntArray
    """Splits by the rule, or the argument; vLLM's copy may say 0 [N]."""
    seqlen_k_loaded: IntArray
    """Keys that the rule counts [N]."""
    num_n_blocks: IntArray
    """Key blocks that the rule counts [N]."""
    total_mblocks: IntArray
    """Blocks before splitting, as the rule counts them [N]."""


def given_splits(options: FlashAttention4Options, rules: Fa4Rules) -> int:
    """The num_splits argument that reaches the interface."""
    if options.num_splits_arg or not options.cuda_graph:
        return options.num_splits_arg
    if rules.cuda_graph_bound is None:
        raise InputError("flash-attention-4: cuda_graph is vLLM's bound (@vllm-0.33); the wheel takes num_splits_arg")
    return options.max_num_splits_for_cuda_graph or rules.cuda_graph_bound


def widths(geo: Geometry) -> tuple[int, int]:
    """(q and K width, V width). MLA passes the rope part as q and K, and the latent as qv and V."""
    return (geo.head_dim - geo.v_dim if geo.mla else geo.head_dim), geo.v_dim


def rewritten(
    geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: FlashAttention4Options, rules: Fa4Rules
) -> Call:
    """The call as _flash_attn_fwd sees it; GateError for what it asserts before the configuration."""
    arch = _arch(gpu)
    d, dv = widths(geo)
    dequant = rules.vllm and arch // 10 == 9 and kv.dtype == "fp8"
    topk = options.sparse_topk
    if geo.gather is not None:
        # The list's width is the layer's, the lengths are those of the sequences, and indices point into the cache.
        topk = _listed(geo) if topk is None else topk
        batches = batches if batches.contexts is None else replace(batches, seq_lens=batches.contexts)
        options = replace(options, paged=False, sparse_topk=topk)
    _check_inputs(geo, kv, arch, options, rules, dequant)
    batch, q_len, longest = batches.batch, batches.max_q_len, batches.max_seq_len
    total_q = batches.query_tokens if options.varlen else batch * q_len
    own_hd256 = rules.vllm and arch // 10 in (10, 11) and (d, dv) == (256, 256) and not geo.mla
    cache_keys, seen, width = _keys_seen(batches, kv, options, rules, own_hd256)
    max_q = q_len if options.max_seqlen_given or not options.varlen else total_q
    causal, local, left, right = _resolve_window(geo, options, rules)
    splits = given_splits(options, rules)
    group = np.full_like(batch, geo.group)
    if geo.mla and topk is not None and not rules.vllm and geo.group < 128:
        # One token's heads fill a tile of 64 rows in the single-block kernels, of 128 in the pairs.
        single = mla.sparse_single(geo.group, total_q, gpu.sm_count, kv.dtype == "fp8" or splits > 1)
        group = np.where(single, 64, 128)
        pack = np.ones(len(batch), dtype=np.bool_)
    elif options.pack_gqa_arg is not None:
        pack = np.full(len(batch), options.pack_gqa_arg)
    else:
        pack = group > 1
        if not rules.vllm and arch // 10 in (10, 11) and (d, dv) == (256, 256) and 128 % geo.group:
            pack = pack & ~((max_q > 128) | ((splits == 1) & (2 * batch * geo.q_heads <= gpu.sm_count)))
    return Call(
        rules=rules,
        mla=geo.mla,
        sparse_topk=topk,
        arch=arch,
        sms=gpu.sm_count,
        head_dim=d,
        v_dim=dv,
        fp8=kv.dtype == "fp8" and not dequant,
        dequant=dequant,
        q_heads=geo.q_heads,
        kv_heads=geo.kv_heads,
        group=group,
        pack_gqa=pack,
        batch=batch,
        q_len=q_len,
        total_q=total_q,
        max_seqlen_q=max_q,
        q_len_known=options.max_seqlen_given or not options.varlen,
        cache_keys=np.maximum(cache_keys, longest),
        max_seqlen_k=seen,
        page_table_width=width,
        causal=causal,
        local=local,
        window_left=left,
        window_right=right,
        varlen=options.varlen,
        seqused_k=options.seqused_k,
        page_size=kv.page_size if options.paged else None,
        num_splits=splits,
        sinks=geo.sinks,
    )


def _listed(geo: Geometry) -> int:
    """Width of a sparse layer's list."""
    gather = geo.gather
    if gather is None or gather.topk is None or gather.window is not None or gather.per_kv_head:
        raise GateError("flash-attention-4 gathers one list of a fixed width for all heads", code="sparse_layer")
    return gather.topk


def _arch(gpu: Gpu) -> int:
    """Compute capability as 100; GateError where no kernels exist."""
    arch = gpu.sm
    if gpu.is_hip or arch is None or arch // 10 not in (8, 9, 10, 11, 12):
        has = "an AMD device" if gpu.is_hip else f"compute capability {'unknown' if arch is None else arch / 10}"
        raise GateError(
            f"flash-attention-4 has kernels for compute capability 8.x to 12.x; {gpu.label} is {has}", code="arch"
        )
    return arch


def _check_inputs(
    geo: Geometry, kv: KvCache, arch: int, options: FlashAttention4Options, rules: Fa4Rules, dequant: bool
) -> None:
    """What the interface asserts on its inputs, in its order."""
    if kv.dtype not in ("bf16", "fp16", "fp8"):
        raise GateError(f"flash-attention-4 takes fp16, bf16 and fp8 caches, not {kv.dtype}", code="dtype")
    if dequant and kv.query_dtype not in ("bf16", "fp16"):
        raise GateError(
            f"flash-attention-4 in vLLM widens an fp8 cache on Hopper for fp16 or bf16 queries, not {kv.query_dtype}",
            code="dequant_query_dtype",
        )
    if dequant and not options.paged:
        raise GateError("flash-attention-4 in vLLM widens a paged fp8 cache only", code="dequant_not_paged")
    if not dequant and kv.query_dtype != kv.dtype:
        raise GateError(
            f"flash-attention-4: queries and cache need one dtype, not {kv.query_dtype} and {kv.dtype}",
            code="dtypes_differ",
        )
    d, dv = widths(geo)
    bytes_each = 1 if kv.dtype == "fp8" else 2
    if not widths_fit(arch, d, dv, bytes_each, rules.widest_sm90):
        raise GateError(
            f"flash-attention-4 ({rules.label}) has no kernel for K and V widths {d} and {dv} on compute capability "
            f"{arch // 10}.{arch % 10}",
            code="head_dim",
        )
    if kv.dtype == "fp8" and not dequant and arch // 10 != 10:
        raise GateError("flash-attention-4 computes in fp8 on compute capability 10.x only", code="fp8_arch")
    if geo.mla and not rules.vllm and options.sparse_topk is not None and (geo.kv_heads != 1 or geo.group > 128):
        raise GateError(
            "flash-attention-4: sparse MLA takes one KV head and up to 128 query heads", code="sparse_heads"
        )


def _keys_seen(
    batches: Batches, kv: KvCache, options: FlashAttention4Options, rules: Fa4Rules, own_hd256: bool
) -> tuple[IntArray, IntArray, IntArray]:
    """(keys of a cache row, max_seqlen_k, page table width), each [N]."""
    longest, page = batches.max_seq_len, kv.page_size
    needed = cdiv(longest, page)
    width = (
        np.maximum(needed, 1) if options.page_table_width is None else np.full_like(needed, options.page_table_width)
    )
    if options.paged and (width < needed).any():
        raise InputError(
            f"page_table_width ({options.page_table_width}) is too small: the longest request takes "
            f"{int(needed.max())} pages of {page}"
        )
    if options.paged:
        held = batches.total(cdiv(batches.seq_lens, page)) if options.pages is None else options.pages
        row = np.broadcast_to(np.maximum(held, 1) * page, longest.shape)
    elif options.varlen and not options.seqused_k:
        row = batches.total(batches.seq_lens)
    else:
        row = longest
    if not options.max_seqlen_given:
        return row, (width * page if options.paged and not rules.vllm else row), width
    if options.max_seqlen_k is None:
        # vLLM's backend rounds the bound up to whole pages for its own D 256 kernel.
        whole_pages = own_hd256 and options.paged
        return row, (round_up(longest, page) if whole_pages else longest), width
    if (longest > options.max_seqlen_k).any():
        raise InputError(
            f"max_seqlen_k ({options.max_seqlen_k}) is less than the longest request ({int(longest.max())} keys)"
        )
    return row, np.full_like(longest, options.max_seqlen_k), width


def _resolve_window(
    geo: Geometry, options: FlashAttention4Options, rules: Fa4Rules
) -> tuple[bool, bool, int | None, int | None]:
    """(causal, local, left, right): _resolve_causal_local_window. None is unbounded."""
    given_left = (geo.window - 1 if geo.window else -1) if options.window_left is None else options.window_left
    given_right = (0 if geo.window else -1) if options.window_right is None else options.window_right
    left, right = (None if bound < 0 else bound for bound in (given_left, given_right))
    if options.causal:
        right = 0
    if left is None and right is None:
        return False, False, None, None
    if left is None and right == 0:
        return True, False, None, None
    return False, True, left, right


def configuration(c: Call) -> ForwardConfig:
    """_get_fwd_config: the tile, and the split count of the generic kernels. GateError: SM120 with more than one."""
    tile_m, tile_n = tile(c.arch, c.head_dim, c.v_dim, c.causal, c.local)
    rows = c.max_seqlen_q * np.where(c.pack_gqa, c.group, 1)
    two_stages = (rows > tile_m) & c.blackwell & (c.rules.vllm or c.v_dim != 256)
    q_stage = np.where(two_stages, 2, 1)
    loaded = c.max_seqlen_k
    if c.local:
        # vLLM's copy tests the bounds for truth, so that a bound of 0 counts as none.
        bounds = [bound or None if c.rules.vllm else bound for bound in (c.window_left, c.window_right)]
        reach = sum(loaded if bound is None else bound for bound in bounds)
        loaded = np.minimum(loaded, reach + 1 + tile_m)
    heads = c.kv_heads * (1 if c.rules.vllm else np.where(c.pack_gqa, 1, c.group))
    blocks = c.batch * heads * cdiv(rows, q_stage * tile_m)
    keys = np.full_like(loaded, tile_n)
    # MLA in the wheel is configured unsplit; its own plan decides.
    given = 1 if c.mla and not c.rules.vllm else c.num_splits
    if c.family == 12 and (given != 1 if c.rules.vllm else given > 1):
        raise GateError("flash-attention-4 never splits on compute capability 12.x", code="split_sm120")
    if c.family == 12 or c.own_hd256_kernel:
        splits = np.ones_like(loaded)
    elif given < 1:
        splits = _rule(c, blocks, cdiv(loaded, keys))
    else:
        splits = np.full_like(loaded, given)
    if c.blackwell and c.head_dim != c.v_dim:
        # fp32 partial outputs double the output tile: with two widths the key tile must shrink, or nothing is split.
        cut = splits > 1
        narrow = cut & (cdiv(loaded, tile_n) >= FEWEST_64_KEY_BLOCKS) & (c.v_dim != 512)
        keys = np.where(narrow, SPLIT_TILE_N, keys)
        splits = np.where(narrow, _rule(c, blocks, cdiv(loaded, keys)), np.where(cut, 1, splits))
    return ForwardConfig(
        m_block_size=tile_m,
        n_block_size=keys,
        q_stage=q_stage,
        num_splits=splits,
        seqlen_k_loaded=loaded,
        num_n_blocks=cdiv(loaded, keys),
        total_mblocks=blocks,
    )


def _rule(c: Call, blocks: IntArray, n_blocks: IntArray) -> IntArray:
    return mla.num_splits(blocks, c.sms, n_blocks, mla.MOST_SPLITS, not c.rules.vllm)
