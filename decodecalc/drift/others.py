"""What decides the launches of FlashInfer, FlashMLA, aiter and PyTorch's FlexAttention, and where they say so."""

from __future__ import annotations

from typing import Any

from decodecalc.batch import Batch
from decodecalc.drift.checks import Check, Computes, Mentions, Text
from decodecalc.engines.flashmla.walk import BLOCK_KEYS, OVERHEAD_BLOCKS
from decodecalc.geometry import Geometry
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import PolicyVersion


def _plan(engine: str, version: PolicyVersion, geo: Geometry, batch: Batch, **options: Any) -> LaunchPlan:
    from decodecalc.engines import plan

    return plan(f"{engine}@{version.name}", geo, batch, **options)


# -- flashinfer: headers ----------------------------------------------------------------------------------------------

_SCHEDULER = ("include/flashinfer/attention/scheduler.cuh",)
_UTILS = ("include/flashinfer/utils.cuh",)

FLASHINFER = (
    Check(
        "shortest chunk of the prefill planner, in keys", _SCHEDULER,
        Text(r"min_kv_chunk_size\s*=\s*std::max\(\s*\(\s*(\d+)\s*/\s*page_size"), lambda v: 128,
    ),
    Check(
        "shortest chunk of the decode planner, in keys", _SCHEDULER,
        Text(r"PartitionPagedKVCacheBinarySearchMinNumPagePerBatch\([^;]*?std::max\((\d+)\s*/\s*page_size"),
        lambda v: 128,
    ),
    Check(
        "blocks per SM that the prefill planner assumes", _SCHEDULER,
        Text(r"inline cudaError_t PrefillPlan(?:Impl)?\([\s\S]*?num_blocks_per_sm\s*=\s*(\d+)\s*;"),
        lambda v: 2,
    ),
    Check(
        "group sizes of CUDA-core decode", _UTILS,
        Text(r"constexpr size_t GROUP_SIZE\s*=\s*(\d+)", all=True),
        lambda v: v.rules.groups,
    ),
    Check(
        "window clamps the planned length", _SCHEDULER, Mentions(r"window_left\s*\+\s*(?:int64_t\()?cta_tile_q"),
        lambda v: v.rules.window_clamp,
    ),
    Check(
        "fixed_split_size", _SCHEDULER, Mentions(r"\bfixed_split_size\b"), lambda v: v.rules.fixed_split,
    ),
    Check(
        "a promised query length sizes the padded grid", _SCHEDULER, Mentions(r"\buniform_q_len\b"),
        lambda v: v.rules.uniform_q_len,
    ),
    Check(
        "query tiles of head dims from 512", _UTILS, Mentions(r"head_dim\s*>=\s*512"), lambda v: v.rules.wide_heads,
    ),
    Check(
        "query rows above which a tile has 128", _UTILS,
        Text(r"avg_packed_qo_len\s*>\s*(\d+)\s*&&\s*head_dim\s*<\s*256"), lambda v: 64,
    ),
    Check(
        "query rows above which a tile has 64", _UTILS, Text(r"if\s*\(avg_packed_qo_len\s*>\s*(\d+)\)\s*\{"),
        lambda v: 16,
    ),
    Check(
        "query tile depends on shared memory", _UTILS, Mentions(r"\bkv_dtype_bytes\b"), lambda v: v.rules.tile_probe,
    ),
)  # fmt: skip

# -- flashmla ---------------------------------------------------------------------------------------------------------

_DENSE = ("csrc/api/dense_decode.h", "csrc/pybind.cpp", "csrc/flash_api.cpp")
_METADATA = (
    "csrc/smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu", "csrc/smxx/get_mla_metadata.cu",
    "csrc/kernels/get_mla_metadata.cu",
)  # fmt: skip
_COMBINE = ("csrc/smxx/decode/combine/combine.cu", "csrc/smxx/mla_combine.cu", "csrc/kernels/mla_combine.cu")

FLASHMLA = (
    Check(
        "keys of a page", _DENSE, Text(r"page_block_size must be (\d+)"), lambda v: 64,
        lambda r: r.combine_axes != "packed",
    ),
    Check(
        "query rows of a block", _DENSE, Text(r"num_heads_k\s*/\s*cutlass::ceil_div\([^;]*?,\s*(\d+)\)"), lambda v: 64,
        lambda r: r.combine_axes != "packed",
    ),
    Check(
        "keys of a block", _DENSE,
        Text(r"GetDecodeSchedMetaParams \w+\s*=\s*\{[^}]*?seqlen_q_ori,\s*(\d+)\s*,"), lambda v: BLOCK_KEYS,
        lambda r: r.combine_axes != "packed",
    ),
    Check(
        "blocks that a request costs on top", _DENSE,
        Text(r"GetDecodeSchedMetaParams \w+\s*=\s*\{[^}]*?seqlen_q_ori,\s*\d+\s*,\s*(\d+)\s*,"),
        lambda v: OVERHEAD_BLOCKS, lambda r: r.combine_axes != "packed",
    ),
    Check(
        "payload of an SM part", _METADATA,
        Mentions(r"payload\s*=\s*(?:max\()?(?:cutlass::)?ceil_div\(total_num_blocks,\s*num_sm_parts\)\s*\+\s*fixed_overhead"),
        lambda v: True,
    ),
    Check(
        "lower bound of the payload", _METADATA, Mentions(r"max\([^;]*2\s*\*\s*fixed_overhead_num_blocks"),
        lambda v: v.rules.least_payload > 0,
    ),
    Check(
        "most SM parts of the combine kernel", _COMBINE, Text(r"<=\s*(160)\b"), lambda v: 160,
    ),
    Check("heads of a combine block", _COMBINE, Text(r"constexpr int BLOCK_SIZE_M\s*=\s*(\d+)"), lambda v: 8),
)  # fmt: skip

# -- aiter-unified ----------------------------------------------------------------------------------------------------

_AITER = ("aiter/ops/triton/attention/unified_attention.py", "aiter/ops/triton/unified_attention.py")
_CUS = 304
# (head_dim, window, query tokens, longest, 2D blocks)
_AITER_STEPS = (
    (128, 0, 1, 4096, 64), (128, 0, 1, 512, 8), (128, 0, 1, 513, 8), (128, 128, 1, 4096, 8), (128, 0, 1, 4096, 1218),
    (128, 0, 1, 4096, 1216),
)  # fmt: skip
_AITER_GIVEN = {
    "IS_DEVICE_ARCH_GFX12": False, "arch.is_rdna": False, "get_arch().is_rdna": False, "arch.name": "gfx942",
    "DEVICE_ARCH": "gfx942", "shuffled_kv_cache": False, "kv_cache_dtype": "bf16", "q_dtype": "bf16",
    "e4m3_dtype": "fp8", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.uint8": "fp4",
    "NUM_BLOCKS_GATHER_PER_TILE": 1, "SLIDING_WINDOW": 0, "element_size": 2,
}  # fmt: skip


def _aiter_unsplit(version: PolicyVersion) -> tuple[bool, ...]:
    # Groups of 16: a request is one query block, or two where the grid is an upper bound.
    found = []
    for d, window, q, longest, blocks in _AITER_STEPS:
        geo = Geometry(16, 1, d, window=window or None)
        batch = blocks if version.rules.exact_decode_blocks else blocks // 2
        p = _plan("aiter-unified", version, geo, Batch.uniform(batch, longest, q), gpu="mi300x")
        found.append(not p.is_split)
    return tuple(found)


_SEGMENT_STEPS = ((4096, 1), (4096, 64), (131_072, 8), (600, 8), (131_072, 700))  # (longest, blocks)


def _aiter_segments(version: PolicyVersion) -> tuple[int, ...]:
    from decodecalc.engines.aiter.unified import _segments

    return tuple(
        int(_segments(longest, 16, 4 * _CUS, blocks, version.rules, False)) for longest, blocks in _SEGMENT_STEPS
    )


AITER = (
    Check(
        "2D or 3D", _AITER,
        Computes(
            "use_2d_kernel", "return",
            tuple(
                {
                    "head_size": d, "sliding_window": w, "all_decode": q == 1, "max_seqlen_q": q, "max_seqlen_k": n,
                    "num_2d_prgms": blocks, "target_num_prgms": 4 * _CUS,
                }
                for d, w, q, n, blocks in _AITER_STEPS
            ),
            _AITER_GIVEN,
        ),
        _aiter_unsplit,
        cases=tuple(f"window {w}, {n} keys, {b} blocks" for _, w, _, n, b in _AITER_STEPS),
    ),
    Check(
        "segments", _AITER,
        Computes(
            "select_3d_config", "num_segments",
            tuple(
                {
                    "max_seqlen_k": n, "num_2d_prgms": blocks, "head_size": 128, "block_size": 16,
                    "target_num_prgms": 4 * _CUS,
                }
                for n, blocks in _SEGMENT_STEPS
            ),
            _AITER_GIVEN,
        ),
        _aiter_segments, cases=tuple(f"{n} keys, {b} blocks" for n, b in _SEGMENT_STEPS),
    ),
    Check(
        "keys of a split tile, pages of 128", _AITER,
        Computes(
            "select_3d_config", "TILE_SIZE", ({"block_size": 128},),
            {
                **_AITER_GIVEN, "max_seqlen_k": 4096, "num_2d_prgms": 8, "head_size": 128,
                "target_num_prgms": 4 * _CUS,
            },
        ),
        lambda v: (128 if v.rules.page_tile else 64,),
    ),
    Check(
        "query blocks of a decode step of 64 requests, group 8", _AITER,
        Computes(
            "unified_attention", "total_num_q_blocks", ({},),
            {
                **_AITER_GIVEN, "q.shape": (64, 8, 128), "k.shape": (99, 16, 1, 128), "v.shape": (99, 16, 1, 128),
                "num_seqs": 64, "max_seqlen_q": 1, "max_seqlen_k": 400, "window_size": (-1, -1), "sinks": None,
                "get_num_sms()": _CUS, "use_gluon_2d": False, "block_size": 16,
            },
        ),
        lambda v: (
            _plan("aiter-unified", v, Geometry(8, 1, 128), Batch.uniform(64, 400), gpu="mi300x").stage1.grid[1],
        ),
    ),
)  # fmt: skip

# -- flex-decoding ----------------------------------------------------------------------------------------------------

_FLEX = ("torch/_inductor/kernel/flex/flex_decoding.py", "torch/_inductor/kernel/flex_decoding.py")
_FLEX_STEPS = ((1, 8), (4, 8), (16, 8), (64, 8), (300, 8), (1, 1))


def _flex_splits(version: PolicyVersion) -> tuple[int, ...]:
    return tuple(
        _plan("flex-decoding", version, Geometry(kv, kv, 128), Batch.uniform(b, 999)).detail.SPLIT_KV
        for b, kv in _FLEX_STEPS
    )


FLEX_DECODING = (
    Check(
        "SPLIT_KV", _FLEX,
        Computes(
            "get_split_k", "return",
            tuple({"B": b, "H": kv} for b, kv in _FLEX_STEPS),
            {"num_SM": 132, "torch.xpu.is_available()": False, "Mk": 999, "torch.version.hip": None},
        ),
        _flex_splits, cases=tuple(f"{b} requests, {kv} KV heads" for b, kv in _FLEX_STEPS),
    ),
    Check(
        "query tokens from which the unsplit kernel runs", _FLEX,
        Text(r"(?:Lt|statically_known_lt|evaluate_expr)\(\s*(?:sympy\.Lt\()?query\.get_size\(\)\[-2\],\s*(\d+)\)"),
        lambda v: 128,
    ),
    Check(
        "grid", _FLEX,
        Computes(
            "flex_decoding_grid", "return",
            ({"batch_size": 3, "kv_heads": 8, "gqa_group_size": 4, "seq_len_q": 1},),
            {"meta": {"BLOCK_M": 16, "SPLIT_KV": 10}, "num_queries": 1, "d_model": 128, "n_keys": 4096},
        ),
        lambda v: (((1, 24, 10) if v.rules.rows_first else (24, 10, 1)),),
    ),
)  # fmt: skip
