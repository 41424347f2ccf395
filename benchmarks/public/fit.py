"""Least robust relative error: Levenberg-Marquardt on the logarithms of the parameters, within their bounds.

Some parameters belong to all rows, others to one group of them; the normal equations are put together group by group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from decodecalc.calibrate.own.fit import damped_step

SOFT = 0.05
PRIOR = 0.003
"""How much a factor e away from the start costs, against the mean cost of a row."""

Predict = Callable[[Any, Any], Any]


def fit(
    groups: Sequence[tuple[Predict, Any]], shared: Any, own: Sequence[Any], rounds: int = 18, begin: Any = None
) -> tuple[Any, list[Any], float]:
    """Log parameters that bring predict(shared [p], own [q]) of every group nearest to its measured seconds.

    groups: (predict, log of the measured seconds [n]). shared [p, 3] and each own [q, 3] hold start, least and most;
    begin [p]: where the search begins for the shared ones, if not at the start.
    """
    bounds = np.concatenate([shared, *own])
    start, low, high = bounds.T
    p, ends = len(shared), np.cumsum([len(shared), *map(len, own)])
    places = [np.concatenate([np.arange(p), np.arange(a, b)]) for a, b in pairwise(ends.tolist())]
    rows = sum(len(m) for _, m in groups)

    def residuals(x: Any) -> list[Any]:
        return [np.log(f(x[:p], x[at[p:]])) - m for (f, m), at in zip(groups, places)]

    def cost(rs: list[Any], x: Any) -> float:
        data = sum(float((np.sqrt(1 + (r / SOFT) ** 2) - 1).sum()) for r in rs)
        return data / rows + PRIOR * float(((x - start) ** 2).sum()) / len(x)

    x = np.clip(start, low, high)
    if begin is not None:
        x[:p] = np.clip(begin, low[:p], high[:p])
    r, damping = residuals(x), 1e-2
    best = cost(r, x)
    for _ in range(rounds):
        normal, slope = np.zeros((len(x), len(x))), np.zeros(len(x))
        for (f, m), at, one in zip(groups, places, r):
            columns = []
            for i in at:
                step = -1e-3 if x[i] + 1e-3 > high[i] else 1e-3
                there = x.copy()
                there[i] += step
                columns.append((np.log(f(there[:p], there[at[p:]])) - m - one) / step)
            jacobian = np.stack(columns, axis=1)
            weight = 1 / np.sqrt(1 + (one / SOFT) ** 2) / SOFT**2 / rows
            normal[np.ix_(at, at)] += jacobian.T @ (weight[:, None] * jacobian)
            slope[at] += jacobian.T @ (weight * one)
        normal += np.eye(len(x)) * (2 * PRIOR / len(x))
        slope += 2 * PRIOR / len(x) * (x - start)
        gained = 0.0
        for _ in range(7):
            tried = damped_step(x, normal, slope, low, high, damping)
            new = residuals(tried)
            reached = cost(new, tried)
            if reached < best:
                gained = best - reached
                x, r, best, damping = tried, new, reached, max(damping / 5, 1e-8)
                break
            damping *= 6
        if gained < 3e-4 * best:
            break
    return x[:p], [x[a:b] for a, b in pairwise(ends.tolist())], best
