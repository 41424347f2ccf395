"""How good the advice is that follows from a fit, and rows of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.calibrate.own.held import Held, settings


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


def row(name: str, held: Sequence[Held], widths: Sequence[float]) -> dict[str, Any]:
    """One row of the report; widths: of the interval of every time."""
    errors = np.array([abs(h.ratio - 1) for h in held])
    return {
        "what": name, "times": len(held), "steps": len({h.timing.step for h in held}), "mean": errors.mean(),
        "p50": np.quantile(errors, 0.5), "p90": np.quantile(errors, 0.9), "worst": errors.max(),
        "in_interval": np.mean([h.error <= width for h, width in zip(held, widths)]),
    }  # fmt: skip
