"""Times a decode step under installed engines' own kernels: a timer takes a step and its launches and gives seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from decodecalc.calibrate.own.timing import OwnCall, ProbeStep
from decodecalc.engines.registry import load_policy
from decodecalc.errors import DecodecalcError
from decodecalc.verify.own.loop import FINITE_TAIL
from decodecalc.verify.own.peers import peer_folder, use_folder
from decodecalc.verify.own.runner import Here, runners_here
from decodecalc.verify.own.trial import OwnTrial

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.verify.run.device import Device
    from decodecalc.verify.run.inputs import Inputs

Results = list[tuple[OwnCall, float | str]]
"""Seconds of a layer for each launch, or the sentence that says why it did not run."""
StepTimer = Callable[[ProbeStep, Sequence[OwnCall]], Results]
REFUSALS = (DecodecalcError, NotImplementedError, RuntimeError, ValueError, AssertionError, TypeError)
MOST_PROCESSES = 12  # that compile: each holds a context on the GPU


class DeviceLostError(DecodecalcError):
    """The device stopped answering; what was finished is kept."""


class DeviceTimer:
    """A timer on a GPU: the layers of a step together overflow the L2, and every launch of a step reads the same."""

    def __init__(self, device: Device, gpu: Gpu, here: Mapping[str, Here], budget_s: float, seed: int = 0) -> None:
        self.device, self.gpu, self.here, self.budget_s, self.seed = device, gpu, here, budget_s, seed

    def __call__(self, step: ProbeStep, calls: Sequence[OwnCall]) -> Results:
        """The step's launches, timed one after the other. DeviceLostError where the device does not survive one."""
        return [
            (call, found if isinstance(found, str) else self._time(found)) for call, found in self._trials(step, calls)
        ]

    def compile(self, step: ProbeStep, calls: Sequence[OwnCall]) -> None:
        """Run one layer of each launch, so that what the engines compile lies in their caches."""
        for _, found in self._trials(step, calls, layers=1):
            if not isinstance(found, str):
                try:
                    found.launch()
                    self.device.synchronize()
                except REFUSALS:
                    continue  # it fails again where it is timed

    def _time(self, trial: OwnTrial) -> float | str:
        try:
            seconds = trial.time.median_s
            return "the output was not written" if bool(trial.out.isnan().any()) else seconds
        except REFUSALS as why:
            if not self.device.alive():
                raise DeviceLostError(f"the device stopped answering at {trial.case_id}: {why}") from why
            return in_short(why)

    def _trials(
        self, step: ProbeStep, calls: Sequence[OwnCall], layers: int | None = None
    ) -> Iterator[tuple[OwnCall, OwnTrial | str]]:
        """A trial for every launch over the same inputs, or why there is none; memory is given back behind them."""
        try:
            inputs, cold = self._inputs(step, layers)
        except RuntimeError as full:
            self.device.free_memory()
            yield from ((call, f"no memory for the caches: {str(full)[:80]}") for call in calls)
            return
        for call in calls:
            here = self.here[call.engine]
            assert here.found is not None
            named = replace(call, version=call.version or here.found.policy_version)
            try:
                plan = load_policy(call.engine).plan(
                    step.geometry, step.batch, step.kv, self.gpu, dict(call.options), named.version
                )
            except DecodecalcError as refused:
                yield named, in_short(refused)
                continue
            yield (
                named,
                OwnTrial(
                    case_id=f"{step.label}, {call.label}", plan=plan, runner=here.runner, found=here.found,
                    inputs=inputs, device=self.device, cold=cold, budget_s=self.budget_s,
                ),
            )  # fmt: skip
        del inputs
        self.device.free_memory()

    def _inputs(self, step: ProbeStep, layers: int | None) -> tuple[Inputs, bool]:
        """Random tensors, and whether their layers overflow the L2."""
        from decodecalc.verify.run.inputs import layer_bytes, make_inputs
        from decodecalc.verify.run.timing import layers_needed

        size = layer_bytes(step.geometry, step.kv, step.batch)
        needed, cold = layers_needed(size, size, self.device.l2_bytes, self.device.free_bytes())
        inputs = make_inputs(
            step.geometry, step.batch, step.kv, self.device.torch_name, layers or needed, self.seed,
            tail=FINITE_TAIL, no_page=0,
        )  # fmt: skip
        return inputs, cold


def in_short(why: BaseException) -> str:
    """An error in one line."""
    lines = str(why).strip().splitlines()
    return f"{type(why).__name__}: {lines[0] if lines else ''}"


Task = tuple[ProbeStep, Sequence[OwnCall]]
Tick = Callable[[int, int], None]


def compile_all(tasks: Sequence[Task], index: int = 0, tick: Tick | None = None) -> None:
    """Run every launch once, in several processes: compiling one kernel after the other would take minutes.

    index: of the GPU. tick(done, total) after every task. With one core nothing is done, because the timer compiles
    what it needs.
    """
    with compiling(tasks, index, tick=tick) as wait:
        wait()


@contextmanager
def compiling(
    tasks: Sequence[Task],
    index: int = 0,
    processes: int = MOST_PROCESSES,
    jobs: int | None = None,
    tick: Tick | None = None,
) -> Iterator[Callable[[], None]]:
    """`compile_all` beside other work; what is yielded waits for its end, and leaving ends it.

    jobs: compilers that each process runs at once, of engines that build with ninja; as many as it likes when None.
    """
    import multiprocessing

    folder = peer_folder()
    if folder is not None:
        use_folder(folder)  # unpacked once, before several processes look for it
    count = min(max((os.cpu_count() or 2) - 1, 1), processes, len(tasks))
    if count < 2:
        yield lambda: None
        return
    with multiprocessing.get_context("spawn").Pool(count, _limit_jobs, (jobs,)) as pool:
        found = [pool.apply_async(_compile, (step, tuple(calls), index)) for step, calls in tasks]

        def wait() -> None:
            for done, one in enumerate(found, 1):
                one.wait()  # what failed fails again where it is timed
                if tick:
                    tick(done, len(found))

        yield wait


def _limit_jobs(jobs: int | None) -> None:
    if jobs is not None:
        os.environ["MAX_JOBS"] = str(jobs)  # builders of extensions read it and call ninja -j


def _compile(step: ProbeStep, calls: Sequence[OwnCall], index: int) -> None:
    from decodecalc.gpus import detect_gpu
    from decodecalc.verify.run.device import open_device

    DeviceTimer(open_device("cuda", index), detect_gpu(index), runners_here(), 0.0).compile(step, calls)
