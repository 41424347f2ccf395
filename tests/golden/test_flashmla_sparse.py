"""Our plans against schedules recorded from FlashMLA's sparse fp8 decode and vLLM's dense fp8 extension."""

from __future__ import annotations

import decodecalc as dc
from decodecalc.errors import GateError

GOLDEN = "flashmla_sparse"
LEFT_OUT: dict[str, str] = {}
WHY = {  # the entry point's words for our codes
    "heads": "Unsupported h_q: {q_heads}",
    "arch": "Unsupported architecture for sparse decode fwd",
}


def test_plans_what_flashmla_schedules(case, check):
    """Parts, overhead, every part's range, splits, grids, clusters and buffers are those of the recorded host code."""
    given = case["in"]
    ours = dense(given) if given["path"] == "dense_fp8" else sparse(given)
    check(case["out"], ours, LEFT_OUT)


def device(given):
    """The recorded device."""
    capability = tuple(given["compute_capability"])
    return dc.Gpu(name="recorded", sm_count=given["sm_count"], compute_capability=capability)


def sparse(given):
    """Our sparse plan in the recording's words."""
    try:
        plan = dc.plan(
            "flashmla-sparse",
            dc.Geometry(given["q_heads"], 1, given["head_dim"], 512, mla=True, sinks=given["attn_sink"]),
            dc.Batch([100_000] * given["batch"], given["q_len"]),  # the context plays no part
            kv=dc.KvCache(dtype="fp8", page_size=64),
            gpu=device(given),
            topk=given["topk"],
            topk_lengths=given["topk_lengths"],
            extra_topk=given["extra_topk"],
            extra_topk_lengths=given["extra_topk_lengths"],
            pad_heads=given["pad_heads"],
        )
    except GateError as refusal:
        return {"supported": False, "why": WHY[refusal.code].format(**given)}
    d = plan.detail
    return {
        **schedule(plan),
        "padded_heads": d.padded_heads,
        "kernel_launches": sum(kernel.role == "stage1" for kernel in plan.kernels),
        "heads_per_launch": list(d.heads_per_launch),
        "cluster": list(d.cluster),
        "used_part_ranges": [list(part[:5]) for part in d.sm_parts],
        "kv_row_bytes": d.kv_row_bytes,
        "combine_supported": plan.gate("combine_supported").passed,
    }


def dense(given):
    """Our dense plan in the recording's words, which has keys where the sparse one has blocks."""
    lens = given["seqlens_k"]
    plan = dc.plan(
        "flashmla-sparse",
        dc.Geometry(given["q_heads"], given["kv_heads"], given["head_dim"], 512, mla=True),
        dc.Batch(lens, given["q_len"]),
        kv=dc.KvCache(dtype="fp8", query_dtype="fp8", page_size=given["page_size"]),
        gpu=device(given),
        path="dense_fp8",
    )
    ranges = [
        [first, last, begin * 64, min(end * 64, lens[last]), split]
        for first, last, begin, end, split, *_ in plan.detail.sm_parts
    ]
    return {**schedule(plan), "used_part_ranges_tokens": ranges}


def schedule(plan):
    """What both paths record."""
    d = plan.detail
    return {
        "supported": True,
        "num_sm_parts": plan.splits.launched,
        "fixed_overhead_blocks": d.fixed_overhead_blocks,
        "block_keys": plan.tile_keys,
        "kernel": d.kernel,
        "grid": list(plan.stage1.grid),
        "num_splits_cumulative": list(d.num_splits),
        "splits_per_request": list(plan.splits.requested),
        "used_parts": d.used_parts,
        "combine_grid": list(plan.merge.grid),
        "accum_rows": d.accum_rows,
        "accum_bytes": plan.scratch_bytes,
    }
