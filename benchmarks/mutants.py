"""Plants faults in a copy of the sources, one at a time, and runs the tests that should notice.

    python -m benchmarks.mutants [--only NAME] [--list] [--output FILE.md]

`make mutants` runs all of them: a few minutes, and no part of CI. A mutant that survives is a fact that no test holds,
and the exit code is 1. A mutant whose text is not there exactly once is an error: the source has moved on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "decodecalc",
    "kernels",
    "tests",
    "docs",
    "benchmarks",
    "reports",
    "pyproject.toml",
    "README.md",
    "mkdocs.yml",
)
FIGURES = "tests/plot/test_figures.py"
LOOK = "tests/plot/test_look.py"


class Mutant(NamedTuple):
    """One fault: `old` in `file` becomes `new`; `tests` (arguments of pytest) should fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "coverage is halved in the figure",
        "decodecalc/plot/occupancy.py",
        'with_splits = [100 * r["sm_coverage"] for r in mine]',
        'with_splits = [50 * r["sm_coverage"] for r in mine]',
        (FIGURES, "-k", "occupancy"),
    ),
    Mutant(
        "coverage is halved in the analysis",
        "decodecalc/analysis/occupancy.py",
        "sm_coverage=least(working, sms) / sms,",
        "sm_coverage=least(working, sms) / sms / 2,",
        (FIGURES, "-k", "occupancy"),
    ),
    Mutant(
        "coverage counts launched blocks",
        "decodecalc/analysis/occupancy.py",
        "live = np.where(kernel.when, kernel.live_blocks, live)",
        "live = np.where(kernel.when, kernel.launched_blocks, live)",
        (FIGURES, "-k", "occupancy"),
    ),
    Mutant(
        "regret is taken from the engine's own kernel",
        "decodecalc/plot/regret.py",
        'version, kernel="bundled"',
        "version",
        (FIGURES, "-k", "regret"),
    ),
    Mutant(
        "an engine's dot is taken from its own kernel",
        "decodecalc/cost/choice.py",
        "rule = predict(plan, self.gpu, self.calibration, kernel=BUNDLED, l2",
        "rule = predict(plan, self.gpu, self.calibration, l2",
        (FIGURES, "-k", "latency"),
    ),
    Mutant(
        "layers count once in the figure over GPUs",
        "decodecalc/plot/gpus.py",
        ".append((item.layer_group.layers, p))",
        ".append((1, p))",
        (FIGURES, "-k", "gpus"),
    ),
    Mutant(
        "layers count once in a token's time",
        "decodecalc/cost/token.py",
        "return sum(layers * seconds for",
        "return sum(seconds for",
        (FIGURES, "tests/cost/test_token.py"),
    ),
    Mutant(
        "the interval's upper end is drawn at the lower",
        "decodecalc/plot/gpus.py",
        '[r["high_s"] * 1e6 - t]',
        '[t - r["low_s"] * 1e6]',
        (FIGURES, "-k", "gpus"),
    ),
    Mutant(
        "live splits are drawn as requested",
        "decodecalc/plot/series.py",
        '("live", "splits_live",',
        '("live", "splits_requested",',
        (FIGURES, "-k", "splits"),
    ),
    Mutant(
        "splits without keys are not counted",
        "decodecalc/plot/segments.py",
        'if r["state"] == state:',
        'if r["state"] == state != EXIT:',
        (FIGURES, "-k", "segments"),
    ),
    Mutant(
        "the merge's states are drawn as launched",
        "decodecalc/plot/merge.py",
        '"of live splits": ("partial_share", 100)',
        '"of live splits": ("partial_allocated_share", 100)',
        (FIGURES, "-k", "merge"),
    ),
    Mutant(
        "predicted points stand on the roof",
        "decodecalc/plot/roofline.py",
        'rates = [row["predicted_flop_per_s"] / 1e12 for row in predicted]',
        "rates = [at * bandwidth / 1e12 for row in predicted]",
        (FIGURES, "-k", "roofline"),
    ),
    Mutant(
        "only the first layer group is drawn",
        "decodecalc/plot/series.py",
        "    for group in s.layer_groups:",
        "    for group in s.layer_groups[:1]:",
        (LOOK, "-k", "everything"),
    ),
    Mutant(
        "labels at the ends of lines are not spread",
        "decodecalc/plot/canvas.py",
        "            _spread(ax, labels)",
        "            pass",
        (LOOK, "-k", "overlap"),
    ),
    Mutant(
        "errors of a report are relative to the prediction",
        "decodecalc/plot/verification.py",
        'abs(r[key] - r["total_s"]) / r["total_s"]',
        'abs(r[key] - r["total_s"]) / r[key]',
        ("tests/plot/test_report_figures.py",),
    ),
    Mutant(
        "IDLE_TILES: blocks without work hold a slot ten times longer",
        "decodecalc/cost/schedule.py",
        "IDLE_TILES = 0.05",
        "IDLE_TILES = 0.5",
        ("tests/cost/test_constants.py",),
    ),
    Mutant(
        "WARM_FADE: the L2 forgets later",
        "decodecalc/cost/model.py",
        "WARM_FADE = 1.3",
        "WARM_FADE = 1.6",
        ("tests/cost/test_constants.py",),
    ),
    Mutant(
        "stand-ins: the width counts more than the tile",
        "decodecalc/cost/variants.py",
        "+ 2.0 * ratio(variant.tile_keys",
        "+ 1.2 * ratio(variant.tile_keys",
        ("tests/cost/test_constants.py",),
    ),
    Mutant(
        "stand-ins: the stages do not count",
        "decodecalc/cost/variants.py",
        "0.1 * abs(variant.stages",
        "0.0 * abs(variant.stages",
        ("tests/cost/test_constants.py",),
    ),
    Mutant(
        "a warning of idle SMs at a full GPU",
        "decodecalc/engines/vllm/trace.py",
        "or not sms or blocks >= sms:",
        "or not sms or blocks > sms:",
        ("tests/trace/test_audit.py", "-k", "sms or cliff"),
    ),
    Mutant(
        "a warning of the threshold at the threshold",
        "decodecalc/engines/vllm/trace.py",
        "if threshold and batch > threshold:",
        "if threshold and batch >= threshold:",
        ("tests/trace/test_audit.py", "-k", "sms or cliff"),
    ),
    Mutant(
        "a warning of the split cap at a full GPU",
        "decodecalc/engines/sglang/trace.py",
        "if blocks < sms:",
        "if blocks <= sms:",
        ("tests/trace/test_audit.py", "-k", "sms or cliff"),
    ),
    Mutant(
        "sglang's lean kernel from one key later",
        "decodecalc/engines/sglang/lean.py",
        "return total_keys >= least * batch, least",
        "return total_keys > least * batch, least",
        ("tests/engines/sglang/test_sglang_triton.py", "-k", "lean"),
    ),
    Mutant(
        "sglang's lean kernel for MLA from one request later",
        "decodecalc/engines/sglang/lean.py",
        "return (batch >= MLA_BATCH)",
        "return (batch > MLA_BATCH)",
        ("tests/engines/sglang/test_sglang_triton.py", "-k", "lean"),
    ),
    Mutant(
        "sglang's lean graphs from one request later",
        "decodecalc/engines/sglang/lean.py",
        "return np.asarray(batch) >= CAPTURE_BATCH",
        "return np.asarray(batch) > CAPTURE_BATCH",
        ("tests/engines/sglang/test_sglang_triton.py", "-k", "lean"),
    ),
    Mutant(
        "sglang's lean base lengths",
        "decodecalc/engines/sglang/lean.py",
        "(65536, 2) if tiles >= 4",
        "(65536, 2) if tiles > 4",
        ("tests/engines/sglang/test_sglang_triton.py", "-k", "lean"),
    ),
    Mutant(
        "vLLM's threshold of the split path",
        "decodecalc/engines/vllm/triton_rules.py",
        "MIN_BLOCKS_2D = 128",
        "MIN_BLOCKS_2D = 144",
        ("tests/engines/vllm/test_vllm_triton.py",),
    ),
)


def copy(target: Path) -> None:
    """The sources, without what runs left behind."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, target / name)


def passes(folder: Path, tests: Sequence[str]) -> bool:
    """Whether the tests pass in this copy. Its own sources come before installed ones: it is the current folder."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    ran = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        raise SystemExit(
            f"pytest {' '.join(tests)} ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        )
    return ran.returncode == 0


def is_noticed(mutant: Mutant, folder: Path) -> bool:
    """Whether the tests fail with this fault. The copy is as before afterwards."""
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.old!r} is in {mutant.file} {text.count(mutant.old)} times, not once")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return not passes(folder, mutant.tests)
    finally:
        path.write_text(text, encoding="utf-8")


def report(found: Iterable[tuple[Mutant, bool]]) -> str:
    """A Markdown table."""
    rows = [
        f"| {m.name} | `{m.file}` | `{m.tests[0]}` | {'noticed' if seen else '**survives**'} |" for m, seen in found
    ]
    return "\n".join(["| fault | in | tests | |", "|---|---|---|---|", *rows]) + "\n"


def main() -> int:
    """Exit code 0 when every fault is noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--list", action="store_true", help="say what would be planted")
    parser.add_argument("--output", type=Path, help="write the table to this file")
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if args.only in mutant.name]
    if args.list:
        print(report((m, True) for m in chosen).replace("noticed", "planned"))
        return 0
    found: list[tuple[Mutant, bool]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder)
        sound: dict[tuple[str, ...], bool] = {}
        for mutant in chosen:
            if not sound.setdefault(mutant.tests, passes(folder, mutant.tests) if mutant.tests not in sound else True):
                raise SystemExit(f"pytest {' '.join(mutant.tests)} fails without any fault")
            began = time.monotonic()
            found.append((mutant, is_noticed(mutant, folder)))
            word = "noticed" if found[-1][1] else "SURVIVES"
            print(f"{word:9} {time.monotonic() - began:5.1f} s  {mutant.name}", flush=True)
    dead = sum(seen for _, seen in found)
    print(f"{dead} of {len(found)} faults are noticed")
    if args.output:
        args.output.write_text(report(found), encoding="utf-8")
    return 0 if dead == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
