"""tensorrt-llm-xqa against launches recorded from TensorRT-LLM's own count functions and launcher."""

from __future__ import annotations

from typing import Any

import decodecalc as dc
from decodecalc.errors import GateError

GOLDEN = "tensorrt_llm_xqa"
LEFT_OUT: dict[str, str] = {}
OPTIONS = ("multi_block_mode", "env_blocks_per_sequence", "beam_width", "spec_decoding", "spec_lengths_variable")


def test_plans_what_xqa_launches(case, check):
    """Kernel, choice against MMHA, sub-sequences, grid and block are the recorded ones, refusals included."""
    check(case["out"], ours(case["in"]), LEFT_OUT)


def ours(given: dict[str, Any]) -> dict[str, Any]:
    """Our plan in the recording's words."""
    mla = given["mla"]
    try:
        plan = dc.plan(
            "tensorrt-llm-xqa",
            dc.Geometry(
                given["q_heads"],
                given["kv_heads"],
                given["head_dim"],
                512 if mla else None,
                window=given["window"],
                mla=mla,
            ),
            dc.Batch(given["kv_lens"], given["q_len"]),
            kv=dc.KvCache(given["kv_dtype"], given["page_size"] or 1, query_dtype=given["dtype"]),
            gpu=dc.Gpu(name="recorded", sm_count=given["sm_count"], compute_capability=divmod(given["sm_arch"], 10)),
            paged_kv_cache=given["page_size"] is not None,
            **{name: given[name] for name in OPTIONS},
        )
    except GateError:
        return {"supported": False, "xqa_used": False}
    detail = plan.detail
    return {
        "supported": True,
        "xqa_used": detail.xqa_used,
        "may_have_perf_gain": detail.may_have_perf_gain,
        "kernel": detail.kernel,
        "multi_block": detail.multi_block,
        "grid": list(plan.stage1.grid),
        "block": list(detail.block),
    }
