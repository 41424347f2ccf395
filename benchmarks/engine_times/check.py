"""How good a fit is on steps that it has not seen, and how good the advice is that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.engine_times.families import Family
from benchmarks.engine_times.fit import Group, fit
from benchmarks.engine_times.timings import Timing

FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One timing and what a fit without its step said."""

    timing: Timing
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.timing.measured_s

    @property
    def error(self) -> float:
        """How many times too long or too short, less 1."""
        return max(self.ratio, 1 / self.ratio) - 1


def held_out(family: Family, groups: Sequence[Group]) -> list[Held]:
    """Every timing, predicted by a fit to the steps of the other folds."""
    steps = np.unique([t.step for group in groups for t in group.timings])
    fold = dict(zip(steps.tolist(), (np.random.RandomState(0).permutation(len(steps)) % FOLDS).tolist()))
    found: list[Held] = []
    for i in range(FOLDS):
        masks = [np.array([fold[t.step] == i for t in group.timings]) for group in groups]
        learnt = fit(family, [group.take(~mask) for group, mask in zip(groups, masks)])
        for g, (group, mask) in enumerate(zip(groups, masks)):
            if mask.any():
                kept = group.take(mask)
                predicted = kept.predict(learnt.numbers(g)).tolist()
                found += [Held(timing=t, predicted_s=p) for t, p in zip(kept.timings, predicted)]
    return found


def residual(held: Sequence[Held]) -> float:
    """The error that 90 % stayed within."""
    return float(np.quantile([h.error for h in held], 0.9))


def settings(held: Sequence[Held]) -> Iterator[list[Held]]:
    """The settings of each step of an engine that has several, the default one first."""
    steps: dict[tuple[int, str], list[Held]] = {}
    for h in held:
        steps.setdefault((h.timing.step, h.timing.variant.kernel), []).append(h)
    for group in steps.values():
        if len(group) > 1 and any(h.timing.default for h in group):
            yield sorted(group, key=lambda h: not h.timing.default)


def ratio_residual(held: Sequence[Held]) -> float:
    """How far the ratio of the fastest setting's time to the default one's is off, the root of the mean square; 0
    without settings. Advice waits for a larger gain."""
    errors = []
    for default, *others in settings(held):
        wrong = min(others, key=lambda h: h.predicted_s).ratio / default.ratio
        errors.append(np.log(wrong))
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What following the advice would have done, over the held-out steps."""

    steps: int
    changed: int
    within_5: float
    worst: float
    slower: int
    mean_gain: float
    best_gain: float


def advice(held: Sequence[Held], needed: float) -> Advice | None:
    """The setting that is advised is the fastest by prediction if it beats the default by more than `needed`."""
    regrets, changes, gains, possible = [], 0, [], []
    for default, *others in settings(held):
        fastest = min(others, key=lambda h: h.predicted_s)
        picked = fastest if fastest.predicted_s * (1 + needed) < default.predicted_s else default
        best = min([default, *others], key=lambda h: h.timing.measured_s)
        changes += picked is not default
        regrets.append(picked.timing.measured_s / best.timing.measured_s)
        gains.append(default.timing.measured_s / picked.timing.measured_s)
        possible.append(default.timing.measured_s / best.timing.measured_s)
    if not regrets:
        return None
    return Advice(
        steps=len(regrets), changed=changes, within_5=float(np.mean(np.array(regrets) <= 1.05)), worst=max(regrets),
        slower=sum(gain < 1 / 1.02 for gain in gains), mean_gain=_geometric(gains), best_gain=_geometric(possible),
    )  # fmt: skip


def _geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def row(name: str, held: Sequence[Held], width: float) -> dict[str, Any]:
    """One row of the report."""
    errors = np.array([abs(h.ratio - 1) for h in held])
    return {
        "what": name, "times": len(held), "steps": len({h.timing.step for h in held}), "mean": errors.mean(),
        "p50": np.quantile(errors, 0.5), "p90": np.quantile(errors, 0.9), "worst": errors.max(),
        "in_interval": np.mean([h.error <= width for h in held]),
    }  # fmt: skip
