"""The kernels of one decode step in their order, those of attention marked.

An audit keeps only attention kernels, so that its memory does not grow with the trace. The timeline reads one file
again and keeps everything that runs in a short window around the launches that took most time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.errors import DecodecalcError
from decodecalc.safetext import plain
from decodecalc.trace.audit import Audit
from decodecalc.trace.events import EventLog, Trace
from decodecalc.trace.judged import JudgedLaunch
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.load import knowledge
from decodecalc.trace.readers import read_trace
from decodecalc.trace.recognise import MERGE, SCHEDULER, STAGE1

ATTENTION, MATRIX, EXCHANGE, OTHER = "attention", "matrix products", "exchange between GPUs", "other kernels"
MOST_KERNELS = 20_000
"""Kernels of a window that are kept: a step of a large model has a few thousand."""
FEW_LAUNCHES = 3
"""Launches that are shown where it is not known how many make up a step."""
MOST_NAME = 80
_MATRIX = re.compile(r"gemm|nvjet|cublas|matmul|_mm_|moe|splitkreduce|gemv", re.IGNORECASE)
_EXCHANGE = re.compile(
    r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device|multimem|all_?to_?all", re.IGNORECASE
)
_ROLES = {STAGE1: "stage 1", MERGE: "merge", SCHEDULER: "scheduler"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One kernel on the timeline."""

    name: str
    """The kernel's function."""
    kind: str
    """What it does: ATTENTION, MATRIX, EXCHANGE or OTHER."""
    role: str
    """Its role in decode attention, or an empty text."""
    start_s: float
    """When it starts, from the start of the window."""
    duration_s: float
    """How long it runs."""
    stream: int
    """The stream that it runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The kernels of a window, in the order of their start."""

    what: str
    """What the window holds, in words."""
    slices: tuple[Slice, ...]
    """The kernels."""
    layer: tuple[float, float] | None
    """From one attention launch to the next, in seconds from the start of the window; None where there is one
    launch."""
    left_out: int = 0
    """Kernels of the window beyond MOST_KERNELS."""

    @property
    def length_s(self) -> float:
        """From the start of the first kernel to the end of the last."""
        return max((s.start_s + s.duration_s for s in self.slices), default=0.0)

    def share(self, kind: str) -> float:
        """The part of the window in which kernels of this kind run."""
        return self._busy(s for s in self.slices if s.kind == kind) / self.length_s if self.length_s else 0.0

    @property
    def idle(self) -> float:
        """The part of the window in which no kernel runs."""
        return 1 - self._busy(self.slices) / self.length_s if self.length_s else 0.0

    @staticmethod
    def _busy(slices: Any) -> float:
        """Seconds in which at least one of the kernels runs; they come in the order of their start."""
        total, end = 0.0, 0.0
        for s in slices:
            total += max(s.start_s + s.duration_s - max(s.start_s, end), 0.0)
            end = max(end, s.start_s + s.duration_s)
        return total


class WindowLog(EventLog):
    """Keeps every kernel that starts in a window, whatever its name, and nothing else."""

    def __init__(self, start_s: float, end_s: float, device: int) -> None:
        super().__init__(lambda name: True)
        self.start_s, self.end_s, self.device = start_s, end_s, device
        self.found: list[tuple[float, float, str, int]] = []
        self.left_out = 0

    def add(
        self, name: str, start_s: float, duration_s: float, grid: Any = None, block: Any = None, device: int = 0,
        stream: int = 0, correlation: int = 0, registers: Any = None, smem_bytes: Any = None, graph: bool = False,
    ) -> None:  # fmt: skip
        """Keeps the kernel where it starts in the window, on its device, and its clock did not run backwards."""
        inside = self.start_s <= start_s < self.end_s and device == self.device
        if not inside or not math.isfinite(duration_s) or duration_s < 0:
            return
        if len(self.found) >= MOST_KERNELS:
            self.left_out += 1
        else:
            self.found.append((start_s, duration_s, str(name), stream))


def timeline(audit: Audit) -> Timeline | None:
    """The step around the launches that took most time; None where the trace has no launches of an engine or no
    clock."""
    group = next((g for g in audit.groups if g.engine is not None), None)
    if group is None:
        return None
    trace = audit.traces[group.group.ranks[0]]
    window = _window(trace, group)
    if window is None:
        return None
    start_s, end_s, first, second, what = window
    log = WindowLog(start_s, end_s, group.group.device)
    try:
        read_trace(trace.path, log.wanted, allow_truncated=True, log=log)
    except DecodecalcError:  # the file is not there any more, or is another one now
        return None
    if not log.found:
        return None
    found = sorted(log.found)
    zero = found[0][0]
    book = knowledge().name_book()
    kinds: dict[str, tuple[str, str, str]] = {}
    slices = []
    for start, duration, name, stream in found:
        if name not in kinds:
            kinds[name] = _kind(name, book.recognise(name))
        own, kind, role = kinds[name]
        slices.append(Slice(name=own, kind=kind, role=role, start_s=start - zero, duration_s=duration, stream=stream))
    layer = None if second is None else (first - zero, second - zero)
    return Timeline(what=what, slices=tuple(slices), layer=layer, left_out=log.left_out)


def _kind(name: str, recognised: Any) -> tuple[str, str, str]:
    own = plain(function_name(name))[:MOST_NAME]
    if recognised is not None:
        return own, ATTENTION, _ROLES.get(recognised.role, "")
    return own, EXCHANGE if _EXCHANGE.search(name) else MATRIX if _MATRIX.search(name) else OTHER, ""


def _window(trace: Trace, group: JudgedLaunch) -> tuple[float, float, float, float | None, str] | None:
    """Start and end of a step in the middle of the recording, the starts of two launches that follow each other in
    it, and what it is in words; None for recordings without a clock."""
    log = trace.log
    if trace.format == "ncu csv" or not len(log):
        return None
    own = {i for i, shape in enumerate(log.shapes) if shape == group.group.stage1}
    shape = np.frombuffer(log.shape, dtype=np.uint32)
    lane = np.frombuffer(log.lane, dtype=np.uint32)
    lanes = [i for i, (device, _) in enumerate(log.lanes) if device == group.group.device]
    mine = np.flatnonzero(np.isin(shape, sorted(own)) & np.isin(lane, lanes))
    starts = np.frombuffer(log.start, dtype=np.float64)[mine]
    order = np.argsort(starts, kind="stable")
    starts, mine = starts[order], mine[order]
    if not len(starts):
        return None
    count, whole = _step(group, np.frombuffer(log.correlation, dtype=np.uint32)[mine], len(starts))
    at = _begin(starts, count)
    ends = starts + np.nan_to_num(np.frombuffer(log.duration, dtype=np.float32)[mine])
    period = float(np.median(np.diff(starts[at : at + count]))) if count > 1 else float(ends[at] - starts[at])
    after = float(starts[at + count]) if at + count < len(starts) else math.inf
    end = min(after, float(starts[at + count - 1]) + max(period, float(ends[at] - starts[at]) * 1.5))
    middle = at + (count - 1) // 2
    second = float(starts[middle + 1]) if count > 1 else None
    what = (
        f"one step of {count} layers" if whole else f"{count} launch{'es' if count > 1 else ''} that follow each other"
    )
    return float(starts[at]), end, float(starts[middle]), second, f"{what} of {group.engine}"


def _begin(starts: Any, count: int) -> int:
    """The number of the launch that begins a step near the middle: of so many launches in a row the one after the
    longest pause, in which the rest of the model and the host stand between two steps."""
    middle = (len(starts) - count) // 2
    near = range(max(middle - count // 2, 0), min(middle + count // 2, len(starts) - count) + 1)
    pauses = {at: float(starts[at] - starts[at - 1]) if at else 0.0 for at in near}
    return max(near, key=lambda at: (pauses[at], -abs(at - middle)))


def _step(group: JudgedLaunch, correlations: Any, launches: int) -> tuple[int, bool]:
    """How many launches make up one step, and whether that is known."""
    if group.layers is not None and 1 < group.layers <= launches:
        return group.layers, True
    if group.group.graph:
        _, counts = np.unique(correlations, return_counts=True)
        together = int(np.median(counts))
        if together > 1:
            return min(together, launches), True
    return min(FEW_LAUNCHES, launches), False
