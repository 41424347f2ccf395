"""Warnings for what is known to cost time or to mislead. Each rule looks at one judged group and says what it saw.

Most rules belong to one engine and lie in its folder. The rules here hold for every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from decodecalc.trace.judged import JudgedLaunch, LaunchWarning
from decodecalc.trace.steps import StepNote

WarningRule = Callable[[JudgedLaunch, "tuple[StepNote, ...]"], Iterator[LaunchWarning]]
"""The warnings of an engine about one of its launches, given the step annotations of the traces."""


def with_warnings(launch: JudgedLaunch, notes: tuple[StepNote, ...], rules: Iterable[WarningRule]) -> JudgedLaunch:
    """The launch with all warnings of the engine's rules and of the general ones."""
    found = [warning for rule in (*rules, _frozen) for warning in rule(launch, notes)]
    return replace(launch, warnings=tuple(found))


def unsplit_although_planned(launch: JudgedLaunch) -> bool:
    """Whether the unsplit path ran although the engine's rule would split this batch."""
    plan = launch.plan
    return plan is not None and launch.observed_split is False and plan.is_split and launch.is_mismatch


def fixed_to_one(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns where the unsplit path ran although the rule would split, for engines with a mode or an argument that
    forbids splits."""
    if unsplit_although_planned(launch):
        text = (
            "nothing was split although the rule would split: a batch-invariant or deterministic mode is on, or "
            "num_splits is 1"
        )
        yield LaunchWarning(code="unsplit_in_spite", text=text)


def _frozen(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns of a replayed graph, which keeps the grid of capture time for all lengths."""
    if not launch.group.graph or launch.engine is None:
        return
    if launch.group.stage1.grid is None:
        text = "it was replayed from a graph without launch arguments, so it has a time and no grid to verify"
        yield LaunchWarning(code="graph_replay", text=text)
    else:
        yield LaunchWarning(
            code="frozen_grid",
            text="it was replayed from a graph, so the grid and the launched splits are those of capture time and do "
            "not follow the current lengths",
        )
