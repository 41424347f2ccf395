"""Our plans against schedules recorded from aiter's own metadata kernel and split-count search."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any

import pytest

import decodecalc as dc

GOLDEN = "aiter_mla"
LEFT_OUT: dict[str, str] = {}


def plan_of(given: dict[str, Any]) -> dc.LaunchPlan:
    """Our plan of a recorded case."""
    persistent = {name: given[name] for name in ("kv_granularity", "max_split_per_batch", "causal") if name in given}
    return dc.plan(
        "aiter-mla",
        dc.Geometry(given["q_heads"], 1, 576, 512, mla=True),
        dc.Batch(given["kv_lens"], given["q_len"]),
        kv=dc.KvCache(given["dtype"], given["page_size"], query_dtype=given["dtype"]),
        gpu=dc.load_gpu("mi300x").with_(gfx=given["gfx"], sm_count=given["cu_count"]),
        mode=given["mode"],
        **persistent,
    )


def crc32(values: Any) -> int:
    """The checksum that stands for a long list in the recordings."""
    return zlib.crc32(json.dumps([list(v) if isinstance(v, tuple) else v for v in values]).encode())


def persistent_fields(plan: dc.LaunchPlan) -> dict[str, Any]:
    """The metadata plan, in the words of the recording."""
    detail = plan.detail
    per_request = Counter(work[0] for work in detail.works)
    per_part = [b - a for a, b in zip(detail.work_indptr, detail.work_indptr[1:])]
    shapes = [list(shape) if isinstance(shape, tuple) else shape for shape in detail.buffer_shapes]
    return {
        "supported": True,
        "planner": detail.planner,
        "num_works": detail.num_works,
        "works_per_virtual_request": [per_request[r] for r in range(plan.batch.size * detail.fold)],
        "used_parts": detail.used_parts,
        "max_works_per_part": max(per_part),
        "split_works": sum(work[1] >= 0 for work in detail.works),
        "reduce_tiles": detail.split_works,
        "works_crc32": crc32(detail.works),
        "work_indptr_crc32": crc32(detail.work_indptr),
        "works": [list(work) for work in detail.works] if len(detail.works) <= 64 else None,
        "persistent_kept": plan.gate("persistent_kept").passed,
        "reduce_max_splits": detail.num_clusters if detail.persistent else None,
        "buffer_shapes": shapes,
    }


def split_kv_fields(plan: dc.LaunchPlan) -> dict[str, Any]:
    """The even split, in the words of the recording."""
    detail, merged = plan.detail, plan.merge is not None
    return {
        "num_kv_splits": detail.num_kv_splits,
        "total_splits": detail.num_kv_splits * plan.batch.size,
        "merge_launched": merged,
        "merge_grid": list(plan.merge.grid) if merged else None,
        "merge_min_granule": detail.merge_min_granule if merged else None,
        "merge_bound_per_request": list(detail.merge_bound) if merged else None,
    }


def test_plans_what_aiter_schedules(case, check):
    """Works, parts, planner, buffers and split counts are the recorded ones; what aiter refuses is refused."""
    if case["out"].get("supported") is False:
        with pytest.raises(dc.GateError):
            plan_of(case["in"])
        return
    plan = plan_of(case["in"])
    fields = persistent_fields if case["in"]["mode"] == "persistent" else split_kv_fields
    check(case["out"], fields(plan), LEFT_OUT)
