"""The loop over cases for engines' own kernels: the same rows, journal and report as the bundled kernel's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from decodecalc.engines.registry import split_version
from decodecalc.verify.claims.claim import CLAIMS, ERROR, SKIP, Finding, claims_among, error, skip
from decodecalc.verify.own.claims import CHECKS, OWN_CLAIMS
from decodecalc.verify.own.runner import CannotRunError, Here, runners_here
from decodecalc.verify.own.traces import write_trace
from decodecalc.verify.own.trial import OwnTrial
from decodecalc.verify.run.device import Device
from decodecalc.verify.run.runner import Result
from decodecalc.verify.session.suites import Case, Scenario

if TYPE_CHECKING:
    from decodecalc.cost import Calibration

FINITE_TAIL = 96.0  # in slots that no request owns: engines mask such keys, but may multiply their values by zero


def own_claims(text: str | None) -> tuple[int, ...]:
    """The claims that can be held against an engine's own kernel, or those of them that are asked for."""
    reason = "can be checked of engines' own kernels; claim {} needs the bundled kernel"
    return claims_among(text, OWN_CLAIMS, reason)


def at_installed_versions(scenarios: Sequence[Scenario], here: dict[str, Here] | None = None) -> list[Scenario]:
    """The scenarios with every engine at the version that is installed, where none was asked for."""
    known = runners_here() if here is None else here

    def named(spec: str) -> str:
        name, version = split_version(spec)
        found = known[name].found if name in known else None
        return spec if version or found is None or found.policy_version is None else f"{name}@{found.policy_version}"

    return [replace(scenario, engines=tuple(named(spec) for spec in scenario.engines)) for scenario in scenarios]


@dataclass
class OwnRunner:
    """Checks cases on one device with the engines' own kernels. here: the runners of this machine. trace_folder: where
    the profiler's record of each case's kernels is written; None keeps none."""

    device: Device
    claims: Sequence[int]
    calibration: Calibration | None = None
    seed: int = 0
    here: dict[str, Here] = field(default_factory=runners_here)
    trace_folder: str | None = None
    lost: str = ""

    def run(self, cases: Sequence[Case], on_finding: Callable[[Case, Finding], None]) -> Iterator[Result]:
        """Results in order."""
        for case in cases:
            findings: list[Finding] = []
            for finding in self._case(case):
                findings.append(finding)
                on_finding(case, finding)
            yield Result(case, tuple(findings), self._how(case))
            self.device.free_memory()

    def _keep(self, case: Case, trial: OwnTrial) -> None:
        """The case's kernels as a trace, where one is asked for and was made."""
        if self.trace_folder is not None and trial.trace is not None:
            write_trace(Path(self.trace_folder), case, trial)

    def _how(self, case: Case) -> str:
        here = self.here.get(case.policy.name)
        if here is None or here.found is None:
            return "the engine's own kernel is not here"
        found = here.found
        return f"own kernel: {here.runner.calls}, {found.package} {found.version} ({found.where})"

    def _unrunnable(self, case: Case) -> str:
        here = self.here.get(case.policy.name)
        if self.lost:
            return self.lost
        if here is None:
            return f"no runner calls the own kernel of {case.policy.name}"
        if here.found is None:
            return here.reason
        if here.found.policy_version is None:
            return f"no version of our policy belongs to {here.found.package} {here.found.version}"
        if case.plan is None:
            return f"refused by the engine: {case.refusal}"
        return ""

    def _case(self, case: Case) -> Iterator[Finding]:
        reason = self._unrunnable(case)
        if reason:
            yield from (Finding(number, ERROR if self.lost else SKIP, reason=reason) for number in self.claims)
            return
        trial = None
        wrong = ""
        for number in self.claims:
            if number not in CHECKS:
                yield skip(number, f"{CLAIMS[number - 1].text}: only the bundled kernel records it")
                continue
            if self.lost or wrong:
                yield Finding(number, ERROR, reason=self.lost) if self.lost else skip(number, wrong)
                continue
            try:
                trial = trial or self._trial(case)
                finding: Finding = CHECKS[number](trial)
            except CannotRunError as why:
                wrong = str(why)
                yield skip(number, wrong)
            except Exception as failed:
                self._after(failed)
                yield error(number, failed)
            else:
                yield finding
        if trial is not None:
            self._keep(case, trial)

    def _trial(self, case: Case) -> OwnTrial:
        from decodecalc.analysis.traffic import traffic
        from decodecalc.verify.run.inputs import layer_bytes, make_inputs
        from decodecalc.verify.run.timing import layers_needed

        plan, here = case.plan, self.here[case.policy.name]
        assert plan is not None
        assert here.found is not None
        layers, cold = 1, False
        if self.device.is_cuda:
            size = layer_bytes(plan.geometry, plan.kv, plan.batch)
            read = traffic(plan).kv_read_bytes
            layers, cold = layers_needed(read, size, self.device.l2_bytes, self.device.free_bytes())
        inputs = make_inputs(
            plan.geometry, plan.batch, plan.kv, self.device.torch_name, layers, self.seed,
            tail=FINITE_TAIL, no_page=0,
        )  # fmt: skip
        return OwnTrial(
            case_id=case.id, plan=plan, runner=here.runner, found=here.found, inputs=inputs, device=self.device,
            cold=cold, calibration=self.calibration,
        )  # fmt: skip

    def _after(self, failed: Exception) -> None:
        """Whether the device survived."""
        self.device.free_memory()
        if not self.device.alive():
            lines = str(failed).strip().splitlines()
            self.lost = f"the device stopped answering after {type(failed).__name__}: {lines[0][:200] if lines else ''}"
