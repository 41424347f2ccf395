"""Compares a trace with the plans: what every launch group is, what should have run, and how long it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from decodecalc.errors import InputError
from decodecalc.trace.against_model import l2_state
from decodecalc.trace.attribution import DECODE_STEP, Surroundings
from decodecalc.trace.candidates import Known
from decodecalc.trace.events import Trace, TraceDevice
from decodecalc.trace.judge import Judge
from decodecalc.trace.judged import CONSISTENT, MISMATCH, NEEDS, NO_GRID, REFUSED, VERIFIED, JudgedLaunch
from decodecalc.trace.load import knowledge
from decodecalc.trace.pairing import LaunchGroup, pair
from decodecalc.trace.readers import Progress, read_trace
from decodecalc.trace.recognise import NameBook
from decodecalc.trace.rows import row_of
from decodecalc.trace.steps import distinct_notes
from decodecalc.trace.warnings import with_warnings
from decodecalc.units import counted
from decodecalc.values import ShownRows

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

SEEN = (
    "status", "engine", "layer_group", "path", "grid", "predicted_grid", "launches", "sm_coverage", "measured_s",
    "predicted_s", "against_prediction", "l2", "to_set",
)  # fmt: skip
"""Keys of the rows that a notebook shows; a frame has all."""
MAX_GROUPS = 256  # each is planned many times; a profile has tens


@dataclass(frozen=True, slots=True)
class Audit(ShownRows):
    """All groups of all traces. `verdict` is the result in words, and `passed` decides the exit code."""

    traces: tuple[Trace, ...]
    """The files that were read, one for each rank."""
    groups: tuple[JudgedLaunch, ...]
    """Groups of equal launches, judged; those that take most time come first."""
    known: Known
    """What the user said about the run."""
    gpu: Gpu | None
    """The GPU for which plans were made; None where neither the user nor the traces name one."""
    kernels: int
    """Kernels of all traces."""
    kernel_s: float
    """Their time."""
    notes: tuple[str, ...]
    """What a reader should know about the files."""

    @property
    def worst_first(self) -> tuple[JudgedLaunch, ...]:
        """The groups: those that failed, those that could not be checked, those that are not judged, and the rest."""
        order = [status for statuses in ((MISMATCH, REFUSED), (NEEDS, NO_GRID)) for status in statuses]
        last = len(order) + 1

        def place(group: JudgedLaunch) -> int:
            if group.status in order:
                return order.index(group.status) // 2
            return last if group.status in VERIFIED else last - 1

        return tuple(sorted(self.groups, key=place))

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat row for each group, those that failed first."""
        return [row_of(group) for group in self.worst_first]

    def seen(self) -> tuple[str, Sequence[str]]:
        """The verdict, and what a notebook shows of the groups."""
        return self.verdict, SEEN

    def __str__(self) -> str:
        """The verdict."""
        return self.verdict

    def with_status(self, *statuses: str) -> tuple[JudgedLaunch, ...]:
        """Groups of these statuses."""
        return tuple(g for g in self.groups if g.status in statuses)

    @property
    def passed(self) -> bool:
        """Whether something was verified and nothing was refuted."""
        return bool(self.with_status(*VERIFIED)) and not self.with_status(MISMATCH, REFUSED)

    @property
    def verdict(self) -> str:
        """What was found, in one sentence."""
        wrong = self.with_status(MISMATCH, REFUSED)
        right = self.with_status(*VERIFIED)
        if wrong:
            n = sum(g.group.launches for g in wrong)
            of = len(wrong) + len(right)
            return f"FAILED: {len(wrong)} of {counted(of, 'checked launch group')} ({counted(n, 'launch')}) " + (
                "differs from the plan" if len(wrong) == 1 else "differ from the plan"
            )
        if right:
            n = sum(g.group.launches for g in right)
            alone = len(self.with_status(CONSISTENT))
            open_ = len(self.with_status(NEEDS, NO_GRID))
            found = f"passed: all {len(right)} checked launch groups ({n} launches) are what should have run"
            whose = f"; for {alone} of them heads or batch were inferred from the launch"
            if len(right) == 1:
                found = f"passed: the one checked launch group ({counted(n, 'launch')}) is what should have run"
                whose = "; its heads or batch were inferred from the launch"
            return (
                found
                + (whose if alone else "")
                + (f"; {open_} more could not be checked" if open_ else "")
                + self._but()
            )
        return f"NOTHING CHECKED: {self._why_nothing()}"

    def _but(self) -> str:
        """What is to be gained although the launch is as planned: the launches that took most time come first, those
        with something to set before those that only used little of the GPU."""
        right = self.with_status(*VERIFIED)
        for group in [g for g in right if g.to_set] or [g for g in right if g.is_idle]:
            who = group.engine
            if not group.to_set:
                return f"; but {who}'s launch used {group.use}, and no setting of a server is known to make it faster"
            why = f"{who}'s launch used {group.use}" if group.is_idle else f"{who}'s launch can be faster"
            return f"; but {why}: {group.to_set}"
        return ""

    def _why_nothing(self) -> str:
        decode = [g for g in self.groups if g.attribution.what == DECODE_STEP]
        if not self.kernels:
            return "the trace contains no GPU kernels"
        if not self.groups:
            return f"none of the {self.kernels} kernels is an attention kernel"
        if not decode:
            kinds = sorted({g.status for g in self.groups})
            return f"no launch is decode attention of a modelled engine (attention kernels found: {', '.join(kinds)})"
        if all(g.status == NO_GRID for g in decode):
            return (
                "decode attention ran, but the trace has no grids (graph replay), so it can be timed and not verified"
            )
        missing = sorted({g.note for g in decode if g.status == NEEDS})
        if missing:
            return "decode attention ran, but checking it needs " + "; ".join(missing)
        return "the launches that could be decode attention were not checked: " + ", ".join(
            sorted({g.status for g in decode})
        )


def audit_traces(
    paths: Sequence[str],
    known: Known,
    *,
    allow_truncated: bool = False,
    progress: Callable[[str], Progress] | None = None,
) -> Audit:
    """Reads the traces (several ranks of one run) and judges every launch group. Raises InputError for a file that is
    no trace."""
    book = knowledge().name_book()
    traces = [
        read_trace(path, book.wanted, allow_truncated=allow_truncated, progress=progress(path) if progress else None)
        for path in paths
    ]
    return audit(traces, book, known)


def audit(traces: Sequence[Trace], book: NameBook, known: Known) -> Audit:
    """Judges the launch groups of traces whose names `book` has seen."""
    if not traces:
        raise InputError("no trace was given")
    groups = pair(list(traces), book)
    groups, left_out = _longest(groups)
    kernel_s = sum(trace.log.kernel_s for trace in traces)
    notes = [note for trace in traces for note in trace.notes] + _bad_events(traces) + left_out
    gpu, gpu_notes = _gpu(traces, known)
    engines = knowledge()
    steps = distinct_notes((a for trace in traces for a in trace.annotations), engines.step_notes)
    surroundings = Surroundings.of(groups, book.company)
    judge = Judge(known, gpu, steps, engines)
    judged = []
    for group in groups:
        device = traces[group.ranks[0]].device(group.device)
        attribution = engines.attribute(group, replace(surroundings, device=device))
        sms = gpu.sm_count if gpu is not None else None if device is None else device.sm_count
        share = min(1.0, group.total_s / kernel_s) if kernel_s else None  # times are rounded on their way here
        found = judge(group, attribution, share)
        engine = engines.engine(found.engine or "")
        found = replace(found, sm_count=sms, path_names=engine.path_names)
        inside = [traces[rank].log for rank in group.ranks]
        attention = sum(map(len, inside))
        others = sum(log.kernels for log in inside) - attention
        l2, why = l2_state(found.kv_read_bytes, gpu, attention, others)
        found = replace(found, l2=l2, l2_why=why)
        judged.append(with_warnings(found, steps, engine.warnings))
    kernels = sum(trace.log.kernels for trace in traces)
    return Audit(tuple(traces), tuple(judged), known, gpu, kernels, kernel_s, tuple(notes + gpu_notes))


def _longest(groups: Sequence[LaunchGroup]) -> tuple[list[LaunchGroup], list[str]]:
    """The groups that take most time, in their order, up to as many as are judged; and a note on the others."""
    if len(groups) <= MAX_GROUPS:
        return list(groups), []
    order = sorted(range(len(groups)), key=lambda i: -groups[i].total_s)
    kept = sorted(order[:MAX_GROUPS])
    rest = len(groups) - MAX_GROUPS
    return [groups[i] for i in kept], [
        f"{rest} of {len(groups)} launch groups, those that take least time, were not judged: at most {MAX_GROUPS} are"
    ]


def _bad_events(traces: Sequence[Trace]) -> list[str]:
    out = []
    for trace in traces:
        if trace.log.bad_times:
            out.append(
                f"{trace.path}: {trace.log.bad_times} kernels end before they start and are left out of all times"
            )
        if trace.log.malformed:
            out.append(f"{trace.path}: {trace.log.malformed} events lack a name, a time or a usable grid")
    return out


def _gpu(traces: Sequence[Trace], known: Known) -> tuple[Gpu | None, list[str]]:
    """The GPU for which plans are made: the user's, otherwise that of the traces."""
    seen = next((device.gpu() for trace in traces if (device := _used_device(trace)) is not None), None)
    if known.gpu is None:
        return seen, [] if seen is None else list(seen.warnings)
    if seen is not None and seen.sm_count != known.gpu.sm_count:
        return known.gpu, [
            f"--gpu {known.gpu.name} has {known.gpu.sm_count} SMs, the trace's {seen.label} {seen.sm_count}: plans are "
            f"for {known.gpu.name}"
        ]
    return known.gpu, []


def _used_device(trace: Trace) -> TraceDevice | None:
    return trace.device(trace.log.lanes[0][0]) if trace.log.lanes else trace.device()
