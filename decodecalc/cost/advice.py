"""Advice on one value of an engine's split setting for all steps that a server runs, and on an FP8 cache.

Advice is given only where a measurement stands behind it: for values of a setting that were timed
(`SplitSetting.checked`), for kernels that were calibrated on this very GPU, inside the ranges of batch, context and
pages that were timed (`TimedSteps`), and for predicted gains beyond which no held-out step became slower
(`residual_ratio`). That is less than the error of a time, because the errors of two settings of one kernel are
correlated; reports/h200/engine-kernels.md says how the advice fares on steps that no fit has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.parameters import MEASURED
from decodecalc.cost.prediction import Prediction, predict
from decodecalc.errors import DecodecalcError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv
from decodecalc.units import human_seconds
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy

WORTH = 0.02  # no change is worth naming below 2 %


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStep:
    """One layer group of one decode step that a server runs."""

    geometry: Geometry
    """The layers."""
    batch: Batch
    """The step."""
    layers: int = 1
    """How many such layers there are."""
    weight: float = 1.0
    """The share of the step among all that the server runs: the shares of a workload's steps add up to 1."""

    @property
    def label(self) -> str:
        """The step in words."""
        return f"batch {self.batch.size} of up to {self.batch.max_seq_len} keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Shown):
    """What to set for a whole workload, or why nothing."""

    engine: str
    """The engine."""
    setting: str | None = None
    """What to type; None where the default stays."""
    splits: int | None = None
    """Splits of a request that it asks for; None where the default stays."""
    server: str | None = None
    """The server that takes it; None where only a caller of the library can pass it."""
    now_s: float | None = None
    """Mean time of a token under the engine's own rule; None where its kernel was not calibrated."""
    then_s: float | None = None
    """The same with the setting; None where the default stays."""
    worst: float | None = None
    """The step that gains least: its time with the setting over its time now."""
    worst_step: str | None = None
    """That step in words."""
    needed: float | None = None
    """The gain, as a share, that predictions of two settings must differ by before they count."""
    tried: tuple[tuple[str, float], ...] = ()
    """Every value that was tried, with the workload's time."""
    sentence: str = ""
    """All of this in one sentence that a person can act on."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """The sentence."""
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Adviser:
    """What all advice on one server shares."""

    kv: KvCache
    """The cache."""
    gpu: Gpu
    """The GPU."""
    calibration: Calibration
    """The parameters."""
    options: Mapping[str, Any]
    """Engine options; each engine takes those it has."""
    l2: str = "cold"
    """`cold` or `warm`."""
    library: bool = False
    """Whether settings count that only a caller of a library can pass."""

    def setting(self, policy: Policy, version: str | None, steps: Sequence[ServedStep]) -> Advice:
        """The value of the engine's split setting with the least total time. DecodecalcError where it refuses."""
        name, setting = policy.name, policy.traits.split_setting
        graph = policy.traits.graph_option
        if policy.traits.graph_setting is not None and graph is not None and policy.preset.get(graph[0]) == graph[1]:
            setting = policy.traits.graph_setting
        now = self._times(policy, version, steps, {})
        if now is None:
            return Advice(engine=name, sentence=f"{name}: no advice, because its kernel was not calibrated on this GPU")
        total = _total(steps, now)
        if setting is None or not (setting.server or self.library):
            return Advice(engine=name, now_s=total, sentence=f"{name}: no server setting reaches its split counts")
        ratios = [p.provenance.get("residual_ratio") for p in now]
        trusted = [r.number for r in ratios if r is not None and r.provenance == MEASURED]
        if not setting.checked or len(trusted) < len(steps):
            why = f"{name}: no advice, because no values of its setting were timed for these layers on this GPU"
            return Advice(engine=name, now_s=total, sentence=why)
        outside = [p.beyond for p in now if p.beyond]
        if outside:
            why = f"{name}: no advice, because its kernel was not timed on this GPU with {outside[0]}"
            return Advice(engine=name, now_s=total, sentence=why)
        needed = max(max(trusted), WORTH)
        tried: dict[str, tuple[float, list[Prediction]]] = {}
        values: dict[str, int] = {}
        for value in setting.checked:
            longest = max(step.batch.max_seq_len for step in steps)
            pages = max(cdiv(longest, value * self.kv.page_size), 1)
            try:
                then = self._times(policy, version, steps, {setting.option: pages if setting.in_pages else value})
            except DecodecalcError:
                continue
            if then is not None:
                text = setting.text.format(splits=value, pages=pages)
                tried[text], values[text] = (_total(steps, then), then), value
        listed = tuple((text, seconds) for text, (seconds, _) in tried.items())
        best = min(tried, key=lambda text: tried[text][0], default=None)
        if best is None or tried[best][0] * (1 + needed) >= total:
            typed = setting.text.format(splits="N", pages="N")
            keep = (
                f"{name}: keep the default; no value of `{typed}` is predicted to gain more than {100 * needed:.1f} %, "
                "and a smaller predicted gain may turn out as a loss"
            )
            return Advice(engine=name, now_s=total, needed=needed, tried=listed, sentence=keep)
        then_s, then = tried[best]
        changes = [b.known_s / a.known_s for a, b in zip(now, then)]
        least = max(range(len(steps)), key=lambda i: changes[i])
        who = f"start {setting.server} with {best}" if setting.server else f"pass {best} to the library"
        sentence = (
            f"{name}: {who}; attention then takes {human_seconds(then_s)} instead of {human_seconds(total)} a token"
        )
        if len(steps) > 1:
            sentence += (
                f" in the mean of these {len(steps)} steps, and the step that gains least, {steps[least].label}, takes "
                f"{changes[least]:.2f} times as long as now"
            )
        return Advice(
            engine=name,
            setting=best,
            splits=values[best],
            server=setting.server,
            now_s=total,
            then_s=then_s,
            worst=changes[least],
            worst_step=steps[least].label,
            needed=needed,
            tried=listed,
            sentence=sentence,
        )

    def cache(self, policy: Policy, version: str | None, steps: Sequence[ServedStep]) -> str | None:
        """Whether an FP8 cache (or, for an FP8 cache, a 16-bit one) is faster with this engine; None where a kernel of
        the two was not calibrated. The errors of two types are taken for independent."""
        other = "bf16" if self.kv.dtype == "fp8" else "fp8"
        if self.kv.dtype not in ("bf16", "fp16", "fp8"):
            return None
        changed = replace(self, kv=replace(self.kv, dtype=other))
        try:
            now, then = self._times(policy, version, steps, {}), changed._times(policy, version, steps, {})
        except DecodecalcError:
            return None
        if now is None or then is None or not all(p.exact and not p.beyond for p in (*now, *then)):
            return None
        before, after = _total(steps, now), _total(steps, then)
        needed = (_width(now) ** 2 + _width(then) ** 2) ** 0.5
        times = f"{human_seconds(after)} with {other} against {human_seconds(before)} with {self.kv.dtype}"
        if after * (1 + needed) < before:
            return f"{policy.name}: a cache in {other} is predicted to be faster, {times} a token"
        if before * (1 + needed) < after:
            return f"{policy.name}: stay with {self.kv.dtype}; a cache in {other} is predicted to be slower, {times}"
        return (
            f"{policy.name}: a cache in {other} makes no difference that can be told, {times} a token, since "
            f"predictions of the two may be {100 * needed:.0f} % apart"
        )

    def _times(
        self, policy: Policy, version: str | None, steps: Sequence[ServedStep], more: Mapping[str, Any]
    ) -> list[Prediction] | None:
        """Every step's prediction; None where one has no time."""
        options = {**policy.own_options(self.options), **more}
        found = []
        for step in steps:
            plan = policy.plan(step.geometry, step.batch, self.kv, self.gpu, options, version)
            found.append(predict(plan, self.gpu, self.calibration, l2=self.l2))
            if found[-1].total_s is None:
                return None
        return found


def _total(steps: Sequence[ServedStep], times: Sequence[Prediction]) -> float:
    """Mean over the steps, by their shares, of the time of all layers; several layer groups of a step add up."""
    return sum(step.weight * step.layers * p.known_s for step, p in zip(steps, times))


def _width(times: Sequence[Prediction]) -> float:
    return max((p.high_s or 0.0) / p.known_s - 1 for p in times)
