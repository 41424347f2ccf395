"""`calibrate --engine`: time the installed engines' own kernels, fit their parameters, and add them to a calibration.

Whole launches are timed, not single tiles and starts, because an engine's kernel cannot be asked for one tile. The
steps range over the blocks at work, the settings down to one block, widths, element types, query rows and pages, and
over requests of equal and of different lengths; the merge shows over rows and split counts. Every timed step is kept in
a journal next to the output, so that an interrupted run continues where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodecalc.calibrate.measure import MeasurementJournal
from decodecalc.calibrate.own.assemble import FittedFamily, fit_all, with_kernels
from decodecalc.calibrate.own.family import TimedEngine, subject_of
from decodecalc.calibrate.own.steps import steps_of
from decodecalc.calibrate.own.timer import StepTimer
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep, timed_entry, timings_of
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.load import SHIPPED, fits, load_calibration, shipped_calibration
from decodecalc.cost.parameters import MEASURED
from decodecalc.errors import InputError, MissingDependencyError
from decodecalc.verify.own.runner import Here, runners_here

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

# Calibrating an engine may take five minutes: measuring stops early enough to leave time for the fit.
MOST_SECONDS, USUAL_SECONDS = 300.0, 200.0
MOST_STEPS = 400
MANY_REQUESTS = 16  # some engines launch another kernel for more
COMPILED_TURNS = 3  # rounds over an engine's layers whose kernels are compiled before anything is timed
NOTE = "fitted to times of whole launches: decodecalc calibrate --engine"
Tick = Callable[[str, int, int], None]


def base_for(target: Path, gpu: Gpu) -> Calibration | None:
    """The calibration that engines' kernels are added to: the file where it exists, or else what is shipped as measured
    on this GPU; None where there is neither. InputError for a file of another GPU."""
    if target.exists():
        return load_calibration(target, gpu)
    measured = (shipped_calibration(one.file) for one in SHIPPED if one.provenance == MEASURED)
    return next((c for c in measured if fits(c, gpu)), None)


def runnable_subjects(
    engines: Sequence[str], gpu: Gpu, whatever_runs: bool = False
) -> tuple[list[TimedEngine], dict[str, Here], dict[str, str]]:
    """The engines that can be timed on this machine, their runners, and why others cannot. MissingDependencyError where
    one cannot that was asked for by name, or none can (whatever_runs)."""
    here, subjects = runners_here(), []
    missing: dict[str, str] = {}
    for engine in engines:
        one = here.get(engine)
        if one is None:
            missing[engine] = f"no runner calls the own kernel of {engine}"
        elif one.found is None:
            missing[engine] = one.reason
        elif one.found.policy_version is None:
            missing[engine] = f"no version of our policy belongs to {one.found.package} {one.found.version}"
        else:
            subjects.append(subject_of(engine))
    if missing and (not whatever_runs or not subjects):
        raise MissingDependencyError("; ".join(f"{engine}: {reason}" for engine, reason in missing.items()))
    return subjects, here, missing


@dataclass
class OwnCalibration:
    """One run over several engines.

    timer: times a step; clock: seconds, for the limit. identity: the GPU, as a calibration names it.
    """

    subjects: Sequence[TimedEngine]
    timer: StepTimer
    gpu: Gpu
    identity: Mapping[str, Any]
    journal_path: Path
    seconds: float = USUAL_SECONDS
    steps: int = MOST_STEPS
    clock: Callable[[], float] = time.monotonic
    seed: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, tick: Tick | None = None) -> list[dict[str, Any]]:
        """Every engine's steps, until its time or its number of steps is over. tick(step, done, total)."""
        for subject in self.subjects:
            identity = {**self.identity, "engine": subject.engine, "seed": self.seed}
            journal = MeasurementJournal(self._journal_of(subject), identity)
            spent = journal.parts.get("seconds", 0.0)
            begun = self.clock()
            draw = steps_of(subject, self.seed)
            for number in count():
                step, calls = next(draw)
                name = f"step {number}"
                over = number >= self.steps or spent + self.clock() - begun > self.seconds
                if name not in journal.parts:
                    if over:
                        break
                    if tick:
                        tick(f"{subject.engine}: {step.label}", number, self.steps)
                    journal.parts["seconds"] = spent + self.clock() - begun

                def timed(step: Any = step, calls: Any = calls) -> dict[str, Any]:
                    return timed_entry(step, self.timer(step, calls))

                self.entries.append(journal.run(name, timed))
        return self.entries

    def to_compile(self) -> list[tuple[ProbeStep, Sequence[OwnCall]]]:
        """A step of every layer and cache of every engine, with its launches."""
        found: dict[Any, tuple[ProbeStep, Sequence[OwnCall]]] = {}
        for subject in self.subjects:
            turns = COMPILED_TURNS * len(subject.layers)
            for step, calls in islice(steps_of(subject, self.seed), turns):
                key = (subject.engine, step.geometry, step.kv, step.batch.size > MANY_REQUESTS)
                found.setdefault(key, (step, calls))
        return list(found.values())

    def fitted(self, base: Calibration, tick: Tick | None = None) -> list[FittedFamily]:
        """The families of which enough was timed. InputError where no engine has one."""
        timings = list(timings_of(self.entries, self.gpu))
        families = [family for subject in self.subjects for family in subject.families]
        found: list[FittedFamily] = []
        for i, family in enumerate(families):
            if tick:
                tick(f"fitting {family.name}", i, len(families))
            found += fit_all([family], timings, base, self.gpu, NOTE)
        if not found:
            raise InputError(
                f"too few steps were timed to fit anything ({len(timings)} launches): give the engines more --seconds"
            )
        return found

    def finished(self, base: Calibration, fitted: Sequence[FittedFamily]) -> Calibration:
        """`base` with the fitted kernels."""
        return with_kernels(base, fitted)

    def forget(self) -> None:
        """Remove the journals, because the calibration now holds everything."""
        for subject in self.subjects:
            self._journal_of(subject).unlink(missing_ok=True)

    def _journal_of(self, subject: TimedEngine) -> Path:
        return self.journal_path.with_name(f"{self.journal_path.name}.{subject.engine}")
