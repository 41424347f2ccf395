"""Launches of CUTLASS MLA recorded from FlashInfer's and vLLM's own host code: ours are the same."""

from __future__ import annotations

import decodecalc as dc

GOLDEN = "cutlass_mla"
LEFT_OUT: dict[str, str] = {}
VERSIONS = {"flashinfer-python 0.7.4": "flashinfer-0.7.4", "vllm 0.33.0": "vllm-0.33"}


def test_launch_is_the_recorded_one(case, check):
    """Split counts, grids, live splits, tiles and workspace of both copies, automatic and forced."""
    given = case["in"]
    plan = dc.plan(
        f"cutlass-mla@{VERSIONS[given['version']]}",
        dc.Geometry(given["q_heads"], 1, 576, 512, mla=True),
        dc.Batch(given["kv_lens"]),
        kv=dc.KvCache(page_size=given["page_size"]),
        gpu=dc.Gpu(name="recorded", sm_count=given["sm_count"], compute_capability=tuple(given["compute_capability"])),
        page_table_width=given["page_table_width"],
        num_kv_splits_arg=given["num_kv_splits_arg"],
    )
    d = plan.detail
    ours = {
        "supported": True,
        "max_seq_len": d.max_seq_len,
        "splits": plan.splits.launched,
        "cluster": list(d.cluster),
        "grid": list(plan.stage1.grid),
        "block": [plan.stage1.threads, 1, 1],
        "smem_bytes": d.smem_bytes,
        "persistent": d.persistent,
        "padded_heads": d.padded_heads,
        "tile_keys": plan.tile_keys,
        "workspace_bytes": plan.scratch_bytes,
        "reduction_launched": plan.merge is not None,
        "reduction_grid": list(plan.merge.grid) if plan.merge else None,
        "live_splits_per_request": list(plan.splits.live),
        "tiles_per_live_split_per_request": list(d.tiles_per_split),
    }
    if given["version"].startswith("vllm"):  # recorded with stand-ins for the kernel types: no blocks, no reduction
        ours |= {"block": None, "smem_bytes": None, "reduction_grid": None}
    check(case["out"], ours, LEFT_OUT)
