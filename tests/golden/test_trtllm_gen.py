"""trtllm-gen against launches recorded from FlashInfer's own host code."""

from __future__ import annotations

from typing import Any

import decodecalc as dc

GOLDEN = "trtllm_gen"
LEFT_OUT: dict[str, str] = {}
DTYPES = {"fp8_e4m3": "fp8", "bf16": "bf16", "fp16": "fp16"}


def plan_of(given: dict[str, Any]) -> dc.LaunchPlan:
    """Our plan of a recorded case."""
    qk, vo = given["head_dim_qk"], given["head_dim_vo"]
    window = None if given["window_left"] < 0 else given["window_left"] + 1
    gpu = dc.load_gpu("b200-sxm").with_(sm_count=given["sm_count"], compute_capability=divmod(given["sm_arch"], 10))
    return dc.plan(
        f"trtllm-gen@{given['flashinfer']}",
        dc.Geometry(given["q_heads"], given["kv_heads"], qk, vo, window=window, mla=given["kind"] != "gqa"),
        dc.Batch(given["kv_lens"], given["q_len"]),
        kv=dc.KvCache(DTYPES[given["kv_dtype"]], given["page_size"], query_dtype=DTYPES[given["q_dtype"]]),
        gpu=gpu,
        max_kv_len=given["max_kv_len"],
        sparse_mla_top_k=given["sparse_mla_top_k"],
        o_dtype=given["o_dtype"],
        workspace_bytes=given["workspace_bytes"],
        multi_wave_env=given["multi_wave_env"],
        gpc_sms=given["gpc_sms"],
    )


def test_launch_is_the_engines(case, check):
    """Kernel, tiles, reduction, grid, cluster, shared memory and the reduction's grid are the recorded ones."""
    plan = plan_of(case["in"])
    d = plan.detail
    query = {"cluster": d.queried_cluster, "max_active_clusters": d.max_active_clusters}
    ours = {
        "supported": True,
        "kernel": plan.stage1.name,
        "kernel_type": d.kernel_type,
        "scheduler": d.scheduler,
        "multi_ctas_kv_mode": d.multi_ctas_kv_mode,
        "tile_q": plan.block_rows,
        "tile_kv": d.tile_kv,
        "step_q": d.tile_q,
        "step_kv": plan.tile_keys,
        "head_dim_per_cta_v": d.head_dim_per_cta_v,
        "two_cta_mma": d.two_cta_mma,
        "groups_tokens_heads_q": d.groups_tokens_heads_q,
        "groups_heads_q": True,
        "ctas_per_seq_q": d.ctas_per_seq_q,
        "ctas_per_seq_kv": plan.splits.launched,
        "grid": list(plan.stage1.grid),
        "cluster_x": d.cluster_x,
        "threads": plan.stage1.threads,
        "smem": d.smem,
        "cluster_occupancy_query": query if d.queried_cluster else None,
        "reduction_grid": list(plan.merge.grid) if plan.merge else None,
    }
    check(case["out"], ours, LEFT_OUT)
