"""The bars for engines' own kernels: drawn, predicted, and judged on times that the test makes up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine_bars import __main__ as bars
from benchmarks.engine_bars.cells import compiled_first, draw
from benchmarks.engine_bars.judge import judge, outcomes
from decodecalc.calibrate.own.timer import Results
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep, check_times, timings_of
from decodecalc.gpus import load_gpu

Launch = dict[str, Any]


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    """A small run, drawn and predicted."""
    return bars.predicted(seed=4, steps=14, gpu_name="h200", calibration=None)


def measured(run: dict[str, Any], of: Callable[[dict[str, Any], Launch], float]) -> dict[str, Any]:
    """The run with times: the predicted one times what `of` says of a cell's launch."""
    cells = []
    for cell in run["cells"]:
        launches = [
            {**launch, "us": launch["predicted"]["us"] * of(cell, launch)} if "predicted" in launch else launch
            for launch in cell["launches"]
        ]
        cells.append({**cell, "launches": launches})
    return {**run, "cells": cells}


def verdicts(run: dict[str, Any]) -> dict[str, bool]:
    """Which bars hold."""
    return {bar.what: bar.holds for bar in judge(run["cells"])}


def test_steps_are_the_seeds_alone_and_end_with_the_readmes_examples() -> None:
    """The same seed draws the same steps; every kind of step is among them."""
    assert list(draw(11, 9)) == list(draw(11, 9))
    assert list(draw(11, 9)) != list(draw(12, 9))
    kinds = [kind for kind, _, _ in draw(11, 9)]
    assert set(kinds) == {"gqa", "fp8", "mla", "example"}
    assert kinds[-4:] == ["example"] * 4


def test_times_as_predicted_hold_every_bar_but_the_lower_end_of_the_intervals(drawn: dict[str, Any]) -> None:
    """With no error at all, errors and advice hold, and intervals are too wide: they hold everything."""
    found = verdicts(measured(drawn, lambda cell, launch: 1.0))
    assert all(holds for what, holds in found.items() if "inside the interval" not in what)
    assert not any(holds for what, holds in found.items() if "inside the interval" in what)


def test_a_kernel_that_is_slower_than_predicted_fails_its_own_bars(drawn: dict[str, Any]) -> None:
    """30 % more for SGLang's kernel alone."""
    slow = measured(drawn, lambda cell, launch: 1.3 if launch["engine"] == "sglang-triton" else 1.0)
    found = verdicts(slow)
    assert not found["SGLang Triton, caps 8 to 128: mean error"]
    assert found["vLLM Triton: mean error"]
    assert found["FlashAttention-3, FP8: mean error"]


def test_advice_that_does_harm_is_counted(drawn: dict[str, Any]) -> None:
    """Where every advised setting runs 1.5 times as long as predicted, steps become slower than by default."""
    option = "max_kv_splits_arg"

    def harmful(cell: dict[str, Any], launch: Launch) -> float:
        advised = cell.get("advice", {}).get("sglang-triton", {}).get("value")
        mine = launch["engine"] == "sglang-triton" and advised is not None
        return 60.0 if mine and launch["options"].get(option) == advised else 1.0

    advised = [c for c in drawn["cells"] if c.get("advice", {}).get("sglang-triton", {}).get("value")]
    assert advised, "the drawn steps have some that a setting is advised for"
    spoiled = measured(drawn, harmful)
    found = {bar.what: bar for bar in judge(spoiled["cells"])}
    slower = found["sglang-triton: slower than the default by more than 2 % with the advice"]
    assert not slower.holds
    gqa = [c for c in spoiled["cells"] if c["kind"] == "gqa"]
    harmed = sum(then > 1.02 * now for _, then, now, _ in outcomes("sglang-triton", gqa))
    assert slower.number.startswith(f"{harmed} of ")
    assert harmed == sum(c["kind"] == "gqa" for c in advised)


def test_the_sign_of_an_fp8_cache_is_judged_on_matched_steps(drawn: dict[str, Any]) -> None:
    """FP8 made three times slower than 16 bits turns the sign wherever it was predicted to be faster."""
    turned = measured(drawn, lambda cell, launch: 3.0 if cell["kind"] == "fp8" else 1.0)
    what = "vllm-triton: FP8 or bf16, the faster one was predicted to be it"
    assert verdicts(measured(drawn, lambda cell, launch: 1.0))[what]
    assert not verdicts(turned)[what]


def test_predictions_are_kept_and_the_page_names_them(
    drawn: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run with the seed takes the predictions up; the page has the bars, the examples and the worst ten."""
    base = tmp_path / "run"
    base.with_suffix(".predicted.json").write_text(json.dumps(drawn))

    def fake(run: dict[str, Any], path: Path, limit_s: float, without: Any) -> None:
        assert run == drawn
        path.write_text(json.dumps(measured(run, lambda cell, launch: 1.04)))

    monkeypatch.setattr(bars, "measure", fake)
    monkeypatch.setattr(bars, "predicted", lambda *args: pytest.fail("predicted again"))
    bars.main(["--seed", "4", "--steps", "14", "--base", str(base), "--times", str(tmp_path / "times.json")])
    page = base.with_suffix(".md").read_text()
    assert drawn["predicted_utc"] in page
    assert "SEED=4" in page
    assert page.count("| sglang-triton | ") >= 4
    times = check_times(json.loads((tmp_path / "times.json").read_text()), "times")
    gpu = load_gpu("h200")
    first = next(iter(timings_of(times, gpu)))
    launch = next(one for c in drawn["cells"] for one in c["launches"] if "predicted" in one)
    assert first.measured_s == pytest.approx(1.04e-6 * launch["predicted"]["us"])


def test_the_limit_counts_timing_alone_and_examples_come_first(drawn: dict[str, Any], tmp_path: Path) -> None:
    """With a second a step and a limit of 2.5 s three steps are timed, and they are examples."""
    run = json.loads(json.dumps(drawn))
    now = [1000.0]
    clock = bars.Stopwatch(read=lambda: now[0])

    def timer(step: ProbeStep, calls: Sequence[OwnCall]) -> Results:
        now[0] += 1.0
        return [(call, 1e-5) for call in calls]

    engines = {"sglang-triton"}
    assert not bars.time_steps(run, engines, timer, clock, 2.5, tmp_path / "run.json")
    assert clock.spent_s == 3.0
    ran = [c["kind"] for c in run["cells"] if any("us" in launch for launch in c["launches"])]
    assert ran == ["example"] * 3
    now[0] += 600.0
    assert bars.time_steps(run, engines, timer, clock, 1e9, tmp_path / "run.json")
    assert all("us" in launch for c in run["cells"] for launch in c["launches"] if launch["engine"] in engines)


def test_every_kernel_is_compiled_once_with_all_its_settings() -> None:
    """No two tasks hold the same engine, layer, cache and side of the split rule; no launch of a step is missing."""
    drawn = [(step, calls) for _, step, calls in draw(4, 40)]
    tasks = compiled_first(drawn)
    keys = [
        (calls[0].engine, step.geometry, step.kv, step.batch.size > 128 // step.geometry.kv_heads)
        for step, calls in tasks
    ]
    assert len(set(keys)) == len(keys)
    assert all(len({call.engine for call in calls}) == 1 for _, calls in tasks)
    compiled = {(step.geometry, step.kv, call.label) for step, calls in tasks for call in calls}
    assert compiled == {(step.geometry, step.kv, call.label) for step, calls in drawn for call in calls}
    assert max(step.batch.max_seq_len for step, _ in tasks) <= 1024
