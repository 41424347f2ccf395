"""Our plans against schedules recorded from FlashInfer's own MLA planner."""

from __future__ import annotations

from collections import Counter

import decodecalc as dc
from decodecalc.engines.flashinfer.mla import work_lists

GOLDEN = "flashinfer_mla"
LEFT_OUT: dict[str, str] = {}

LISTED_ITEMS = 160  # steps with more work items were recorded without their lists
SMALL_SMEM = ((8, 6), (8, 9), (12, 0), (12, 1))  # 100 KiB of shared memory an SM


def gpu_of(given):
    """A device of the recorded SM count, compute capability and its shared memory."""
    capability = tuple(given["compute_capability"])
    kib = 100 if capability in SMALL_SMEM else 164 if capability == (8, 0) else 228
    return dc.load_gpu("h100-sxm").with_(
        sm_count=given["sm_count"],
        compute_capability=capability,
        smem_bytes_per_sm=kib * 1024,
        max_smem_bytes_per_block=(kib - 1) * 1024,
    )


def test_plans_what_flashinfer_schedules(case, check):
    """Clusters, chunk limit, every work list in heap order and every merge CTA are those of the recorded planner."""
    given, recorded = case["in"], case["out"]
    ckv = given["head_dim_ckv"]
    plan = dc.plan(
        f"flashinfer-mla@{given['version']}",
        dc.Geometry(given["q_heads"], 1, ckv + given["head_dim_kpe"], ckv, mla=True),
        dc.Batch(given["kv_lens"], given["q_lens"]),
        kv=dc.KvCache(page_size=given["page_size"]),
        gpu=gpu_of(given),
        backend="fa2",
        causal=given["causal"],
    )
    detail, lists = plan.detail, work_lists(plan)
    items = [item for cluster in lists.clusters for item in cluster]
    of_request = Counter(item.request for item in items)
    assert tuple(of_request[r] for r in range(plan.batch.size)) == detail.work_items_per_request
    assert sum(item.partial_row >= 0 for item in items) == detail.split_work_items
    assert len(lists.merges) == detail.merge_ctas
    ours = {
        "supported": True,
        "cluster_size": detail.cluster_size,
        "clusters": detail.clusters,
        "grid": list(plan.stage1.grid),
        "cluster_tile_q": detail.cluster_tile_q,
        "kv_len_limit": detail.kv_len_limit,
        "work_items": detail.work_items,
        "work_items_per_request": list(detail.work_items_per_request),
        "work_items_per_cluster": [len(cluster) for cluster in lists.clusters],
        "keys_per_cluster": list(lists.keys_per_cluster),
        "max_keys_per_cluster": max(lists.keys_per_cluster),
        "idle_clusters": detail.idle_clusters,
        "split_work_items": detail.split_work_items,
        "partial_rows": detail.partial_rows,
        "merge_ctas": detail.merge_ctas,
        "partial_rows_allocated": detail.partial_rows_allocated,
    }
    if detail.work_items <= LISTED_ITEMS:
        ours["work"] = [[list(item) for item in cluster] for cluster in lists.clusters]
        ours["merge"] = [list(rows) for rows in lists.merges]
    check(recorded, ours, LEFT_OUT)
