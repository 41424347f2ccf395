"""Times of engines' own kernels as planned work: what our policy launches for each of them, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.cuts import cuts_of
from decodecalc.cost.model import Work
from decodecalc.cost.parameters import Variant
from decodecalc.cost.prediction import predict
from decodecalc.cost.variants import BUNDLED, wanted_variant
from decodecalc.cost.work import closed_form, pick, work_of
from decodecalc.engines.registry import load_policy, traits_of
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import plan_arrays
from decodecalc.launch.plan import LaunchPlan

CAPS = (8, 16, 32, 64, 128)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
VLLM, SGLANG, FA3 = ("vllm-triton", "0.33.0"), ("sglang-triton", "0.5.10"), ("flash-attention-3", None)
FLASHINFER = ("flashinfer", "0.7.2.post1")
# Every time in the file has a name. This table gives the policy, the version and the options that planned it.
CALLS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "vllm": (*VLLM, {}),
    "vllm_fp8": (*VLLM, {}),
    "sglang_mla": (*SGLANG, {}),
    "fa3": (*FA3, {}),
    "fa3_fp8": (*FA3, {}),
    "flashmla": ("flashmla", None, {}),
    "vllm_mla": ("vllm-triton-mla", None, {}),
    "flashinfer_tc": (*FLASHINFER, {"path": "tensor_cores"}),
    "flashinfer_cc": (*FLASHINFER, {"path": "cuda_cores"}),
    "xqa": ("flashinfer-xqa", None, {}),
    **{f"sglang{cap}": (*SGLANG, {"max_kv_splits_arg": cap}) for cap in CAPS},
    **{f"fa3_{count}": (*FA3, {"num_splits_arg": count}) for count in COUNTS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One timed launch with its work."""

    step: int
    """Number of the decode step; several kernels and settings ran the same one."""
    name: str
    """Key of `CALLS`."""
    ragged: bool
    """Whether the step's requests differ."""
    measured_s: float
    """Seconds of one layer."""
    plan: LaunchPlan
    """What was launched."""
    variant: Variant
    """The compiled kernel that ran."""
    work: Work
    """Its work, as numbers."""
    tiles: Any
    """Tiles of every stage-1 block in launch order; None where the closed form is exact."""
    default: bool
    """Whether the launch is what the engine does when nobody sets anything."""


def read_timings(path: Path, gpu: Gpu) -> list[Timing]:
    """Every time of the file that has an entry in CALLS, in the file's order."""
    data = json.loads(path.read_text(encoding="utf-8"))
    steps = list(data["cells"])
    steps += [{**cell, "kind": "mla", "page": 64, "dtype": "bf16", "kv_heads": 1} for cell in data["mla_grid"]]
    return [timing for number, step in enumerate(steps) for timing in _of_step(number, step, gpu)]


def _of_step(number: int, step: dict[str, Any], gpu: Gpu) -> Iterator[Timing]:
    if step["kind"] == "mla":
        geo = Geometry(step["q_heads"], 1, 576, head_dim_v=512, mla=True)
    else:
        geo = Geometry(step["q_heads"], step["kv_heads"], step["head_dim"])
    kv = KvCache(step["dtype"], step["page"])
    batch = Batch(step["seq_lens"])
    for name, microseconds in step["us"].items():
        if name not in CALLS:
            continue
        engine, version, options = CALLS[name]
        plan = load_policy(engine).plan(geo, batch, kv, gpu, options, version)
        batches, found = plan_arrays(plan)
        traits = traits_of(engine)
        cuts = cuts_of(batches, found, found.tile_keys, by_request=traits.requests_in_turn)
        kernel = traits.time_kernel(engine, plan.is_split)
        yield Timing(
            step=number,
            name=name,
            ragged=len(set(step["seq_lens"])) > 1,
            measured_s=microseconds * 1e-6,
            plan=plan,
            variant=wanted_variant(kernel, geo, kv, plan.tile_keys, plan.block_rows, split=plan.is_split),
            work=pick(work_of(engine, geo, batches, kv, found, cuts), 0),
            tiles=None if closed_form(cuts, batches)[0] else cuts.order(0).tiles,
            default=not options or name == f"sglang{CAPS[0]}",
        )


def bundled_times(timings: Sequence[Timing], calibration: Calibration, gpu: Gpu) -> Iterator[float]:
    """Predicted seconds of the bundled kernel under the rule of every timing's engine."""
    for timing in timings:
        yield predict(timing.plan, gpu, calibration, kernel=BUNDLED).total_s
