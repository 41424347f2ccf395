"""Runs every claim of every case, with one row each. A failure in one case does not keep the next from running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import traffic
from decodecalc.verify.claims.claim import CLAIMS, ERROR, SKIP, Finding, error, skip
from decodecalc.verify.run.device import Device
from decodecalc.verify.run.execution import Execution, execution_of
from decodecalc.verify.session.suites import Case

if TYPE_CHECKING:
    from decodecalc.cost import Calibration
    from decodecalc.verify.run.counters import Counted
    from decodecalc.verify.run.inputs import Inputs
    from decodecalc.verify.run.trial import Trial

# The interpreter is given at most this many stage-1 blocks times tiles, which takes about a minute a launch.
INTERPRETER_LIMIT = 3000
INTERPRETER_CLAIMS = (1, 3, 4, 7, 12, 13)
# States that a step of the merge takes in the interpreter. The launcher's own steps hold all states of such small
# cases, so that a merge that stops after its first step would pass; with two, every case of more splits takes several.
INTERPRETER_MERGE_SPLITS = 2


@dataclass(frozen=True)
class Result:
    """One case's findings, one for each claim asked for."""

    case: Case
    findings: tuple[Finding, ...]
    rule: str = ""


@dataclass
class Runner:
    """Checks cases on one device. claims: the numbers to check, in order. counted: counters by case id.

    no_counters: why a case has none. `lost` is set when the device stops answering; the remaining cases are then not
    run.
    """

    device: Device
    claims: Sequence[int]
    calibration: Calibration | None = None
    seed: int = 0
    counted: dict[str, Counted] = field(default_factory=dict)
    no_counters: str = "needs --counters"
    lost: str = ""

    def run(self, cases: Sequence[Case], on_finding: Callable[[Case, Finding], None]) -> Iterator[Result]:
        """Results in order; a scenario's cases share their tensors."""
        for _, group in groupby(cases, key=lambda case: case.scenario.id):
            yield from self._scenario(list(group), on_finding)

    def _scenario(self, cases: list[Case], on_finding: Callable[[Case, Finding], None]) -> Iterator[Result]:
        inputs: Any = None
        extras: dict[str, Any] = {"counters": self.no_counters}
        for case in cases:
            findings: list[Finding] = []

            def say(finding: Finding, case: Case = case, findings: list[Finding] = findings) -> None:
                findings.append(finding)
                on_finding(case, finding)

            reason = self._unrunnable(case)
            run = None if reason else self._execution(case)
            reason = reason or (run.unsupported if run else "")
            if reason or run is None:
                for number in self.claims:
                    say(Finding(number, ERROR if self.lost or case.is_broken else SKIP, reason=reason))
                yield Result(case, tuple(findings))
                continue
            try:
                inputs = inputs or self._inputs(case)
            except Exception as failed:
                self._after(failed)
                for number in self.claims:
                    say(error(number, failed))
                yield Result(case, tuple(findings), run.rule)
                continue
            self._case(case, run, inputs, extras, say)
            yield Result(case, tuple(findings), run.rule)
        inputs = None
        self.device.free_memory()

    def _unrunnable(self, case: Case) -> str:
        if self.lost:
            return self.lost
        if case.plan is None:
            return case.refusal if case.is_broken else f"refused by the engine: {case.refusal}"
        if not self.device.is_cuda:
            plan = case.plan
            work = (
                sum(b * -(-k // 16) for b, k in zip(plan.blocks_per_split, plan.keys_read))
                + plan.stage1.launched_blocks
            )
            if work > INTERPRETER_LIMIT:
                return f"the case is too large for the interpreter ({work} tiles, of at most {INTERPRETER_LIMIT})"
        return ""

    def _execution(self, case: Case) -> Execution:
        assert case.plan is not None
        run = execution_of(case.plan, self.calibration)
        if run.config is None or self.device.is_cuda:
            return run
        return replace(run, config=run.config.replace(merge_splits=INTERPRETER_MERGE_SPLITS))

    def _inputs(self, case: Case) -> tuple[Inputs, bool]:
        """The scenario's tensors and whether their layers overflow the L2."""
        from decodecalc.verify.run.inputs import layer_bytes, make_inputs
        from decodecalc.verify.run.timing import layers_needed

        assert case.plan is not None
        plan = case.plan
        layers, cold = 1, False
        if self.device.is_cuda:
            size = layer_bytes(plan.geometry, plan.kv, plan.batch)
            read = traffic(plan).kv_read_bytes
            layers, cold = layers_needed(read, size, self.device.l2_bytes, self.device.free_bytes())
        made = make_inputs(plan.geometry, plan.batch, plan.kv, self.device.torch_name, layers, self.seed)
        return made, cold

    def _case(
        self,
        case: Case,
        run: Execution,
        inputs: tuple[Inputs, bool],
        extras: dict[str, Any],
        say: Callable[[Finding], None],
    ) -> None:
        from decodecalc.verify.run.trial import Trial

        assert case.plan is not None
        counted = self.counted.get(case.id)
        trial = Trial(case, case.plan, run, inputs[0], self.device, inputs[1], self.calibration, counted, extras)
        wrong = False
        for number in self.claims:
            if self.lost:
                say(Finding(number, ERROR, reason=self.lost))
            elif wrong and number > 8:
                say(skip(number, "the output is wrong, so nothing that is measured on it has a meaning"))
            else:
                finding = self._claim(number, trial)
                wrong = wrong or (number == 1 and finding.verdict in ("fail", ERROR))
                say(finding)

    def _claim(self, number: int, trial: Trial) -> Finding:
        from decodecalc.verify.claims import bits, exact, hardware, time

        checks: dict[int, Callable[[Trial], Finding]] = {
            1: exact.correct, 2: exact.grid, 3: exact.live, 4: exact.keys,
            5: hardware.coverage, 6: hardware.residency, 7: exact.partials,
            8: hardware.kv_bytes, 9: hardware.intensity, 10: time.time,
            11: time.best_split, 12: bits.replay, 13: bits.reproducibility,
        }  # fmt: skip
        if not self.device.is_cuda and number not in INTERPRETER_CLAIMS:
            return skip(number, f"{CLAIMS[number - 1].text}: needs a CUDA device")
        try:
            return checks[number](trial)
        except Exception as failed:
            self._after(failed)
            return error(number, failed)

    def _after(self, failed: Exception) -> None:
        """Whether the device survived. After an out-of-memory error it is healthy once its blocks are given back."""
        self.device.free_memory()
        if not self.device.alive():
            lines = str(failed).strip().splitlines()
            self.lost = f"the device stopped answering after {type(failed).__name__}: {lines[0][:200] if lines else ''}"
