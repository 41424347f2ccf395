"""From timed launches to the kernels of a calibration: fitted, with intervals from held-out steps, and with the ranges
that were timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from decodecalc.calibrate.own.family import CompiledFamily
from decodecalc.calibrate.own.fit import Group, fit, groups_of
from decodecalc.calibrate.own.held import Held, held_out, widths_of
from decodecalc.calibrate.own.physics import Widths, values_of
from decodecalc.calibrate.own.timing import TimedLaunch, ranges_of
from decodecalc.cost.calibration import Calibration, Values
from decodecalc.cost.parameters import TimedSteps, Variant
from decodecalc.gpus import Gpu

FEWEST_STEPS = 10  # of a family: with fewer, nothing can be held out


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFamily:
    """One family's kernels with their parameters."""

    family: CompiledFamily
    """The kernels."""
    held: Sequence[Held]
    """Every timed launch, and what a fit without its step said."""
    variants: Mapping[Variant, Values]
    """The parameters of every variant that was timed."""
    timed: Mapping[Variant, TimedSteps]
    """What the steps behind each variant ranged over."""
    widths: Mapping[tuple[str, str], Widths]
    """The widths of the intervals, by kernel and element type."""


def fit_family(
    family: CompiledFamily, timings: Sequence[TimedLaunch], base: Calibration, gpu: Gpu, note: str
) -> FittedFamily | None:
    """The family's kernels, fitted to all of its timed launches; None where too few steps were timed.

    The intervals are the errors of five fits on the steps that they had not seen.
    """
    mine = [t for t in timings if family.holds(t.variant)]
    if len({t.step for t in mine}) < FEWEST_STEPS:
        return None
    groups = groups_of(family, mine, base, gpu)
    held = held_out(family, groups)
    kinds = dict.fromkeys((g.variant.kernel, g.variant.dtype) for g in groups)
    widths = {kind: widths_of(held, *kind) for kind in kinds}
    found = fit(family, groups)
    variants: dict[Variant, Values] = {}
    timed: dict[Variant, TimedSteps] = {}
    for i, g in enumerate(groups):
        said = widths[g.variant.kernel, g.variant.dtype]
        values = values_of(found.numbers(i), g.variant, g.slots_per_sm, base, said)
        marked = {**values, "slots_per_sm": values["slots_per_sm"]._replace(note=f"{note} ({len(g.timings)} times)")}
        for variant in dict.fromkeys(t.variant for t in g.timings):
            variants[variant] = marked
            timed[variant] = _ranges(variant, g, mine)
    return FittedFamily(family=family, held=held, variants=variants, timed=timed, widths=widths)


def _ranges(variant: Variant, group: Group, family: Sequence[TimedLaunch]) -> TimedSteps:
    """Requests, contexts and query tokens that one type of cache was timed with, because the kernels of a family share
    their numbers; pages and windows where the rows of a tile lie alike; and how many times are behind the variant's own
    numbers."""
    alike = [t for t in family if t.variant.dtype == variant.dtype]
    lying = ranges_of([t for t in alike if t.variant.layout == variant.layout])
    return ranges_of(alike)._replace(pages=lying.pages, windows=lying.windows, times=len(group.timings))


def with_kernels(base: Calibration, fitted: Sequence[FittedFamily], **changes: object) -> Calibration:
    """`base` with these families' kernels in place of those of the same names and kind of layer that it held."""
    kept = {v: values for v, values in base.variants.items() if not any(one.family.holds(v) for one in fitted)}
    variants, timed = dict(kept), {v: steps for v, steps in base.timed.items() if v in kept}
    for one in fitted:
        variants.update(one.variants)
        timed.update(one.timed)
    return replace(base, variants=variants, timed=timed, **changes)  # type: ignore[arg-type]


def fit_all(
    families: Sequence[CompiledFamily],
    timings: Sequence[TimedLaunch],
    base: Calibration,
    gpu: Gpu,
    note: str,
    tick: Callable[[FittedFamily], None] | None = None,
) -> list[FittedFamily]:
    """Every family that has enough timed steps."""
    out = []
    for family in families:
        found = fit_family(family, timings, base, gpu, note)
        if found is not None:
            out.append(found)
            if tick:
                tick(found)
    return out
