"""What decides FlashInfer's launches, and where its headers say so."""

from __future__ import annotations

from typing import Any

from decodecalc.drift.checks import Check, Constant, Mentions, Text
from decodecalc.drift.package import Followed, Package
from decodecalc.engines.flashinfer import mla, routing, xqa

# Headers lie at the top of a checkout, and below the package's data in a wheel.
_SCHEDULER_PATH = "include/flashinfer/attention/scheduler.cuh"
_SCHEDULER = (_SCHEDULER_PATH, f"flashinfer/data/{_SCHEDULER_PATH}")
_UTILS = ("include/flashinfer/utils.cuh", "flashinfer/data/include/flashinfer/utils.cuh")
_WRAPPER = ("flashinfer/decode.py",)
_CUDNN = ("flashinfer/cudnn/utils.py",)
_XQA_BUILD, _XQA_CALL = ("flashinfer/jit/xqa.py",), ("flashinfer/xqa.py",)
_MLA_WRAPPER = ("flashinfer/mla/_batch_mla/_backends/_fa_common.py",)


def _routes(rules: Any) -> bool:
    """Whether the version may leave fa2."""
    return rules.routing is not None


def _has_d256(rules: Any) -> bool:
    return rules.routing is not None and rules.routing.single_token_d256


def _has_xqa(rules: Any) -> bool:
    return rules.routing is not None and rules.routing.xqa_route


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
    Check(
        "a CUDA graph whose query tiles exceed the split budget is planned unsplit", _SCHEDULER,
        Mentions(r"fixed_uniform_q_len\s*&&\s*uniform_q_len\s*>\s*0\s*&&\s*total_num_tiles_q\s*>\s*max_batch_size_if_split"),
        lambda v: v.rules.fixed_uniform_q_len,
    ),
    Check("keys of a short cache on the cuDNN route", _WRAPPER, Constant("_CUDNN_DECODE_MAX_KV_BUCKET"),
          lambda v: routing.SHORT_CACHE_TOKENS, when=_routes),
    Check("fewest query rows of the cuDNN route", _WRAPPER, Constant("_AUTO_CUDNN_MIN_ROWS"),
          lambda v: routing.LEAST_ROWS, when=_routes),
    Check("most query rows of the cuDNN route", _WRAPPER, Constant("_AUTO_CUDNN_MAX_ROWS"),
          lambda v: routing.TILE_ROWS, when=_routes),
    Check("fewest requests x KV heads of the cuDNN route", _WRAPPER, Constant("_AUTO_CUDNN_MIN_UNITS"),
          lambda v: routing.LEAST_UNITS, when=_routes),
    Check(
        "requests x KV heads of the cuDNN route at head dim 256, at least", _WRAPPER,
        Constant("_AUTO_CUDNN_D256_MIN_UNITS"), lambda v: routing.D256_LEAST_UNITS, when=_has_d256,
    ),
    Check(
        "requests x KV heads of the cuDNN route at head dim 256, at least, where a graph is replayed", _WRAPPER,
        Constant("_AUTO_CUDNN_D256_MIN_UNITS_REPLAY"),
        lambda v: routing.D256_LEAST_UNITS_REPLAYED, when=_has_d256,
    ),
    Check(
        "requests x KV heads of the cuDNN route at head dim 256, at most", _WRAPPER,
        Constant("_AUTO_CUDNN_D256_MAX_UNITS"), lambda v: routing.D256_MOST_UNITS, when=_has_d256,
    ),
    Check("groups of the cuDNN route at head dim 256", _WRAPPER, Constant("_AUTO_CUDNN_D256_GROUPS"),
          lambda v: routing.D256_GROUPS, when=_has_d256),
    Check(
        "least cudnn-frontend of the cuDNN route", _CUDNN, Constant("CUDNN_FRONTEND_FROST_DECODE_MIN_VERSION"),
        lambda v: (1, 30, 0), when=_routes,
    ),
    Check(
        "a layer of the XQA route: head dim, page, query heads, KV heads", _WRAPPER,
        Text(r"\(head_dim, page_size, num_qo_heads, num_kv_heads\)\s*!=\s*\(([\d, ]+)\)"), lambda v: "128, 16, 32, 8",
        when=_has_xqa,
    ),
    Check("batches of the XQA route", _WRAPPER, Text(r"batch_size not in \(([\d, ]+)\)"), lambda v: "4, 16, 64",
          when=_has_xqa),
    Check("query tokens of the XQA route", _WRAPPER, Text(r"q_len_per_req not in \(([\d, ]+)\)"), lambda v: "4, 8",
          when=_has_xqa),
)  # fmt: skip

MLA = (
    Check("most work items of the plan", _MLA_WRAPPER, Constant("_FA_MAX_WORK_ITEMS"), lambda v: mla.MAX_WORK_ITEMS,
          when=lambda rules: rules.checks_work),
    Check(
        "the MLA planner cuts at a limit of keys", _SCHEDULER,
        Mentions(r"kv_len_limit\s*=\s*f\(std::max\(ceil_div\(total_kv_lens, num_clusters\), 1L\)\)"), lambda v: True,
    ),
)  # fmt: skip

XQA = (
    Check("pages that the kernel compiles for", _XQA_BUILD, Text(r"page_size not in \[([\d, ]+)\]"),
          lambda v: ", ".join(map(str, xqa.PAGE_SIZES))),
    Check("widest head", _XQA_BUILD, Text(r"head_dim % 16 != 0 or head_dim > (\d+)"), lambda v: 512),
    Check(
        "widest head with drafts, or with a group above 16", _XQA_BUILD, Text(r"if head_dim > (\d+):"),
        lambda v: xqa.WIDEST_DRAFT_HEAD,
    ),
    Check("architectures", _XQA_CALL, Text(r"not in \[([\d, ]+)\]:\s*raise RuntimeError\(\"XQA is only"),
          lambda v: "9, 10, 12"),
    Check("architectures of an NVFP4 cache", _XQA_CALL, Text(r"in \[(\d+)\], \(\s*\"XQA NVFP4"), lambda v: 12),
)  # fmt: skip

PACKAGES = (
    Package(
        name="flashinfer",
        distributions=("flashinfer-python", "flashinfer"),
        probes=_SCHEDULER,
        follows=(
            Followed(engine="flashinfer", checks=FLASHINFER),
            Followed(engine="flashinfer-mla", checks=MLA, needs=(_MLA_WRAPPER[0], "work items")),
            Followed(engine="flashinfer-xqa", checks=XQA, needs=(_XQA_CALL[0], "q_cu_seq_lens")),
        ),
        version_files=("version.txt",),
    ),
)
