"""What decides FlashInfer's launches, and where its headers say so."""

from __future__ import annotations

from decodecalc.drift.checks import Check, Mentions, Text
from decodecalc.drift.package import Followed, Package

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

PACKAGES = (
    Package(
        name="flashinfer",
        distributions=("flashinfer-python", "flashinfer"),
        probes=("include/flashinfer/attention/scheduler.cuh",),
        follows=(Followed(engine="flashinfer", checks=FLASHINFER),),
        roots=("", "flashinfer/data/"),
        version_files=("version.txt",),
    ),
)
