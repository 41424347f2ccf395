"""A trace held against the plans: every launch group with what it is, what should have run, what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.occupancy import occupancy
from decodecalc.analysis.traffic import traffic
from decodecalc.engines.registry import load_policy
from decodecalc.errors import DecodecalcError, InputError
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import Policy
from decodecalc.models import LayerGroup
from decodecalc.scenario import Scenarios
from decodecalc.trace.beliefs import DECODE, Belief, Company, believe
from decodecalc.trace.candidates import GIVEN, UNKNOWN, Candidate, Known, candidates
from decodecalc.trace.compare import KERNEL, PATHS, SPLIT_PATHS, Claim, claims
from decodecalc.trace.events import Trace
from decodecalc.trace.infer import Inferred, infer
from decodecalc.trace.model_says import ModelSays, model_says
from decodecalc.trace.pairing import LaunchGroup, pair
from decodecalc.trace.readers import Progress, read_trace
from decodecalc.trace.recognise import UNIFIED, NameBook
from decodecalc.trace.settings import Setting, explanations, shown
from decodecalc.trace.steps import StepNote, distinct_notes
from decodecalc.trace.traps import Warn, warnings

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

# What became of a group.
MATCH = "match"  # equals the plan of what the user said ran
CONSISTENT = "consistent"  # equals the plan of what the launch itself says (heads, batch): no contradiction
MISMATCH = "mismatch"
NO_GRID = "no grid"  # timed, but the trace has no launch arguments
NEEDS = "needs inputs"
REFUSED = "refused"  # the engine would not run what the user said ran
NOT_MODELLED = "not modelled"
NOT_ASKED = "not asked for"
PREFILL = "prefill"
_VERIFIED = (MATCH, CONSISTENT)
PREFILL_FACTOR = 4  # times the blocks of the decode step: what a prompt adds, and a wrong grid hardly does
MOST_REQUESTS = 1024  # vLLM's largest default of max_num_seqs: an inferred batch beyond it is a prompt's tokens


@dataclass(frozen=True)
class GroupAudit:
    """One launch group, judged. plan: what should have run, None where nothing can be said; versions: those of the
    engine's releases whose plan agrees. note: what is missing, refused or assumed. explanation: settings under which a
    mismatch would be right. layers: how many the model has of this layer. sm_count: of the GPU it ran on."""

    group: LaunchGroup
    belief: Belief
    seen: Inferred
    status: str
    share: float | None
    sm_count: int | None = None
    engine: str | None = None
    version: str | None = None
    versions: tuple[str, ...] = ()
    layer: LayerGroup | None = None
    layers: int | None = None
    plan: LaunchPlan | None = None
    lengths: str = UNKNOWN
    inferred: tuple[str, ...] = ()
    setting: str = ""
    claims: tuple[Claim, ...] = ()
    note: str = ""
    explanation: str = ""
    warnings: tuple[Warn, ...] = ()

    @property
    def observed_split(self) -> bool | None:
        """Whether the split path ran; None when the trace does not say."""
        return self.belief.path_split

    @property
    def path(self) -> str | None:
        """The path that ran, in the engine's words."""
        if self.observed_split is None:
            return None
        names = PATHS if self.engine == "vllm-triton" else SPLIT_PATHS
        return names[self.observed_split]

    @property
    def lengths_known(self) -> bool:
        """Whether every request's length is known, and the plan is what ran: then live splits and blocks are known."""
        return self.plan is not None and self.lengths == GIVEN and self.status != MISMATCH

    @property
    def context(self) -> int | None:
        """Keys of the longest request; None while the lengths are not known."""
        return self.plan.batch.max_seq_len if self.plan is not None and self.lengths_known else None

    @cached_property
    def model(self) -> ModelSays:
        """What the time model says about this launch, where the lengths are known."""
        if self.plan is None or not self.lengths_known:
            return ModelSays()
        return model_says(self.plan, self.layers)

    @property
    def failed(self) -> tuple[Claim, ...]:
        """Claims that the trace refutes."""
        return tuple(c for c in self.claims if not c.holds)

    @property
    def live_blocks(self) -> int | None:
        """Blocks with keys to read; None while the lengths are not known."""
        return self.plan.live_blocks if self.plan is not None and self.lengths_known else None

    @property
    def sm_coverage(self) -> float | None:
        """Share of the SMs with a live block; None while the lengths are not known."""
        return occupancy(self.plan).sm_coverage if self.plan is not None and self.lengths_known else None

    @property
    def launched_coverage(self) -> float | None:
        """Share of the SMs that the observed grid could cover: an upper bound of `sm_coverage`."""
        blocks = self.group.stage1.blocks
        return None if blocks is None or not self.sm_count else min(blocks, self.sm_count) / self.sm_count

    @property
    def kv_read_bytes(self) -> int | None:
        """Useful KV bytes of one launch; None while not even the sum of the lengths is known."""
        if self.plan is None or self.lengths == UNKNOWN or self.status == MISMATCH:
            return None
        return traffic(self.plan).kv_read_bytes

    @property
    def achieved_bytes_per_s(self) -> float | None:
        """Useful KV bytes over the median time of stage 1."""
        median, read = self.group.stage1_time.median_s, self.kv_read_bytes
        return read / median if read and median else None


@dataclass(frozen=True)
class Audit:
    """All groups of all traces; `verdict` in words, `passed` as the exit code has it."""

    traces: tuple[Trace, ...]
    groups: tuple[GroupAudit, ...]
    known: Known
    gpu: Gpu | None
    kernels: int
    kernel_s: float
    notes: tuple[str, ...]

    def with_status(self, *statuses: str) -> tuple[GroupAudit, ...]:
        """Groups of these statuses."""
        return tuple(g for g in self.groups if g.status in statuses)

    @property
    def passed(self) -> bool:
        """Whether something was verified and nothing was refuted."""
        return bool(self.with_status(*_VERIFIED)) and not self.with_status(MISMATCH, REFUSED)

    @property
    def verdict(self) -> str:
        """One sentence: what was found."""
        wrong = self.with_status(MISMATCH, REFUSED)
        right = self.with_status(*_VERIFIED)
        if wrong:
            n = sum(g.group.launches for g in wrong)
            of = len(wrong) + len(right)
            return f"FAILED: {len(wrong)} of {of} checked launch groups ({n} launches) differ from the plan"
        if right:
            n = sum(g.group.launches for g in right)
            alone = len(self.with_status(CONSISTENT))
            open_ = len(self.with_status(NEEDS, NO_GRID))
            return (
                f"passed: all {len(right)} checked launch groups ({n} launches) are what should have run"
                + (f"; for {alone} of them heads or batch are taken from the launch itself" if alone else "")
                + (f"; {open_} more could not be checked" if open_ else "")
            )
        return f"NOTHING CHECKED: {self._why_nothing()}"

    def _why_nothing(self) -> str:
        decode = [g for g in self.groups if g.belief.what == DECODE]
        if not self.kernels:
            return "the trace holds no GPU kernels"
        if not self.groups:
            return f"no attention kernel among its {self.kernels} kernels"
        if not decode:
            kinds = sorted({g.status for g in self.groups})
            return f"no decode-attention launch of a modelled engine (attention kernels found: {', '.join(kinds)})"
        if all(g.status == NO_GRID for g in decode):
            return "decode attention ran, but the trace has no grids (graph replay): timed, unverifiable"
        missing = sorted({g.note for g in decode if g.status == NEEDS})
        if missing:
            return "decode attention ran, but checking it needs " + "; ".join(missing)
        return "what could be decode attention is not checked: " + ", ".join(sorted({g.status for g in decode}))


def audit_traces(
    paths: Sequence[str],
    known: Known,
    *,
    allow_truncated: bool = False,
    progress: Callable[[str], Progress] | None = None,
) -> Audit:
    """Read the traces (several ranks of one run) and judge every launch group. InputError for what is no trace."""
    book = NameBook()
    traces = [
        read_trace(path, book.wanted, allow_truncated=allow_truncated, progress=progress(path) if progress else None)
        for path in paths
    ]
    return audit(traces, book, known)


def audit(traces: Sequence[Trace], book: NameBook, known: Known) -> Audit:
    """Judge the launch groups of traces whose names `book` has seen."""
    if not traces:
        raise InputError("no trace given")
    groups = pair(list(traces), book)
    kernel_s = sum(trace.log.kernel_s for trace in traces)
    notes = [note for trace in traces for note in trace.notes] + _bad_events(traces)
    gpu, gpu_notes = _gpu(traces, known)
    steps = distinct_notes(a for trace in traces for a in trace.annotations)
    company = Company.of(groups, book.company)
    judge = _Judge(known, gpu, steps)
    judged = []
    for group in groups:
        device = traces[group.ranks[0]].device(group.device)
        belief = believe(group, company, device)
        sms = gpu.sm_count if gpu is not None else None if device is None else device.sm_count
        share = group.total_s / kernel_s if kernel_s else None
        found = replace(judge(group, belief, share), sm_count=sms)
        judged.append(replace(found, warnings=warnings(found, steps)))
    kernels = sum(trace.log.kernels for trace in traces)
    return Audit(tuple(traces), tuple(judged), known, gpu, kernels, kernel_s, tuple(notes + gpu_notes))


def _bad_events(traces: Sequence[Trace]) -> list[str]:
    out = []
    for trace in traces:
        if trace.log.bad_times:
            out.append(f"{trace.path}: {trace.log.bad_times} kernels end before they start: left out of all times")
        if trace.log.malformed:
            out.append(f"{trace.path}: {trace.log.malformed} events lack a name, a time or a usable grid")
    return out


def _gpu(traces: Sequence[Trace], known: Known) -> tuple[Gpu | None, list[str]]:
    """The GPU that plans are made for: the user's, else the traces' own."""
    seen = next((device.gpu() for trace in traces if (device := _used_device(trace)) is not None), None)
    if known.gpu is None:
        return seen, [] if seen is None else list(seen.warnings)
    if seen is not None and seen.sm_count != known.gpu.sm_count:
        return known.gpu, [
            f"--gpu {known.gpu.name} has {known.gpu.sm_count} SMs, the trace's {seen.label} {seen.sm_count}: plans are "
            f"for {known.gpu.name}"
        ]
    return known.gpu, []


def _used_device(trace: Trace) -> Any:
    return trace.device(trace.log.lanes[0][0]) if trace.log.lanes else trace.device()


@dataclass(frozen=True)
class _Attempt:
    """One engine, version, candidate and setting, planned and compared."""

    policy: Policy
    version: str
    candidate: Candidate
    setting: Setting
    plan: LaunchPlan
    claims: tuple[Claim, ...]
    seen: Inferred

    @property
    def failures(self) -> int:
        """Claims that do not hold. A wrong kernel outweighs all others: that version cannot have been launched."""
        return sum(1000 if c.what == KERNEL else 1 for c in self.claims if not c.holds)


class _Judge:
    """Holds groups against every plan that they may be."""

    def __init__(self, known: Known, gpu: Gpu | None, steps: tuple[StepNote, ...]) -> None:
        self.known, self.gpu, self.steps = known, gpu, steps

    def __call__(self, group: LaunchGroup, belief: Belief, share: float | None) -> GroupAudit:
        if belief.what != DECODE:
            status = PREFILL if belief.what == "prefill" else NOT_MODELLED
            return GroupAudit(group, belief, Inferred(), status, share, note=belief.why)
        engines = self._engines(belief)
        first = infer(group, belief.engines[0], self._q_heads())
        if not engines:
            return GroupAudit(group, belief, first, NOT_ASKED, share, engine=belief.engines[0])
        if self.gpu is None:
            note = "the GPU (--gpu): the trace does not say which it is"
            return GroupAudit(group, belief, first, NEEDS, share, engine=engines[0][0].name, note=note)
        best: _Attempt | None = None
        missing, refusals = "", list[str]()
        for policy, version in engines:
            seen = infer(group, policy.name, self._q_heads())
            options, lacks = candidates(policy.name, self.known, seen, self.steps)
            missing = missing or lacks
            for candidate in options:
                found = self._best(policy, version, candidate, group, belief, seen, refusals)
                if found is not None and (best is None or found.failures < best.failures):
                    best = found
            if best is not None and not best.failures:
                break
        if best is None:
            status, note = (REFUSED, refusals[0]) if refusals else (NEEDS, missing)
            return GroupAudit(group, belief, first, status, share, engine=engines[0][0].name, note=note)
        return self._judged(group, belief, share, best)

    def _engines(self, belief: Belief) -> list[tuple[Policy, str | None]]:
        """Policies that may have launched the group and that the user asks about."""
        asked = None if self.known.engines is None else dict(self.known.engines)
        return [
            (load_policy(name), None if asked is None else asked[name])
            for name in belief.engines
            if asked is None or name in asked
        ]

    def _q_heads(self) -> int | None:
        heads = {layer.geometry.q_heads for layer in self.known.layer_groups}
        return heads.pop() if len(heads) == 1 else None

    def _best(
        self,
        policy: Policy,
        version: str | None,
        candidate: Candidate,
        group: LaunchGroup,
        belief: Belief,
        seen: Inferred,
        refusals: list[str],
    ) -> _Attempt | None:
        """The version and setting whose plan is nearest to the launch; the newest and likeliest among equals."""
        best = None
        names = [version] if version is not None else [v.name for v in policy.versions]
        for name in names:
            for setting in shown(policy.name, group, seen, candidate):
                attempt = self._attempt(policy, name, candidate, setting, group, belief, seen, refusals)
                if attempt is not None and (best is None or attempt.failures < best.failures):
                    best = attempt
                if best is not None and not best.failures:
                    return best
        return best

    def _attempt(
        self,
        policy: Policy,
        version: str,
        candidate: Candidate,
        setting: Setting,
        group: LaunchGroup,
        belief: Belief,
        seen: Inferred,
        refusals: list[str],
    ) -> _Attempt | None:
        """None, with the reason in `refusals`, when the engine does not run this."""
        assert self.gpu is not None
        known, layer, batch = self.known, candidate.layer, setting.batch or candidate.batch
        engine = (policy, version)
        options = {**setting.options, **policy.own_options(known.options)}
        try:
            one = Scenarios((layer,), (batch,), (engine,), self.gpu, known.kv, options, known.model_kv_heads)
            plan = one.plan(layer, batch, policy, version)
        except DecodecalcError as refused:
            refusals.append(str(refused))
            return None
        return _Attempt(policy, version, candidate, setting, plan, claims(plan, group, belief), seen)

    def _judged(self, group: LaunchGroup, belief: Belief, share: float | None, best: _Attempt) -> GroupAudit:
        inferred = best.candidate.inferred
        if group.stage1.grid is None:
            status = NO_GRID
        elif best.failures:
            status = MISMATCH
        else:
            status = CONSISTENT if inferred else MATCH
        prefill = _more_than_decode(group, belief, best)
        if prefill and status in (MISMATCH, CONSISTENT):
            return GroupAudit(group, belief, best.seen, PREFILL, share, engine=belief.engines[0], note=prefill)
        explanation = self._explain(group, belief, best) if status == MISMATCH else ""
        versions = () if status not in _VERIFIED else self._versions(group, belief, best)
        return GroupAudit(
            group=group,
            belief=belief,
            seen=best.seen,
            status=status,
            share=share,
            engine=best.policy.name,
            version=best.version,
            versions=versions,
            layer=best.candidate.layer,
            layers=best.candidate.layer.layers if self.known.whole_model and "heads" not in inferred else None,
            plan=best.plan,
            lengths=best.candidate.lengths,
            inferred=inferred,
            setting=best.setting.meaning,
            claims=() if status == NO_GRID else best.claims,
            explanation=explanation,
        )

    def _versions(self, group: LaunchGroup, belief: Belief, best: _Attempt) -> tuple[str, ...]:
        """Every version whose plan agrees: the family that the launch belongs to."""
        out = []
        for version in best.policy.versions:
            found = self._attempt(best.policy, version.name, best.candidate, best.setting, group, belief, best.seen, [])
            if found is not None and not found.failures:
                out.append(version.name)
        return tuple(out)

    def _explain(self, group: LaunchGroup, belief: Belief, best: _Attempt) -> str:
        for setting in explanations(best.policy.name, group, best.seen, best.candidate):
            found = self._attempt(best.policy, best.version, best.candidate, setting, group, belief, best.seen, [])
            if found is not None and not found.failures:
                return f"it would be right if {setting.meaning}"
        return ""


def _more_than_decode(group: LaunchGroup, belief: Belief, best: _Attempt) -> str:
    """Why an unsplit launch of the unified kernel, which serves prefill too, is no decode step; empty when it may be.

    Where the batch is the user's, only a grid far over the decode step's counts as a prefill: a smaller difference is a
    launch that should not have been.
    """
    if group.family != UNIFIED or belief.path_split is not False or group.stage1.grid is None:
        return ""
    if "batch" in best.candidate.inferred:
        size = best.candidate.batch.size
        if size > MOST_REQUESTS:
            return f"query blocks of {size} requests: a prefill"
        if best.plan.is_split:
            return (
                f"unsplit although {size} decode requests, which this grid would be, are split: a "
                "prefill or a mixed batch (or batch-invariant mode)"
            )
        return ""
    planned, seen = best.plan.stage1.launched_blocks, group.stage1.blocks or 0
    if seen >= PREFILL_FACTOR * planned:
        return f"{seen} blocks where the decode step has {planned}: a prefill or a mixed batch"
    return ""
