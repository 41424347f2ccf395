"""Our plans against launches recorded from aiter's own `pa_decode_gluon` and the first lines of its kernels."""

from __future__ import annotations

from typing import Any

import decodecalc as dc

GOLDEN = "aiter_pa_decode"
LEFT_OUT: dict[str, str] = {}


def plan_of(given: dict[str, Any]) -> dc.LaunchPlan:
    """Our plan of a recorded case."""
    dtype = given["kv_dtype"]
    return dc.plan(
        "aiter-pa-decode",
        dc.Geometry(
            given["q_heads"], given["kv_heads"], given["head_dim"], window=given["sliding_window"] or None
        ),
        dc.Batch(given["context_lengths"], given["query_length"]),
        kv=dc.KvCache(dtype, given["block_size"], query_dtype=dtype),
        gpu=dc.load_gpu("mi300x").with_(gfx=given["gfx"], sm_count=given["cu_count"]),
        ps=given["ps"],
    )  # fmt: skip


def test_plans_what_aiter_launches(case, check):
    """Split counts, kernels, grids, live splits and the partitions that each split walks are the recorded ones."""
    given, recorded = case["in"], case["out"]
    plan = plan_of(given)
    detail, walked = plan.detail, plan.detail.partition_ranges_longest
    ours = {
        "recommended_splits": detail.recommended_splits,
        "max_context_partition_num": detail.max_context_partition_num,
        "kernel": plan.stage1.name,
        "grid": list(plan.stage1.grid),
        "reduce_kernel": plan.merge.name if plan.merge else None,
        "reduce_grid": list(plan.merge.grid) if plan.merge else None,
        "one_shot": detail.one_shot,
        "live_splits_per_request": list(detail.splits_with_partitions) if walked else None,
        "partition_ranges_longest": [list(r) for r in walked] if walked else None,
    }
    assert given["context_partition_size"] == plan.tile_keys
    check(recorded, ours, LEFT_OUT)
