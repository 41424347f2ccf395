"""`predict`: the time of one plan; `predict_arrays`: of a whole array of steps. A plan is an array of one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.analysis.exchange import Exchange, exchange_of_policy
from decodecalc.analysis.roofline import roofline
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.cuts import Cuts, cuts_of
from decodecalc.cost.load import SHIPPED, load_calibration, own_calibration, shipped_calibration
from decodecalc.cost.model import Bodies, Terms, Work, step_terms, uniform_bodies
from decodecalc.cost.own_launch import row_block, under_rule, used_rows
from decodecalc.cost.parameters import EXTRAPOLATED, PROVENANCES, Parameter, TimedSteps
from decodecalc.cost.rates import Rates, make_rates
from decodecalc.cost.schedule import Slot, ragged_bodies, timeline
from decodecalc.cost.tuning import default_variant
from decodecalc.cost.variants import BUNDLED, Resolved, is_calibrated, kernel_of, on_path, resolve, wanted_variant
from decodecalc.cost.work import closed_form, pick, work_of
from decodecalc.engines.registry import traits_of
from decodecalc.errors import InputError
from decodecalc.intmath import IntArray, distinct
from decodecalc.launch.arrays import Batches, Launches, plan_arrays
from decodecalc.launch.plan import LaunchPlan, check_plan
from decodecalc.units import human_seconds
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.cost.collectives import ExchangeTime
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy

OWN = "own"
# Sets of keys of this many fitted L2 capacities may or may not survive a replay: fits of one device's kernels differ.
EDGE = (0.8, 1.6)
FLOOR = ("launch_s", "gap_s", "stream_s", "exchange_s")
"""The terms that no kernel can do without."""
FLOOR_PARAMETERS = ("launch_graph_s", "launch_stream_s", "dependent_launch_gap_s", "hbm_sustained_bytes_per_s")
BOUNDS = {
    "launch": "launching the kernels",
    "start": "starting and ending blocks",
    "stream": "bytes",
    "latency": "waiting for loads",
    "compute": "the tensor cores",
    "tail": "whole waves or the longest request",
    "merge": "the merge",
    "exchange": "the exchange between ranks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Shown):
    """Predicted time of one layer of one decode step."""

    engine: str
    """Whose launch it is."""
    kernel: str
    """Whose kernel the parameters are of."""
    total_s: float | None
    """Predicted time: the sum of `terms`. None where the kernel was not calibrated: `floor_s` is all that is known."""
    floor_s: float
    """What no kernel undercuts: its launches, and its bytes at the sustained rate."""
    terms: Mapping[str, float]
    """Where the time goes, by name: the fields of `model.Terms`; of an uncalibrated kernel those that it must spend."""
    bound: str | None
    """The group of terms that is largest, a key of BOUNDS; None where `total_s` is None."""
    low_s: float | None
    """Lower end of the interval that holds 90 % of such measured times."""
    high_s: float | None
    """Upper end of that interval."""
    roofline_s: float | None
    """A baseline: bytes and arithmetic at the data sheet's rates. None where those are not known."""
    overhead_plus_bytes_s: float
    """A baseline: launches plus bytes at the sustained rate."""
    l2: str
    """`cold` or `warm`."""
    launch: str
    """`graph` or `stream`."""
    calibration: str
    """Where the parameters come from."""
    variant: str
    """The kernel variant that runs."""
    stand_in: bool = False
    """Whether `total_s` is the bundled kernel's time in place of an engine's own. The interval is then made from how
    far engines' own kernels lay from the bundled one's where both were timed."""
    exact: bool = True
    """Whether this very kernel was calibrated; off where its numbers come from another width, type or tile."""
    beyond: str = ""
    """What of the step lies outside of the steps that the kernel was timed on, in words; empty where nothing does, and
    where the parameters were measured by microbenchmarks and not on steps."""
    notes: tuple[str, ...] = ()
    """What was assumed."""
    provenance: Mapping[str, Parameter] = field(default_factory=dict, repr=False)
    """The parameters used, by name."""

    def __str__(self) -> str:
        """One line for people."""
        if self.total_s is None or self.low_s is None or self.high_s is None or self.bound is None:
            return f"{self.engine}: {', '.join(self.notes)}; at least {human_seconds(self.floor_s)} a layer"
        total, low, high = (human_seconds(t) for t in (self.total_s, self.low_s, self.high_s))
        origin = f", {len(self.extrapolated)} parameters extrapolated" if self.extrapolated else ""
        return (
            f"{self.engine} on the {self.kernel} kernel: {total} a layer ({low} to {high}), "
            f"bound by {BOUNDS[self.bound]}, L2 {self.l2}, calibration {self.calibration}{origin}"
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low_s, high_s); None where there is no time."""
        return None if self.low_s is None or self.high_s is None else (self.low_s, self.high_s)

    @property
    def known_s(self) -> float:
        """`total_s`. InputError where the kernel was not calibrated."""
        if self.total_s is None:
            raise InputError(f"{self.engine}: {', '.join(self.notes)}")
        return self.total_s

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """Names of the parameters that were not measured for this kernel on this GPU."""
        return tuple(name for name, p in self.provenance.items() if p.provenance == EXTRAPOLATED)

    @property
    def numbers(self) -> str:
        """The word for the kernel's numbers: measured, fitted to public timings, or extrapolated, where another variant
        of the kernel or another GPU lends them."""
        if "tau_s" in self.extrapolated:
            return EXTRAPOLATED
        return next((word for word in PROVENANCES if self.calibration.startswith(word)), self.calibration)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the terms flattened."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("terms", "provenance", "notes")}
        return {
            **out,
            **self.terms,
            "notes": list(self.notes),
            "provenance": {name: p.to_dict() for name, p in self.provenance.items()},
        }


def predict(
    plan: LaunchPlan,
    gpu: Gpu | str | None = None,
    calibration: Calibration | None = None,
    *,
    kernel: str = OWN,
    stand_in: bool = False,
    l2: str = "cold",
    launch: str = "graph",
) -> Prediction:
    """How long the plan's layer takes on `gpu` (the plan's own when None).

    kernel: `own` for the engine's kernel, `bundled` for this project's kernel under the engine's rule. An own kernel
    that was not calibrated has no time, only a floor; with stand_in the bundled kernel's time is given in its place,
    marked, with the interval of stand-ins. l2: `cold` (a step walks every layer before it returns to one) or `warm`.
    launch: `graph` or `stream`. Raises InputError for a calibration of another GPU.
    """
    known, part = plan_part(plan, gpu, calibration, kernel, l2, launch)
    terms, found, exchange = part.terms(), part.resolved, part.exchange()
    values = {name: float(np.ravel(getattr(terms, name))[0]) for name in Terms._fields}
    ragged = len(set(plan.batch.seq_lens)) > 1
    width = 1 + (part.rates.half_width_ragged if ragged else part.rates.half_width)
    least = {name: values[name] for name in FLOOR}
    floor = sum(least.values())
    low, high = stand_in_ratios(known) if part.is_stand_in else (1 / width, width)
    total, moved = sum(values.values()), values["exchange_s"]
    apart = 1.0 if exchange is None else exchange.factor
    fast, slow = part.edges(total)
    timed = stand_in or not part.is_stand_in
    name = kernel_of(plan.engine, plan.is_split)
    lacking = f"not calibrated: no times of the kernel {name} are known"
    instead = f", {found.used.label()} stands in" if stand_in else ""
    steps = None if part.is_stand_in else known.timed_steps(found.used)
    beyond = "" if steps is None else _beyond(plan, steps)
    untimed = f"the kernel was not timed with {beyond}" if beyond else ""
    return Prediction(
        engine=plan.engine,
        kernel=found.used.kernel if timed else name,
        total_s=total if timed else None,
        floor_s=floor,
        terms=values if timed else least,
        bound=_bound(values) if timed else None,
        low_s=low * (fast - moved) + moved / apart if timed else None,
        high_s=high * (slow - moved) + moved * apart if timed else None,
        roofline_s=roofline(plan, part.gpu).roofline_s,
        overhead_plus_bytes_s=floor,
        l2=l2,
        launch=launch,
        calibration=known.origin(found.used).label,
        variant=found.wanted.label(),
        stand_in=part.is_stand_in and stand_in,
        exact=found.exact and not part.is_stand_in,
        beyond=beyond,
        notes=(
            *((lacking + instead,) if part.is_stand_in else tuple(n for n in (found.note, untimed) if n)),
            *(() if exchange is None else (f"collectives between ranks: {exchange.label}",)),
        ),
        provenance=part.used if timed else {n: p for n, p in part.used.items() if n in FLOOR_PARAMETERS},
    )


def _beyond(plan: LaunchPlan, steps: TimedSteps) -> str:
    """What of a plan's step lies outside of the steps that its kernel was timed on."""
    batch = plan.batch
    return steps.beyond(
        batch.size, batch.max_seq_len, plan.kv.page_size, batch.max_q_len, plan.geometry.window is not None
    )


def stand_in_ratios(calibration: Calibration) -> tuple[float, float]:
    """How far an engine's own kernel may lie from the bundled one under its rule: 5th and 95th percentile of the ratio,
    of this calibration or, where it holds none, of the first shipped one."""
    found = calibration.parameters
    if "stand_in_low" not in found or "stand_in_high" not in found:
        found = shipped_calibration(SHIPPED[0].file).parameters
    return found["stand_in_low"].number, found["stand_in_high"].number


def schedule_of(
    plan: LaunchPlan,
    gpu: Gpu | str | None = None,
    calibration: Calibration | None = None,
    *,
    kernel: str = OWN,
    l2: str = "cold",
) -> Iterator[Slot]:
    """Stage 1's blocks on SM slots over time, as `predict` sees them, from its start on."""
    _, part = plan_part(plan, gpu, calibration, kernel, l2, "graph")
    return timeline(part.cuts.order(0), pick(part.work, 0), part.rates)


def predict_arrays(
    engine: str,
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    gpu: Gpu,
    found: Launches,
    calibration: Calibration | None = None,
    *,
    kernel: str = OWN,
    stand_in: bool = False,
    l2: str = "cold",
    launch: str = "graph",
) -> Terms:
    """Terms [N] of every step of `batches` under the launches `found` (what the policy's array rule returned).

    Where a step's kernel was not calibrated the terms that a measurement would have to stand behind are NaN, and with
    them the total; stand_in: the bundled kernel's terms are given instead.

    Steps of equal requests use the closed form; ragged steps, and irregular partitions, a list schedule each.
    """
    known = calibration or load_calibration(gpu=gpu)
    out = {name: np.zeros(batches.n) for name in Terms._fields}
    for part in _parts(engine, geo, batches, kv, gpu, found, known, kernel, l2, launch):
        terms = part.terms()
        for name, values in out.items():
            untold = part.is_stand_in and not stand_in and name not in FLOOR
            values[part.steps] = np.nan if untold else getattr(terms, name)
    return Terms(**out)


def predict_policy(
    policy: Policy,
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    gpu: Gpu,
    options: Mapping[str, Any] | None = None,
    version: str | None = None,
    *,
    calibration: Calibration | None = None,
    kernel: str = OWN,
    stand_in: bool = False,
    l2: str = "cold",
    launch: str = "graph",
) -> Terms:
    """`predict_arrays` for a policy by its own array rule; the last four arguments as there."""
    chosen = policy.version(version)
    opts = policy.options_type.from_mapping(policy.name, options or {})
    seen, found = policy.on_layer(geo, batches, kv, gpu, opts, chosen)
    return predict_arrays(
        policy.name, geo, seen, kv, gpu, found, calibration, kernel=kernel, stand_in=stand_in, l2=l2, launch=launch
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Steps of an array that one kernel variant runs."""

    steps: IntArray
    """Their numbers in the whole array [n]."""
    gpu: Gpu
    exchanged: Exchange | None
    """What the ranks exchange; None where keys are not divided over ranks."""
    batches: Batches
    cuts: Cuts
    """Their partition as the kernel walks it."""
    work: Work
    """Their work [n]."""
    resolved: Resolved
    rates: Rates
    used: Mapping[str, Parameter]
    """The parameters behind the rates, by name."""
    is_stand_in: bool
    """Whether the engine's own kernel was wanted but not calibrated, so that the bundled one's numbers are these."""

    def terms(self) -> Terms:
        """Where the time of each step goes [n]."""
        terms, exchange = step_terms(self.work, self._bodies(), self.rates), self.exchange()
        return terms if exchange is None else terms._replace(exchange_s=exchange.total_s)

    def exchange(self) -> ExchangeTime | None:
        """The time of what the ranks exchange [n]; None where keys are not divided over ranks."""
        if self.exchanged is None:
            return None
        from decodecalc.cost.collectives import exchange_time

        return exchange_time(self.exchanged, self.gpu, self.rates.l2_bytes_per_s)

    def edges(self, total_s: float) -> tuple[float, float]:
        """Seconds of the first step with everything found in the L2 and with nothing found there, where the set of keys
        is about as large as a warm L2: how much of it survives a replay is then not known. Else `total_s` twice."""
        work, rates = self.work, self.rates
        share = float(np.asarray(work.hbm_bytes).reshape(-1)[0]) / rates.l2_capacity_bytes
        if not rates.warm or not EDGE[0] < share < EDGE[1]:
            return total_s, total_s
        found = [replace(self, rates=rates._replace(l2_capacity_bytes=size)) for size in (1e30, 1.0)]
        hit, missed = (float(np.asarray(part.terms().total_s).reshape(-1)[0]) for part in found)
        return min(hit, total_s), max(missed, total_s)

    def _bodies(self) -> Bodies:
        """The closed form where it is exact, a list schedule for every other step."""
        closed = closed_form(self.cuts, self.batches)
        found = uniform_bodies(self.work, self.rates)
        if closed.all():
            return found
        values = {name: np.array(getattr(found, name), dtype=float) for name in Bodies._fields}
        for n in np.flatnonzero(~closed).tolist():
            work = pick(self.work, n)
            tiles = np.concatenate([self.cuts.order(n).tiles, np.full(work.repeating, work.repeating_tiles)])
            one = ragged_bodies(tiles, work, self.rates)
            for name, array in values.items():
                array[n] = getattr(one, name)
        return Bodies(**values)


def plan_part(
    plan: LaunchPlan, gpu: Gpu | str | None, calibration: Calibration | None, kernel: str, l2: str, launch: str
) -> tuple[Calibration, Part]:
    """The calibration that a plan is priced with, and the plan as an array of one step."""
    from decodecalc.gpus import load_gpu

    check_plan(plan)
    device = plan.gpu if gpu is None else load_gpu(gpu)
    known = own_calibration(calibration, device)
    batches, found = plan_arrays(plan)
    (part,) = _parts(plan.engine, plan.geometry, batches, plan.kv, device, found, known, kernel, l2, launch)
    return known, part


def _parts(
    engine: str, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, found: Launches, known: Calibration,
    kernel: str, l2: str, launch: str,
) -> Iterator[Part]:  # fmt: skip
    """The array cut into steps that the same variant of the same kernel runs."""
    if kernel not in (OWN, BUNDLED):
        raise InputError(f"kernel must be {OWN} or {BUNDLED}, not {kernel!r:.40}")
    n = batches.n
    named = [found.is_split, found.tile_keys, found.block_rows, batches.max_q_len, found.resident_blocks]
    named += [getattr(found.detail, name, 0) for name in ("warps", "stages")]
    columns = [np.broadcast_to(np.asarray(x, dtype=np.int64), (n,)) for x in named]
    for steps in _equal_rows(columns):
        some, there = (batches, found) if len(steps) == n else (batches.take(steps), found.take(steps, n))
        split, tile, rows, q_len, resident, warps, stages = (int(column[steps[0]]) for column in columns)
        calibrated = kernel == OWN and is_calibrated(engine, bool(split), known)
        name = kernel_of(engine, bool(split)) if calibrated else BUNDLED
        if kernel == BUNDLED and engine != BUNDLED:
            variant = on_path(default_variant(known, geo, kv, q_len), bool(split))
            run = under_rule(there, geo, some, variant.tile_keys, row_block(geo, q_len))
            run = replace(
                run,
                is_split=there.is_split,  # partial states are merged under the engine's rule even where one is live
                kernels=(*run.kernels[:1], *(k for k in there.kernels if k.role == "merge")),
                launched=there.launched,  # blocks without work come as the engine launches them
                repeating_blocks=0,  # and return at once, which is the bundled kernel's way
            )
            resolved = resolve(known, variant)
        else:
            # A stand-in too keeps the engine's blocks, their rows and what they ask for: only the kernel is another's.
            variant_rows = rows if engine != BUNDLED else used_rows(geo, q_len, warps)
            run = there
            held = resident if calibrated else 0
            wanted = wanted_variant(name, geo, kv, tile, variant_rows, warps, stages, bool(split), held)
            resolved = resolve(known, wanted)
        rates, used = make_rates(known, gpu, resolved, l2=l2, launch=launch, dtype=kv.query_dtype)
        in_turn = name != BUNDLED and traits_of(engine).requests_in_turn
        cuts = cuts_of(some, run, run.tile_keys, by_request=in_turn)
        work = work_of(engine, geo, some, kv, run, cuts)
        yield Part(
            steps=steps,
            gpu=gpu,
            exchanged=exchange_of_policy(engine, geo, kv, some.query_tokens),
            batches=some,
            cuts=cuts,
            work=work,
            resolved=resolved,
            rates=rates,
            used=used,
            is_stand_in=kernel == OWN and name == BUNDLED != engine,
        )


def _equal_rows(columns: Sequence[IntArray]) -> Iterator[IntArray]:
    """Numbers of the rows that agree in every column, set by set."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = distinct(column) if len(column) else [0]
        if len(values) > 1:
            code = code * len(values) + np.searchsorted(values, column)
    for kind in distinct(code) if len(code) else ():
        yield np.flatnonzero(code == kind)


def _bound(terms: Mapping[str, float]) -> str:
    groups = {
        "launch": terms["launch_s"],
        "start": terms["fixed_s"],
        "stream": terms["stream_s"],
        "latency": terms["latency_s"],
        "compute": terms["compute_s"],
        "tail": terms["tail_s"],
        "merge": terms["gap_s"] + terms["merge_s"],
        "exchange": terms["exchange_s"],
    }
    return max(groups, key=lambda name: groups[name])
