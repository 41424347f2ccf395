"""From which context on it pays to divide a request's keys over ranks: the same layers with and without it.

Without context parallelism a rank has its own query heads and all keys of its KV heads. With it the rank has the heads
of the whole group and a share of the keys, and the ranks exchange queries and outputs. The exchange does not depend on
the context, so that there is a context from which dividing pays, or none within `MOST_KEYS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.cost.prediction import OWN, predict_policy
from decodecalc.intmath import distinct
from decodecalc.launch.arrays import Batches
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.cost.calibration import Calibration
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy

LEAST_KEYS, MOST_KEYS = 256, 1 << 24
STEP = 2 ** (1 / 4)  # contexts that are looked at first lie this far apart
REFINED = 24  # contexts that are looked at between the two that enclose the crossing


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven(Shown):
    """Where dividing keys over ranks starts to pay."""

    keys: int | None
    """The context from which on a layer takes less time divided; None where there is none up to `MOST_KEYS`."""
    divided_s: float | None
    """Time of a layer at that context, divided."""
    whole_s: float | None
    """Time of a layer at that context, not divided."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"keys": self.keys, "divided_s": self.divided_s, "whole_s": self.whole_s}


def undivided(geo: Geometry) -> Geometry:
    """The same layer on the same rank without context parallelism: its own heads, and all keys."""
    return geo if geo.share is None else replace(geo, q_heads=geo.q_heads // geo.share.ranks, share=None)


def break_even(
    policy: Policy,
    geo: Geometry,
    kv: KvCache,
    gpu: Gpu,
    *,
    batch: int = 1,
    q_len: int = 1,
    options: Mapping[str, Any] | None = None,
    version: str | None = None,
    calibration: Calibration | None = None,
    kernel: str = OWN,
    l2: str = "cold",
    launch: str = "graph",
) -> BreakEven:
    """The least context from which on dividing the keys of `geo` is predicted to pay, for equal requests.

    geo has a share. InputError and GateError as of `predict_policy`. A kernel that was not calibrated has no
    break-even.
    """

    def times(contexts: Any) -> tuple[Any, Any]:
        steps = Batches.uniform(batch, contexts, q_len)
        found = (
            predict_policy(
                policy, layer, steps, kv, gpu, options, version, calibration=calibration, kernel=kernel, l2=l2,
                launch=launch,
            ).total_s
            for layer in (geo, undivided(geo))
        )  # fmt: skip
        divided, whole = found
        return divided, whole

    count = int(np.log(MOST_KEYS / LEAST_KEYS) / np.log(STEP)) + 1
    coarse = np.array(distinct(np.rint(LEAST_KEYS * STEP ** np.arange(count)).astype(np.int64)))
    divided, whole = times(coarse)
    loses = np.flatnonzero(~(divided < whole))
    if np.isnan(divided).any() or np.isnan(whole).any() or (len(loses) and loses[-1] == len(coarse) - 1):
        return BreakEven(keys=None, divided_s=None, whole_s=None)
    if not len(loses):
        return BreakEven(keys=int(coarse[0]), divided_s=float(divided[0]), whole_s=float(whole[0]))
    last = int(loses[-1])
    fine = np.array(distinct(np.rint(np.linspace(coarse[last], coarse[last + 1], REFINED)).astype(np.int64)))
    divided, whole = times(fine)
    first = int(np.flatnonzero(~(divided < whole))[-1]) + 1
    return BreakEven(keys=int(fine[first]), divided_s=float(divided[first]), whole_s=float(whole[first]))
