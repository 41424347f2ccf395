"""Compares launch groups with every plan that they may have come from. The nearest plan decides what is reported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from decodecalc.engines.registry import engine_names, load_policy
from decodecalc.errors import DecodecalcError
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import Policy
from decodecalc.scenario import Scenarios
from decodecalc.trace.attribution import DECODE_STEP, PROMPT, Attribution
from decodecalc.trace.candidates import Candidate, Known, candidates
from decodecalc.trace.compare import KERNEL, LaunchClaim, claims
from decodecalc.trace.inference import Inferred
from decodecalc.trace.judged import (
    CONSISTENT,
    MATCH,
    MISMATCH,
    NEEDS,
    NO_GRID,
    NOT_ASKED,
    NOT_MODELLED,
    PREFILL,
    REFUSED,
    VERIFIED,
    JudgedLaunch,
)
from decodecalc.trace.knowledge import TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.settings import Setting, another_batch
from decodecalc.trace.steps import StepNote

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

PREFILL_FACTOR = 4  # times the blocks of the decode step: a prompt adds this many, a wrong grid hardly does
MOST_REQUESTS = 1024  # the largest default of servers: an inferred batch beyond it is the tokens of a prompt
# A wrong kernel outweighs all other claims, because that version cannot have launched it.
_WRONG_KERNEL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is judged."""

    group: LaunchGroup
    attribution: Attribution
    share: float | None

    def judged(self, status: str, seen: Inferred, engine: str | None = None, note: str = "") -> JudgedLaunch:
        """The judgement where there is no plan."""
        return JudgedLaunch(self.group, self.attribution, seen, status, self.share, engine=engine, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One engine, version, candidate and setting, with its plan and the comparison."""

    policy: Policy
    version: str
    candidate: Candidate
    setting: Setting
    plan: LaunchPlan
    claims: tuple[LaunchClaim, ...]
    seen: Inferred

    @property
    def failures(self) -> int:
        """Weighted number of claims that do not hold."""
        return sum(_WRONG_KERNEL if c.what == KERNEL else 1 for c in self.claims if not c.holds)


class Judge:
    """Compares groups with every plan that they may have come from, given what the user and the step annotations of the
    traces say."""

    def __init__(self, known: Known, gpu: Gpu | None, steps: tuple[StepNote, ...], knowledge: TraceKnowledge) -> None:
        self.known, self.gpu, self.steps, self.knowledge = known, gpu, steps, knowledge

    def __call__(self, group: LaunchGroup, attribution: Attribution, share: float | None) -> JudgedLaunch:
        """The judged group. share: its part of the time of all kernels."""
        subject = _Subject(group=group, attribution=attribution, share=share)
        if attribution.what != DECODE_STEP:
            status = PREFILL if attribution.what == PROMPT else NOT_MODELLED
            return subject.judged(status, Inferred(), note=attribution.why)
        likeliest = attribution.engines[0]
        first = self.knowledge.infer(group, likeliest, self._q_heads())
        modelled = [name for name in attribution.engines if name in engine_names()]
        if not modelled:
            return subject.judged(NOT_MODELLED, first, likeliest, f"{attribution.why}; no policy plans such a launch")
        engines = self._engines(modelled)
        if not engines:
            return subject.judged(NOT_ASKED, first, likeliest)
        name = engines[0][0].name
        if self.gpu is None:
            return subject.judged(NEEDS, first, name, "the GPU (--gpu): the trace does not say which it is")
        best: _Attempt | None = None
        missing, refusals = "", list[str]()
        for policy, version in engines:
            seen = self.knowledge.infer(group, policy.name, self._q_heads())
            stand_ins = self.knowledge.engine(policy.name).stand_ins
            options, lacks = candidates(self.known, seen, self.steps, stand_ins)
            missing = missing or lacks
            for candidate in options:
                found = self._best(subject, policy, version, candidate, seen, refusals)
                if found is not None and (best is None or found.failures < best.failures):
                    best = found
            if best is not None and not best.failures:
                break
        if best is None:
            status, note = (REFUSED, refusals[0]) if refusals else (NEEDS, missing)
            return subject.judged(status, first, name, note)
        return self._judged(subject, best)

    def _engines(self, names: list[str]) -> list[tuple[Policy, str | None]]:
        """Policies that may have launched the group and that the user asks about."""
        asked = None if self.known.engines is None else dict(self.known.engines)
        return [
            (load_policy(name), None if asked is None else asked[name])
            for name in names
            if asked is None or name in asked
        ]

    def _q_heads(self) -> int | None:
        heads = {layer.geometry.q_heads for layer in self.known.layer_groups}
        return heads.pop() if len(heads) == 1 else None

    def _best(
        self,
        subject: _Subject,
        policy: Policy,
        version: str | None,
        candidate: Candidate,
        seen: Inferred,
        refusals: list[str],
    ) -> _Attempt | None:
        """The version and setting whose plan is nearest to the launch; among equals the newest and likeliest."""
        best = None
        shown = self.knowledge.engine(policy.name).shown
        names = [version] if version is not None else [v.name for v in policy.versions]
        for name in names:
            for setting in shown(subject.group, seen, candidate):
                attempt = self._attempt(subject, policy, name, candidate, setting, seen, refusals)
                if attempt is not None and (best is None or attempt.failures < best.failures):
                    best = attempt
                if best is not None and not best.failures:
                    return best
        return best

    def _attempt(
        self,
        subject: _Subject,
        policy: Policy,
        version: str,
        candidate: Candidate,
        setting: Setting,
        seen: Inferred,
        refusals: list[str],
    ) -> _Attempt | None:
        """The comparison; None, with the reason added to `refusals`, when the engine does not run this candidate."""
        assert self.gpu is not None
        known, layer, batch = self.known, candidate.layer, setting.batch or candidate.batch
        options = {**setting.options, **policy.own_options(known.options)}
        kv = known.kv
        if self.gpu.half_type != "bf16" and "bf16" in (kv.dtype, kv.query_dtype):  # the same bytes, and what ran there
            kv = replace(kv, dtype=kv.dtype.replace("bf16", "fp16"), query_dtype=self.gpu.half_type)
        try:
            one = Scenarios((layer,), (batch,), ((policy, version),), self.gpu, kv, options, known.model_kv_heads)
            ((_, plan),) = one.step_plans(layer, batch, policy, version)
        except DecodecalcError as refused:
            refusals.append(str(refused))
            return None
        group = subject.group
        family, engine = self.knowledge.family(group.family), self.knowledge.engine(policy.name)
        return _Attempt(
            policy=policy,
            version=version,
            candidate=candidate,
            setting=setting,
            plan=plan,
            claims=claims(plan, group, subject.attribution, family, engine.kernel(group), engine.path_names),
            seen=seen,
        )

    def _retry(self, subject: _Subject, best: _Attempt, version: str, setting: Setting) -> bool:
        """Whether another version or setting agrees with the launch."""
        found = self._attempt(subject, best.policy, version, best.candidate, setting, best.seen, [])
        return found is not None and not found.failures

    def _judged(self, subject: _Subject, best: _Attempt) -> JudgedLaunch:
        group, attribution, inferred = subject.group, subject.attribution, best.candidate.inferred
        if group.stage1.grid is None:
            status = NO_GRID
        elif best.failures:
            status = MISMATCH
        else:
            status = CONSISTENT if inferred else MATCH
        serves_prefill = self.knowledge.family(group.family).serves_prefill
        prefill = _more_than_decode(subject, best) if serves_prefill else ""
        if prefill and status in (MISMATCH, CONSISTENT):
            return subject.judged(PREFILL, best.seen, attribution.engines[0], prefill)
        return JudgedLaunch(
            group=group,
            attribution=attribution,
            seen=best.seen,
            status=status,
            share=subject.share,
            engine=best.policy.name,
            version=best.version,
            versions=self._versions(subject, best) if status in VERIFIED else (),
            layer=best.candidate.layer,
            layers=best.candidate.layer.layers if self.known.whole_model and "heads" not in inferred else None,
            plan=best.plan,
            lengths=best.candidate.lengths,
            inferred=inferred,
            setting=best.setting.meaning,
            claims=() if status == NO_GRID else best.claims,
            explanation=self._explain(subject, best) if status == MISMATCH else "",
        )

    def _versions(self, subject: _Subject, best: _Attempt) -> tuple[str, ...]:
        """Every version whose plan agrees with the launch."""
        return tuple(v.name for v in best.policy.versions if self._retry(subject, best, v.name, best.setting))

    def _explain(self, subject: _Subject, best: _Attempt) -> str:
        explanations = self.knowledge.engine(best.policy.name).explanations
        for settings in (
            explanations(subject.group, best.seen, best.candidate),
            another_batch(best.seen, best.candidate),
        ):
            for setting in settings:
                if self._retry(subject, best, best.version, setting):
                    return f"it would be right if {setting.meaning}"
        return ""


def _more_than_decode(subject: _Subject, best: _Attempt) -> str:
    """Why an unsplit launch of a kernel that also serves prefill is no decode step; empty when it may be one.

    Where the user gave the batch, only a grid far larger than that of the decode step counts as a prefill: a smaller
    difference is a launch that should not have happened.
    """
    group = subject.group
    if subject.attribution.path_split is not False or group.stage1.grid is None:
        return ""
    if "batch" in best.candidate.inferred:
        size = best.candidate.batch.size
        if size > MOST_REQUESTS:
            return f"it has query blocks of {size} requests, so it is a prefill"
        if best.plan.is_split:
            return (
                f"it is unsplit, although {size} decode requests, which this grid would be, are split: it is a "
                "prefill or a mixed batch (or batch-invariant mode)"
            )
        return ""
    planned, seen = best.plan.stage1.launched_blocks, group.stage1.blocks or 0
    if seen >= PREFILL_FACTOR * planned:
        return f"it has {seen} blocks where the decode step has {planned}, so it is a prefill or a mixed batch"
    return ""
