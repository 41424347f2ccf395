"""The steps of one run: drawn with a seed, with every launch that is timed on them and what is predicted for it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from decodecalc.batch import Batch
from decodecalc.calibrate.own.family import MLA
from decodecalc.calibrate.own.steps import random_batch
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep
from decodecalc.cost.advice import Adviser, ServedStep
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.prediction import predict
from decodecalc.engines.registry import load_policy
from decodecalc.errors import DecodecalcError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache

# (query heads, KV heads, width): what models have on one rank, among them widths and groups that few models have.
GQA = (
    (32, 8, 128), (64, 8, 128), (28, 4, 128), (40, 8, 128), (16, 2, 128), (8, 1, 128), (16, 1, 128), (12, 2, 128),
    (24, 8, 128), (4, 1, 128), (64, 8, 64), (8, 1, 64), (32, 8, 64), (16, 8, 256), (8, 4, 256), (4, 1, 256),
    (32, 32, 128), (20, 20, 64), (5, 1, 128), (14, 2, 64), (48, 8, 128), (64, 4, 128), (16, 4, 128),
)  # fmt: skip
STEPS, FP8_STEPS, MLA_STEPS = 150, 100, 60
BF16, FP8, LATENT = KvCache("bf16", 16), KvCache("fp8", 16), KvCache("bf16", 64)
CAPS, COUNTS = (8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32, 64, 128)
ADVISED = {"sglang-triton": "max_kv_splits_arg", "flash-attention-3": "num_splits_arg"}
# The steps of the README's and the guides' advice: llama3.1-70b on eight GPUs, one request.
EXAMPLES = tuple((Geometry(8, 1, 128), Batch([context])) for context in (2048, 8192, 32768, 131072))


def plain_calls(number: int) -> Iterator[OwnCall]:
    """What is timed on a step with a 16-bit cache. Kernels without settings are timed on two of three steps."""
    yield OwnCall(engine="vllm-triton", default=True)
    yield OwnCall(engine="sglang-triton", default=True)
    for cap in CAPS[1:]:
        yield OwnCall(engine="sglang-triton", options={"max_kv_splits_arg": cap})
    yield OwnCall(engine="flash-attention-3", default=True)
    for count in COUNTS:
        yield OwnCall(engine="flash-attention-3", options={"num_splits_arg": count})
    yield OwnCall(engine="flash-attention-3", options={"cuda_graph": True}, mode="graph", default=True)
    if number % 3 < 2:
        yield OwnCall(engine="flash-attention-2", default=True)
        for path, mode in (("tensor_cores", "tensor cores"), ("cuda_cores", "CUDA cores")):
            yield OwnCall(engine="flashinfer", options={"path": path}, mode=mode, default=True)
        yield OwnCall(engine="flashinfer-xqa", default=True)


FP8_CALLS = tuple(OwnCall(engine=name, default=True) for name in ("vllm-triton", "flash-attention-3"))
MLA_CALLS = tuple(
    OwnCall(engine=name, default=True) for name in ("flashmla", "vllm-triton-mla", "sglang-triton", "flashinfer-mla")
)


def draw(seed: int, steps: int = STEPS) -> Iterator[tuple[str, ProbeStep, Sequence[OwnCall]]]:
    """(kind, step, launches): `gqa`, `fp8` (the same steps with an FP8 cache), `mla` and `example`. Fewer steps take
    the other kinds down with them."""
    rng = random.Random(seed)
    fp8, mla = round(FP8_STEPS * steps / STEPS), round(MLA_STEPS * steps / STEPS)
    for number in range(steps):
        geo = Geometry(*rng.choice(GQA))
        batch = random_batch(rng, geo, BF16)
        yield "gqa", ProbeStep(geometry=geo, batch=batch, kv=BF16), tuple(plain_calls(number))
        if number < fp8:
            yield "fp8", ProbeStep(geometry=geo, batch=batch, kv=FP8), FP8_CALLS
        if number < mla:
            latent = rng.choice(MLA)
            batch = random_batch(rng, latent, LATENT)
            yield "mla", ProbeStep(geometry=latent, batch=batch, kv=LATENT), MLA_CALLS
    for geo, batch in EXAMPLES:
        yield "example", ProbeStep(geometry=geo, batch=batch, kv=BF16), tuple(plain_calls(0))


def cell(
    kind: str, step: ProbeStep, calls: Sequence[OwnCall], gpu: Gpu, known: Calibration, versions: Mapping[str, str]
) -> dict[str, Any]:
    """One step as plain values, with the prediction for each launch and the advice for each engine that has one."""
    launches = []
    for call in calls:
        named = replace(call, version=versions.get(call.engine))
        entry: dict[str, Any] = {"engine": call.engine, "version": named.version, "options": dict(call.options)}
        entry.update({"mode": call.mode} if call.mode else {}, **({"default": True} if call.default else {}))
        launches.append({**entry, **_predicted(step, named, gpu, known)})
    advice = {}
    for engine in ADVISED if kind in ("gqa", "example") else ():
        advice[engine] = _advised(step, engine, versions.get(engine), gpu, known)
    return {"kind": kind, **step.to_dict(), "launches": launches, **({"advice": advice} if advice else {})}


def _predicted(step: ProbeStep, call: OwnCall, gpu: Gpu, known: Calibration) -> dict[str, Any]:
    try:
        plan = load_policy(call.engine).plan(step.geometry, step.batch, step.kv, gpu, dict(call.options), call.version)
        said = predict(plan, gpu, known)
    except DecodecalcError as refused:
        return {"refused": str(refused)[:160]}
    if said.total_s is None or said.low_s is None or said.high_s is None:
        return {"refused": ", ".join(said.notes)}
    us = {
        name: float(f"{s * 1e6:.5g}") for name, s in (("us", said.total_s), ("low", said.low_s), ("high", said.high_s))
    }
    return {"predicted": us, "exact": said.exact}


def _advised(step: ProbeStep, engine: str, version: str | None, gpu: Gpu, known: Calibration) -> dict[str, Any]:
    """The value of the engine's setting that is advised; None where its default is to stay."""
    adviser = Adviser(kv=step.kv, gpu=gpu, calibration=known, options={}, library=True)
    served = [ServedStep(geometry=step.geometry, batch=step.batch)]
    try:
        found = adviser.setting(load_policy(engine), version, served)
    except DecodecalcError as refused:
        return {"value": None, "why": str(refused)[:160]}
    if found.setting is None:
        return {"value": None, "given": found.needed is not None}
    return {"value": int("".join(c for c in found.setting.split("=")[-1].split()[-1] if c.isdigit())), "given": True}


def compiled_first(cells: Sequence[tuple[ProbeStep, Sequence[OwnCall]]]) -> list[tuple[ProbeStep, Sequence[OwnCall]]]:
    """One small step of every engine, layer and cache, with all settings that any step has of them, so that every
    kernel is compiled before anything is timed, and none by two processes at once."""
    steps: dict[Any, ProbeStep] = {}
    wanted: dict[Any, dict[str, OwnCall]] = {}
    for step, calls in cells:
        lens = step.batch.seq_lens
        for call in calls:
            key = (call.engine, step.geometry, step.kv, len(lens) > 128 // step.geometry.kv_heads)
            steps.setdefault(key, replace(step, batch=Batch([min(n, 1024) for n in lens])))
            wanted.setdefault(key, {}).setdefault(call.label, call)
    return [(steps[key], list(calls.values())) for key, calls in wanted.items()]
