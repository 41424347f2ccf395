"""A calibration held against a file of times that it has not seen, with every bar beside its number.

    git show 1f7a58b:decodecalc/data/calibration_h200.json > before.json
    python -m benchmarks.engine_times.fresh benchmarks/data/h200_engine_times_2.json --calibration before.json

The predictions are those of the calibration as it was when the times were measured, so that they were fixed before. The
bars are those of `benchmarks.engine_bars`, whose own runs draw their steps for them; here a setting that is advised can
only be one of the few that were timed on a step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_bars.cells import ADVISED
from benchmarks.engine_bars.judge import judge
from decodecalc.calibrate.own.timing import OwnCall, check_times, step_of
from decodecalc.cost.advice import WORTH
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.load import load_calibration
from decodecalc.cost.prediction import predict
from decodecalc.engines.registry import load_policy
from decodecalc.gpus import Gpu, load_gpu

REPORT = Path(__file__).resolve().parents[2] / "reports/h200/engine-fresh.md"


def cell_of(entry: Mapping[str, Any], known: Calibration, gpu: Gpu) -> dict[str, Any]:
    """A timed step in the form of the bars, with what the calibration says of every launch."""
    step, launches = step_of(entry), []
    needed: dict[str, float] = {}
    for time in entry["times"]:
        call = OwnCall(engine=time["engine"], version=time["version"], options=time["options"])
        plan = load_policy(call.engine).plan(step.geometry, step.batch, step.kv, gpu, dict(call.options), call.version)
        said = predict(plan, gpu, known)
        launch = dict(time, mode=time.get("mode", "").lower())
        if said.total_s is not None and said.low_s is not None and said.high_s is not None:
            launch["predicted"] = {
                "us": said.total_s * 1e6, "low": said.low_s * 1e6, "high": said.high_s * 1e6,
            }  # fmt: skip
            if "residual_ratio" in said.provenance:
                needed[call.engine] = max(said.provenance["residual_ratio"].number, WORTH)
        launches.append(launch)
    kind = "mla" if entry.get("mla") else "fp8" if entry["dtype"] == "fp8" else "gqa"
    advice = {engine: {"value": _advised(launches, engine, gain)} for engine, gain in needed.items()}
    return {**entry, "kind": kind, "launches": launches, "advice": advice}


def _advised(launches: Sequence[Mapping[str, Any]], engine: str, needed: float) -> Any:
    """The timed value that is predicted to be fastest, where it beats the default by enough."""
    mine = [one for one in launches if one["engine"] == engine and not one["mode"] and "predicted" in one]
    default = next((one["predicted"]["us"] for one in mine if one.get("default")), None)
    others = [one for one in mine if not one.get("default")]
    if default is None or not others or engine not in ADVISED:
        return None
    best = min(others, key=lambda one: one["predicted"]["us"])
    return best["options"].get(ADVISED[engine]) if best["predicted"]["us"] * (1 + needed) < default else None


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--calibration", help="the calibration file; the shipped one by default")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--report", type=Path, default=REPORT)
    given = parser.parse_args(argv)
    gpu = load_gpu(given.gpu)
    known = load_calibration(given.calibration, gpu)
    data = json.loads(given.times.read_text(encoding="utf-8"))
    entries = check_times(data, given.times.name)
    bars = judge([cell_of(entry, known, gpu) for entry in entries])
    lines = [
        "# Engines' own kernels on steps that the calibration had not seen\n",
        f"{sum(bar.holds for bar in bars)} of {len(bars)} bars hold. {data.get('about', '')} The calibration "
        f"({known.label}) is that of before these times were measured; they are part of the shipped one now, whose "
        "held-out errors are in [engine-kernels.md](engine-kernels.md).\n",
        "Written by `python -m benchmarks.engine_times.fresh`, whose text says how.\n",
        "| what | measured | bar | holds |",
        "|---|---|---|---|",
        *(f"| {b.what} | {b.number} | {b.bar} | {'yes' if b.holds else '**no**'} |" for b in bars),
    ]
    given.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
