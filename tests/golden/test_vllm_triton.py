"""vllm-triton against launches recorded from vLLM's own launcher and kernels."""

from __future__ import annotations

from typing import Any

import decodecalc as dc

GOLDEN = "vllm_triton"
LEFT_OUT = {"checked_by_running_full_kernel": "says how the case was recorded, not what is launched"}
QUERY_DTYPE = {1: "fp8", 2: "bf16", 4: "fp32"}
ENGINE_OPTIONS = (
    "model_kv_heads", "capture_sizes", "max_num_seqs", "num_speculative_tokens", "batch_invariant", "padded_num_seqs",
)  # fmt: skip


def plan_of(given: dict[str, Any], version: str) -> dc.LaunchPlan:
    """Our plan of a recorded case."""
    gpu = dc.load_gpu("h100-sxm").with_(
        sm_count=given["sm_count"], compute_capability=tuple(given["compute_capability"])
    )
    return dc.plan(
        f"vllm-triton@{version}",
        dc.Geometry(given["q_heads"], given["kv_heads"], given["head_dim"], window=given["window"]),
        dc.Batch(given["seq_lens"], given["q_lens"]),
        kv=dc.KvCache(dtype="bf16", query_dtype=QUERY_DTYPE[given["query_dtype_bytes"]]),
        gpu=gpu,
        **{name: given[name] for name in ENGINE_OPTIONS},
    )


def per_length(plan: dc.LaunchPlan) -> list[dict[str, Any]]:
    """One entry for each distinct (keys, query tokens), ascending: the keys its first and last working split visit."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    splits, detail = plan.splits, plan.detail
    for r, (keys, queries) in enumerate(zip(plan.batch.seq_lens, plan.batch.q_lens)):
        if (keys, queries) in found:
            continue
        first = splits.live[r] - splits.working[r]
        visited = [[max(start, detail.first_visited_key[r]), end] for start, end in splits.keys[r]]
        found[keys, queries] = {
            "seq_len": keys,
            "q_len": queries,
            "tiles_per_segment": detail.tiles_per_segment[r] if plan.is_split else None,
            "live_q_blocks": detail.live_q_blocks[r],
            "live_segments": splits.live[r],
            "segments_with_tiles": splits.working[r],
            "first_segment": first,
            "first_segment_keys": visited[first],
            "last_segment": splits.live[r] - 1,
            "last_segment_keys": visited[-1],
        }
    return [found[key] for key in sorted(found)]


def test_launch_is_the_engines(case, check):
    """Path, tiles, grids, segments, scratch and every length's segment keys are the recorded ones."""
    plan = plan_of(case["in"], case["version"])
    detail = plan.detail
    ours = {
        "path": plan.path,
        "block_m": plan.block_rows,
        "block_q": detail.block_q,
        "tile_size": plan.tile_keys,
        "grid": list(plan.stage1.grid),
        "num_segments": plan.splits.launched,
        "threshold": detail.threshold,
        "scratch_rows": detail.scratch_rows,
        "scratch_segments": detail.scratch_segments,
        "reduce_grid": list(plan.merge.grid) if plan.merge else None,
        "head_dim_padded": detail.head_dim_padded,
        "num_warps_override": detail.num_warps_override,
        "live_programs": plan.live_blocks,
        "programs_with_tiles": detail.programs_with_tiles,
        "per_length": per_length(plan),
    }
    check(case["out"], ours, LEFT_OUT)
