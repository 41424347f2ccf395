"""Puts launches together: stage 1 with the merge after it and the scheduler before it, equal ones in one group.

Within one stream kernels run in the order of their start; a merge that is launched early by programmatic dependent
launch still starts after its stage 1. Among the kernels of one family, a merge belongs to the stage-1 kernel right
before it and a scheduler to the stage-1 kernel right after it; other kernels may stand between. A merge in two kernels
is one merge: its shape is that of the first, its time that of both. In some engines a scheduler runs once per step and
in others once per layer, so it does not distinguish groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from decodecalc.trace.events import EventLog, LaunchShape, Trace
from decodecalc.trace.recognise import MERGE, OTHER, PREFILL, SCHEDULER, STAGE1, NameBook, Recognition

_ROLES = (STAGE1, MERGE, SCHEDULER, PREFILL, OTHER)
_NONE = -1
Ints = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Timing:
    """Durations of equal launches, in seconds. p10 and p90 enclose the middle 80 %. Launches whose clock ran backwards
    count in `launches` only."""

    launches: int
    timed: int
    median_s: float | None
    p10_s: float | None
    p90_s: float | None
    total_s: float

    @classmethod
    def of(cls, durations_s: npt.NDArray[np.float32]) -> Timing:
        """Summary of durations; NaN marks a launch without a usable time."""
        good = durations_s[np.isfinite(durations_s)]
        if not len(good):
            return cls(len(durations_s), 0, None, None, None, 0.0)
        # Times are kept in float32; profilers write nanoseconds.
        p10, median, p90 = (round(float(q), 10) for q in np.percentile(good, (10, 50, 90)))
        return cls(len(durations_s), len(good), median, p10, p90, float(good.sum()))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class LaunchGroup:
    """Equal launches of one decode-attention step of one layer, over all traces that were read.

    `kind` is how the stage-1 name was recognised. graph: the launch was replayed from a captured graph, so its grid is
    that of capture time. ranks: indices of the traces in which it was seen. merge, scheduler: None when none ran.
    """

    kind: Recognition
    stage1: LaunchShape
    merge: LaunchShape | None
    merge_kind: Recognition | None
    scheduler: LaunchShape | None
    graph: bool
    ranks: tuple[int, ...]
    device: int
    stage1_time: Timing
    merge_time: Timing | None
    scheduler_time: Timing | None

    @property
    def family(self) -> str:
        """The shapes of the kernels that it consists of."""
        return self.kind.family

    @property
    def launches(self) -> int:
        """How many times it ran."""
        return self.stage1_time.launches

    @property
    def total_s(self) -> float:
        """Time of all its kernels."""
        return sum(t.total_s for t in (self.stage1_time, self.merge_time, self.scheduler_time) if t is not None)

    @property
    def step_s(self) -> float | None:
        """Median time of one launch: stage 1 and merge, and the scheduler where it runs with every launch."""
        if self.stage1_time.median_s is None:
            return None
        out = self.stage1_time.median_s + (self.merge_time.median_s or 0.0 if self.merge_time else 0.0)
        if self.scheduler_time is not None and self.scheduler_time.launches >= self.launches:
            out += self.scheduler_time.median_s or 0.0
        return out


@dataclass(frozen=True)
class _Piece:
    """The launches of a group on one stream. times [n, 3]: seconds of stage 1, merge and scheduler; NaN where one did
    not run."""

    stage1: LaunchShape
    merge: LaunchShape | None
    graph: bool
    scheduler: LaunchShape | None
    rank: int
    device: int
    times: npt.NDArray[np.float32]


def pair(traces: list[Trace], book: NameBook) -> list[LaunchGroup]:
    """All launch groups of the traces, those that take most time first. A merge without a stage 1 is a group of its
    own, whose `kind` is that of the merge."""
    together: dict[tuple[LaunchShape, LaunchShape | None, bool], list[_Piece]] = {}
    for rank, trace in enumerate(traces):
        for piece in _of_log(trace.log, book, rank):
            together.setdefault((piece.stage1, piece.merge, piece.graph), []).append(piece)
    return sorted((_group(pieces, book) for pieces in together.values()), key=lambda g: -g.total_s)


def _of_log(log: EventLog, book: NameBook, rank: int) -> Iterator[_Piece]:
    if not len(log):
        return
    shape = np.frombuffer(log.shape, dtype=np.uint32)
    kinds = [book[s.name] for s in log.shapes]
    families = {family: n for n, family in enumerate(dict.fromkeys(k.family for k in kinds))}
    family_of = np.array([families[k.family] for k in kinds], dtype=np.int8)
    role_of = np.array([_ROLES.index(k.role) for k in kinds], dtype=np.int8)
    lane = np.frombuffer(log.lane, dtype=np.uint32)
    start = np.frombuffer(log.start, dtype=np.float64)
    graphs = np.unique(np.frombuffer(log.graph_correlations, dtype=np.uint32))
    for number, (device, _) in enumerate(log.lanes):
        here = np.flatnonzero(lane == number)
        here = here[np.argsort(start[here], kind="stable")]
        families_here = family_of[shape[here]]
        for family in np.unique(families_here).tolist():
            yield from _of_sequence(log, here[families_here == family], role_of, graphs, rank, device)


def _of_sequence(
    log: EventLog, sequence: Ints, role_of: Ints, graphs: npt.NDArray[np.uint32], rank: int, device: int
) -> Iterator[_Piece]:
    """Groups of one family on one stream, whose launches are `sequence`, in the order of start."""
    shape = np.frombuffer(log.shape, dtype=np.uint32)[sequence]
    duration = np.frombuffer(log.duration, dtype=np.float32)[sequence]
    replayed = np.isin(np.frombuffer(log.correlation, dtype=np.uint32)[sequence], graphs)
    stage1, merge, scheduler = (_ROLES.index(r) for r in (STAGE1, MERGE, SCHEDULER))
    roles = role_of[shape]
    following, preceding = np.append(roles[1:], _NONE), np.insert(roles[:-1], 0, _NONE)
    # Two merges in a row after a stage 1 are one merge in two steps.
    second = (roles == merge) & (preceding == merge) & (np.insert(preceding[:-1], 0, _NONE) == stage1)
    # Every kernel that is not part of another's group begins a group.
    heads = np.flatnonzero(
        (roles != scheduler) & ((roles != merge) | (preceding != stage1) & ~second)
        | (roles == scheduler) & (following != stage1)
    )  # fmt: skip
    merged = (roles[heads] == stage1) & (following[heads] == merge)
    scheduled = (roles[heads] == stage1) & (preceding[heads] == scheduler)
    if len(heads) and roles[heads[-1]] == stage1 and not merged[-1]:
        alike = shape[heads] == shape[heads[-1]]
        if merged[alike].any():  # the recording ends between this launch and its merge
            heads, merged, scheduled = heads[:-1], merged[:-1], scheduled[:-1]
    after, before = np.minimum(heads + 1, len(roles) - 1), np.maximum(heads - 1, 0)
    # One number for (stage 1, merge or none, graph).
    merges = np.where(merged, shape[after].astype(np.int64) + 1, 0)
    keys = (shape[heads].astype(np.int64) * (len(log.shapes) + 1) + merges) * 2 + replayed[heads]
    nothing = np.float32(np.nan)
    last = np.minimum(heads + 2, len(roles) - 1)
    merge_s = duration[after] + np.where(second[last], duration[last], np.float32(0))
    times = np.stack(
        [duration[heads], np.where(merged, merge_s, nothing), np.where(scheduled, duration[before], nothing)],
        axis=1,
    )
    order = np.argsort(keys, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else ():
        rest, graph = divmod(int(keys[members[0]]), 2)
        own, other = divmod(rest, len(log.shapes) + 1)
        schedulers = shape[before[members]][scheduled[members]]
        yield _Piece(
            stage1=log.shapes[own],
            merge=log.shapes[other - 1] if other else None,
            graph=bool(graph),
            scheduler=log.shapes[int(np.bincount(schedulers).argmax())] if len(schedulers) else None,
            rank=rank,
            device=device,
            times=times[members],
        )


def _group(pieces: list[_Piece], book: NameBook) -> LaunchGroup:
    first = pieces[0]
    times = np.concatenate([piece.times for piece in pieces])
    scheduled = times[np.isfinite(times[:, 2]), 2]
    scheduler = next((piece.scheduler for piece in pieces if piece.scheduler is not None), None)
    return LaunchGroup(
        kind=book[first.stage1.name],
        stage1=first.stage1,
        merge=first.merge,
        merge_kind=None if first.merge is None else book[first.merge.name],
        scheduler=scheduler,
        graph=first.graph,
        ranks=tuple(dict.fromkeys(piece.rank for piece in pieces)),
        device=first.device,
        stage1_time=Timing.of(times[:, 0]),
        merge_time=None if first.merge is None else Timing.of(times[:, 1]),
        scheduler_time=None if scheduler is None else Timing.of(scheduled),
    )
