"""Times of engines' own kernels that lie in files: those that were handed to this project, and those that `decodecalc
calibrate --engine … --times FILE` and the bars' measurement wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from decodecalc.batch import Batch
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep, TimedLaunch, check_times, timing_of, timings_of
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.prediction import predict
from decodecalc.cost.variants import BUNDLED
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache

CAPS = (8, 16, 32, 64, 128)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
VLLM, SGLANG, FA3 = ("vllm-triton", "0.33.0"), ("sglang-triton", "0.5.10"), ("flash-attention-3", None)
FLASHINFER = ("flashinfer", "0.7.2.post1")


def _call(named: tuple[str, str | None], default: bool = True, mode: str = "", **options: Any) -> OwnCall:
    return OwnCall(engine=named[0], version=named[1], options=options, mode=mode, default=default)


# Every time in the handed file has a name. This table gives the launch that it is of.
CALLS: dict[str, OwnCall] = {
    "vllm": _call(VLLM),
    "vllm_fp8": _call(VLLM),
    "sglang_mla": _call(SGLANG),
    "fa3": _call(FA3),
    "fa3_fp8": _call(FA3),
    "flashmla": _call(("flashmla", None)),
    "vllm_mla": _call(("vllm-triton-mla", None)),
    "flashinfer_tc": _call(FLASHINFER, mode="tensor cores", path="tensor_cores"),
    "flashinfer_cc": _call(FLASHINFER, mode="CUDA cores", path="cuda_cores"),
    "xqa": _call(("flashinfer-xqa", None)),
    **{f"sglang{cap}": _call(SGLANG, default=cap == CAPS[0], max_kv_splits_arg=cap) for cap in CAPS},
    **{f"fa3_{count}": _call(FA3, default=False, num_splits_arg=count) for count in COUNTS},
}


def read_timings(paths: Sequence[Path], gpu: Gpu) -> list[TimedLaunch]:
    """Every time of the files that has an entry in CALLS or says its launch itself, in the files' order."""
    found: list[TimedLaunch] = []
    for path in paths:
        data = json.loads(path.read_text(encoding="utf-8"))
        first = found[-1].step + 1 if found else 0
        if "cells" in data:
            found += _handed(data, gpu, first)
        else:
            found += timings_of(check_times(data, path.name), gpu, first)
    return found


def _handed(data: dict[str, Any], gpu: Gpu, first: int) -> Iterator[TimedLaunch]:
    steps = list(data["cells"])
    steps += [{**cell, "kind": "mla", "page": 64, "dtype": "bf16", "kv_heads": 1} for cell in data["mla_grid"]]
    for number, cell in enumerate(steps, first):
        if cell["kind"] == "mla":
            geo = Geometry(cell["q_heads"], 1, 576, head_dim_v=512, mla=True)
        else:
            geo = Geometry(cell["q_heads"], cell["kv_heads"], cell["head_dim"])
        step = ProbeStep(geometry=geo, batch=Batch(cell["seq_lens"]), kv=KvCache(cell["dtype"], cell["page"]))
        for name, microseconds in cell["us"].items():
            if name in CALLS:
                yield timing_of(number, step, CALLS[name], microseconds * 1e-6, gpu)


def bundled_times(timings: Sequence[TimedLaunch], calibration: Calibration, gpu: Gpu) -> Iterator[float]:
    """Predicted seconds of the bundled kernel under the rule of every timing's engine."""
    for timing in timings:
        yield predict(timing.plan, gpu, calibration, kernel=BUNDLED).known_s
