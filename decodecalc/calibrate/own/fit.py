"""The fit of a family: least robust relative error, by Levenberg-Marquardt on the logarithms of the numbers.

A number of a kernel is the family's number times a deviation of its own; deviations cost what their standard deviation
says, so that a kernel with few timings stays near its relatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.calibrate.own.family import CompiledFamily
from decodecalc.calibrate.own.physics import NO_WIDTHS, values_of
from decodecalc.calibrate.own.timing import TimedLaunch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.model import (
    Bodies,
    Shares,
    Work,
    block_time,
    idle_time,
    shares_of,
    step_terms,
    uniform_bodies,
    wave_time,
)
from decodecalc.cost.parameters import Variant
from decodecalc.cost.rates import Rates, make_rates
from decodecalc.cost.schedule import IDLE_TILES, list_schedule, progress
from decodecalc.cost.variants import Resolved, tile_elements
from decodecalc.gpus import Gpu

SOFT = 0.05  # relative errors beyond this count linearly
SHARED_SD = 3.0
MOST_ROUNDS, SEARCH_ROUNDS = 14, 6
SLOTS_TRIED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
FURTHEST_OWN = 2.5
GROWS = ("tile_s", "sm_tile_s")


class Group:
    """Timings of one compiled kernel; what of their schedules does not depend on rates is made once."""

    def __init__(
        self, variant: Variant, timings: Sequence[TimedLaunch], slots_per_sm: int, base: Calibration, gpu: Gpu
    ):
        self.variant, self.timings, self.slots_per_sm = variant, list(timings), slots_per_sm
        self.base, self.gpu = base, gpu
        self.measured_s = np.array([t.measured_s for t in timings])
        columns = {name: [getattr(t.work, name) for t in timings] for name in Work._fields}
        walks, live = columns["merge_walks"], columns["live_splits"]
        columns["merge_walks"] = [b if a is None else a for a, b in zip(walks, live)]
        self.work = Work(**{name: np.array(values) for name, values in columns.items()})
        n = len(timings)
        self.closed, self.mean = np.array([t.tiles is None for t in timings], dtype=bool), np.ones(n)
        parts: list[tuple[Any, Any, Any, Any]] = []
        plain = self.rates({name: start for name, (start, *_) in _PLAIN.items()})
        for i, t in enumerate(timings):
            if t.tiles is None:
                continue
            working = t.tiles > 0
            schedule = list_schedule(np.where(working, t.tiles, IDLE_TILES), plain.slots)
            found = progress(schedule, working, plain)
            parts.append((np.diff(found.edges), found.running, found.fullest, np.full(len(found.running), i)))
            self.mean[i] = t.tiles[working].mean()
        self.pieces = tuple(np.concatenate(column) for column in zip(*parts)) if parts else None

    def rates(self, numbers: dict[str, float]) -> Rates:
        """The model's rates for these numbers."""
        values = values_of(numbers, self.variant, self.slots_per_sm, self.base, NO_WIDTHS)
        return make_rates(self.base, self.gpu, Resolved(self.variant, self.variant, values, True))[0]

    def predict(self, numbers: dict[str, float]) -> Any:
        """Seconds of every timing [n]: what `decodecalc.cost` says, all at once."""
        rates, work = self.rates(numbers), self.work
        bodies = uniform_bodies(work, rates)
        if self.pieces is not None:
            bodies = self._with_schedules(bodies, rates)
        return step_terms(work, bodies, rates).total_s

    def _with_schedules(self, closed: Bodies, rates: Rates) -> Bodies:
        """The bodies, where a list schedule says them, from it (`schedule.ragged_bodies`)."""
        work, n = self.work, len(self.timings)
        steps, running, fullest, of = self.pieces  # type: ignore[misc]
        shares = shares_of(work, rates, work.blocks)
        own = Shares(*(np.broadcast_to(x, (n,))[of] for x in (shares.stream, shares.compute, shares.launch)))
        alone = block_time(self.mean[of], running, work.rows[of], rates, fullest)
        real = np.bincount(of, steps * wave_time(running, alone, own, rates) / self.mean[of], minlength=n)
        refill = rates.refill_s * (np.maximum(work.blocks / rates.slots, 1.0) - 1)
        side = np.minimum(work.blocks, rates.slots)
        tile_s = wave_time(side, block_time(self.mean, side, work.rows, rates), shares, rates) / self.mean
        even = work.tiles_total / np.maximum(side, 1) * tile_s + refill
        scheduled = np.maximum(real + refill, even)
        scheduled = scheduled + idle_time(work, scheduled, rates)
        values = ((closed.scheduled_s, scheduled), (closed.even_s, even), (closed.no_compute_s, even))
        return Bodies(*(np.where(self.closed, a, b) for a, b in values))

    def take(self, where: Any) -> Group:
        """Some of the timings."""
        kept = [t for t, keep in zip(self.timings, where) if keep]
        return Group(self.variant, kept, self.slots_per_sm, self.base, self.gpu)


_PLAIN = {
    "start_s": (1e-6,), "start_full_s": (1e-6,), "tile_s": (1e-6,), "sm_tile_s": (4e-7,), "refill_s": (1e-6,),
    "row_s": (0.0,), "merge_s": (1e-6,), "merge_state_s": (0.0,), "merge_row_s": (0.0,), "overlap_exponent": (4.0,),
    "port_exponent": (3.0,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Numbers of every group of a family."""

    family: CompiledFamily
    logs: Any
    """The family's logarithms, then the deviations of every group."""
    larger: tuple[float, ...]
    """How much longer a tile of every group is expected to take than the family's, before its own deviation."""

    def numbers(self, group: int, logs: Any = None) -> dict[str, float]:
        """One kernel's numbers."""
        x = self.logs if logs is None else logs
        names = list(self.family.numbers)
        own = [name for name in names if self.family.numbers[name][3]]
        values = dict(zip(names, np.exp(x[: len(names)]).tolist()))
        first = len(names) + group * len(own)
        for name, deviation in zip(own, x[first : first + len(own)].tolist()):
            values[name] *= float(np.exp(deviation)) * (self.larger[group] if name in GROWS else 1.0)
        return values


def groups_of(family: CompiledFamily, timings: Sequence[TimedLaunch], base: Calibration, gpu: Gpu) -> list[Group]:
    """The family's timings, kernel by kernel."""
    found: dict[Variant, list[TimedLaunch]] = {}
    for timing in timings:
        if family.holds(timing.variant):
            found.setdefault(family.key(timing.variant), []).append(timing)
    return [Group(v, found[v], slots_per_sm(family, v, found[v], base, gpu), base, gpu) for v in sorted(found)]


def slots_per_sm(
    family: CompiledFamily, variant: Variant, timings: Sequence[TimedLaunch], base: Calibration, gpu: Gpu
) -> int:
    """Blocks of the kernel that an SM holds: as the family knows, or the count that these times fit best."""
    known = family.slots_of(variant)
    if known is not None and (not family.searched or gpu.compute_capability == family.slots_of_capability):
        return known
    if not family.searched:
        return 1
    errors = {}
    for count in SLOTS_TRIED:
        group = Group(variant, timings, count, base, gpu)
        numbers = fit(family, [group], SEARCH_ROUNDS).numbers(0)
        errors[count] = float(np.abs(np.log(group.predict(numbers) / group.measured_s)).mean())
    return min(errors, key=lambda count: errors[count])


def damped_step(x: Any, normal: Any, slope: Any, least: Any, most: Any, damping: float) -> Any:
    """The point [p] one Levenberg-Marquardt step from `x` [p], within its bounds, no coordinate moved by more than one:
    normal [p, p] and slope [p] are those of the cost at `x`. What its bound holds stays where it is."""
    free = ~(((x <= least) & (slope > 0)) | ((x >= most) & (slope < 0)))
    step = np.zeros_like(x)
    damped = normal + damping * np.diag(np.diag(normal))
    step[free] = np.linalg.solve(damped[np.ix_(free, free)], slope[free])
    return np.clip(x - np.clip(step, -1.0, 1.0), least, most)


def fit(family: CompiledFamily, groups: Sequence[Group], rounds: int = MOST_ROUNDS) -> Fit:
    """The numbers that bring all groups nearest to their measured times."""
    ranges = list(family.numbers.values())
    own = [r[3] for r in ranges if r[3]]
    start = np.concatenate([np.log([r[0] for r in ranges]), np.zeros(len(own) * len(groups))])
    sd = np.concatenate([np.full(len(ranges), SHARED_SD), np.tile(own, len(groups))])
    least = np.concatenate([np.log([r[1] for r in ranges]), np.full(len(own) * len(groups), -FURTHEST_OWN)])
    most = np.concatenate([np.log([r[2] for r in ranges]), np.full(len(own) * len(groups), FURTHEST_OWN)])
    places = [
        np.concatenate([np.arange(len(ranges)), len(ranges) + g * len(own) + np.arange(len(own))])
        for g in range(len(groups))
    ]
    elements = np.array([tile_elements(group.variant) for group in groups], dtype=float)
    larger = tuple(((elements / np.exp(np.log(elements).mean())) ** 0.5).tolist())  # as `variants.resolve` has it
    frame = Fit(family=family, logs=start, larger=larger)

    def residuals(x: Any, g: int) -> Any:
        group = groups[g]
        if not group.timings:
            return np.zeros(0)
        return np.log(group.predict(frame.numbers(g, x))) - np.log(group.measured_s)

    def cost(rs: Sequence[Any], x: Any) -> float:
        data = sum(float((np.sqrt(1 + (r / SOFT) ** 2) - 1).sum()) for r in rs)
        return data + 0.25 * float((((x - start) / sd) ** 2).sum())

    x, damping = np.clip(start, least, most), 1e-2
    at = [residuals(x, g) for g in range(len(groups))]
    best = cost(at, x)
    for _ in range(rounds):
        normal, slope = np.diag(0.5 / sd**2), 0.5 * (x - start) / sd**2
        for g, here in enumerate(at):
            if not len(here):
                continue
            columns = []
            for i in places[g]:
                step = 1e-3 if x[i] + 1e-3 <= most[i] else -1e-3
                there = x.copy()
                there[i] += step
                columns.append((residuals(there, g) - here) / step)
            jacobian = np.stack(columns, axis=1)
            weight = 1 / np.sqrt(1 + (here / SOFT) ** 2) / SOFT**2
            normal[np.ix_(places[g], places[g])] += jacobian.T @ (weight[:, None] * jacobian)
            slope[places[g]] += jacobian.T @ (weight * here)
        gained = 0.0
        for _ in range(8):
            tried = damped_step(x, normal, slope, least, most, damping)
            new = [residuals(tried, g) for g in range(len(groups))]
            reached = cost(new, tried)
            if reached < best:
                gained = best - reached
                x, at, best, damping = tried, new, reached, max(damping / 5, 1e-8)
                break
            damping *= 6
        if gained < 1e-4 * best:
            break
    return Fit(family=family, logs=x, larger=larger)
