"""Our plans against launches recorded from vLLM's ROCm dispatch."""

from __future__ import annotations

import decodecalc as dc

GOLDEN = "rocm_paged"
LEFT_OUT: dict[str, str] = {}


def test_plans_what_vllm_launches_on_rocm(case, check):
    """Custom kernel or fallback, partitions, grids and reduction loops are the recorded ones."""
    given = case["in"]
    plan = dc.plan(
        "rocm-paged",
        dc.Geometry(
            given["q_heads"], given["kv_heads"], given["head_dim"], window=given["window"], sinks=given["sinks"]
        ),
        dc.Batch(given["seq_lens"]),
        kv=dc.KvCache(
            "fp8" if given["kv_cache_fp8"] else given["query_dtype"],
            given["block_size"],
            query_dtype=given["query_dtype"],
        ),
        gpu="mi300x",
        arch=given["arch"],
        max_seq_len=given["max_seq_len"],
        alibi=given["alibi"],
    )
    detail, custom = plan.detail, plan.detail.custom
    ours = {
        "path": detail.kernel_path,
        "partition_tokens": detail.partition_tokens if custom else None,
        "max_num_partitions": detail.max_num_partitions if custom else None,
        "grid": list(plan.stage1.grid),
        "reduce_grid": list(plan.merge.grid) if plan.merge else None,
        "threads": plan.stage1.threads if custom else None,
        "npar_loops": detail.npar_loops if custom else None,
        "mfma": str(detail.mfma) if custom else None,
        "live_partitions_per_request": list(plan.splits.live) if custom else None,
        "triton_block_size": None if custom else detail.triton_block_size,
    }
    check(case["out"], ours, LEFT_OUT)
