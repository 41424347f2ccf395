"""Launches of FlashAttention 2 recorded from the real host code: ours are the same."""

from __future__ import annotations

import decodecalc as dc
from decodecalc.errors import GateError

GOLDEN = "flash_attention2"
LEFT_OUT: dict[str, str] = {}
RULE_FIELDS = (
    "heuristic_block_n",
    "num_n_blocks",
    "num_m_blocks",
    "batch_nheads_mblocks",
    "heuristic_sm_slots",
)


def test_launch_is_the_recorded_one(case, check):
    """Every field of the recording, refusals included."""
    check(case["out"], ours(case["in"]), LEFT_OUT)


def ours(given):
    """Our plan in the recording's words."""
    try:
        plan = dc.plan(
            "flash-attention-2@2.8.4",
            dc.Geometry(q_heads=given["q_heads"], kv_heads=given["kv_heads"], head_dim=given["head_dim"]),
            dc.Batch.uniform(given["batch"], given["seqlen_k"], given["q_len"]),
            kv=dc.KvCache(page_size=given["page_size"] or 1),
            gpu=dc.Gpu(
                name="recorded", sm_count=given["sm_count"], compute_capability=tuple(given["compute_capability"])
            ),
            api=given["api"],
            seqlen_k=given["seqlen_k"],
            num_splits_arg=given["num_splits_arg"],
            causal=given["causal"],
            window_left=given["window_left"],
            window_right=given["window_right"],
            paged=given["page_size"] is not None,
        )
    except GateError as refusal:
        return {"supported": False, "reason": refusal.code}
    d = plan.detail
    merge = plan.merge
    return {
        "supported": True,
        "num_splits": d.num_splits,
        "effective_splits": plan.splits.launched,
        "gqa_swapped": d.gqa_swapped,
        "seqlen_k_seen": d.seqlen_k_seen,
        **{name: getattr(d, name) if d.rule_consulted else None for name in RULE_FIELDS},
        "kernel": d.kernel,
        "kernel_block_m": plan.block_rows,
        "kernel_block_n": plan.tile_keys,
        "kernel_head_dim": d.kernel_head_dim,
        "main_grid": list(plan.stage1.grid),
        "combine_grid_x": merge.grid[0] if merge else None,
        "combine_block_m": d.combine_block_m if merge else None,
    }
