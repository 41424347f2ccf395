"""SGLang's Triton backend: our plans against launches recorded from its own code."""

from __future__ import annotations

from typing import Any

from decodecalc.batch import Batch
from decodecalc.engines import plan
from decodecalc.engines.sglang.triton import kv_head_of_blocks
from decodecalc.geometry import Geometry
from decodecalc.gpus import load_gpu
from decodecalc.kvcache import KvCache

GOLDEN = "sglang_triton"
LEFT_OUT = {"checked_by_running_full_kernel": "says how the recording was made"}
OPTIONS = (
    "max_kv_splits_arg", "static_kv_splits", "deterministic", "split_tile_size", "max_context_len", "padded_batch",
    "draft_topk", "draft_step",
)  # fmt: skip


def _plan(given: dict[str, Any], version: str) -> Any:
    geo = Geometry(
        q_heads=given["q_heads"],
        kv_heads=given["kv_heads"],
        head_dim=given["head_dim"],
        head_dim_v=given["v_head_dim"],
        # The recording holds what the backend holds: the model's window without the query's own key.
        window=None if given["window"] is None else given["window"] + 1,
        mla=given["kv_heads"] == 1 and given["head_dim"] > given["v_head_dim"],
    )
    gpu = load_gpu("mi300x" if given["is_hip"] else "h100-sxm").with_(sm_count=given["sm_count"])
    return plan(
        f"sglang-triton@{version}",
        geo,
        Batch(given["seq_lens"]),
        kv=KvCache(page_size=1),
        gpu=gpu,
        **{name: given[name] for name in OPTIONS if given[name] is not None},
    )


def _recorded_fields(p: Any) -> dict[str, Any]:
    """The fields of `out`, one entry per row: requests, each as often as it has draft branches, then padding."""
    detail, branches = p.detail, p.detail.draft_topk
    padding = detail.padded_requests * branches

    def rows(values: Any, pad: int) -> list[int]:
        return [v for v in values for _ in range(branches)] + [pad] * padding

    live = rows(p.splits.live, detail.padded_live_splits)
    size = rows(detail.kv_len_per_split, detail.padded_kv_len_per_split)
    keys = rows(p.keys_read, detail.padded_kv_len)
    kv_heads, q_ranges = kv_head_of_blocks(p.geometry)
    covered = sorted(q for start, end in q_ranges for q in range(start, end))
    ends = [r[-1][1] - r[0][0] for r in p.splits.keys]
    window = detail.window_num_kv_splits
    return {
        "kernel": detail.kernel,
        "max_kv_splits": p.splits.launched,
        "stage1_grid": list(p.stage1.grid),
        "stage2_grid": list(p.merge.grid),
        "block_n": p.tile_keys,
        "block_h": p.block_rows if detail.kernel == "grouped" else None,
        "num_kv_splits": rows(p.splits.requested, detail.padded_num_kv_splits),
        "window_num_kv_splits": None if window is None else rows(window, detail.padded_num_kv_splits),
        "kv_len_per_row": keys,
        "kv_len_per_split": size,
        "live_splits": live,
        "last_split_len": [k - (n - 1) * s for k, n, s in zip(keys, live, size)],
        "all_keys_covered": ends == list(p.keys_read),
        "kv_head_of_head_block": kv_heads,
        "q_head_range_of_head_block": [list(r) for r in q_ranges],
        "num_q_heads_with_wrong_kv_head": detail.heads_with_wrong_kv_head,
        "all_q_heads_covered_once": covered == list(range(p.geometry.q_heads)),
        "live_programs": p.live_blocks,
    }


def test_plan_equals_recorded_launch(case, check):
    """Every recorded field that describes the launch is what our plan says."""
    check(case["out"], _recorded_fields(_plan(case["in"], case["version"])), LEFT_OUT)
