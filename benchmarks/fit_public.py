"""Calibrations of nine GPUs from published decode-attention timings, and how good they are.

    python -m benchmarks.fit_public                      # all GPUs: about ten minutes on two cores
    python -m benchmarks.fit_public --gpus l40s --output /tmp/out

Writes `fitted_<gpu>.json` for every GPU to decodecalc/data and, once all nine are fitted, the report reports/public-
fit.{json,md,svg}. The published package (a development dependency, never shipped) is downloaded by pip into
.scratch/public-timings when `--tables` names no other folder. What was fitted is kept beside the tables
(judged_<gpu>.pickle), so that the report can be made of several runs; after a change of the code, fit all again. The
same tables and code give the same files. What is fitted, and why these few numbers: `benchmarks/public/physics.py`;
which rows are held out: `benchmarks/public/rows.py`.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.public.calibrations import calibration_of
from benchmarks.public.judge import Judged, fp8_signs, left_out, windowed
from benchmarks.public.report import write_report
from benchmarks.public.rows import Rows, plan_table, read_table
from benchmarks.public.table_fit import MOST_OF_PEAK, fit_table, sustained_rate
from benchmarks.public.tables import GPUS, TABLES, Table
from benchmarks.public.wheel import tables_folder
from decodecalc.gpus import Gpu, load_gpu

DATA = Path("decodecalc") / "data"


def fit_gpu(root: Path, output: Path, folder: str) -> None:
    """Fit every table of one GPU and write its calibration. The fits, and what was not fitted, are kept beside the
    tables for the report."""
    gpu = load_gpu(GPUS[folder])
    planned: list[tuple[Table, Rows]] = []
    skipped: list[dict[str, Any]] = []
    peak = gpu.need("hbm_bytes_per_s")
    for table in TABLES:
        columns = read_table(root, folder, table)
        if columns is None or (table.sms and gpu.sm not in table.sms):
            continue
        for dtype, rows, refused in plan_table(columns, table, gpu):
            where = {"gpu": gpu.name, "kernel": table.name, "dtype": dtype}
            skipped += [{**where, "rows": n, "why": f"the policy refuses: {code}"} for code, n in refused.items()]
            if rows is None:
                continue
            share = sustained_rate(rows, gpu) / peak
            if share > 1:
                why = f"the rows imply {share:.2f} of the data sheet's bandwidth: they cannot have read all their keys"
                skipped.append({**where, "rows": len(rows.measured_s), "why": why})
            else:
                planned.append((table, rows))
    rates = [sustained_rate(rows, gpu) for table, rows in planned if table.kind == "attention"]
    hbm = min(max(rates), MOST_OF_PEAK * peak)
    judged: list[Judged] = []
    for table, rows in planned:
        judged.append(Judged.of(fit_table(rows, gpu, table, hbm), rows, gpu))
        numbers = judged[-1].held_out()
        print(gpu.name, judged[-1].name, rows.dtype, f"{100 * numbers['mean']:.1f} %", file=sys.stderr, flush=True)
    calibration_of(gpu, [(j.fit, j.residual) for j in judged]).save(output / f"fitted_{gpu.name}.json")
    (root / f"judged_{gpu.name}.pickle").write_bytes(
        pickle.dumps((judged, skipped, windows(root, folder, judged, gpu)))
    )


def windows(root: Path, folder: str, judged: Sequence[Judged], gpu: Gpu) -> list[dict[str, Any]]:
    """How good the fits are on the same tables' layers with a window."""
    found = []
    for one in judged:
        columns = read_table(root, folder, one.fit.table)
        for dtype, rows, _ in plan_table(columns or {}, one.fit.table, gpu, windows=True):
            if dtype == one.fit.dtype and rows is not None:
                found.append(windowed(one.fit, rows, gpu))
    return [row for row in found if row is not None]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, help="folder of the unpacked package, or of its wheel")
    parser.add_argument("--gpus", help="comma-separated names (default: all nine)")
    parser.add_argument("--output", type=Path, default=DATA, help="folder of the calibration files")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="folder of the report")
    parser.add_argument("--jobs", type=int, default=2, help="GPUs that are fitted at a time")
    args = parser.parse_args(arguments)
    root = tables_folder(args.tables)
    folders = [folder for folder, name in GPUS.items() if args.gpus is None or name in args.gpus.split(",")]
    with ProcessPoolExecutor(args.jobs) as pool:
        list(pool.map(partial(fit_gpu, root, args.output), reversed(folders)))
    kept = [root / f"judged_{name}.pickle" for name in GPUS.values()]
    if not all(path.exists() for path in kept):
        print("no report: some GPUs were never fitted", file=sys.stderr)
        return
    results = [pickle.loads(path.read_bytes()) for path in kept]
    judged = [one for found, _, _ in results for one in found]
    report = {
        "held_out": [one.held_out() for one in judged],
        "left_out": list(left_out(judged)),
        "fp8_signs": list(fp8_signs(judged)),
        "windowed": [row for _, _, windowed in results for row in windowed],
        "not_fitted": [row for _, skipped, _ in results for row in skipped],
    }
    (args.reports / "public-fit.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    write_report(report, args.reports)


if __name__ == "__main__":
    main()
