"""One process's part of a verification run: the loop over cases with its journal, then the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from decodecalc.errors import InputError

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.verify.claims.claim import Finding
    from decodecalc.verify.dcp.loop import DcpRunner
    from decodecalc.verify.own.loop import OwnRunner
    from decodecalc.verify.report.files import Journal, Report
    from decodecalc.verify.run.device import Device
    from decodecalc.verify.run.runner import Runner
    from decodecalc.verify.session.ranks import Ranks
    from decodecalc.verify.session.suites import Case


class Display(Protocol):
    """Shows a run while it goes on."""

    def finding(self, case: Case, finding: Finding) -> None:
        """One check was made."""

    def case(self) -> None:
        """One case is finished."""

    def compiling(self, done: int, total: int) -> None:
        """Kernels compiled so far."""

    def say(self, text: str) -> None:
        """What is going on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a run is made."""

    base: str | None
    """Path before the suffixes of the report's files; None writes none and keeps no journal."""
    resume: bool
    """Whether to go on with an interrupted run of the same base."""
    seed: int
    """Seed of the random tensors."""
    counters: bool
    """Whether to read DRAM and L2 counters too."""
    calibration: str | None
    """Path of a calibration file; None takes the shipped or extrapolated one."""
    kernel: str = "bundled"
    """Whose kernels run: the bundled one under each engine's rule, or the engines' `own`."""
    together: bool = False
    """Whether the ranks work on every case together, each with a share of its keys, instead of dividing the cases."""
    traces: str | None = None
    """Folder for the profiler's record of each case's kernels; None keeps none. Own kernels only."""


class Session:
    """One process's part of a run: the loop with its display and journal, then the report."""

    def __init__(
        self,
        device: Device,
        gpu: Gpu,
        ranks: Ranks,
        claims: Sequence[int],
        inputs: dict[str, Any],
        everyone: Sequence[Case],
        how: How,
    ) -> None:
        from decodecalc._version import __version__
        from decodecalc.cost import load_calibration
        from decodecalc.cost.variants import BUNDLED
        from decodecalc.verify.run.device import provenance

        self._device, self._ranks, self._claims, self._how = device, ranks, claims, how
        self._calibration = load_calibration(how.calibration, gpu)
        self._journal = self._open_journal(everyone)
        self._before = device.state()
        self._inputs = {
            **inputs,
            **provenance(device),
            "decodecalc": __version__,
            "gpu": gpu.name,
            "sm_count": gpu.sm_count,
            "ranks": ranks.world,
            "calibration": self._calibration.label_of(BUNDLED),
            "counters": how.counters,
            "kernel": how.kernel,
            "state_before": self._before.to_dict(),
        }

    def _open_journal(self, everyone: Sequence[Case]) -> Journal | None:
        from decodecalc.verify.report.files import Journal

        base = self._how.base
        if base is None:
            return None
        what = [
            [c.id for c in everyone],
            list(self._claims),
            self._how.seed,
            self._device.name,
            self._ranks.world,
            *([] if self._how.kernel == "bundled" else [self._how.kernel]),
        ]
        key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
        rank = f".rank{self._ranks.rank}" if self._ranks.world > 1 else ""
        return Journal(f"{base}{rank}.partial.jsonl", key)

    def rows(
        self, planned: Sequence[Case], display: Callable[[int, int], AbstractContextManager[Display]]
    ) -> tuple[list[dict[str, Any]], bool]:
        """Rows of every case, and whether Ctrl-C ended it early. `display(total, done)` shows what goes on."""
        from decodecalc.verify.report.summary import rows_of

        done: list[list[dict[str, Any]]] = []
        if self._journal is not None:
            done = self._journal.read() if self._how.resume else []
            self._journal.start(done)
        finished = {rows[0]["case"] for rows in done if rows}
        out = [row for rows in done for row in rows]
        todo = [case for case in planned if case.id not in finished]
        try:
            with display(len(planned), len(finished)) as shown:
                runner = self._runner(todo, shown)
                for result in runner.run(todo, shown.finding):
                    rows = rows_of(result)
                    out += rows
                    if self._journal is not None:
                        self._journal.add(rows)
                    shown.case()
        except KeyboardInterrupt:
            return out, True
        return out, False

    def _runner(self, todo: Sequence[Case], display: Display) -> Runner | OwnRunner | DcpRunner:
        """What runs the cases, made ready."""
        if self._how.together:
            return self._ranks_runner()
        from decodecalc.verify.own.loop import OwnRunner
        from decodecalc.verify.run.runner import Runner

        if self._how.kernel == "own":
            return OwnRunner(
                self._device, self._claims, self._calibration, self._how.seed, trace_folder=self._how.traces
            )
        runner = Runner(self._device, self._claims, self._calibration, self._how.seed)
        self._prepare(runner, todo, display)
        return runner

    def _ranks_runner(self) -> DcpRunner:
        from decodecalc.verify.dcp.group import ProcessRanks, RankGroup, SimulatedGroup
        from decodecalc.verify.dcp.loop import DcpRunner

        def group(ranks: int) -> RankGroup:
            if self._ranks.world == 1:
                return SimulatedGroup(ranks)
            if ranks != self._ranks.world:
                raise InputError(f"the case needs {ranks} ranks, and torchrun started {self._ranks.world}")
            return ProcessRanks(self._ranks, self._device)

        return DcpRunner(self._device, self._claims, group, self._calibration, self._how.seed)

    def _prepare(self, runner: Runner, todo: Sequence[Case], display: Display) -> None:
        """Reads counters and compiles kernels, before the loop."""
        from decodecalc.verify.run.execution import execution_of
        from decodecalc.verify.run.warm import jobs_of, warm_up

        if not self._device.is_cuda:
            runner.no_counters = "counters need a CUDA device"
            return
        runs = {case.id: execution_of(case.plan, self._calibration) for case in todo if case.plan is not None}
        warm_up(jobs_of(todo, runs), self._ranks.local, display.compiling)
        if self._how.counters and 8 in self._claims:
            from decodecalc.verify.run.counters import count

            display.say("counting bytes with ncu")
            jobs = [
                (case.id, case.plan, runs[case.id])
                for case in todo
                if case.plan is not None and not runs[case.id].unsupported
            ]
            runner.counted, reason = count(jobs, self._ranks.local)
            runner.no_counters = reason or "ncu counted nothing for this case"

    def report(self, rows: Sequence[dict[str, Any]], interrupted: bool, before: Report | None) -> Report:
        """The rows as a report, compared with an earlier one where there is one."""
        from decodecalc.verify.report.files import make_report
        from decodecalc.verify.report.summary import compare

        inputs = {**self._inputs, "interrupted": interrupted, "state_after": self._device.state().to_dict()}
        made = make_report(inputs, rows, interrupted)
        return (
            made
            if before is None
            else replace(made, comparison=compare(made.rows, before.rows, not inputs.get("shard")))
        )

    def forget_journal(self) -> None:
        """Removes the journal (on rank 0), because the report now contains the rows."""
        if self._journal is not None:
            self._journal.remove()

    @property
    def journal_path(self) -> str | None:
        """Where finished cases are kept while the run goes on; None where they are not."""
        return self._journal.path if self._journal else None
