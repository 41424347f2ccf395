"""Fit the engines' own kernels to their times, write their parameters into a calibration, and report held-out errors.

    python -m benchmarks.engine_times --write

--times: files of times, as benchmarks/data/h200_engine_times.json, whose field `about` says what was timed and how, and
as `decodecalc calibrate --engine … --times FILE` writes them. --write puts the kernels into --calibration in place of
those of the same names that it held; the bundled kernel's measurements stay. Without it only the report is written. The
command draws nothing at random and takes some minutes; its numbers are rounded to five digits. The fit itself is
`decodecalc/calibrate/own`, which `decodecalc calibrate --engine` runs too.

Held-out errors: five fits, each to four fifths of the steps, predict the others; all settings and kernels of a step are
held out together. The interval of a kernel, with one type of cache and with requests of equal or of different lengths,
is the error that a further time stays within with 90 % probability, by those held-out times. The shipped numbers are
fitted to all steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.engine_times.check import advice, row
from benchmarks.engine_times.timings import bundled_times, read_timings
from decodecalc.calibrate.own.assemble import FittedFamily, fit_all, with_kernels
from decodecalc.calibrate.own.family import all_subjects
from decodecalc.calibrate.own.held import Held
from decodecalc.calibrate.own.physics import Widths
from decodecalc.calibrate.own.timing import TimedLaunch
from decodecalc.cost.calibration import Calibration, read_calibration
from decodecalc.cost.parameters import MEASURED, Parameter
from decodecalc.gpus import Gpu, load_gpu

ROOT = Path(__file__).resolve().parents[2]
DATA, REPORT = ROOT / "benchmarks/data", ROOT / "reports/h200/engine-kernels.md"
TIMES = sorted(DATA.glob("h200_engine_times*.json"))
CALIBRATION = ROOT / "decodecalc/data/calibration_h200.json"
NOTE = "fitted to times of whole launches: python -m benchmarks.engine_times"
MODES = {"graph": "under CUDA graphs"}


def kind(timing: TimedLaunch) -> str:
    """What a reader sees as one kernel: engine, kind of layer, type of cache, mode, and whether a setting was given."""
    call = timing.call
    latent = " MLA" if timing.plan.geometry.mla and "mla" not in call.engine else ""
    parts = [call.engine + latent, timing.variant.dtype, MODES.get(call.mode, call.mode)]
    return ", ".join([part for part in parts if part] + ([] if call.default else ["other settings"]))


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=Path, nargs="+", default=TIMES)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--calibration", type=Path, default=CALIBRATION)
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--write", action="store_true", help="write the kernels into --calibration")
    given = parser.parse_args(argv)
    gpu, base = load_gpu(given.gpu), read_calibration(str(given.calibration))
    timings = read_timings(given.times, gpu)
    families = [family for subject in all_subjects().values() for family in subject.families]
    fitted = fit_all(families, timings, base, gpu, NOTE, told)
    given.report.write_text(report(fitted, given.times), encoding="utf-8")
    if given.write:
        found = with_kernels(base, fitted)
        parameters = {**base.parameters, **stand_ins(timings, base, gpu)}
        replace(found, parameters=parameters).save(given.calibration)


def told(one: FittedFamily) -> None:
    """Show what was fitted."""
    for (kernel, dtype), w in one.widths.items():
        print(f"{one.family.name}: {kernel} {dtype}, 90 % within {w.uniform:.1%}, ragged {w.ragged:.1%}", flush=True)


def stand_ins(timings: Sequence[TimedLaunch], base: Calibration, gpu: Gpu) -> dict[str, Parameter]:
    """How far engines' own kernels lie from the bundled kernel under their rules: 5th and 95th percentile of the ratio.

    Every kind of kernel counts alike.
    """
    ratios: dict[str, list[float]] = {}
    for timing, seconds in zip(timings, bundled_times(timings, base, gpu)):
        ratios.setdefault(kind(timing), []).append(timing.measured_s / seconds)
    values = np.concatenate([np.array(r) for r in ratios.values()])
    weights = np.concatenate([np.full(len(r), 1 / len(r)) for r in ratios.values()])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    ends = {"stand_in_low": 0.05, "stand_in_high": 0.95}
    note = f"{len(values)} times of {len(ratios)} kernels"
    return {
        name: Parameter(name, float(f"{values[order][np.searchsorted(reached, share)]:.3g}"), MEASURED, note=note)
        for name, share in ends.items()
    }


def advice_lines(one: FittedFamily) -> Iterator[str]:
    """What following the advice would have done."""
    ratio = max(w.pair for w in one.widths.values())
    found = advice(one.held, ratio)
    if found is None:
        return
    yield (
        f"- {one.family.name}: {found.steps} steps. A setting is advised where it is predicted to gain more than "
        f"{ratio:.1%}, beyond which no held-out step became slower by more than 2 %: in {found.changed}. What "
        f"then runs is within 5 % of the best tried setting in {found.within_5:.0%} of the steps (worst "
        f"{found.worst - 1:.0%}) and slower than the default by more than 2 % in {found.slower}; the steps get "
        f"{found.mean_gain:.3f} times as fast in the geometric mean, {found.best_gain:.3f} times with the best setting."
    )


def report(fitted: Sequence[FittedFamily], files: Sequence[Path]) -> str:
    """The report's text."""
    out = [
        "# Engines' own kernels on an H200, predicted against measured\n",
        "Written by `python -m benchmarks.engine_times`, which needs no GPU; the times are in "
        + ", ".join(f"`benchmarks/data/{path.name}`" for path in files)
        + ". Every number below is of steps that the fit had not seen (five-fold cross-validation by step). The last "
        "column is the width of the interval.\n",
        "| kernel | steps | times | mean error | p50 | p90 | worst | in the 90 % interval | +- |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in fitted:
        kinds: dict[str, list[Held]] = {}
        for h in one.held:
            kinds.setdefault(kind(h.timing), []).append(h)
        for title in sorted(kinds):
            for ragged in (False, True):
                some = [h for h in kinds[title] if h.timing.ragged == ragged]
                if some:
                    out.append(_row(title, some, ragged, one))
    advised = [line for one in fitted for line in advice_lines(one)]
    return "\n".join([*out, "\n## The advice, on held-out steps\n", *advised]) + "\n"


def _row(title: str, held: Sequence[Held], ragged: bool, one: FittedFamily) -> str:
    said: list[Widths] = [one.widths[h.timing.variant.kernel, h.timing.variant.dtype] for h in held]
    widths = [w.ragged if ragged else w.uniform for w in said]
    r = row(title, held, widths)
    low, high = f"{min(widths):.0%}", f"{max(widths):.0%}"
    width = low if low == high else f"{low} to {high}"
    return (
        f"| {title} | {r['steps']} {'ragged' if ragged else 'uniform'} | {r['times']} | {r['mean']:.1%} | "
        f"{r['p50']:.1%} | {r['p90']:.1%} | {r['worst']:.0%} | {r['in_interval']:.0%} | {width} |"
    )


if __name__ == "__main__":
    main()
