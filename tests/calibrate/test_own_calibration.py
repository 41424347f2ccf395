"""Calibrating an engine's own kernel: with a timer that knows the times, so that what comes out can be held against
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.calibrate.own.assemble import with_kernels
from decodecalc.calibrate.own.family import TimedEngine, all_subjects, subject_of
from decodecalc.calibrate.own.fit import slots_per_sm
from decodecalc.calibrate.own.held import within_90
from decodecalc.calibrate.own.session import OwnCalibration, base_for, runnable_subjects
from decodecalc.calibrate.own.steps import random_batch, steps_of
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep, step_of, timing_of
from decodecalc.cost.calibration import parse_calibration, read_calibration
from decodecalc.cost.load import load_calibration
from decodecalc.cost.parameters import TimedSteps
from decodecalc.engines.registry import load_policy, traits_of
from decodecalc.errors import InputError, MissingDependencyError
from decodecalc.verify.own.runner import all_runners

H200 = dc.load_gpu("h200")
MLA_KERNEL = "vllm-triton-mla"


def known_us(step: ProbeStep, call: OwnCall) -> float:
    """The made-up engine's time: that of the shipped calibration, and 10 % more."""
    plan = load_policy(call.engine).plan(step.geometry, step.batch, step.kv, H200, dict(call.options), call.version)
    return 1.1 * dc.predict(plan, H200).known_s


class FakeTimer:
    """Gives known times, counts the steps, and stops like a user would at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.steps, self.stop_at = 0, stop_at

    def __call__(self, step: ProbeStep, calls: Sequence[OwnCall]) -> list[tuple[OwnCall, float | str]]:
        if self.steps == self.stop_at:
            raise KeyboardInterrupt
        self.steps += 1
        return [(call, known_us(step, call)) for call in calls]


def calibration_of(tmp_path: Path, timer: Any, steps: int, subject: TimedEngine | None = None, **more: Any) -> Any:
    """A run over one subject."""
    return OwnCalibration(
        [subject or subject_of(MLA_KERNEL)], timer, H200, {"name": "NVIDIA H200"}, tmp_path / ".journal", steps=steps,
        **more,
    )  # fmt: skip


def test_a_made_up_engines_times_come_back_on_steps_that_were_not_timed(tmp_path: Path) -> None:
    """Fitted to 30 steps, the kernel is predicted on 12 others within 4 % in the mean, and its intervals hold them."""
    run = calibration_of(tmp_path, FakeTimer(), steps=30)
    run.measure()
    base = load_calibration(gpu="h200")
    (one,) = run.fitted(base)
    found = run.finished(base, [one])
    errors = []
    for step, calls in islice(steps_of(subject_of(MLA_KERNEL), seed=99), 12):
        plan = load_policy(MLA_KERNEL).plan(step.geometry, step.batch, step.kv, H200, dict(calls[0].options), None)
        said = dc.predict(plan, H200, found)
        assert said.kernel == MLA_KERNEL
        errors.append(abs(said.known_s / known_us(step, calls[0]) - 1))
    assert sum(errors) / len(errors) < 0.04


def test_the_file_says_what_was_timed_and_keeps_other_kernels(tmp_path: Path) -> None:
    """The ranges of batch, context and pages are those of the steps; saved and read again they are the same."""
    run = calibration_of(tmp_path, FakeTimer(), steps=24)
    entries = run.measure()
    base = load_calibration(gpu="h200")
    found = run.finished(base, run.fitted(base))
    mine = {v: found.timed_steps(v) for v in found.variants if v.kernel == MLA_KERNEL}
    sizes = [len(entry["seq_lens"]) for entry in entries]
    pages = {entry["page"] for entry in entries}
    assert {steps.batch for steps in mine.values() if steps} == {(min(sizes), max(sizes))}
    assert {page for steps in mine.values() if steps for page in steps.pages} == pages
    assert set(base.kernels()) == set(found.kernels())
    found.save(tmp_path / "c.json")
    again = read_calibration(str(tmp_path / "c.json"))
    assert {v: again.timed_steps(v) for v in mine} == mine
    assert base_for(tmp_path / "c.json", H200) is not None
    with pytest.raises(InputError, match="was measured on"):
        base_for(tmp_path / "c.json", dc.load_gpu("b200"))


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Steps in the journal are not timed again, and the same steps come out as without the interruption."""
    first = FakeTimer(stop_at=7)
    with pytest.raises(KeyboardInterrupt):
        calibration_of(tmp_path, first, steps=12).measure()
    second = FakeTimer()
    run = calibration_of(tmp_path, second, steps=12)
    entries = run.measure()
    assert (first.steps, second.steps, len(entries)) == (7, 5, 12)
    whole = calibration_of(tmp_path / "other", FakeTimer(), steps=12)
    (tmp_path / "other").mkdir()
    assert whole.measure() == entries
    run.forget()
    assert not list(tmp_path.glob(".journal*"))


def test_the_time_limit_holds_over_interruptions(tmp_path: Path) -> None:
    """An engine that had its seconds is not timed further; progress is told for every step."""
    ticks = iter(range(0, 10_000, 3))
    told: list[str] = []
    run = calibration_of(tmp_path, FakeTimer(), steps=400, seconds=30.0, clock=lambda: float(next(ticks)))
    entries = run.measure(lambda what, done, total: told.append(what))
    assert len(entries) < 12
    assert len(told) == len(entries)
    assert MLA_KERNEL in told[0]
    again = calibration_of(tmp_path, FakeTimer(stop_at=0), steps=400, seconds=1.0, clock=lambda: 0.0)
    assert again.measure() == entries


def test_too_few_steps_fit_nothing(tmp_path: Path) -> None:
    """With fewer steps than can be held out nothing is written, and the message says what helps."""
    run = calibration_of(tmp_path, FakeTimer(), steps=5)
    run.measure()
    with pytest.raises(InputError, match="--seconds"):
        run.fitted(load_calibration(gpu="h200"))


def test_launches_that_do_not_run_are_kept_with_their_reason_and_not_fitted(tmp_path: Path) -> None:
    """A refusal is no time of zero."""

    class Refusing(FakeTimer):
        def __call__(self, step: ProbeStep, calls: Sequence[OwnCall]) -> list[tuple[OwnCall, float | str]]:
            return [(call, "RuntimeError: no kernel image") for call in calls]

    run = calibration_of(tmp_path, Refusing(), steps=12)
    assert all(e["times"] == [] and "no kernel image" in e["failed"][0]["why"] for e in run.measure())
    with pytest.raises(InputError, match="0 launches"):
        run.fitted(load_calibration(gpu="h200"))


@pytest.mark.parametrize("engine", sorted(all_subjects()))
def test_every_subject_has_a_runner_and_steps_that_its_policy_plans(engine: str) -> None:
    """Its families hold the kernels that the first rounds over its layers launch, in every mode."""
    subject = subject_of(engine)
    assert engine in {runner.engine for runner in all_runners()}
    held, refused = 0, 0
    for step, calls in islice(steps_of(subject), 2 * len(subject.layers)):
        assert {call.mode for call in calls if call.default} == {mode.name for mode in subject.modes}
        for call in calls:
            try:
                timing = timing_of(0, step, call, 1e-5, H200)
            except dc.DecodecalcError:
                refused += 1
                continue
            held += 1
            assert any(family.holds(timing.variant) for family in subject.families), timing.variant
    assert held > 3 * refused
    names = {traits_of(engine).time_kernel(engine, split) for split in (False, True)}
    assert names <= {kernel for family in subject.families for kernel in family.kernels}


@pytest.mark.parametrize("engine", ["vllm-triton", "flash-attention-3", "sglang-triton"])
def test_the_first_steps_range_over_caches_lengths_and_settings(engine: str) -> None:
    """A lone long block, full GPUs, ragged batches, every cache and every setting come within a hundred steps."""
    subject = subject_of(engine)
    drawn = list(islice(steps_of(subject), 100))
    steps = [step for step, _ in drawn]
    assert {step.kv for step in steps} == set(subject.caches)
    assert {step.geometry for step in steps} == set(subject.layers)
    assert any(step.batch.size == 1 and step.batch.max_seq_len > 10_000 for step in steps)
    assert any(step.batch.size > 100 for step in steps)
    assert 0.2 < sum(step.ragged for step in steps) / len(steps) < 0.6
    given = {tuple(sorted(call.options.items())) for _, calls in drawn for call in calls}
    for mode in subject.modes:
        assert {tuple(sorted({**mode.options, **more}.items())) for more in mode.settings} <= given
    assert list(islice(steps_of(subject), 100)) == drawn


def test_a_step_survives_its_file_format() -> None:
    """Plain values and back, MLA and windows included."""
    for geo in (dc.Geometry(8, 1, 128, window=512), dc.Geometry(16, 1, 576, head_dim_v=512, mla=True)):
        step = ProbeStep(geometry=geo, batch=dc.Batch([300, 20], 2), kv=dc.KvCache("fp8", 64))
        assert step_of(step.to_dict()) == step


def test_slots_are_searched_where_nobody_knows_them() -> None:
    """Times of a kernel with two blocks on an SM show that there are two."""
    (family,) = subject_of(MLA_KERNEL).families
    assert list(family.slots.values()) == [2]
    timings = []
    for number, (step, calls) in enumerate(islice(steps_of(subject_of(MLA_KERNEL)), 40)):
        timings.append(timing_of(number, step, calls[0], known_us(step, calls[0]), H200))
    mine = [t for t in timings if t.variant == timings[0].variant]
    unknown = replace(family, slots={})
    assert slots_per_sm(unknown, mine[0].variant, mine, load_calibration(gpu="h200"), H200) == 2
    assert slots_per_sm(family, mine[0].variant, [], load_calibration(gpu="h200"), H200) == 2


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.floats(0, 10))
def test_nine_of_ten_errors_lie_within_the_width(errors: list[float], one_more: float) -> None:
    """The width is one of the errors, about 90 % reach no further, and a larger error does not narrow it."""
    width = within_90(errors)
    assert width in errors
    assert sum(e <= width for e in errors) >= min(0.9 * (len(errors) + 1) - 0.5, len(errors))
    assert sum(e < width for e in errors) <= 0.9 * (len(errors) + 1) - 0.5
    assert within_90([*errors, max(one_more, width)]) >= width


def test_what_lies_beyond_the_timed_steps_is_said() -> None:
    """Each of batch, context and page alone, and nothing inside."""
    steps = TimedSteps((1, 128), (100, 50_000), (16, 64), 30)
    assert steps.beyond(1, 100, 64) == ""
    assert "161 requests (timed: 1 to 128)" in steps.beyond(161, 100, 64)
    assert "70 keys" in steps.beyond(1, 70, 16)
    assert steps.beyond(160, 62_500, 16) == steps.beyond(1, 80, 16) == ""
    assert "pages of 1 keys (timed: 16, 64)" in steps.beyond(1, 100, 1)
    assert "4 query tokens a request (timed: 1)" in steps.beyond(1, 100, 16, q_len=4)
    assert steps.beyond(1, 100, 16, window=True) == "a sliding window"
    assert steps._replace(windows=True).beyond(1, 100, 16, window=True) == ""


def test_ranges_in_a_file_are_checked(calibration_plain: dict[str, Any]) -> None:
    """Lists of counts, in words otherwise."""
    good = {"batch": [1, 8], "context": [10, 20], "pages": [16], "times": 3}
    calibration_plain["variants"][0]["timed"] = good
    (steps,) = parse_calibration(calibration_plain).timed.values()
    assert steps == TimedSteps((1, 8), (10, 20), (16,), 3)
    for wrong in ({"batch": [1]}, {"context": "all"}, {"pages": []}, {"pages": [0]}, {"times": -1}):
        calibration_plain["variants"][0]["timed"] = {**good, **wrong}
        with pytest.raises(InputError, match=f"timed.{next(iter(wrong))}"):
            parse_calibration(calibration_plain)
    calibration_plain["variants"][0]["timed"] = [1]
    with pytest.raises(InputError, match="timed: must be an object"):
        parse_calibration(calibration_plain)


@pytest.fixture
def calibration_plain() -> dict[str, Any]:
    """A shipped calibration as plain values, with its first variant alone."""
    data = load_calibration(gpu="h200").to_dict()
    data["variants"] = [{k: v for k, v in data["variants"][0].items() if k != "timed"}]
    return data


def test_an_engine_that_is_not_here_or_has_no_subject_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Asked for by name it is an error; of `all` the ones that run are taken, and one must."""
    monkeypatch.setenv("DECODECALC_PEERS", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"paged-attention-v1.*those are vllm-triton"):
        subject_of("paged-attention-v1")
    with pytest.raises(MissingDependencyError, match="sglang"):
        runnable_subjects(["sglang-triton"], H200)
    with pytest.raises(MissingDependencyError, match="vllm"):
        runnable_subjects(["sglang-triton", "vllm-triton"], H200, whatever_runs=True)


def test_kernels_are_replaced_by_kind_of_layer() -> None:
    """SGLang's one kernel for GQA and MLA: a new calibration of the one leaves the other in place."""
    base = load_calibration(gpu="h200")
    latent = next(f for f in subject_of("sglang-triton").families if f.mla)
    kept = [v for v in with_kernels(base, []).variants if v.kernel == "sglang-triton"]
    assert any(latent.holds(v) for v in kept)
    assert any(not latent.holds(v) for v in kept)


def test_random_steps_are_neither_tiny_nor_huge() -> None:
    """Keys and values of a layer stay within what can be timed cold."""
    import random

    rng = random.Random(3)
    geo, kv = dc.Geometry(32, 8, 128), dc.KvCache()
    for _ in range(50):
        batch = random_batch(rng, geo, kv)
        assert 2e5 < sum(batch.seq_lens) * kv.bytes_per_key(geo) < 3e9
