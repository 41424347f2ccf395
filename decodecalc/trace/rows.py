"""A judged launch group as one flat row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.safetext import plain
from decodecalc.trace.events import dim3
from decodecalc.trace.kernel_names import function_name

if TYPE_CHECKING:
    from decodecalc.launch.plan import KernelLaunch
    from decodecalc.trace.events import LaunchShape
    from decodecalc.trace.judged import JudgedLaunch
    from decodecalc.trace.pairing import Timing

MOST_KERNEL_NAME = 120


def row_of(audit: JudgedLaunch) -> dict[str, Any]:
    """The group as one flat row of plain values, as json and csv have it."""
    group, planned, model = audit.group, audit.plan, audit.against_model
    stage1 = planned.stage1 if planned is not None else None
    merge = planned.merge if planned is not None else None
    return {
        "status": audit.status,
        "engine": audit.engine,
        "version": audit.version,
        "versions": list(audit.versions),
        "why": plain(audit.attribution.why),
        "family": group.family,
        "layer_group": audit.layer.name if audit.layer else None,
        "layers": audit.layers,
        "kernel": plain(function_name(group.stage1.name)[:MOST_KERNEL_NAME]),
        "path": audit.path,
        "graph_replay": group.graph,
        "launches": group.launches,
        "ranks": list(group.ranks),
        **_shape("", group.stage1),
        "predicted_path": planned.path if planned else None,
        "predicted_grid": _grid(stage1),
        "predicted_threads": stage1.threads if stage1 else None,
        **_shape("merge_", group.merge),
        "predicted_merge_grid": _grid(merge),
        **_shape("scheduler_", group.scheduler),
        "q_heads": planned.geometry.q_heads if planned else audit.seen.q_heads,
        "kv_heads": planned.geometry.kv_heads if planned else audit.seen.kv_heads,
        "head_dim": planned.geometry.head_dim if planned else audit.seen.head_dim,
        "batch": planned.batch.size if planned else audit.seen.batch,
        "lengths": audit.lengths,
        "context": audit.context,
        "context_range": list(audit.seen.context_range) if audit.seen.context_range else None,
        "inferred": list(audit.inferred),
        "setting": audit.setting,
        "splits_launched": planned.splits.launched if planned else audit.seen.splits_launched,
        "splits_requested": _lengths_known(audit, "requested"),
        "splits_live": _lengths_known(audit, "live"),
        "launched_blocks": group.stage1.blocks,
        "live_blocks": audit.live_blocks,
        "sm_count": audit.sm_count,
        "sm_coverage": audit.sm_coverage,
        "sm_coverage_launched": audit.launched_coverage,
        "s_star": planned.s_star if planned and audit.lengths_known else None,
        "s_opt": model.s_opt,
        **_timing("stage1", group.stage1_time),
        **_timing("merge", group.merge_time),
        **_timing("scheduler", group.scheduler_time),
        "step_s": group.step_s,
        "measured_s": audit.measured_s,
        "total_s": group.total_s,
        "share_of_kernel_time": audit.share,
        "kv_read_bytes": audit.kv_read_bytes,
        "achieved_kv_bytes_per_s": audit.achieved_bytes_per_s,
        "predicted_s": model.predicted_s,
        "predicted_low_s": model.low_s,
        "predicted_high_s": model.high_s,
        "l2": audit.l2 if audit.lengths_known else None,
        "against_prediction": audit.compared,
        "to_set": model.advice.setting if model.advice is not None and audit.to_set else None,
        "best_s": model.best_s,
        "saving_s_per_token": model.saving_s_per_token,
        "claims": [claim.to_dict() for claim in audit.claims],
        "failed_claims": [claim.what for claim in audit.failed],
        "explanation": audit.explanation,
        "warnings": [{"code": w.code, "text": plain(w.text)} for w in audit.warnings],
        "note": plain(audit.note),
    }


def _lengths_known(audit: JudgedLaunch, which: str) -> list[int] | None:
    return list(getattr(audit.plan.splits, which)) if audit.plan is not None and audit.lengths_known else None


def _grid(kernel: KernelLaunch | None) -> list[int] | None:
    """A planned grid with all three extents, as traces write it."""
    grid = dim3(kernel.grid) if kernel is not None else None
    return None if grid is None else list(grid)


def _shape(prefix: str, shape: LaunchShape | None) -> dict[str, Any]:
    return {
        f"{prefix}grid": list(shape.grid) if shape is not None and shape.grid else None,
        f"{prefix}threads": shape.threads if shape is not None else None,
    }


def _timing(prefix: str, timing: Timing | None) -> dict[str, Any]:
    return {
        f"{prefix}_{name}_s": getattr(timing, f"{name}_s") if timing is not None else None
        for name in ("median", "p10", "p90")
    }
