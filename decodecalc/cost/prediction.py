"""`predict`: the time of one plan; `predict_arrays`: of a whole array of steps. Two doors, one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.analysis.roofline import roofline
from decodecalc.analysis.traffic import traffic
from decodecalc.cost.calibration import Calibration, load_calibration
from decodecalc.cost.model import Bodies, Terms, Work, step_terms, uniform_bodies
from decodecalc.cost.parameters import EXTRAPOLATED, Parameter
from decodecalc.cost.rates import Rates, make_rates
from decodecalc.cost.schedule import Blocks, Slot, cut_tiles, idle_matter, launch_order, ragged_bodies, timeline
from decodecalc.cost.tuning import STATE_SCALARS, default_variant, pick, row_block, used_rows
from decodecalc.cost.variants import BUNDLED, Resolved, kernel_of, on_path, resolve, wanted_variant
from decodecalc.cost.work import on_bundled, scheduler_kernels, work_of
from decodecalc.errors import InputError
from decodecalc.intmath import cdiv, distinct
from decodecalc.launch.arrays import Batches, Launches
from decodecalc.launch.plan import KernelLaunch, KeyRanges, LaunchPlan
from decodecalc.units import human_seconds

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy

OWN = "own"
BOUNDS = {
    "launch": "launching the kernels",
    "start": "starting and ending blocks",
    "stream": "bytes",
    "latency": "waiting for loads",
    "compute": "the tensor cores",
    "tail": "whole waves or the longest request",
    "merge": "the merge",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time of one layer. `terms` add up to total_s; low_s and high_s bound what 90 % of such cells measured.

    bound: which group of terms is largest (a key of BOUNDS). roofline_s and overhead_plus_bytes_s are the baselines:
    data-sheet bandwidth and peak alone; launches plus bytes at the sustained rate. kernel: whose kernel the parameters
    are of; l2: cold or warm; notes: what was assumed. provenance: the parameters used, by name.
    """

    engine: str
    kernel: str
    total_s: float
    terms: Mapping[str, float]
    bound: str
    low_s: float
    high_s: float
    roofline_s: float | None
    overhead_plus_bytes_s: float
    l2: str
    launch: str
    calibration: str
    variant: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Parameter] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """One line for people."""
        total, low, high = (human_seconds(t) for t in (self.total_s, self.low_s, self.high_s))
        origin = f", {len(self.extrapolated)} parameters extrapolated" if self.extrapolated else ""
        return (
            f"{self.engine} on the {self.kernel} kernel: {total} a layer ({low} to {high}), "
            f"bound by {BOUNDS[self.bound]}, L2 {self.l2}, calibration {self.calibration}{origin}"
        )

    @property
    def interval(self) -> tuple[float, float]:
        """(low_s, high_s)."""
        return self.low_s, self.high_s

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """Names of the parameters that were not measured for this kernel on this GPU."""
        return tuple(name for name, p in self.provenance.items() if p.provenance == EXTRAPOLATED)

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
    l2: str = "cold",
    launch: str = "graph",
) -> Prediction:
    """How long the plan's layer takes on `gpu` (the plan's own when None).

    kernel: `own` for the engine's kernel (the bundled one where it was not calibrated), `bundled` for this project's
    kernel under the engine's rule. l2: `cold` (a step walks every layer before it returns to one) or `warm`. launch:
    `graph` or `stream`. Raises InputError for a calibration of another GPU.
    """
    from decodecalc.gpus import load_gpu

    device = plan.gpu if gpu is None else load_gpu(gpu)
    known = calibration or load_calibration(gpu=device)
    run, found = _as_run(plan, known, kernel)
    rates, used = make_rates(known, device, found, l2=l2, launch=launch, dtype=plan.kv.query_dtype)
    blocks = launch_order(run)
    work = _work_of_plan(run, blocks)
    terms = step_terms(work, _plan_bodies(run, blocks, work, rates), rates)
    values = {f.name: float(np.asarray(getattr(terms, f.name)).reshape(-1)[0]) for f in fields(Terms)}
    total = sum(values.values())
    width = 1 + rates.half_width
    note = found.note
    return Prediction(
        engine=plan.engine,
        kernel=found.used.kernel,
        total_s=total,
        terms=values,
        bound=_bound(values),
        low_s=total / width,
        high_s=total * width,
        roofline_s=roofline(plan, device).roofline_s,
        overhead_plus_bytes_s=values["launch_s"] + values["gap_s"] + values["stream_s"],
        l2=l2,
        launch=launch,
        calibration=known.label,
        variant=found.wanted.label(),
        notes=(note,) if note else (),
        provenance=used,
    )


def schedule_of(
    plan: LaunchPlan,
    gpu: Gpu | str | None = None,
    calibration: Calibration | None = None,
    *,
    kernel: str = OWN,
    l2: str = "cold",
) -> Iterator[Slot]:
    """Stage 1's blocks on SM slots over time, as `predict` sees them, from its start on."""
    from decodecalc.gpus import load_gpu

    device = plan.gpu if gpu is None else load_gpu(gpu)
    known = calibration or load_calibration(gpu=device)
    run, found = _as_run(plan, known, kernel)
    rates, _ = make_rates(known, device, found, l2=l2, dtype=plan.kv.query_dtype)
    blocks = launch_order(run)
    return timeline(blocks, _work_of_plan(run, blocks), rates)


def _as_run(plan: LaunchPlan, calibration: Calibration, kernel: str) -> tuple[LaunchPlan, Resolved]:
    """The plan as the kernel that runs it launches it, and that kernel's parameters."""
    if kernel not in (OWN, BUNDLED):
        raise InputError(f"kernel must be {OWN} or {BUNDLED}, not {kernel!r:.40}")
    own = kernel_of(plan.engine, plan.is_split, calibration) if kernel == OWN else BUNDLED
    if own != BUNDLED or plan.engine == BUNDLED:
        warps, stages = (int(getattr(plan.detail, name, 0)) for name in ("warps", "stages"))
        variant_rows = plan.block_rows if own != BUNDLED else used_rows(plan.geometry, plan.batch.max_q_len)
        shape = (plan.tile_keys, variant_rows, warps, stages, plan.is_split)
        return plan, resolve(calibration, wanted_variant(own, plan.geometry, plan.kv, *shape))
    rows = row_block(plan.geometry, plan.batch.max_q_len)
    default = default_variant(calibration, plan.geometry, plan.kv, plan.batch.max_q_len)
    variant = on_path(default, plan.is_split)
    return _on_bundled(plan, variant.tile_keys, rows), _stands_in(resolve(calibration, variant), plan.engine, kernel)


def _stands_in(found: Resolved, engine: str, kernel: str) -> Resolved:
    """Marked as another kernel than the engine's where nobody asked for that."""
    return found if kernel == BUNDLED else replace(found, wanted=found.wanted._replace(kernel=engine), exact=False)


def _on_bundled(plan: LaunchPlan, tile: int, rows: int) -> LaunchPlan:
    """The plan's splits on the bundled kernel's stage 1: its own tile, rows, sharing of KV heads, grid and states."""
    geo = plan.geometry
    row_blocks = tuple(cdiv(q * geo.group, rows) for q in plan.batch.q_lens)
    columns = tuple(geo.kv_heads * b for b in row_blocks)
    launched = max(0 if plan.shared_slots else plan.splits.launched, *plan.splits.live) if plan.is_split else 1
    grid = (geo.kv_heads * max(row_blocks), plan.batch.size, launched)
    live = sum(c * w for c, w in zip(columns, plan.splits.working))
    stage1 = KernelLaunch("stage1_kernel", "stage1", grid, None, live, tile)
    return replace(
        plan,
        kernels=(stage1,) if plan.merge is None else (stage1, plan.merge),
        blocks_per_split=columns,
        tile_keys=tile,
        block_rows=rows,
        live_rows=min(plan.batch.max_q_len * geo.group, rows),
        state_values=geo.v_dim + STATE_SCALARS if plan.is_split else 0,
        partial_splits=plan.splits.live if plan.is_split else (0,) * plan.batch.size,
        shared_slots=False,
    )


def _plan_bodies(plan: LaunchPlan, blocks: Blocks, work: Work, rates: Rates) -> Bodies:
    """Closed form for equal requests cut alike, list schedule otherwise."""
    if plan.batch.is_uniform and isinstance(plan.splits.keys, KeyRanges):
        return uniform_bodies(work, rates)
    return ragged_bodies(blocks.tiles, work, rates)


def _work_of_plan(plan: LaunchPlan, blocks: Blocks) -> Work:
    """The plan's work: exact per block, also where a policy's partition is irregular."""
    moved, geo = traffic(plan), plan.geometry
    tiles_total, most = int(blocks.tiles.sum()), int(blocks.tiles.max(initial=0))
    short = blocks.tiles[(blocks.tiles > 0) & (blocks.tiles < most)]
    return Work(
        blocks=int((blocks.tiles > 0).sum()),
        started=sum(n * s for n, s in zip(plan.blocks_per_split, plan.splits.live)),
        tiles=most,
        tiles_total=tiles_total,
        hbm_bytes=moved.kv_read_bytes,
        requested_bytes=max(moved.kv_requested_bytes, moved.kv_read_bytes),
        flop=2.0 * tiles_total * plan.tile_keys * plan.block_rows * (geo.head_dim + geo.v_dim),
        launched_blocks=plan.stage1.launched_blocks,
        is_split=plan.is_split,
        merge_kernels=int(plan.merge is not None),
        live_splits=max(plan.partial_splits),
        states=sum(q * s for q, s in zip(plan.batch.q_lens, plan.partial_splits)) * geo.q_heads,
        merge_bytes=moved.partial_read_bytes,
        merge_rows=plan.batch.query_tokens * geo.q_heads,
        rows=plan.live_rows,
        extra_kernels=scheduler_kernels(plan.engine, plan.kernels),
        short_blocks=len(short),
        short_tiles=float(short.mean()) if len(short) else 0,
    )


def _bound(terms: Mapping[str, float]) -> str:
    groups = {
        "launch": terms["launch_s"],
        "start": terms["fixed_s"],
        "stream": terms["stream_s"],
        "latency": terms["latency_s"],
        "compute": terms["compute_s"],
        "tail": terms["tail_s"],
        "merge": terms["gap_s"] + terms["merge_s"],
    }
    return max(groups, key=lambda name: groups[name])


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
    l2: str = "cold",
    launch: str = "graph",
    options: Any = None,
) -> Terms:
    """Terms [N] of every step of `batches` under the launches `found` (what the policy's array rule returned).

    Steps of one request class use the closed form; ragged ones (R > 1) a list schedule each.
    """
    known = calibration or load_calibration(gpu=gpu)
    n, q_len = batches.n, int(batches.max_q_len.max(initial=1))
    split = np.broadcast_to(np.asarray(found.is_split, dtype=np.int64), (n,))
    tile = np.broadcast_to(np.asarray(found.tile_keys, dtype=np.int64), (n,))
    rows = np.broadcast_to(np.asarray(found.block_rows, dtype=np.int64), (n,))
    out = {f.name: np.zeros(n) for f in fields(Terms)}
    tuned = [np.broadcast_to(np.asarray(getattr(found.detail, name, 0)), (n,)) for name in ("warps", "stages")]
    code = (((split * 256 + tuned[0]) * 256 + tuned[1]) << 40) + (tile << 20) + rows
    kinds = [code[0]] if n and (code == code[0]).all() else distinct(code)
    for kind in kinds:
        where = slice(None) if len(kinds) == 1 else np.flatnonzero(code == kind)
        first = 0 if isinstance(where, slice) else int(where[0])
        name = kernel_of(engine, bool(split[first]), known) if kernel == OWN else BUNDLED
        if name == BUNDLED and engine != BUNDLED:
            block_rows = row_block(geo, q_len)
            variant = on_path(default_variant(known, geo, kv, q_len), bool(split[first]))
            used, tile_keys = resolve(known, variant), variant.tile_keys
            run = on_bundled(found, geo, batches, tile_keys, block_rows)
        else:
            tile_keys, block_rows, run = int(tile[first]), int(rows[first]), found
            warps, stages = (int(x[first]) for x in tuned)
            variant_rows = block_rows if name != BUNDLED else used_rows(geo, q_len)
            shape = (tile_keys, variant_rows, warps, stages, bool(split[first]))
            used = resolve(known, wanted_variant(name, geo, kv, *shape))
        rates, _ = make_rates(known, gpu, used, l2=l2, launch=launch, dtype=kv.query_dtype)
        work = work_of(engine, geo, batches, kv, run, tile_keys, block_rows)
        chosen = work if isinstance(where, slice) else _take(work, where, n)
        terms = step_terms(chosen, _bodies(chosen, batches, run, tile_keys, rates, where), rates)
        for field_name, values in out.items():
            values[where] = getattr(terms, field_name)
    return Terms(**out)


def _take(work: Work, where: Any, n: int) -> Work:
    def pick(value: Any) -> Any:
        value = np.asarray(value)
        return value[where] if value.ndim and len(value) == n else value

    return Work(**{f.name: pick(getattr(work, f.name)) for f in fields(Work)})


def _bodies(work: Work, batches: Batches, found: Launches, tile_keys: int, rates: Rates, where: Any) -> Bodies:
    """Closed form for one request class, a list schedule for every other step."""
    if batches.is_single_class:
        return uniform_bodies(work, rates)
    steps = np.arange(batches.n)[where]
    found_bodies = [
        ragged_bodies(_tiles_of_step(batches, found, tile_keys, step), pick(work, i), rates)
        for i, step in enumerate(steps.tolist())
    ]
    return Bodies(*(np.array([float(getattr(b, f.name)) for b in found_bodies]) for f in fields(Bodies)))


def _tiles_of_step(batches: Batches, found: Launches, tile_keys: int, n: int) -> Any:
    """Tiles of every launched block of step n in launch order (0: nothing to do), from the regular partition."""
    shape = batches.seq_lens.shape

    def at(value: Any) -> Any:
        return np.broadcast_to(np.asarray(value), shape)[n]

    counts = batches.counts[n]
    read = batches.seq_lens[n] if found.keys_read is None else at(found.keys_read)
    working = at(found.live if found.working is None else found.working)
    size = np.minimum(at(found.split_keys), read)
    columns = at(found.blocks_per_split) * counts
    depth = int(working.max(initial=0))
    launched = int(np.broadcast_to(np.asarray(found.launched), (batches.n,))[n])
    idle = idle_matter(found.shared_slots, launched, columns)
    splits, dealt = max(depth, launched) if idle else depth, found.interleave_at(n)
    tiles = cut_tiles(read, size, working, columns, tile_keys, splits, dealt)
    return tiles if idle else tiles[tiles > 0]


def predict_policy(
    policy: Policy,
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    gpu: Gpu,
    options: Mapping[str, Any] | None = None,
    version: str | None = None,
    **how: Any,
) -> Terms:
    """`predict_arrays` for a policy by its own array rule; `how` as there."""
    chosen = policy.version(version)
    opts = policy.options_type.from_mapping(policy.name, options or {})
    seen, found = policy.on_layer(geo, batches, kv, gpu, opts, chosen)
    return predict_arrays(policy.name, geo, seen, kv, gpu, found, options=opts, **how)
