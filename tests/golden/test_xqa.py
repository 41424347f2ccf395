"""flashinfer-xqa against launches recorded from FlashInfer's own entry, launchers and kernels."""

from __future__ import annotations

from typing import Any

import decodecalc as dc

GOLDEN = "xqa"
LEFT_OUT: dict[str, str] = {}
# Refusals of the kernels' static assertions; the Python entry refuses everything else.
COMPILE = ("query_tile", "hopper_group", "shared_memory")


def plan_of(given: dict[str, Any]) -> dc.LaunchPlan:
    """Our plan of a recorded case."""
    window = None if given["window_left"] < 0 else given["window_left"] + 1
    geo = dc.Geometry(given["q_heads"], given["kv_heads"], given["head_dim"], window=window, sinks=given["sinks"])
    gpu = dc.load_gpu("h100-sxm").with_(
        sm_count=given["sm_count"], compute_capability=tuple(given["compute_capability"])
    )
    ragged = given["ragged_q_lens"]
    return dc.plan(
        "flashinfer-xqa",
        geo,
        dc.Batch(given["kv_lens"], ragged or given["q_len"]),
        kv=dc.KvCache(given["kv_dtype"], given["page_size"], query_dtype=given["q_dtype"]),
        gpu=gpu,
        page_table_width=given["page_table_width"],
        q_len_per_req=given["q_len"],
        ragged_q=ragged is not None,
        out_dtype=given["out_dtype"],
    )


def test_launch_is_the_engines(case, check):
    """Kernel, splits, grid, shared memory, tiles of every request and scratch are the recorded ones."""
    recorded = case["out"]
    try:
        plan = plan_of(case["in"])
    except dc.GateError as refused:
        stage = "compile" if refused.code in COMPILE else "python"
        ours: dict[str, Any] = {"supported": False, "stage": stage}
        if stage == "python":  # a compiler's words are not ours to repeat
            ours["why"] = str(refused).removeprefix("flashinfer-xqa: ")
        check(recorded, ours, {"why": "words of the compiler"} if stage == "compile" else LEFT_OUT)
        return
    detail = plan.detail
    block = [128, 1, plan.stage1.threads // 128]
    ours = {
        "supported": True,
        "kernel": detail.kernel,
        "max_seq_len": detail.max_seq_len,
        "splits": plan.splits.launched,
        "grid": list(plan.stage1.grid),
        "block": block,
        "cluster": [1, 1, 1],
        "smem_bytes": detail.smem_bytes,
        "pdl": detail.pdl,
        "tile_keys": plan.tile_keys,
        "tile_rows": plan.block_rows,
        "valid_rows": detail.valid_rows,
        "head_dim_padded": detail.head_dim_padded,
        "query_blocks": detail.query_blocks,
        "multi_block": plan.is_split,
        "live_splits_per_request": list(plan.splits.live),
        "tiles_per_request": list(detail.tiles_per_request),
        "first_tile_per_request": [
            first if tiles else None for first, tiles in zip(detail.first_tile, detail.tiles_per_request)
        ],
        "scratch_bytes": plan.scratch_bytes,
        "semaphores": detail.semaphores,
        "sliding_window_arg": detail.sliding_window_arg,
        "defines": detail.defines.split(),
    }
    check(recorded, ours, LEFT_OUT)
    walked = [
        sum(end - start for start, end in pieces) for r in range(plan.batch.size) for pieces in plan.splits.pieces(r)
    ]
    assert walked == [keys for r in range(plan.batch.size) for keys in plan.splits.key_counts(r)]
