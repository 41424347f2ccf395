"""How good a fit is on steps that it has not seen: the widths of intervals, and the gain that advice has to promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from decodecalc.calibrate.own.family import CompiledFamily
from decodecalc.calibrate.own.fit import Group, fit
from decodecalc.calibrate.own.physics import Widths
from decodecalc.calibrate.own.timing import TimedLaunch

FOLDS, SHARE = 5, 0.9
SLOWER, MARGIN = 1.02, 1.5
FEWEST = 20  # times that a width of their own is taken from


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One timing and what a fit without its step said."""

    timing: TimedLaunch
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.timing.measured_s

    @property
    def error(self) -> float:
        """How many times too long or too short, less 1."""
        return max(self.ratio, 1 / self.ratio) - 1


def held_out(family: CompiledFamily, groups: Sequence[Group]) -> list[Held]:
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


def within_90(errors: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """The error that a further time stays within with about 90 % probability, by the errors of n such times: a further
    one is as likely to lie in any of the n + 1 gaps between them. weights: how much each time counts; 1 when None.

    >>> within_90([i / 100 for i in range(1, 20)])
    0.18
    """
    order = np.argsort(errors, kind="stable")
    reached = np.cumsum(np.ones(len(order)) if weights is None else np.asarray(weights)[order])
    at = int(np.searchsorted(reached, SHARE * (reached[-1] + 1) - 0.5 - 1e-9))
    return float(errors[order[min(at, len(order) - 1)]])


def widths_of(held: Sequence[Held], kernel: str, dtype: str) -> Widths:
    """Widths of one kernel with one type of cache. Where fewer than FEWEST times of its own are known, those of the
    whole family count. A step counts once, however many settings of it were timed: they go wrong together."""

    def width(ragged: bool) -> float:
        alike = [h for h in held if h.timing.ragged == ragged]
        own = [h for h in alike if h.timing.variant.kernel == kernel and h.timing.variant.dtype == dtype]
        if len(own) < FEWEST:
            own = alike if len(alike) >= FEWEST else list(held)
        times = Counter(h.timing.step for h in own)
        return within_90([h.error for h in own], [1 / times[h.timing.step] for h in own])

    return Widths(width(False), width(True), needed_gain(held))


def settings(held: Sequence[Held]) -> Iterator[list[Held]]:
    """The settings of each step of an engine that has several, the default one first."""
    steps: dict[tuple[int, str, str], list[Held]] = {}
    for h in held:
        steps.setdefault((h.timing.step, h.timing.call.engine, h.timing.call.mode), []).append(h)
    for group in steps.values():
        if len(group) > 1 and any(h.timing.call.default for h in group):
            yield sorted(group, key=lambda h: not h.timing.call.default)


def needed_gain(held: Sequence[Held]) -> float:
    """The predicted gain, as a share, that advice on a setting waits for; 0 where no settings were timed.

    Whatever gain was predicted for a held-out step that then ran slower than by default by more than 2 % was not
    enough, and MARGIN times that is needed; nor is half the error (root of the mean square) of the ratio of the fastest
    setting's time to the default one's.
    """
    errors, harmful = [], 0.0
    for default, *others in settings(held):
        fastest = min(others, key=lambda h: h.predicted_s)
        errors.append(log(fastest.ratio / default.ratio))
        if fastest.timing.measured_s > SLOWER * default.timing.measured_s:
            harmful = max(harmful, default.predicted_s / fastest.predicted_s - 1)
    if not errors:
        return 0.0
    return max(MARGIN * harmful, 0.5 * float(np.sqrt(np.mean(np.square(errors)))))
