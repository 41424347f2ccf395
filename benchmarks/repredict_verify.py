"""Predict again, with this tree's model and calibration, what a verify report timed: no GPU needed.

    python -m benchmarks.repredict_verify reports/h200/verify.json
    python -m benchmarks.repredict_verify reports/h200/engines-own.json --suite engines

Times of engines' own kernels (`verify --kernel own`, whose suite is `engines`) are predicted for these, with the share
of the times inside their intervals. Prints the error of the prediction of that day and of today's, overall, by rule and
for 64 MB of KV and more, then the worst cells. For work on the model between runs on a device; once it was looked at to
choose a model or a calibration, the report's cells are no longer held out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from decodecalc.cost import predict
from decodecalc.cost.prediction import OWN
from decodecalc.cost.variants import BUNDLED
from decodecalc.gpus import load_gpu
from decodecalc.verify.session.suites import cases, suite_scenarios

BIG_BYTES = 64e6


class Cell(NamedTuple):
    """One timed case: relative errors of today's and of the report's prediction, and whether today's interval holds
    the time."""

    case: str
    engine: str
    kv_read_bytes: int
    measured_s: float
    today: float
    then: float
    inside: bool


def cells(report: dict[str, Any], suite: str, gpu_name: str) -> list[Cell]:
    """Every timed case of the report that the suite still holds."""
    gpu = load_gpu(gpu_name)
    kernel = OWN if report["inputs"].get("kernel") == OWN else BUNDLED
    rows = [row for row in report["rows"] if row["claim"] == 10 and row.get("total_s")]
    names = dict.fromkeys(f"{row['engine']}@{row['version']}" for row in rows)
    planned = {}
    for name in names:
        planned.update({case.id: case.plan for case in cases(suite_scenarios(suite, [name]), gpu)})
    out = []
    for row in rows:
        plan = planned.get(row["case"])
        if plan is None:
            continue
        measured, said = row["total_s"], predict(plan, gpu, kernel=kernel)
        if said.total_s is None or said.low_s is None or said.high_s is None:
            continue
        then = row["predicted_total_s"] / measured - 1
        inside = said.low_s <= measured <= said.high_s
        today = said.total_s / measured - 1
        out.append(Cell(row["case"], row["engine"], row["kv_read_bytes"], measured, today, then, inside))
    return out


def line(name: str, chosen: list[Cell]) -> str:
    """Mean and 90th percentile of both errors."""

    def of(errors: list[float]) -> str:
        ordered = sorted(map(abs, errors))
        return f"mean {statistics.mean(ordered):6.1%}  p90 {ordered[int(0.9 * (len(ordered) - 1))]:6.1%}"

    inside = statistics.mean(c.inside for c in chosen)
    return (
        f"{name:18s} {len(chosen):3d}  today {of([c.today for c in chosen])}  inside {inside:4.0%}  "
        f"then {of([c.then for c in chosen])}"
    )


def main() -> None:
    """Print the table and the worst cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--suite", default="standard")
    parser.add_argument("--gpu", default="h200-sxm")
    parser.add_argument("--worst", type=int, default=15)
    args = parser.parse_args()
    found = cells(json.loads(args.report.read_text(encoding="utf-8")), args.suite, args.gpu)
    print(line("all", found))
    for engine in dict.fromkeys(c.engine for c in found):
        print(line(engine, [c for c in found if c.engine == engine]))
    print(line("KV >= 64 MB", [c for c in found if c.kv_read_bytes >= BIG_BYTES]))
    for c in sorted(found, key=lambda c: -abs(c.today))[: args.worst]:
        print(f"{c.today:+5.0%} (then {c.then:+5.0%})  {c.measured_s * 1e6:8.1f} µs  {c.case}")


if __name__ == "__main__":
    main()
