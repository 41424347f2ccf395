"""turbomind against launches recorded from TurboMind's own host code and the tile lines of its kernel."""

from __future__ import annotations

from typing import Any

import decodecalc as dc
from decodecalc.errors import GateError

GOLDEN = "turbomind"
LEFT_OUT: dict[str, str] = {}
CACHE = {0: "bf16", 4: "int4", 8: "int8"}


def test_plans_what_turbomind_launches(case, check):
    """Kernel, split count, grids, reductions and every request's live splits are the recorded ones."""
    check(case["out"], ours(case["in"]), LEFT_OUT)


def ours(given: dict[str, Any]) -> dict[str, Any]:
    """Our plan in the recording's words."""
    mla = given["head_dim"] == 576
    try:
        plan = dc.plan(
            "turbomind",
            dc.Geometry(
                given["q_heads"],
                given["kv_heads"],
                given["head_dim"],
                512 if mla else None,
                window=given["window"],
                mla=mla,
            ),
            dc.Batch(given["kv_lens"]),
            kv=dc.KvCache(CACHE[given["kv_quant_bits"]], 64),
            gpu=dc.Gpu(name="recorded", sm_count=given["sm_count"], compute_capability=divmod(given["sm_arch"], 10)),
            max_active_ctas=given["max_active_ctas"],
            cp_size=given["cp_size"],
        )
    except GateError:
        return {"supported": False}
    detail = plan.detail
    return {
        "supported": True,
        "cta_h": detail.cta_h,
        "cta_s": detail.cta_s,
        "kernel_arch": detail.kernel_arch,
        "max_split_k": detail.max_split_k,
        "split_count": detail.split_count,
        "grid": list(plan.stage1.grid),
        "threads": plan.stage1.threads,
        "reduce_grids": [list(kernel.grid) for kernel in plan.kernels if kernel.role == "merge"],
        "live_splits_per_request": list(plan.splits.live),
    }
