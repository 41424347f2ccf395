"""The GPU half of the accuracy experiment: calibrate, then time every cell; writes raw JSON.

    python -m benchmarks.accuracy_measure RAW.json --calibration CALIBRATION.json [--limit 420]

Parts in order of weight: calibration (skipped when the file exists), the cells of accuracy_cells.py under the bundled
kernel's own, vLLM's and SGLang's split rules, sweeps over split counts. What was finished when the limit (seconds) is
reached is on disk. `accuracy.py` turns the raw file into the report; `engine_bars` holds engines' own kernels.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks.accuracy_cells import CELLS, SWEPT, SWEPT_SPLITS, Cell
from decodecalc.batch import Batch
from decodecalc.cost.load import load_calibration
from decodecalc.cost.tuning import default_variant, tune, tuned_variants
from decodecalc.engines import plan
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv
from decodecalc.kvcache import KvCache

CROWDED = 198  # blocks beyond which the launcher compiles for crowded SMs (kernels/launch.py), on 132 SMs
RULES = ("bundled", "vllm-triton", "sglang-triton")
START = time.time()


def log(*words: object) -> None:
    """Progress with the time since the start."""
    print(f"[{time.time() - START:6.1f}]", *words, file=sys.stderr, flush=True)


def shape_of(cell: Cell) -> tuple[Geometry, Batch, KvCache]:
    """The cell in decodecalc's terms."""
    return Geometry(cell.q_heads, cell.kv_heads, cell.head_dim), Batch(cell.lens), KvCache(cell.dtype, 16)


def sized(cell: Cell, variant: Any, splits: int, split_keys: int) -> Any:
    """The launch of splits of one length."""
    from decodecalc.calibrate.microbench import split_config, unsplit_config

    if splits == 1:
        return unsplit_config(variant)
    config = split_config(variant, splits, split_keys, len(cell.lens) * cell.q_heads, cell.head_dim)
    if len(set(cell.lens)) == 1:
        return config
    return config.replace(listed=True, list_length=sum(cdiv(n, split_keys) for n in cell.lens))


def ruled(cell: Cell, rule: str, gpu: Any, calibration: Any) -> tuple[Any, tuple[int, ...] | None, Any]:
    """(launch, split values, variant) of the bundled kernel under a rule."""
    from decodecalc.calibrate.microbench import unsplit_config
    from decodecalc_kernels.blocks import merge_shape

    geo, batch, kv = shape_of(cell)
    if rule == "bundled":
        best = tune(geo, batch, kv, gpu, calibration)
        return sized(cell, best, best.splits, best.split_keys), None, best
    variant = default_variant(calibration, geo, kv)
    found = plan(rule, geo, batch, kv=kv, gpu=gpu)
    unsplit = unsplit_config(variant)
    if not found.is_split:
        return unsplit, None, variant
    count = found.splits.launched
    merge = merge_shape(count, len(cell.lens) * cell.q_heads, cell.head_dim)
    if rule == "vllm-triton":
        counted = {"split_rule": "count", "split_value": count, "split_unit": found.tile_keys}
        return unsplit.replace(num_splits=count, **counted, **merge), None, variant
    own = unsplit.replace(num_splits=count, split_rule="counts", split_unit=32, **merge)
    return own, found.splits.requested, variant


def sweep_launches(cell: Cell, gpu: Any, calibration: Any) -> list[tuple[Any, Any]]:
    """(launch, variant) of every distinct split count of the sweep, for every tuning of the cell's shape."""
    geo, _, kv = shape_of(cell)
    out: dict[Any, Any] = {}
    for variant in tuned_variants(calibration, geo, kv):
        tiles = cdiv(max(cell.lens), variant.tile_keys)
        for splits in SWEPT_SPLITS:
            if splits <= tiles:
                per = cdiv(tiles, splits)
                out.setdefault(sized(cell, variant, cdiv(tiles, per), per * variant.tile_keys), variant)
    return list(out.items())


def compile_cell(job: tuple[Cell, list[Any], tuple[int, ...] | None]) -> None:
    """Compile a cell's kernels in a process of its own."""
    import torch

    from decodecalc.calibrate import microbench as bench

    cell, configs, values = job
    pool = bench.Pool(cell.dtype, cell.head_dim, cell.head_dim, cell.kv_heads, pool_bytes=256 << 20)
    for config in configs:  # as many requests, but short ones: crowded launches compile apart
        bench.kernel_calls(pool, config, [64] * len(cell.lens), cell.q_heads, 1, split_values=values)[0]()
    torch.cuda.synchronize()


class Raw:
    """The raw file, written after every part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = {"schema": "decodecalc/accuracy-raw/1", "cells": [], "sweeps": []}

    def save(self) -> None:
        """To disk."""
        self.path.write_text(json.dumps(self.data), encoding="utf-8")


def measure_cells(raw: Raw, gpu: Any, calibration: Any, limit: float) -> None:
    """Every cell under every rule, and the sweeps, grouped so that a pool serves neighbours."""
    import torch

    from decodecalc.calibrate import microbench as bench

    swept = set(SWEPT)
    every = sorted({*CELLS, *SWEPT}, key=lambda c: (c.dtype, c.head_dim, c.kv_heads))
    pool, key = None, None
    for cell in every:
        if time.time() - START > limit:
            log("limit reached in cells")
            return
        if key != (cell.dtype, cell.head_dim, cell.kv_heads):
            pool = None
            torch.cuda.empty_cache()
            key = (cell.dtype, cell.head_dim, cell.kv_heads)
            pool = bench.Pool(cell.dtype, cell.head_dim, cell.head_dim, cell.kv_heads, pool_bytes=5 << 30)

        def seconds(config: Any, values: Any = None, cell: Cell = cell, pool: Any = pool) -> dict[str, Any]:
            calls = bench.kernel_calls(
                pool, config, cell.lens, cell.q_heads, pool.calls_for(cell.lens), split_values=values
            )
            found = bench.time_calls(calls)
            if found.spread > 0.05:
                found = min(found, bench.time_calls(calls), key=lambda s: s.spread)
            return {"config": config.to_dict(), "seconds": found.seconds, "spread": found.spread, "calls": len(calls)}

        for rule in RULES:
            config, values, _ = ruled(cell, rule, gpu, calibration)
            raw.data["cells"].append({"cell": cell._asdict(), "rule": rule, **seconds(config, values)})
        if cell in swept:
            for config, _ in sweep_launches(cell, gpu, calibration):
                raw.data["sweeps"].append({"cell": cell._asdict(), **seconds(config)})
        log(cell.label, f"{raw.data['cells'][-3]['seconds'] * 1e6:.2f} us")
    raw.save()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path)
    parser.add_argument(
        "--calibration", type=Path, required=True, help="read when it exists, else measured and written"
    )
    parser.add_argument("--limit", type=float, default=420.0, help="seconds after which nothing new is begun")
    args = parser.parse_args()
    from decodecalc.calibrate.measure import calibrate
    from decodecalc.gpus import detect_gpu
    from decodecalc.verify.run.device import open_device, provenance

    raw = Raw(args.raw)
    device, gpu = open_device("cuda"), detect_gpu()
    if args.calibration.exists():
        calibration = load_calibration(args.calibration, gpu)
    else:
        calibration = calibrate(device, gpu, args.calibration.with_suffix(".journal"), lambda *a: log(*a), True)
        calibration.save(args.calibration)
    log("calibrated")
    compile_ahead(gpu, calibration, args.limit / 3)
    log("compiled")
    raw.data["environment"] = {**provenance(device), "before": device.state().to_dict()}
    measure_cells(raw, gpu, calibration, args.limit)
    raw.save()
    raw.data["environment"]["after"] = device.state().to_dict()
    raw.save()
    log("done", len(raw.data["cells"]), len(raw.data["sweeps"]))


def compile_ahead(gpu: Any, calibration: Any, seconds: float) -> None:
    """Compile side by side in processes, for at most that long: what is missing then is compiled on the way."""
    jobs = []
    for cell in dict.fromkeys((*CELLS, *SWEPT)):
        for rule in RULES:
            config, values, _ = ruled(cell, rule, gpu, calibration)
            jobs.append((cell, [config], values))
        if cell in SWEPT:
            launches = [config for config, _ in sweep_launches(cell, gpu, calibration)]
            jobs += [(cell, launches[i::4], None) for i in range(4)]
    context = multiprocessing.get_context("spawn")
    workers = ProcessPoolExecutor(max(2, (os.cpu_count() or 2) - 1), context)
    done, late = wait([workers.submit(compile_cell, job) for job in unique(jobs)], timeout=seconds)
    failed = [f for f in done if f.exception() is not None]
    log(
        "compiling:",
        len(done),
        "done,",
        len(late),
        "late,",
        len(failed),
        "failed",
        *[repr(f.exception())[:200] for f in failed[:2]],
    )
    processes = list(workers._processes.values())
    workers.shutdown(wait=False, cancel_futures=True)
    for process in processes if late else ():
        process.terminate()


def unique(jobs: list[Any]) -> list[Any]:
    """Jobs that compile something new: split counts and lengths do not, but for what they crowd."""
    seen: set[Any] = set()
    out = []
    for cell, configs, values in jobs:
        new = []
        for config in configs:
            same = config.replace(num_splits=2, split_value=1, split_unit=1) if not config.direct else config
            crowded = cell.kv_heads * len(cell.lens) * config.num_splits > CROWDED
            eights = cdiv(cell.q_heads // cell.kv_heads, 8)
            key = (eights, cell.head_dim, cell.dtype, crowded, same)
            if key not in seen:
                seen.add(key)
                new.append(config)
        if new:
            out.append((cell, new, values))
    return out


if __name__ == "__main__":
    main()
