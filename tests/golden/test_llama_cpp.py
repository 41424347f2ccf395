"""llama-cpp against launches recorded from ggml's own launcher, kernel choice and configuration tables."""

from __future__ import annotations

from typing import Any

import decodecalc as dc
from decodecalc.errors import GateError

GOLDEN = "llama_cpp"
LEFT_OUT: dict[str, str] = {}
CACHE = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "q8_0": "int8", "q4_0": "int4"}


def test_plans_what_ggml_launches(case, check):
    """Kernel, columns, grid, blocks, merge kernel and buffers are the recorded ones, refusals included."""
    check(case["out"], ours(case["in"]), LEFT_OUT)


def ours(given: dict[str, Any]) -> dict[str, Any]:
    """Our plan in the recording's words: a stream is a request."""
    if given["kv_type"] not in CACHE:
        return {"supported": False}
    try:
        plan = dc.plan(
            "llama-cpp",
            dc.Geometry(
                given["q_heads"],
                given["kv_heads"],
                given["head_dim_k"],
                given["head_dim_v"],
                mla=(given["head_dim_k"], given["head_dim_v"]) in ((576, 512), (320, 256)),
                softcap=30.0 if given["logit_softcap"] else None,
            ),
            dc.Batch([given["longest_kv"]] * given["streams"], given["tokens_per_stream"]),
            kv=dc.KvCache(CACHE[given["kv_type"]]),
            gpu=dc.Gpu(name="recorded", sm_count=given["sm_count"], compute_capability=divmod(given["cc"] // 10, 10)),
            n_kv=given["n_kv"],
            mask=given["mask"],
            max_bias=given["max_bias"],
            max_blocks_per_sm=given["max_blocks_per_sm"],
        )
    except GateError:
        return {"supported": False}
    detail, stage1, merge = plan.detail, plan.stage1, plan.merge
    return {
        "supported": True,
        "kernel": detail.kernel,
        "ncols1": detail.ncols1,
        "ncols2": detail.ncols2,
        "grid": list(stage1.grid),
        "block": [32, stage1.threads // 32, 1],
        "dynamic_smem": detail.dynamic_smem,
        "parallel_blocks": detail.parallel_blocks,
        "kv_max_kernel": detail.kv_max_kernel,
        "merge": detail.fixup or None,
        "merge_grid": list(merge.grid) if merge else None,
        "tmp_floats": detail.tmp_floats,
        "tmp_meta_float2": detail.tmp_meta_float2,
        "dequantized_to_f16": detail.dequantized_to_f16,
    }
