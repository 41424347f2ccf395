"""tensorrt-llm-mmha against launches recorded from TensorRT-LLM's own launcher."""

from __future__ import annotations

from typing import Any

import decodecalc as dc
from decodecalc.errors import GateError

GOLDEN = "tensorrt_llm_mmha"
LEFT_OUT: dict[str, str] = {}
OPTIONS = (
    "multi_block_mode",
    "beam_width",
    "env_multi_block_debug",
    "env_blocks_per_sequence",
    "env_kernel_block_size",
)
WORDS = (
    "max_seq_len_tile", "min_seq_len_tile", "enable_multi_block", "threads", "dynamic_smem", "seq_len_tile",
    "timesteps_per_block",
)  # fmt: skip


def test_plans_what_mmha_launches(case, check):
    """Tile bounds, block size, shared memory, tiles and grid are the recorded ones, refusals included."""
    check(case["out"], ours(case["in"]), LEFT_OUT)


def ours(given: dict[str, Any]) -> dict[str, Any]:
    """Our plan in the recording's words. A window that no request fills is the engine's maximum sequence length."""
    window = given["cyclic_attention_window"]
    try:
        plan = dc.plan(
            "tensorrt-llm-mmha",
            dc.Geometry(
                given["q_heads"],
                given["q_heads"],
                given["head_dim"],
                window=window if window < given["max_past_kv_length"] else None,
            ),
            dc.Batch(given["kv_lens"]),
            kv=dc.KvCache(given["dtype"], 32, query_dtype=given["dtype"]),
            gpu=dc.Gpu(
                name="recorded",
                sm_count=given["sm_count"],
                compute_capability=divmod(given["sm_arch"], 10),
                smem_bytes_per_sm=given["smem_per_sm"],
                max_smem_bytes_per_block=given["smem_per_block_optin"],
            ),
            cyclic_attention_window=window,
            register_limited_blocks_per_sm=[
                given["register_limited_blocks_per_sm"][threads] for threads in ("256", "512", "1024")
            ],
            **{name: given[name] for name in OPTIONS},
        )
    except GateError:
        return {"supported": False}
    return {
        "supported": True,
        **{name: getattr(plan.detail, name) for name in WORDS},
        "multi_block": plan.path == "split",
        "grid": list(plan.stage1.grid),
    }
