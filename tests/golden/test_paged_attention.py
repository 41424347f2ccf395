"""Our plans against launches recorded from vLLM's PagedAttention v1 and v2."""

from __future__ import annotations

import decodecalc as dc
from decodecalc.engines.vllm.paged_attention import picks_v1

GOLDEN = "paged_attention"
LEFT_OUT: dict[str, str] = {}


def test_plans_what_vllm_launched(case, check):
    """The kernel that the rule picks, its grid, its reduction and its shared memory are the recorded ones."""
    given = case["in"]
    lens, heads = given["seq_lens"], given["q_heads"]
    kernel = "v1" if picks_v1(given["max_seq_len"], len(lens), heads) else "v2"
    plan = dc.plan(
        f"paged-attention-{kernel}",
        dc.Geometry(heads, given["kv_heads"], given["head_dim"]),
        dc.Batch(lens),
        kv=dc.KvCache("fp16", given["block_size"], query_dtype="fp16"),
        gpu="a100-sxm",
        max_seq_len=given["max_seq_len"],
    )
    assert plan.gate("engine_picks_it").passed
    partitions = plan.detail.max_num_partitions
    ours = {
        "kernel": kernel,
        "max_num_partitions": partitions,
        "grid": list(plan.stage1.grid),
        "reduce_grid": list(plan.merge.grid) if plan.merge else None,
        "threads": plan.stage1.threads,
        "dynamic_smem_bytes": plan.detail.dynamic_smem_bytes,
        "head_dim_compiled": plan.gate("head_dim_compiled").passed,
        "live_partitions_per_request": list(plan.splits.live),
        "tmp_out_shape": [len(lens), heads, partitions, given["head_dim"]] if plan.is_split else None,
    }
    check(case["out"], ours, LEFT_OUT)
