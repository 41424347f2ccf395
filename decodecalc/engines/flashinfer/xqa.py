"""flashinfer-xqa: the decode kernels that FlashInfer took over from TensorRT-LLM.

Two kernels share one entry. The generic one runs everywhere; on Hopper an FP8 cache has a kernel of its own. The split
count comes from the width of the page table, not from the requests, so it is the same in every step of a server whose
table is as wide as its longest possible request. A request's tiles are dealt to its splits in turn: split s of S takes
the tiles s, s + S, s + 2S, …, counted from the first tile inside the window. No merge kernel is launched: the last
block of a request and KV head to finish combines the partial states.

Read from flashinfer-python 0.7.4: flashinfer/decode.py (xqa_batch_decode_with_kv_cache), flashinfer/xqa.py (xqa),
flashinfer/jit/xqa.py (gen_xqa_module), csrc/xqa/mha.cu (launchMHAFlashInfer, kernel_mha_impl), csrc/xqa/mha_sm90.cu
(launchHopperF8MHAFlashInfer, kernel_mha).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flashinfer.releases import RELEASES
from decodecalc.engines.flashinfer.xqa_memory import (
    QUERY_TILE_LIMIT,
    generic_memory,
    generic_scratch,
    hopper_buffers,
    hopper_memory,
    hopper_scratch,
    memory_limit,
    padded_head,
)
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import LAST_BLOCK
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SAME, SIXTEEN_BITS, Numbers, Takes, only
from decodecalc.launch.traits import IRREGULAR, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

PAGE_SIZES = (16, 32, 64, 128)
CACHE_CODES = {"bf16": 0, "fp16": 0, "int8": 1, "fp8": 2, "nvfp4": 3}  # CACHE_ELEM_ENUM
TILE_KEYS, HOPPER_TILE_KEYS = 256, 64
DRAFT_ROWS, HOPPER_DRAFT_ROWS = 32, 64  # query rows of a block with several tokens a request
SWAP_ROWS = 32  # up to this many rows a uniform draft is compiled for its length (swap_ab_eligible)
TILE_ROWS = (16, 32, 64)  # query rows that mha.cu compiles for
WIDEST_DRAFT_HEAD = 256
SEMAPHORE_BYTES = 8 << 20  # of the caller's workspace, set aside before the scratch


@dataclass(frozen=True, slots=True)
class FlashInferXqaOptions(EngineOptions):
    """What the caller of `xqa_batch_decode_with_kv_cache` decides."""

    page_table_width: int | None = option(
        None,
        "int?",
        "pages that a row of the page table holds (block_tables.shape[-1]); the split count follows it, and not the "
        "requests; by default as many pages as the longest request needs",
        "block_tables",
        low=1,
    )
    q_len_per_req: int | None = option(
        None,
        "int?",
        "query tokens that the call promises for a request; by default the most that any request of the step has",
        "q_len_per_req",
        low=1,
    )
    ragged_q: bool | None = option(
        None,
        "bool?",
        "queries come packed with q_cu_seq_lens; by default they do where requests have different numbers of tokens",
        "q_cu_seq_lens",
    )
    out_dtype: str | None = option(
        None,
        "str?",
        "element type of the output; by default it is the query's, and fp8 is possible with an fp8 cache only",
        "out",
        choices=("bf16", "fp16", "fp8"),
    )


class FlashInferXqaDetail(NamedTuple):
    """The launch in XQA's words."""

    kernel: Any
    """`mha`, the generic kernel, or `mha_sm90_fp8`, Hopper's for FP8 caches."""
    max_seq_len: Any
    """Keys that the page table can address; the split count follows it."""
    query_blocks: Any
    """Blocks that share the query rows of one KV head."""
    valid_rows: Any
    """Query rows that a block keeps partial states of."""
    head_dim_padded: int
    """Elements of a head in shared memory."""
    tiles_per_request: Any
    """Tiles of each request that the first query block walks."""
    first_tile: Any
    """First tile of each request that the first query block walks: those before it lie outside the window."""
    smem_bytes: Any
    """Dynamic shared memory of a block."""
    semaphores: Any
    """Words that count the finished splits, one for each KV head, request and query block; 0 without splits."""
    sliding_window_arg: int
    """Window that the kernel is given: keys that a query sees; 0 for none."""
    defines: Any
    """Compile-time settings of the just-in-time build, as NAME=VALUE."""
    pdl: bool
    """Programmatic dependent launch: the kernel may start before the one before it has ended."""


class FlashInferXqa(Policy):
    """The page table's width sets the splits, tiles are dealt in turn, and the last block merges."""

    name = "flashinfer-xqa"
    title = "FlashInfer XQA decode"
    releases = RELEASES
    word_for_split = "sub-sequence"
    options_type = FlashInferXqaOptions
    versions = (
        PolicyVersion(
            name="0.7.4",
            source=(
                "flashinfer-python 0.7.4: flashinfer/decode.py, flashinfer/xqa.py, flashinfer/jit/xqa.py, "
                "csrc/xqa/mha.cu, csrc/xqa/mha_sm90.cu"
            ),
            covers=("0.6.18", "0.7.4"),
            note=(
                "the files are the same in 0.7.2.post1 and, but for one device helper, in 0.6.18.post1; 0.7.4 also "
                "reaches this kernel from its decode wrapper for a few captured shapes on Hopper"
            ),
        ),
    )
    rule = (
        "S = min(max(1, SMs // (B * kv_heads)), ceil(page table keys / 256)); with an FP8 cache on Hopper "
        "S = min(max(1, round(3 * SMs // (B * kv_heads) / 4)), ceil(page table keys / 64)). Tiles of 256 (64) keys are "
        "dealt to the splits in turn, and the last block of a request merges"
    )
    traits = Traits(
        partition=Partition(rule=IRREGULAR),
        longest_option="page_table_width",
        frozen_option="page_table_width",
        longest_in_pages=True,
    )

    def combinations(self, options: FlashInferXqaOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        layer = Takes(
            devices=("sm9x", "sm10x", "sm12x"),
            mla=False,
            softcaps=False,
            cache_dtypes=SIXTEEN_BITS,
            query_dtypes=SAME,
            head_dims=Numbers(step=16, high=512),
            value_dims=None,
            page_sizes=only(*PAGE_SIZES),
        )
        quantised = replace(layer, cache_dtypes=("fp8", "int8"), query_dtypes=SIXTEEN_BITS)
        return layer, quantised, replace(quantised, devices=("sm12x",), cache_dtypes=("nvfp4",))

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashInferXqaOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays.

        Raises GateError for what the Python entry refuses and what its just-in-time build cannot compile, and
        InputError for a page table too narrow for the longest request or fewer promised query tokens than a request
        has.
        """
        q_len = batches.max_q_len if options.q_len_per_req is None else np.full(batches.n, options.q_len_per_req)
        if (q_len < batches.max_q_len).any():
            raise InputError(
                f"flashinfer-xqa: q_len_per_req is {options.q_len_per_req}, but a request has "
                f"{int(batches.max_q_len.max())} query tokens"
            )
        draft = q_len > 1
        different = (batches.q_lens != q_len[:, None]).any(axis=1)
        ragged = different if options.ragged_q is None else np.full(batches.n, options.ragged_q)
        _check_entry(geo, kv, gpu, options, draft, ragged)
        max_seq_len = _table_keys(batches, kv, options)
        major = gpu.compute_capability[0] if gpu.compute_capability else 0
        hopper_cache = kv.dtype == "fp8" and major == 9 and geo.head_dim <= WIDEST_DRAFT_HEAD
        plain = ~ragged & (geo.window is None) & (not geo.sinks) & (q_len * geo.group > SWAP_ROWS)
        hopper = hopper_cache & (~draft | plain)

        # Rows of a block, and the blocks that share a KV head's rows.
        draft_rows = np.where(hopper, HOPPER_DRAFT_ROWS, DRAFT_ROWS)
        valid = np.where(draft, draft_rows, geo.group)
        rows = np.where(draft, draft_rows, np.where(hopper, round_up(geo.group, 8), round_up(geo.group, 16)))
        tokens_a_block = np.maximum(HOPPER_DRAFT_ROWS // geo.group, 1)
        blocks = np.where(hopper, cdiv(q_len, tokens_a_block), cdiv(q_len * geo.group, DRAFT_ROWS))
        blocks = np.where(draft, blocks, 1)
        smem = np.where(
            hopper,
            hopper_memory(geo.head_dim, rows, ~draft, kv.page_size),
            generic_memory(geo.head_dim, kv.dtype, rows, major),
        )
        _check_build(geo, gpu, major, draft, hopper, valid, rows, smem)

        # Splits.
        tile = np.where(hopper, HOPPER_TILE_KEYS, TILE_KEYS)
        share = batches.batch * geo.kv_heads
        wanted = np.where(
            hopper, (3 * gpu.sm_count // np.maximum(share, 1) + 2) // 4, gpu.sm_count // np.maximum(share, 1)
        )
        most = cdiv(max_seq_len, tile)
        splits = np.minimum(np.maximum(wanted, 1), most)
        is_split = splits > 1

        # Keys: whole tiles before the window of the first row of the first query block are skipped.
        column = tile[:, None]
        served = (batches.q_lens > 0) & (batches.seq_lens > 0)
        outside = np.zeros_like(batches.seq_lens)
        if geo.window is not None:
            first_row = np.where(draft[:, None], batches.q_lens - 1, 0)
            outside = np.where(
                batches.seq_lens > geo.window, np.maximum(batches.seq_lens - first_row - geo.window, 0), 0
            )
        first_tile = outside // column
        tiles = np.where(served, cdiv(batches.seq_lens, column) - first_tile, 0)
        live = np.minimum(splits[:, None], tiles)
        columns = np.where(batches.q_lens > 0, (geo.kv_heads * blocks)[:, None], 0)
        live_blocks = batches.total(columns * live)
        states = splits * share * blocks
        grid = (
            np.where(hopper, blocks, splits),
            np.where(hopper, splits, geo.kv_heads * blocks),
            np.where(hopper, share, batches.batch),
        )
        kernels = (
            KernelArray(
                name="kernel_mha",
                role="stage1",
                grid=grid,
                threads=128 * 2,
                live_blocks=live_blocks,
                tile_keys=TILE_KEYS,
                when=~hopper,
            ),
            KernelArray(
                name="kernel_mha",
                role="stage1",
                grid=grid,
                threads=128 * 3,
                live_blocks=live_blocks,
                tile_keys=HOPPER_TILE_KEYS,
                when=hopper,
            ),
        )
        # The generic kernel writes a neutral state for a split without tiles, and the last block reads it.
        partial = np.where(hopper[:, None], np.where(live > 1, live, 0), np.where(served, splits[:, None], 0))
        return Launches(
            is_split=is_split,
            kernels=kernels,
            requested=np.broadcast_to(splits[:, None], batches.seq_lens.shape),
            launched=splits,
            live=live,
            split_keys=cdiv(tiles, np.maximum(live, 1)) * column,
            first_key=first_tile * column,
            interleave_keys=tile,
            keys_read=batches.seq_lens - first_tile * column,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (tiles > 0)),
            tile_keys=tile,
            block_rows=rows,
            live_rows=np.minimum(q_len * geo.group, valid),
            merge_in=LAST_BLOCK,
            partial_splits=np.where(is_split[:, None], partial, 0),
            state_values=np.where(hopper, geo.head_dim // 2, padded_head(geo.head_dim) // 2) + 2,
            scratch_bytes=is_split
            * np.where(
                hopper,
                hopper_scratch(geo.head_dim, valid, states),
                generic_scratch(geo.head_dim, valid, rows, states),
            ),
            determinism="batch-dependent",
            detail=FlashInferXqaDetail(
                kernel=np.where(hopper, "mha_sm90_fp8", "mha"),
                max_seq_len=max_seq_len,
                query_blocks=blocks,
                valid_rows=valid,
                head_dim_padded=padded_head(geo.head_dim),
                tiles_per_request=tiles,
                first_tile=first_tile,
                smem_bytes=smem,
                semaphores=is_split * share * blocks,
                sliding_window_arg=geo.window or 0,
                defines=_Defines(geo, kv, options, major).of(q_len, ragged),
                pdl=major >= 9,
            ),
            gates=(
                GateArray(
                    name="hopper_fp8_kernel",
                    passed=hopper,
                    reason=lambda n: _kernel_reason(geo, kv, gpu, hopper_cache, bool(draft[n]), bool(hopper[n])),
                ),
                GateArray(
                    name="both_kernels_compile",
                    passed=_other_source(geo, kv, draft, hopper, major == 9 and geo.head_dim <= WIDEST_DRAFT_HEAD),
                    reason=lambda n: (
                        f"a build for Hopper also holds the FP8 kernel's source, up to {WIDEST_DRAFT_HEAD} "
                        f"elements per head, so {kv.dtype} keys and groups of {geo.group} have to compile in both"
                    ),
                ),
                GateArray(
                    name="split",
                    passed=is_split,
                    reason=lambda n: (
                        f"{gpu.sm_count} SMs for {at(share, n)} requests x KV heads give {at(wanted, n)} splits, "
                        f"and the "
                        f"page table's {at(max_seq_len, n)} keys are at most {at(most, n)} tiles of {at(tile, n)}: "
                        f"S = {at(splits, n)}"
                    ),
                ),
            ),
        )


def _table_keys(batches: Batches, kv: KvCache, options: FlashInferXqaOptions) -> Any:
    """Keys that the page table can address [N]."""
    if options.page_table_width is None:
        return np.maximum(cdiv(batches.max_seq_len, kv.page_size), 1) * kv.page_size
    keys = options.page_table_width * kv.page_size
    longest = int(batches.max_seq_len.max(initial=0))
    if longest > keys:
        raise InputError(
            f"flashinfer-xqa: a page table of {options.page_table_width} pages of {kv.page_size} keys cannot hold a "
            f"request of {longest} keys"
        )
    return np.full(batches.n, keys, dtype=np.int64)


def _check_entry(geo: Geometry, kv: KvCache, gpu: Gpu, options: FlashInferXqaOptions, draft: Any, ragged: Any) -> None:
    """Refuse what the Python entry refuses, in its order."""
    out = options.out_dtype or kv.query_dtype
    major = gpu.compute_capability[0] if gpu.compute_capability and not gpu.is_hip else None
    refusals = (
        (
            geo.mla or geo.v_dim != geo.head_dim,
            "head_dim_v",
            "keys and values need the same head size, and MLA runs in another kernel",
        ),
        (geo.softcap is not None, "softcap", "the kernel has no logit soft cap"),
        ((ragged & ~draft).any(), "ragged_q", "q_cu_seq_lens requires q_len_per_req to be the longest draft (> 1)"),
        (out == "fp8" and kv.dtype != "fp8", "output_dtype", "KV cache must be fp8 when output is fp8"),
        (out not in ("fp8", kv.query_dtype), "output_dtype", "output and query must have the same dtype"),
        (
            kv.dtype == "nvfp4" and major != 12,
            "nvfp4_needs_sm12x",
            f"an NVFP4 cache is only supported on SM12x GPUs, not on {gpu.label}",
        ),
        (
            major not in (9, 10, 12),
            "compute_capability",
            f"the kernels run on SM90, SM100 and SM120/SM121 only, not on {gpu.label}",
        ),
        (
            kv.query_dtype not in ("bf16", "fp16"),
            "query_dtype",
            f"only float16 and bfloat16 queries are supported, not {kv.query_dtype}",
        ),
        (
            kv.dtype not in CACHE_CODES or (CACHE_CODES[kv.dtype] == 0 and kv.dtype != kv.query_dtype),
            "cache_dtype",
            f"the cache must be fp8, int8, nvfp4 or of the query's type {kv.query_dtype}, not {kv.dtype}",
        ),
        (
            kv.page_size not in PAGE_SIZES,
            "page_size",
            f"Invalid page_size: {kv.page_size}, only 16, 32, 64, 128 are supported",
        ),
        (
            geo.head_dim % 16 != 0 or not 16 <= geo.head_dim <= 512,
            "head_dim",
            f"Invalid head_dim: {geo.head_dim}, must be divisible by 16 and in range [16, 512]",
        ),
        (
            geo.head_dim > WIDEST_DRAFT_HEAD and draft.any(),
            "wide_head_draft",
            f"head_dim {geo.head_dim} > 256 does not support speculative decoding (q_seq_len > 1)",
        ),
        (
            geo.head_dim > WIDEST_DRAFT_HEAD and geo.group > 16,
            "wide_head_group",
            f"head_dim {geo.head_dim} > 256 requires head_group_ratio <= 16, got {geo.group}",
        ),
    )
    for refused, code, why in refusals:
        if refused:
            raise GateError(f"flashinfer-xqa: {why}", code)


def _check_build(
    geo: Geometry, gpu: Gpu, major: int, draft: Any, hopper: Any, valid: Any, rows: Any, smem: Any
) -> None:
    """Refuse what the just-in-time build of the running kernel cannot compile, by its source's static assertions."""
    head, group = padded_head(geo.head_dim), geo.group
    if (~hopper & (rows * head * 2 > QUERY_TILE_LIMIT)).any():
        raise GateError(
            f"flashinfer-xqa: {group} query heads per KV head of {head} elements are "
            f"{int(rows.max()) * head * 2} bytes "
            f"of queries, and mha.cu compiles for at most {QUERY_TILE_LIMIT} (persistentQ)",
            "query_tile",
        )
    if (~hopper & ~np.isin(rows, TILE_ROWS)).any():
        raise GateError(
            f"flashinfer-xqa: {group} query heads per KV head make {int(rows.max())} rows, and mha.cu compiles for "
            f"{', '.join(map(str, TILE_ROWS))} rows only",
            "query_tile",
        )
    if (hopper & draft & (group > HOPPER_DRAFT_ROWS)).any():
        raise GateError(
            f"flashinfer-xqa: a block of the Hopper kernel has {HOPPER_DRAFT_ROWS} rows and cannot hold one token of "
            f"{group} query heads",
            "hopper_group",
        )
    if (hopper & (rows * head * 2 > hopper_buffers(geo.head_dim, rows, ~draft))).any():
        raise GateError(
            f"flashinfer-xqa: {group} query heads per KV head give the Hopper kernel an output tile larger than its "
            "buffers (mha_sm90.cu: need to use split output to avoid excessive shared memory usage)",
            "hopper_group",
        )
    if (smem >= memory_limit(major)).any():
        raise GateError(
            f"flashinfer-xqa: a block needs {int(smem.max())} bytes of shared memory, and the kernel compiles for less "
            f"than {memory_limit(major)} on {gpu.label}",
            "shared_memory",
        )


def _other_source(geo: Geometry, kv: KvCache, draft: Any, hopper: Any, hopper_built: bool) -> Any:
    """Whether the source that does not run compiles too: on Hopper the build holds both kernels [N]."""
    if not hopper_built:
        return np.ones(len(hopper), dtype=bool)
    rows = round_up(geo.group, 16)
    generic = (rows * padded_head(geo.head_dim) * 2 <= QUERY_TILE_LIMIT) & (rows in TILE_ROWS)
    octets = cdiv(geo.group, 8)
    sixteen_bit = octets == 1 or octets % 2 == 0
    alone = kv.dtype == "fp8" or (CACHE_CODES[kv.dtype] == 0 and sixteen_bit)
    return np.where(hopper, draft | generic, alone | (draft & (CACHE_CODES[kv.dtype] != 1)))


def _kernel_reason(geo: Geometry, kv: KvCache, gpu: Gpu, hopper_cache: bool, draft: bool, hopper: bool) -> str:
    """Say why the generic kernel runs, or Hopper's."""
    if not hopper_cache:
        return f"{kv.dtype} keys of {geo.head_dim} elements on {gpu.label} (SM{gpu.sm}) run the generic kernel"
    if hopper:
        return f"FP8 keys of {geo.head_dim} elements on Hopper have their own kernel"
    assert draft
    return (
        f"several query tokens with sinks, a window, ragged queries or at most {SWAP_ROWS} rows "
        f"(group {geo.group}) run the generic kernel"
    )


class _Defines:
    """The compile-time settings that gen_xqa_module passes."""

    def __init__(self, geo: Geometry, kv: KvCache, options: FlashInferXqaOptions, major: int) -> None:
        out = options.out_dtype or kv.query_dtype
        self.group, self.with_hopper = geo.group, major == 9 and geo.head_dim <= WIDEST_DRAFT_HEAD
        self.hopper_target = major == 9
        self.fixed = {
            "CACHE_ELEM_ENUM": CACHE_CODES[kv.dtype], "HEAD_ELEMS": geo.head_dim, "HEAD_GRP_SIZE": geo.group,
            "INPUT_FP16": int(kv.query_dtype == "fp16"), "LOW_PREC_OUTPUT": int(out == "fp8"),
            "SLIDING_WINDOW": int(geo.window is not None), "TOKENS_PER_PAGE": kv.page_size,
            "USE_SM90_MHA": int(self.with_hopper),
        }  # fmt: skip

    def of(self, q_len: Any, ragged: Any) -> Any:
        """The settings of every step, as one text each [N], sorted and separated by spaces."""
        found: dict[tuple[int, bool], str] = {}
        steps = [(q, r) for q, r in zip(q_len.tolist(), ragged.tolist())]
        for step in set(steps):
            found[step] = self._step(*step)
        return np.array([found[step] for step in steps], dtype=object)

    def _step(self, q_len: int, ragged: bool) -> str:
        values = dict(self.fixed, SPEC_DEC=int(q_len > 1))
        if q_len > 1:
            values["IS_SPEC_DEC_TREE"] = 0
            if q_len * self.group <= SWAP_ROWS and not (ragged and self.hopper_target):
                values["SPEC_Q_SEQ_LEN"] = q_len
        return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


POLICY = FlashInferXqa()
