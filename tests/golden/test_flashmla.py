"""Our plans against schedules recorded from FlashMLA's own metadata kernel."""

from __future__ import annotations

import decodecalc as dc

GOLDEN = "flashmla"
LEFT_OUT: dict[str, str] = {}


def test_plans_what_flashmla_schedules(case, check):
    """SM parts, payload, cumulative splits, every part's range and both grids are those of the recorded kernel."""
    given = case["in"]
    plan = dc.plan(
        "flashmla",
        dc.Geometry(given["q_heads"], given["kv_heads"], 576, 512, mla=True),
        dc.Batch(given["seqlens_k"], given["q_len"]),
        kv=dc.KvCache(page_size=64),
        gpu=dc.load_gpu("h100-sxm").with_(sm_count=given["sm_count"]),
    )
    detail = plan.detail
    ours = {
        "num_sm_parts": detail.num_sm_parts,
        "block_n": plan.tile_keys,
        "fixed_overhead_blocks": 5,
        "total_blocks_with_overhead": detail.total_blocks_with_overhead,
        "payload_blocks": detail.payload_blocks,
        "num_splits_cumulative": list(detail.num_splits),
        "splits_per_request": list(plan.splits.requested),
        "used_parts": detail.used_parts,
        "used_part_ranges": [list(part[:5]) for part in detail.sm_parts],
        "first_last_req_splitted": [[int(flag) for flag in part[5:]] for part in detail.sm_parts],
        "main_grid": list(plan.stage1.grid),
        "combine_grid": list(plan.merge.grid),
        "combine_supported": plan.gate("combine_supported").passed,
    }
    check(case["out"], ours, LEFT_OUT)
