"""A user's code that touches every public name; a type checker reads it, strict (see test_public.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import decodecalc as dc


def plan_a_step() -> dc.LaunchPlan:
    model: dc.Model = dc.load_model("llama3-8b")
    rank: dc.RankModel = model.shard(tp=8)
    group: dc.LayerGroup = rank.layer_groups[0]
    geo: dc.Geometry = group.geometry
    gpu: dc.Gpu = dc.load_gpu("h100-sxm")
    batch: dc.Batch = dc.Batch([128, 8192], q_lens=1)
    gather: dc.Gather | None = geo.gather
    indexer: dc.Indexer | None = None if gather is None else gather.indexer
    assert indexer is None
    kv: dc.KvCache = dc.KvCache(dtype="bf16", page_size=16)
    return dc.plan("vllm-triton", geo, batch, kv=kv, gpu=gpu)


def look_at(plan: dc.LaunchPlan) -> tuple[str, int, float]:
    gates: tuple[dc.Gate, ...] = plan.gates
    kernels: tuple[dc.KernelLaunch, ...] = plan.kernels
    splits: dc.Splits = plan.splits
    occupancy: dc.Occupancy = dc.occupancy(plan)
    traffic: dc.Traffic = dc.traffic(plan)
    roofline: dc.Roofline = dc.roofline(plan)
    paging: dc.Paging = dc.paging(plan)
    pieces: Iterator[dc.Segment] = dc.segments(plan)
    found = (gates, kernels, splits.launched, occupancy, traffic, roofline, paging, list(pieces))
    return str(found), plan.s_star, plan.scratch_bytes / 1e6


def time_it(plan: dc.LaunchPlan) -> float:
    calibration: dc.Calibration = dc.load_calibration(gpu="h200")
    prediction: dc.Prediction = dc.predict(plan, calibration=None)
    choice: dc.Choice = dc.choose(plan.geometry, plan.batch, gpu="h200", engines=["sglang-triton"])
    low, high = prediction.interval or (prediction.floor_s, prediction.floor_s)
    token: dc.TokenTime = dc.token_time("llama3-8b", plan.batch, engine="vllm-triton", tp=8, gpu="h200")
    known = [seconds for seconds in (prediction.total_s, token.total_s) if seconds is not None]
    step: dc.Step = dc.step("llama3-8b", plan.batch, engine="vllm-triton", tp=8, gpu="h200")
    floor: dc.StepFloor = step.floor
    known += [floor.total_s]
    return low + high + sum(known) + prediction.floor_s + choice.total_s + token.floor_s + len(calibration.variants)


def many(models: list[str]) -> int:
    axes = dc.Axes(
        models=tuple(dc.load_model(name) for name in models),
        tps=(1,),
        gpus=(dc.load_gpu(dc.gpu_names()[0]),),
        engines=(dc.engine_names()[0],),
        batches=(1, 2),
        contexts=(128,),
    )
    rows = 0
    for position, chunk in dc.sweep(axes):
        rows += position + chunk.rows
    return rows + len(dc.zoo_names())


def errors(error: Exception) -> str:
    match error:
        case dc.GateError() | dc.ShardingError() | dc.UnknownNameError() | dc.ModelConfigError():
            return "input"
        case dc.InputError() | dc.MissingDependencyError():
            return "other"
        case dc.DecodecalcError():
            return "any"
    return dc.__version__


def live() -> dc.Gpu:
    return dc.detect_gpu()


def tables(plan: dc.LaunchPlan, prediction: dc.Prediction) -> Any:
    table: dc.Table = dc.table("grid", model="llama3-8b", tp=8)
    audit: dc.Audit = dc.audit("trace.json.gz", model="llama3-8b", seq_lens=[2048])
    report: dc.Report = dc.read_report("verify.json")
    drawn: dc.Drawn = dc.figure("occupancy", model="llama3-8b", tp=8)
    frames = [value.to_frame() for value in (table, audit, report, drawn)]
    assert frames
    assert drawn.axes
    return prediction.to_frame(), plan.to_frame(), prediction._repr_html_(), plan.to_dict()
