"""Server settings that a launch shows by itself, and settings that would explain a launch that differs.

Settings of the first kind are tried silently where the user said nothing about them (a graph replay was planned for a
graph). Settings of the second kind never make a launch agree: they say what must have been set for it to be right. Each
engine folder knows its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from decodecalc.batch import Batch
from decodecalc.trace.candidates import Candidate
from decodecalc.trace.inference import Inferred
from decodecalc.trace.pairing import LaunchGroup


@dataclass(frozen=True, slots=True)
class Setting:
    """Options to plan with, in addition to the user's."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's options."""
    meaning: str = ""
    """Their meaning, in words."""
    batch: Batch | None = None
    """A batch that replaces the candidate's."""


SettingRule = Callable[[LaunchGroup, Inferred, Candidate], Iterator[Setting]]
"""Settings of an engine to try for a launch, the likeliest first."""


def as_launched(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    """The rule of an engine whose launches show no setting: it tries the defaults."""
    yield Setting()


def padded(option: str, group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    """A graph with more requests than the step has, where the engine's `option` says how many it was captured for."""
    if group.graph and seen.batch is not None and seen.batch > candidate.batch.size:
        yield Setting({option: seen.batch}, f"a graph of {seen.batch} requests was replayed for {candidate.batch.size}")


def nothing_explains(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    """The rule of an engine that has no setting to explain another launch."""
    yield from ()


def another_batch(seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    """What can explain a launch of any engine whose grid shows the batch: that the batch is another one."""
    if seen.batch is not None and seen.batch != candidate.batch.size:
        context, q_len = candidate.batch.max_seq_len, candidate.batch.max_q_len
        yield Setting({}, f"the batch is {seen.batch}", Batch.uniform(seen.batch, context, q_len))
