"""From a few physical numbers of a kernel to the curves that a calibration holds.

Whole launches were timed, not single tiles and starts: they bear a few numbers, and the curves are drawn from these.

* `tile_s`: a tile of a block that has its SM to itself; m blocks of one SM wait for each other, so that a tile of each
  takes (tile_s**q + (m * sm_tile_s)**q)**(1/q), with q the `port_exponent`. No block reads faster than that;
* `start_s`: the start of a lone block; `start_full_s` more when all slots start together; `refill_s`, `row_s`:
  `refill_s` and `t_row_s` of the calibration;
* `merge_s`, and for every split of a row `merge_state_s`, for every row `merge_row_s`; `merge_walk_s`,
  `idle_block_s`, `scheduler_s` and `copy_s` are the calibration's own, and belong to kernels that loop over, or launch,
  splits without keys, whose scheduler may run with every layer or once a step, or that need their queries and outputs
  copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from decodecalc.cost.calibration import Calibration, Values
from decodecalc.cost.model import PAST
from decodecalc.cost.parameters import MEASURED, STARTS, Parameter, Value, Variant
from decodecalc.cost.variants import tile_bytes

# name -> (start, least, most, how far one kernel of a family may lie from another: the standard deviation of the
# logarithm; None: they share the number).
COMMON: dict[str, tuple[float, float, float, float | None]] = {
    "start_s": (3e-6, 3e-7, 20e-6, 0.3),
    "start_full_s": (1e-6, 1e-8, 10e-6, 0.5),
    "tile_s": (1.5e-6, 1e-7, 2e-5, 0.5),
    "sm_tile_s": (5e-7, 1e-8, 5e-6, 0.5),
    "refill_s": (1e-6, 1e-8, 1e-5, 0.5),
    "row_s": (1e-9, 1e-12, 1e-7, None),
    "merge_s": (2e-6, 1e-7, 2e-5, 0.3),
    "merge_state_s": (5e-8, 1e-10, 1e-6, 0.3),
    "merge_row_s": (1e-9, 1e-12, 1e-7, 0.5),
    "overlap_exponent": (4.0, 1.2, 12.0, None),
    "port_exponent": (4.0, 1.5, 12.0, None),
}
WALKS = {"merge_walk_s": (3e-8, 1e-10, 1e-6, 0.3)}
COPIES = {"copy_s": (2.5e-6, 1e-7, 1e-5, None)}
SCHEDULED = {"scheduler_s": (1.5e-6, 1e-8, 1e-5, None)}
IDLE = {"idle_block_s": (9e-10, 1e-10, 3e-9, None)}


class Widths(NamedTuple):
    """Errors of held-out times, as shares."""

    uniform: float
    """What 90 % of the times of steps with equal requests stayed within."""
    ragged: float
    """The same of steps whose requests differ."""
    pair: float = 0.0
    """The predicted gain that advice on a setting waits for; 0 where no settings were timed."""


OWN = ("merge_walk_s", "idle_block_s", "scheduler_s", "copy_s")
"""Numbers that are the calibration's own, of kernels that need them."""
NO_WIDTHS = Widths(0.0, 0.0)
SPLIT_KNOTS, ROW_KNOTS = (1.0, 257.0), (1.0, 1001.0)
DIGITS = 5


def knots(sm_count: int, slots_per_sm: int) -> tuple[float, ...]:
    """Block counts at which the curves are given: both sides of every whole number of blocks an SM."""
    found = [1.0]
    for m in range(1, slots_per_sm + 1):
        found.append(float(sm_count * m))
        if m < slots_per_sm:
            found.append(sm_count * (m + PAST))
    return tuple(found)


def values_of(
    numbers: Mapping[str, float], variant: Variant, slots_per_sm: int, base: Calibration, widths: Widths
) -> Values:
    """The parameters of a calibration's variant."""
    sm_count = base.gpu["sm_count"]
    at = knots(sm_count, slots_per_sm)
    q, p = numbers["port_exponent"], numbers["overlap_exponent"]
    transfer = tile_bytes(variant) / base.parameters["hbm_sustained_bytes_per_s"].number
    latency = [(numbers["tile_s"] ** q + (ceil(k / sm_count) * numbers["sm_tile_s"]) ** q) ** (1 / q) for k in at]
    start = tuple(numbers["start_s"] + numbers["start_full_s"] * k / at[-1] for k in at)
    merge = tuple(
        numbers["merge_s"] + numbers["merge_state_s"] * s + numbers["merge_row_s"] * r
        for r in ROW_KNOTS
        for s in SPLIT_KNOTS
    )
    found = (
        _number("slots_per_sm", float(slots_per_sm)),
        _number("blocks", at),
        _number("tau_s", tuple((w**p + (k * transfer) ** p) ** (1 / p) for k, w in zip(at, latency))),
        *(_number(name, start) for name in STARTS),
        _number("refill_s", numbers["refill_s"]),
        _number("t_row_s", numbers["row_s"]),
        _number("merge_rows", ROW_KNOTS),
        _number("merge_splits", SPLIT_KNOTS),
        _number("merge_s", merge),
        *(_number(name, numbers[name]) for name in OWN if name in numbers),
        _number("overlap_exponent", p),
        _number("residual_p90", widths.uniform),
        _number("residual_ragged_p90", widths.ragged),
        *((_number("residual_ratio", widths.pair),) if widths.pair else ()),
    )
    return {parameter.name: parameter for parameter in found}


def _number(name: str, value: Value) -> Parameter:
    """A parameter, rounded: the file must come out the same on every machine."""
    if isinstance(value, tuple):
        return Parameter(name, tuple(float(f"{x:.{DIGITS}g}") for x in value), MEASURED)
    return Parameter(name, float(f"{value:.{DIGITS}g}"), MEASURED)
