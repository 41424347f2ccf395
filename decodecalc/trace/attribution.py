"""Decides which engine made a launch where the name alone does not say it: by the content of the launch and by the
other kernels of the trace.

Every engine that may have launched kernels of a family is asked and answers with a vote. What a vote is based on is
known in the engine's own folder; the votes are counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from decodecalc.trace.events import TraceDevice
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, OTHER, PREFILL, SCHEDULER

DECODE_STEP, PROMPT, UNATTRIBUTED = "decode", "prefill", "other"


class Strength(IntEnum):
    """How sure an engine is that a launch is its own. If there is a sure vote, all others are dropped."""

    WEAK = 1
    POSSIBLE = 2
    LIKELY = 3
    SURE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One engine's answer about one launch group."""

    strength: Strength
    """How sure it is."""
    why: str
    """The reason for the vote."""
    split: bool | None = None
    """Whether the split path ran; None when the launch does not say."""
    what: str = DECODE_STEP
    """decode, prefill, or other (the engine can tell neither)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What a launch group is recognised as."""

    what: str
    """decode (an engine's decode attention), prefill, or other (attention of no engine that is modelled)."""
    engines: tuple[str, ...] = ()
    """The engines that may have launched it, the likeliest first."""
    path_split: bool | None = None
    """Whether the split path ran; None when unknown."""
    why: str = ""
    """The reason for this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What else the traces contain."""

    device: TraceDevice | None = None
    """The GPU that the group ran on."""
    vendors: frozenset[str] = frozenset()
    """The projects that other kernels of the trace belong to."""
    scheduled: frozenset[str] = frozenset()
    """Families with a scheduler kernel somewhere in the traces."""
    tile_rows: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Query rows of the tiles that were seen, for each family whose names contain them."""

    @classmethod
    def of(cls, groups: Sequence[LaunchGroup], vendors: Iterable[str]) -> Surroundings:
        """The surroundings of these groups, without a device."""
        rows: dict[str, set[int]] = {}
        for group in groups:
            if group.kind.facts.tile_rows is not None:
                rows.setdefault(group.family, set()).add(group.kind.facts.tile_rows)
        return cls(
            vendors=frozenset(vendors),
            scheduled=frozenset(g.family for g in groups if g.scheduler is not None or g.kind.role == SCHEDULER),
            tile_rows={family: frozenset(found) for family, found in rows.items()},
        )

    @property
    def is_amd(self) -> bool:
        """Whether the group ran on an AMD GPU."""
        device = self.device
        return device is not None and (device.gfx is not None or device.warp_size == 64 or "AMD" in device.name)


AttributionRule = Callable[[LaunchGroup, Surroundings], "Vote | None"]
"""The rule of an engine: its vote about a stage-1 or prefill launch of one of its families; None when the launch is not
its own."""


def by_name(group: LaunchGroup, surroundings: Surroundings) -> Vote:
    """The rule of an engine whose kernels have names of their own."""
    kind = group.kind
    if kind.role == PREFILL:
        return Vote(strength=Strength.LIKELY, why=kind.why, what=PROMPT)
    split = kind.facts.split if kind.facts.split is not None else group.merge is not None
    return Vote(strength=Strength.LIKELY, why=kind.why, split=split)


def attribute(
    group: LaunchGroup, surroundings: Surroundings, rules: Iterable[tuple[str, AttributionRule]]
) -> Attribution:
    """What the group is. `rules` belong to the engines that may launch its family. Between equal votes the first one
    counts."""
    kind = group.kind
    if kind.role == MERGE:
        return Attribution(what=UNATTRIBUTED, why=f"{kind.why}; the kernel whose states it merges is not in the trace")
    if kind.role == SCHEDULER:
        return Attribution(what=UNATTRIBUTED, why=f"{kind.why}; the kernel that it serves is not in the trace")
    if kind.role == OTHER:
        return Attribution(what=UNATTRIBUTED, why=kind.why)
    votes = [(name, vote) for name, rule in rules if (vote := rule(group, surroundings)) is not None]
    votes.sort(key=lambda named: -named[1].strength)
    if not votes:
        return Attribution(what=PROMPT if kind.role == PREFILL else UNATTRIBUTED, why=kind.why)
    best = votes[0][1]
    sure = best.strength == Strength.SURE
    engines = tuple(name for name, vote in votes if not sure or vote.strength == Strength.SURE)
    return Attribution(
        what=best.what, engines=engines if best.what == DECODE_STEP else (), path_split=best.split, why=best.why
    )
