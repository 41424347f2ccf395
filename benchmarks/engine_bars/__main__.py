"""The bars for engines' own kernels: steps are drawn, predictions are written, the installed engines are timed, and
every bar is put beside its number. One command on a machine with a GPU and the engines (or a `.peers` folder, which
`benchmarks/kernels_peers.py` fills):

    make engine-bars SEED=1234

which is `python -m benchmarks.engine_bars --seed 1234`. Predictions lie in BASE.predicted.json before anything is
timed; `--only predict` stops there and needs no GPU, and a later run with the same seed and steps takes them up.
`--only judge` judges a run again. The seed must be one that no fit has seen: decodecalc/cost/NOTES.md lists those that
were used.

What the engines compile is compiled first, and the run says how far it is. The first time this takes minutes: Triton's
kernels half a minute on 16 cores that have nothing else to do, and more on fewer; FlashInfer's several minutes, six at
a time, beside the timing of the others. Later runs find the kernels in the engines' caches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine_bars.cells import cell, compiled_first, draw
from benchmarks.engine_bars.judge import Judged, judge, outcomes
from decodecalc.calibrate.own.timer import StepTimer
from decodecalc.calibrate.own.timing import TIMES_SCHEMA, OwnCall, ProbeStep, step_of
from decodecalc.cost.load import load_calibration
from decodecalc.files import write_whole
from decodecalc.gpus import load_gpu

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "reports/h200/engine-bars"
# The releases of `benchmarks/kernels_peers.py`, for predictions on a machine without them.
VERSIONS = {
    "vllm-triton": "0.33.0", "vllm-triton-mla": "0.33.0", "flash-attention-2": "vllm-0.33.0",
    "flash-attention-3": "vllm-0.33.0", "sglang-triton": "0.5.10.post1", "flashinfer": "0.7.2.post1",
    "flashinfer-mla": "0.7.2.post1", "flashinfer-xqa": "0.7.2.post1",
}  # fmt: skip
BUDGET_S = 0.02  # of the replays of one launch
LATER, LATER_PROCESSES = ("flashinfer", "flashinfer-mla", "flashinfer-xqa"), 6


def predicted(seed: int, steps: int, gpu_name: str, calibration: str | None) -> dict[str, Any]:
    """The drawn steps with their predictions."""
    gpu = load_gpu(gpu_name)
    known = load_calibration(calibration, gpu)
    cells = [cell(kind, step, calls, gpu, known, VERSIONS) for kind, step, calls in draw(seed, steps)]
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"seed": seed, "steps": steps, "gpu": gpu_name, "predicted_utc": when, "cells": cells}


def measure(run: dict[str, Any], path: Path, limit_s: float, without: Sequence[str] = ()) -> None:
    """Every launch timed, until so many seconds of timing: `us` in each. What is finished is written after every step.

    What an engine compiles is compiled before it is timed, and does not count. Engines of LATER compile for minutes:
    they begin when the others are done with it, with few processes, beside the timing of the others. without: engines
    that are left out.
    """
    from decodecalc.calibrate.own.timer import DeviceTimer, compile_all, compiling
    from decodecalc.gpus import detect_gpu
    from decodecalc.verify.own.runner import runners_here
    from decodecalc.verify.run.device import open_device, provenance

    begun = time.monotonic()
    device = open_device("cuda")
    here = {name: one for name, one in runners_here().items() if one.found is not None and name not in without}
    timer = DeviceTimer(device, detect_gpu(), here, BUDGET_S)
    first, later = {name for name in here if name not in LATER}, {name for name in here if name in LATER}
    run.update(provenance(device), before=device.state().to_dict())
    clock = Stopwatch()

    def tick(done: int, total: int) -> None:
        if done % 10 == 0 or done == total:
            print(f"compiled {done} of {total} after {time.monotonic() - begun:.0f} s", flush=True)

    tasks = compiled_first(_tasks(run, first))
    print(f"compiling {len(tasks)} sets of kernels; the first time takes minutes, later runs find them", flush=True)
    compile_all(tasks, tick=tick)
    with compiling(compiled_first(_tasks(run, later)), processes=LATER_PROCESSES, jobs=1, tick=tick) as wait:
        whole = time_steps(run, first, timer, clock, limit_s, path)
        if whole and later:
            wait()
            time_steps(run, later, timer, clock, limit_s, path)
    run.update(after=device.state().to_dict(), seconds=round(time.monotonic() - begun, 1))
    write_whole(path, json.dumps(run))


@dataclass
class Stopwatch:
    """Seconds that were spent on timing."""

    read: Callable[[], float] = time.monotonic
    spent_s: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """What happens inside counts."""
        begun = self.read()
        yield
        self.spent_s += self.read() - begun


def time_steps(
    run: dict[str, Any], engines: Collection[str], timer: StepTimer, clock: Stopwatch, limit_s: float, path: Path
) -> bool:
    """Time these engines' launches of every step; whether the limit left room for all. Examples come first, so that a
    run that is cut short has them all."""
    print(f"timing {', '.join(sorted(engines)) or 'nothing'} after {clock.spent_s:.0f} s of timing", flush=True)
    for done, entry in enumerate(sorted(run["cells"], key=lambda one: one["kind"] != "example")):
        launches = [launch for launch in entry["launches"] if launch["engine"] in engines]
        if not launches:
            continue
        if clock.spent_s > limit_s:
            print(f"stopped after {done} steps: the limit of {limit_s:.0f} s of timing is over", flush=True)
            return False
        with clock.running():
            _time(entry, launches, timer)
        write_whole(path, json.dumps(run))
        if done % 20 == 19:
            print(f"{done + 1} of {len(run['cells'])} steps, {clock.spent_s:.0f} s of timing", flush=True)
    return True


def _call_of(launch: dict[str, Any]) -> OwnCall:
    return OwnCall(engine=launch["engine"], version=launch["version"], options=launch["options"])


def _tasks(run: dict[str, Any], engines: Collection[str]) -> list[tuple[ProbeStep, list[OwnCall]]]:
    """The run's steps with the launches of these engines."""
    found = []
    for entry in run["cells"]:
        calls = [_call_of(launch) for launch in entry["launches"] if launch["engine"] in engines]
        found += [(step_of(entry), calls)] if calls else []
    return found


def _time(entry: dict[str, Any], launches: Sequence[dict[str, Any]], timer: StepTimer) -> None:
    """Put the times of these launches into them, or why there is none."""
    results = timer(step_of(entry), [_call_of(launch) for launch in launches])
    for launch, (_, found) in zip(launches, results):
        if isinstance(found, str):
            launch["failed"] = found[:160]
        else:
            launch["us"] = float(f"{found * 1e6:.5g}")


def times_of(run: dict[str, Any]) -> dict[str, Any]:
    """The measured times in the form that `benchmarks.engine_times` fits, once they are no longer held out."""
    steps = []
    for entry in run["cells"]:
        plain = {k: v for k, v in entry.items() if k not in ("kind", "launches", "advice")}
        times = [
            {k: launch[k] for k in ("engine", "version", "options", "mode", "default", "us") if k in launch}
            for launch in entry["launches"]
            if "us" in launch
        ]
        if times:
            steps.append({**plain, "times": times})
    about = (
        f"{run.get('device', '')}, driver {run.get('before', {}).get('driver')}, torch {run.get('torch')}, triton "
        f"{run.get('triton')}, {run.get('date_utc')}: steps of `python -m benchmarks.engine_bars --seed "
        f"{run['seed']}`, timed as verify times (decodecalc/verify/run/timing.py), with the engines of "
        "benchmarks/kernels_peers.py."
    )
    return {"schema": TIMES_SCHEMA, "about": about, "gpu": {"name": run.get("device", "")}, "steps": steps}


def report(run: dict[str, Any], bars: Sequence[Judged], base: str) -> str:
    """The page."""
    held = sum(bar.holds for bar in bars)
    ran = sum(any("us" in launch for launch in entry["launches"]) for entry in run["cells"])
    lines = [
        "# Engines' own kernels on random steps, held against the bars\n",
        f"{held} of {len(bars)} bars hold. {run.get('device', 'Nothing measured')}, torch {run.get('torch', '?')}, "
        f"{run.get('date_utc', '?')}; cold L2, CUDA graphs over layers with their own KV.\n",
        f"Written by `make engine-bars SEED={run['seed']}` (`python -m benchmarks.engine_bars --seed {run['seed']}`): "
        f"{run['steps']} random steps with 16-bit caches, part of them with FP8 caches too, and steps of MLA; {ran} of "
        f"{len(run['cells'])} steps were timed. The predictions were written at {run['predicted_utc']}, before "
        f"anything was timed, and lie with the times in `{base}.json`. They come from the calibration as it was then, "
        "which had not seen these steps. Where a later fit has taken the times in, this page keeps what was predicted "
        "before and says nothing of that fit: its evidence are the steps held out in turn, in "
        "[engine-kernels.md](engine-kernels.md), until another seed is run.\n",
        "| what | measured | bar | holds |",
        "|---|---|---|---|",
        *(f"| {b.what} | {b.number} | {b.bar} | {'yes' if b.holds else '**no**'} |" for b in bars),
        "\n## The README's and the guides' examples\n",
        "One request, llama3.1-70b on eight GPUs (8 query heads, one KV head of 128). Times are for one layer.\n",
        "| engine | keys | by default | advised | with the advice | best tried |",
        "|---|---:|---:|---|---:|---:|",
    ]
    examples = [entry for entry in run["cells"] if entry["kind"] == "example"]
    for engine in ("sglang-triton", "flash-attention-3"):
        for entry, then, now, best in outcomes(engine, examples):
            value = entry["advice"][engine]["value"]
            said = "keep the default" if value is None else str(value)
            lines.append(
                f"| {engine} | {max(entry['seq_lens'])} | {now:.1f} µs | {said} | {then:.1f} µs | {best:.1f} µs |"
            )
    lines += ["\n## The worst ten\n", "| engine | step | settings | measured | predicted |", "|---|---|---|---:|---:|"]
    lines += _worst(run)
    return "\n".join(lines) + "\n"


def _worst(run: dict[str, Any]) -> list[str]:
    rows = []
    for entry in run["cells"]:
        for launch in entry["launches"]:
            if "us" in launch and "predicted" in launch:
                said = launch["predicted"]["us"]
                error = max(said / launch["us"], launch["us"] / said) - 1
                options = ", ".join(f"{k}={v}" for k, v in launch["options"].items()) or "-"
                cells = (launch["engine"], step_of(entry).label, options, f"{launch['us']:.1f} µs", f"{said:.1f} µs")
                rows.append((error, "| " + " | ".join(cells) + " |"))
    return [line for _, line in sorted(rows, reverse=True)[:10]]


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--calibration", help="a calibration file instead of the shipped one")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of timing, compiling not counted")
    parser.add_argument("--without", default="", metavar="LIST", help="engines that are not timed")
    parser.add_argument("--only", choices=("predict", "measure", "judge"))
    parser.add_argument("--times", type=Path, help="also write the measured times for benchmarks.engine_times")
    given = parser.parse_args(argv)
    first, full = given.base.with_suffix(".predicted.json"), given.base.with_suffix(".json")
    if given.only != "judge":
        run = json.loads(first.read_text()) if first.exists() else {}
        if (run.get("seed"), run.get("steps")) != (given.seed, given.steps):
            run = predicted(given.seed, given.steps, given.gpu, given.calibration)
            write_whole(first, json.dumps(run))
        if given.only == "predict":
            return
        measure(run, full, given.limit, given.without.split(","))
        if given.only == "measure":
            return
    run = json.loads(full.read_text())
    bars = judge(run["cells"])
    given.base.with_suffix(".md").write_text(report(run, bars, given.base.name), encoding="utf-8")
    for bar in bars:
        print(f"{'holds ' if bar.holds else 'FAILS '} {bar.what}: {bar.number} (bar: {bar.bar})")
    if given.times:
        write_whole(given.times, json.dumps(times_of(run), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
