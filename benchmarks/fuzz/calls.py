"""Calls of the API: plans with their analyses, and the loaders of models and GPUs."""

from __future__ import annotations

import json
import math
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz.contract import GotThroughError
from benchmarks.fuzz.values import mutate_json, odd

ROOT = Path(__file__).resolve().parents[2]
GPUS = ("h100", "h200", "a100", "b200", "mi300x", "l4", "gaudi3", "v100", "rtx 5090", "mi355x")
# One layer and step are planned by this many engines, each an own call.
ENGINES_OF_A_STEP = 4


def plans(rng: random.Random, folder: Path) -> tuple[str, int]:
    """One step, of odd and of extreme but valid numbers, planned by some engines; (the step, the calls)."""
    import decodecalc as dc

    def number(*usual: Any) -> Any:
        return rng.choice(usual) if rng.random() < 0.985 else odd(rng)

    made, called = "", 0
    try:
        mla = rng.random() < 0.2
        width = rng.choice((576, 576, 512, 320)) if mla else number(64, 72, 80, 128, 128, 192, 256, 512)
        geo = dc.Geometry(
            number(1, 8, 16, 32, 71, 128, 120, 96), 1 if mla else number(1, 2, 3, 8, 10, 40), width,
            min(width, 512) if mla and isinstance(width, int) else number(None, None, 128),
            None if mla else number(None, None, 1, 128, 4096), mla=mla, sinks=rng.random() < 0.1,
        )  # fmt: skip
        lens = [number(1, 17, 512, 4097, 131072, 1 << 20) for _ in range(rng.choice((1, 1, 2, 5, 40)))]
        batch = dc.Batch(lens, number(1, 1, 2, 4, 9))
        kv = dc.KvCache(number("bf16", "bf16", "fp8", "int8", "nvfp4", "fp16"), number(1, 16, 64, 256, 1056))
    except dc.DecodecalcError:
        return "refused", 1
    gpu = number(*GPUS)
    for engine in rng.sample(_engines(), ENGINES_OF_A_STEP):
        called += 1
        made = f"{engine} {geo!r:.200} {batch!r:.120} {kv} {gpu!r:.30}"
        try:
            options = _options(rng, engine)
            called += analysed(
                dc.plan(engine, geo, batch, kv=kv, gpu=gpu, **options), rng, f"{made} {options}", bool(options)
            )
        except dc.DecodecalcError:
            continue
    return made, called


def _options(rng: random.Random, engine: str) -> dict[str, Any]:
    """Mostly none; else one option of the engine or of no engine, with an odd value."""
    if rng.random() < 0.85:
        return {}
    return {rng.choice(_option_names(engine)): rng.choice((1, 2, 64, True, False, "x", None)) or odd(rng)}


@lru_cache(maxsize=64)
def _option_names(engine: str) -> tuple[str, ...]:
    from decodecalc.engines import load_policy

    return (*load_policy(engine).option_names(), "no_option")


@lru_cache(maxsize=1)
def _engines() -> tuple[str, ...]:
    from decodecalc.engines.registry import engine_names

    return tuple(name for name in engine_names())


def analysed(plan: Any, rng: random.Random, made: str, with_options: bool) -> int:
    """How many analyses of the plan were called. GotThroughError where it contradicts itself."""
    import decodecalc as dc

    for kernel in plan.kernels:
        if not 0 <= kernel.live_blocks <= math.prod(kernel.grid):
            raise GotThroughError(f"{kernel.live_blocks} live blocks in a grid {kernel.grid}: {made}")
    if plan.kv.dtype not in dc.KvCache(plan.kv.dtype).dtype or plan.scratch_bytes < 0:
        raise GotThroughError(f"scratch of {plan.scratch_bytes} bytes: {made}")
    for request in range(min(plan.batch.size, 5)):
        counts = plan.splits.key_counts(request)
        most = sum(plan.batch.seq_lens) + 64 * plan.batch.size  # drafts add keys, and a cache may be one for all
        if min(counts, default=1) < 1 or sum(counts) > (most if with_options else plan.batch.seq_lens[request]):
            raise GotThroughError(f"splits of {counts[:9]} keys for request {request}: {made}")
    json.dumps(plan.to_dict(), allow_nan=False)
    covered = dc.occupancy(plan).sm_coverage
    if covered is not None and not 0 <= covered <= 1:
        raise GotThroughError(f"coverage {covered}: {made}")
    moved = dc.traffic(plan)
    if moved.kv_read_bytes <= 0 < sum(n * q for n, q in zip(plan.batch.seq_lens, plan.batch.q_lens)):
        raise GotThroughError(f"no byte of KV is read: {made}")
    dc.roofline(plan)
    dc.paging(plan)
    if plan.gpu.hbm_bytes_per_s is None or rng.random() > 0.08:
        return 4
    found = dc.predict(plan, plan.gpu)
    for time in (found.total_s, found.floor_s):
        if time is not None and not (math.isfinite(time) and time > 0):
            raise GotThroughError(f"a time of {time}: {made}")
    return 5


def loaders(rng: random.Random, folder: Path) -> tuple[str, int]:
    """A real configuration, or a GPU, mutated, given to its loader as a mapping; (its name, the calls)."""
    import decodecalc as dc

    if rng.random() < 0.15:
        gpu = mutate_json(rng, _gpu(), rng.choice((1, 1, 2)))
        try:
            found = dc.load_gpu(gpu)
            if not (found.sm_count >= 1 and math.isfinite(found.hbm_bytes_per_s or 1.0)):
                raise GotThroughError(f"a GPU of {found.sm_count} SMs: {gpu!r:.500}")
        except dc.DecodecalcError:
            pass
        return "gpu", 1
    name = rng.choice(_config_names())
    config = mutate_json(rng, _configs()[name], rng.choice((0, 1, 1, 1, 2, 4)))
    called = 1
    try:
        model = dc.load_model(config)
        counted = sum(group.layers for group in model.layer_groups)
        said = config.get("num_hidden_layers") if isinstance(config, dict) else None
        listed = isinstance(config, dict) and "hybrid_override_pattern" in config  # the list counts, with a note
        if isinstance(said, int) and not isinstance(said, bool) and counted > said and not listed:
            raise GotThroughError(f"{counted} layers of {said}: {name} {config!r:.500}")
        for group in model.layer_groups:
            geo = group.geometry
            if geo.q_heads < geo.kv_heads or geo.head_dim < 1 or group.layers < 1:
                raise GotThroughError(f"{geo}: {name} {config!r:.500}")
        called += 1
        model.shard(tp=rng.choice((1, 2, 3, 8)))
    except dc.DecodecalcError:
        pass
    return name, called


@lru_cache(maxsize=1)
def _configs() -> dict[str, Any]:
    known: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "configs" / "configs.json").read_bytes())
    return known


@lru_cache(maxsize=1)
def _config_names() -> tuple[str, ...]:
    return tuple(_configs())


def _gpu() -> dict[str, Any]:
    return {
        "name": "x", "sm_count": 100, "hbm_bytes_per_s": 2e12, "vendor": "nvidia", "compute_capability": "9.0",
        "l2_bytes": 50e6, "base": "h100-sxm", "memory_bytes": 80e9,
    }  # fmt: skip
