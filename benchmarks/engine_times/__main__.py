"""Fit the engines' own kernels to their times, write their parameters into a calibration, and report held-out errors.

    python -m benchmarks.engine_times --write

--times: a file as benchmarks/data/h200_engine_times.json, whose field `about` says what was timed and how. --write puts
the kernels into --calibration in place of those of the same names that it held; the bundled kernel's measurements stay.
Without it only the report is written. The command draws nothing at random and takes about ten minutes; its numbers are
rounded to five digits.

Held-out errors: five fits, each to four fifths of the steps, predict the others; all settings and kernels of a step are
held out together. The interval of a kernel is the error that 90 % of its held-out times stayed within. The shipped
numbers are fitted to all steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_times.check import Held, advice, held_out, ratio_residual, residual, row
from benchmarks.engine_times.families import FAMILIES, Family
from benchmarks.engine_times.fit import Group, fit, groups_of
from benchmarks.engine_times.physics import values_of
from benchmarks.engine_times.timings import Timing, read_timings
from decodecalc.cost.calibration import Calibration, Values, read_calibration
from decodecalc.cost.parameters import MEASURED, Parameter, Variant
from decodecalc.gpus import Gpu, load_gpu

ROOT = Path(__file__).resolve().parents[2]
DATA, REPORT = ROOT / "benchmarks/data/h200_engine_times.json", ROOT / "reports/h200/engine-kernels.md"
CALIBRATION = ROOT / "decodecalc/data/calibration_h200.json"
NOTE = "fitted to times of whole launches: python -m benchmarks.engine_times"
LAYOUTS = ("paged", "run", "flat")
# What a user sees as one kernel: (first letters of the times' names, title).
ROWS = (
    ("vllm", "vLLM Triton, bf16"), ("vllm_fp8", "vLLM Triton, FP8"), ("sglang", "SGLang Triton, caps 8 to 128"),
    ("fa3", "FlashAttention-3, own rule"), ("fa3_n", "FlashAttention-3, num_splits 1 to 128"),
    ("fa3_fp8", "FlashAttention-3, FP8"), ("flashmla", "FlashMLA"), ("vllm_mla", "vLLM Triton MLA"),
    ("sglang_mla", "SGLang Triton MLA"), ("flashinfer_tc", "FlashInfer, tensor cores"),
    ("flashinfer_cc", "FlashInfer, CUDA cores"), ("xqa", "XQA of FlashInfer"),
)  # fmt: skip


def kind(name: str) -> str:
    """The entry of ROWS that a time's name belongs to."""
    head, _, tail = name.partition("_")
    if tail.isdigit():
        return f"{head}_n"
    return "sglang" if head.startswith("sglang") and not tail else name


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=Path, default=DATA)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--calibration", type=Path, default=CALIBRATION)
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--write", action="store_true", help="write the kernels into --calibration")
    given = parser.parse_args(argv)
    gpu, base = load_gpu(given.gpu), read_calibration(str(given.calibration))
    timings = read_timings(given.times, gpu)
    found: dict[Variant, Values] = {}
    lines: list[str] = []
    everything: list[tuple[Held, float]] = []
    for family in FAMILIES:
        groups = groups_of(family, timings, base, gpu)
        held = held_out(family, groups)
        width, ratio = residual(held), ratio_residual(held)
        everything += [(h, width) for h in held]
        for group, values in zip(groups, fitted(family, groups, base, width, ratio)):
            found.update((variant, values) for variant in served(family, group.variant) if variant not in found)
        lines += advice_lines(family, held, ratio)
        print(f"{family.name}: {len(held)} times, 90 % of them within {width:.1%}", flush=True)
    given.report.write_text(report(everything, lines), encoding="utf-8")
    if given.write:
        kept = {v: values for v, values in base.variants.items() if v.kernel not in {f.kernel for f in found}}
        parameters = {**base.parameters, **stand_ins(timings, base, gpu)}
        replace(base, variants={**kept, **found}, parameters=parameters).save(given.calibration)


def fitted(family: Family, groups: Sequence[Group], base: Calibration, width: float, ratio: float) -> list[Values]:
    """The parameters of every group's kernel, fitted to all steps."""
    numbers = fit(family, groups)
    out = []
    for i, g in enumerate(groups):
        values = values_of(numbers.numbers(i), g.variant, g.slots_per_sm, base, width, ratio)
        note = f"{NOTE} ({len(g.timings)} times)"
        out.append({**values, "slots_per_sm": values["slots_per_sm"]._replace(note=note)})
    return out


def served(family: Family, variant: Variant) -> list[Variant]:
    """The variants that a fitted kernel serves: where a page's rows lie changes nothing but what Triton compiles."""
    if not family.by_layout:
        return [variant._replace(layout=layout) for layout in LAYOUTS]
    return [variant, *([variant._replace(layout="flat")] if variant.layout == "paged" else [])]


def stand_ins(timings: Sequence[Timing], base: Calibration, gpu: Gpu) -> dict[str, Parameter]:
    """How far engines' own kernels lie from the bundled kernel under their rules: 5th and 95th percentile of the ratio.

    Every kernel of ROWS counts alike.
    """
    from benchmarks.engine_times.timings import bundled_times

    ratios: dict[str, list[float]] = {}
    for timing, seconds in zip(timings, bundled_times(timings, base, gpu)):
        ratios.setdefault(kind(timing.name), []).append(timing.measured_s / seconds)
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


def advice_lines(family: Family, held: Sequence[Held], ratio: float) -> list[str]:
    """What following the advice would have done."""
    found = advice(held, ratio)
    if found is None:
        return []
    return [
        f"- {family.name}: {found.steps} steps. A setting is advised where it is predicted to gain more than "
        f"{ratio:.1%}, the error of the ratio of two predictions (root of the mean square): in {found.changed}. What "
        f"then runs is within 5 % of the best tried setting in {found.within_5:.0%} of the steps (worst "
        f"{found.worst - 1:.0%}) and slower than the default by more than 2 % in {found.slower}; the steps get "
        f"{found.mean_gain:.3f} times as fast in the geometric mean, {found.best_gain:.3f} times with the best setting."
    ]


def report(everything: Sequence[tuple[Held, float]], advised: Sequence[str]) -> str:
    """The report's text."""
    out = [
        "# Engines' own kernels on an H200, predicted against measured\n",
        "Written by `python -m benchmarks.engine_times`, which needs no GPU; the times are in "
        "`benchmarks/data/h200_engine_times.json`, whose field `about` says how they were taken. Every number below is "
        "of steps that the fit had not seen (five-fold cross-validation by step).\n",
        "| kernel | steps | times | mean error | p50 | p90 | worst | in the 90 % interval | +- |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for key, title in ROWS:
        mine = [(h, width) for h, width in everything if kind(h.timing.name) == key]
        for ragged in (False, True):
            some = [(h, width) for h, width in mine if h.timing.ragged == ragged]
            if not some:
                continue
            r: dict[str, Any] = row(title, [h for h, _ in some], some[0][1])
            out.append(
                f"| {title} | {r['steps']} {'ragged' if ragged else 'uniform'} | {r['times']} | {r['mean']:.1%} | "
                f"{r['p50']:.1%} | {r['p90']:.1%} | {r['worst']:.0%} | {r['in_interval']:.0%} | {some[0][1]:.0%} |"
            )
    return "\n".join([*out, "\n## The advice, on held-out steps\n", *advised]) + "\n"


if __name__ == "__main__":
    main()
