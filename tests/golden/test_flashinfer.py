"""Our plans against launches recorded from FlashInfer's own planners."""

from __future__ import annotations

import pytest

import decodecalc as dc

GOLDEN = "flashinfer"
LEFT_OUT: dict[str, str] = {}


def plan_of(given):
    window = None if given["window_left"] < 0 else given["window_left"] + 1
    geo = dc.Geometry(given["q_heads"], given["kv_heads"], given["head_dim"], window=window)
    gpu = dc.load_gpu("h100-sxm").with_(
        sm_count=given["sm_count"], compute_capability=tuple(given["compute_capability"])
    )
    options = {name: given[name] for name in ("path", "cuda_graph", "fixed_split_size_pages", "disable_split_kv")}
    assert given["max_grid_size"] == given["sm_count"] * given["blocks_per_sm"]
    return dc.plan(
        "flashinfer@0.6.18",
        geo,
        dc.Batch(given["kv_lens"], given["q_len"]),
        kv=dc.KvCache("fp16", given["page_size"], query_dtype="fp16"),
        gpu=gpu,
        blocks_per_sm=given["blocks_per_sm"],
        **options,
    )


def test_plans_what_flashinfer_launches(case, check):
    """Path, chunk, work items, padded grid and merge are those of the recorded planner."""
    given, recorded = case["in"], case["out"]
    if not recorded["supported"]:
        with pytest.raises(dc.GateError) as refused:
            plan_of(given)
        assert refused.value.code == recorded["reason"]
        return
    plan = plan_of(given)
    detail = plan.detail
    tensor_cores = detail.kernel_path == "tensor_cores"
    ours = {
        "supported": True,
        "split_kv": plan.is_split,
        "kv_chunk_tokens": detail.kv_chunk_tokens or None,
        "chunks_per_request": list(plan.splits.requested),
        "q_tiles_per_request": list(detail.q_tiles_per_request) if tensor_cores else None,
        "cta_tile_q": detail.cta_tile_q,
        "work_items": detail.work_items,
        "padded_batch_size": detail.padded_batch_size,
        "max_batch_size_if_split": detail.max_batch_size_if_split if tensor_cores else None,
        "grid": list(plan.stage1.grid),
        "merge_launched": plan.merge is not None,
    }
    check(recorded, ours, LEFT_OUT)
