"""Warnings for what is known to cost time or to mislead: each rule looks at one judged group and says what it saw.

Most rules are an engine's own and lie in its folder; here are those that hold for every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from decodecalc.trace.judged import JudgedLaunch, LaunchWarning
from decodecalc.trace.steps import StepNote

WarningRule = Callable[[JudgedLaunch, "tuple[StepNote, ...]"], Iterator[LaunchWarning]]
"""What an engine warns of about one of its launches, given the step annotations of the traces."""


def with_warnings(launch: JudgedLaunch, notes: tuple[StepNote, ...], rules: Iterable[WarningRule]) -> JudgedLaunch:
    """The launch with everything that the engine's rules and the general ones warn of."""
    found = [warning for rule in (*rules, _frozen) for warning in rule(launch, notes)]
    return replace(launch, warnings=tuple(found))


def unsplit_although_planned(launch: JudgedLaunch) -> bool:
    """Whether the unsplit path ran although the engine's rule would split this batch."""
    plan = launch.plan
    return plan is not None and launch.observed_split is False and plan.is_split and launch.is_mismatch


def fixed_to_one(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """The unsplit path ran although the rule would split: for engines with a mode or an argument that forbids it."""
    if unsplit_although_planned(launch):
        text = "no split although the rule would split: batch-invariant or deterministic mode, or num_splits set to 1"
        yield LaunchWarning(code="unsplit_in_spite", text=text)


def _frozen(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """A replayed graph keeps the grid of capture time, whatever the lengths are."""
    if not launch.group.graph or launch.engine is None:
        return
    if launch.group.stage1.grid is None:
        text = "replayed from a graph without launch arguments: timed, but no grid to verify"
        yield LaunchWarning(code="graph_replay", text=text)
    else:
        yield LaunchWarning(
            code="frozen_grid",
            text="replayed from a graph: the grid and the splits launched are those of capture time, whatever the "
            "lengths are now",
        )
