"""Launches of FlashAttention 3 recorded from the real host code and scheduler kernel: ours are the same."""

from __future__ import annotations

import decodecalc as dc
from decodecalc.errors import GateError

GOLDEN = "flash_attention3"
LEFT_OUT: dict[str, str] = {}
ENGINE_WORDS = (
    "num_splits",
    "varlen",
    "pack_gqa",
    "pack_gqa_in_kernel",
    "paged_kv_tma",
    "causal_effective",
    "local_effective",
    "head_dim_rounded",
    "v_head_dim_rounded",
    "block_m",
    "block_n",
    "persistent_scheduler",
)
RULE_FIELDS = (
    "heuristic_block_m",
    "heuristic_block_n",
    "seqlen_k_loaded",
    "num_n_blocks",
    "num_m_blocks",
    "total_mblocks",
    "size_one_kv_head",
)


def test_launch_is_the_recorded_one(case, check):
    """Every field of the recording, refusals included; the rule's own numbers where the rule ran."""
    check(case["out"], ours(case["in"]), LEFT_OUT)


def ours(given):
    """Our plan in the recording's words."""
    lens = given["cache_seqlens"]
    capacity = given["seqlen_k_capacity"]
    try:
        plan = dc.plan(
            "flash-attention-3@3.0.0",
            dc.Geometry(given["q_heads"], given["kv_heads"], given["head_dim"], given["v_head_dim"]),
            dc.Batch([capacity] * given["batch"] if lens is None else lens, given["q_len"]),
            kv=dc.KvCache(dtype="fp8" if given["fp8"] else "bf16", page_size=given["page_size"] or 1),
            gpu=dc.Gpu(name="recorded", sm_count=given["sm_count"], compute_capability=divmod(given["arch"], 10)),
            seqlen_k_capacity=capacity,
            cache_seqlens=lens is not None,
            cu_seqlens_q=given["cu_seqlens_q"],
            num_splits_arg=given["num_splits_arg"],
            causal=given["causal"],
            window_left=given["window_left"],
            window_right=given["window_right"],
            pack_gqa_arg=given["pack_gqa_arg"],
            paged=given["page_size"] is not None,
        )
    except GateError as refusal:
        return {"supported": False, "reason": refusal.code}
    d = plan.detail
    return {
        "supported": True,
        **{name: getattr(d, name) for name in ENGINE_WORDS},
        **{name: getattr(d, name) if given["num_splits_arg"] == 0 else None for name in RULE_FIELDS},
        "dynamic_splits_per_request": list(plan.splits.requested) if d.varlen else None,
        "combine_launched": plan.merge is not None,
        "main_grid": list(plan.stage1.grid),
    }
