"""The timer that calibrates engines' kernels on a device, with the CPU as the device and a made-up engine."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from own_engine import CpuAsGpu

import decodecalc as dc
from decodecalc.calibrate.own import timer as timers
from decodecalc.calibrate.own.timer import DeviceLostError, DeviceTimer, compile_all
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep
from decodecalc.verify.own import trial as trials
from decodecalc.verify.own.runner import CannotRunError, FoundEngine, Here, KernelRunner, OwnStep, Prepared
from decodecalc.verify.run.timing import Timed

pytest.importorskip("torch")
STEP = ProbeStep(geometry=dc.Geometry(4, 1, 32), batch=dc.Batch([130, 40]), kv=dc.KvCache("bf16", 16))
SGLANG = "sglang-triton"


def here(prepare: Callable[[OwnStep], Prepared]) -> dict[str, Here]:
    """A machine with a made-up SGLang."""
    found = FoundEngine(package="sglang", version="0.5.10.post1", policy_version="0.5.10")
    runner = KernelRunner(engine=SGLANG, calls="x", find=lambda: found, prepare=prepare)
    return {SGLANG: Here(runner=runner, found=found)}


@pytest.fixture
def timer_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeviceTimer]:
    """timer_of(prepare): a timer whose clock gives one second for each key of a split setting."""

    def timed(call: Any, layers: int, cold: bool, budget_s: float) -> Timed:
        assert budget_s == 0.01
        return Timed(call.seconds, 0.01, 9, layers, layers, cold)

    monkeypatch.setattr(trials, "time_layers", timed)
    monkeypatch.setattr(CpuAsGpu, "free_memory", lambda self: None)

    def make(prepare: Callable[[OwnStep], Prepared], **more: Any) -> DeviceTimer:
        device = CpuAsGpu("cuda", "cpu", "CPU as GPU", l2_bytes=1 << 16)
        return DeviceTimer(device, dc.load_gpu("h200"), here(prepare), 0.01)

    return make


def prepared(step: OwnStep) -> Prepared:
    """Writes the output; takes as many seconds as its cap."""

    def layer(index: int) -> None:
        step.out.zero_()

    layer.seconds = float(step.options.max_kv_splits_arg or 1)  # type: ignore[attr-defined]
    return Prepared(layer=layer)


def test_every_launch_of_a_step_is_timed_under_its_settings(timer_of: Callable[..., DeviceTimer]) -> None:
    """Launches keep their order, and are of the version that is installed."""
    calls = [
        OwnCall(engine=SGLANG, default=True),
        *(OwnCall(engine=SGLANG, options={"max_kv_splits_arg": n}) for n in (16, 32)),
    ]
    found = timer_of(prepared)(STEP, calls)
    assert [seconds for _, seconds in found] == [1.0, 16.0, 32.0]
    assert [call.version for call, _ in found] == ["0.5.10"] * 3
    assert [dict(call.options) for call, _ in found] == [{}, {"max_kv_splits_arg": 16}, {"max_kv_splits_arg": 32}]


def test_a_launch_that_fails_says_why_and_the_others_go_on(timer_of: Callable[..., DeviceTimer]) -> None:
    """A runner's refusal, a policy's refusal and an output that nobody wrote are no times."""

    def sometimes(step: OwnStep) -> Prepared:
        if step.options.max_kv_splits_arg == 16:
            raise CannotRunError("no such kernel")
        if step.options.max_kv_splits_arg == 32:
            layer = lambda index: None  # noqa: E731
            layer.seconds = 1.0  # type: ignore[attr-defined]
            return Prepared(layer=layer)
        return prepared(step)

    calls = [OwnCall(engine=SGLANG, options={"max_kv_splits_arg": n}) for n in (16, 32, 64)]
    calls.append(OwnCall(engine=SGLANG, options={"draft_topk": -1}))
    found = [seconds for _, seconds in timer_of(sometimes)(STEP, calls)]
    assert found[0] == "CannotRunError: no such kernel"
    assert found[1] == "the output was not written"
    assert found[2] == 64.0
    assert isinstance(found[3], str)


def test_a_device_that_is_lost_ends_the_run(
    timer_of: Callable[..., DeviceTimer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal address nothing that follows would be a time."""

    def broken(step: OwnStep) -> Prepared:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(CpuAsGpu, "alive", lambda self: False)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        timer_of(broken)(STEP, [OwnCall(engine=SGLANG)])


def test_compiling_runs_every_launch_once_on_one_layer(timer_of: Callable[..., DeviceTimer]) -> None:
    """Failures are left for the timing to tell."""
    ran = []

    def counting(step: OwnStep) -> Prepared:
        if step.options.max_kv_splits_arg == 16:
            raise CannotRunError("no such kernel")
        ran.append((step.inputs.layers, step.options.max_kv_splits_arg))
        return prepared(step)

    calls = [OwnCall(engine=SGLANG, options={"max_kv_splits_arg": n}) for n in (16, 32)]
    timer_of(counting).compile(STEP, calls)
    assert ran == [(1, 32)]


def test_one_core_compiles_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer compiles what it needs; no process is started."""
    monkeypatch.setattr(timers.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(timers, "peer_folder", lambda: None)
    compile_all([(STEP, [OwnCall(engine=SGLANG)])] * 3)


def test_compiling_says_how_far_it_is_and_a_failure_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task is waited for and counted, those that failed too."""

    class Done:
        def wait(self) -> None:
            """Neither returns nor raises what the task did."""

    class Pool:
        started: ClassVar[list[tuple[int, int | None]]] = []
        tasks: ClassVar[list[ProbeStep]] = []

        def __init__(self, processes: int, begin: Any, given: tuple[int | None]) -> None:
            self.started.append((processes, *given))

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *why: object) -> None:
            """The processes end."""

        def apply_async(self, task: Any, given: tuple[ProbeStep, Any, int]) -> Done:
            self.tasks.append(given[0])
            return Done()

    monkeypatch.setattr(timers.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(timers, "peer_folder", lambda: None)
    monkeypatch.setattr("multiprocessing.get_context", lambda how: SimpleNamespace(Pool=Pool))
    seen: list[tuple[int, int]] = []
    with timers.compiling([(STEP, ())] * 9, processes=6, jobs=1, tick=lambda *at: seen.append(at)) as wait:
        assert (Pool.started, len(Pool.tasks), seen) == ([(6, 1)], 9, [])
        wait()
    assert seen == [(done, 9) for done in range(1, 10)]
