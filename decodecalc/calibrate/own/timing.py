"""Timed launches of engines' own kernels as planned work: what our policy launches for each of them, and what was
measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodecalc.batch import Batch
from decodecalc.cost.cuts import cuts_of
from decodecalc.cost.model import Work
from decodecalc.cost.parameters import TimedSteps, Variant
from decodecalc.cost.variants import wanted_variant
from decodecalc.cost.work import closed_form, pick, work_of
from decodecalc.engines.registry import load_policy, traits_of
from decodecalc.errors import DecodecalcError, InputError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import plan_arrays
from decodecalc.launch.plan import LaunchPlan

TIMES_SCHEMA = "decodecalc/engine-times/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCall:
    """One launch of a step: whose kernel, under which settings."""

    engine: str
    """The engine's name in the registry."""
    version: str | None = None
    """The version of its policy; the newest when None."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's options."""
    mode: str = ""
    """Way in which it is called: settings of one step are compared within it."""
    default: bool = False
    """Whether this is what the engine does in that mode when nobody sets anything."""

    @property
    def label(self) -> str:
        """Name and settings in one word."""
        return " ".join([self.engine, *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStep:
    """One decode step that several kernels and settings are timed on."""

    geometry: Geometry
    """The layer."""
    batch: Batch
    """Lengths and query tokens."""
    kv: KvCache
    """Element type and page size."""

    @property
    def ragged(self) -> bool:
        """Whether the requests differ in length."""
        return len(set(self.batch.seq_lens)) > 1

    @property
    def label(self) -> str:
        """In one line."""
        geo, lens = self.geometry, self.batch.seq_lens
        what = f"{geo.q_heads}/{geo.kv_heads} of {geo.head_dim}{' MLA' if geo.mla else ''}, {self.kv.dtype}, "
        requests = f"{len(lens)} x {'up to ' if self.ragged else ''}{max(lens)} keys, page {self.kv.page_size}"
        return what + requests

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        geo = self.geometry
        out: dict[str, Any] = {"q_heads": geo.q_heads, "kv_heads": geo.kv_heads, "head_dim": geo.head_dim}
        if geo.mla:
            out.update(head_dim_v=geo.v_dim, mla=True)
        if geo.window is not None:
            out["window"] = geo.window
        out.update(dtype=str(self.kv.dtype), page=self.kv.page_size)
        if self.batch.max_q_len > 1:
            out["q_len"] = self.batch.max_q_len
        return {**out, "seq_lens": list(self.batch.seq_lens)}


def step_of(data: Mapping[str, Any]) -> ProbeStep:
    """The step that `ProbeStep.to_dict` wrote."""
    latent = {"head_dim_v": data["head_dim_v"], "mla": True} if data.get("mla") else {}
    return ProbeStep(
        geometry=Geometry(
            data["q_heads"], data["kv_heads"], data["head_dim"], window=data.get("window"), **latent
        ),
        batch=Batch(data["seq_lens"], data.get("q_len", 1)),
        kv=KvCache(data["dtype"], data["page"]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLaunch:
    """One timed launch with its work."""

    step: int
    """Number of the decode step; several kernels and settings ran the same one."""
    call: OwnCall
    """Whose kernel ran, under which settings."""
    ragged: bool
    """Whether the step's requests differ."""
    measured_s: float
    """Seconds of one layer."""
    plan: LaunchPlan
    """What was launched."""
    variant: Variant
    """The compiled kernel that ran."""
    work: Work
    """Its work, as numbers."""
    tiles: Any
    """Tiles of every stage-1 block in launch order; None where the closed form is exact."""


def timing_of(number: int, step: ProbeStep, call: OwnCall, measured_s: float, gpu: Gpu) -> TimedLaunch:
    """The timed launch with the work that our policy plans for it. DecodecalcError where it plans none."""
    plan = load_policy(call.engine).plan(step.geometry, step.batch, step.kv, gpu, dict(call.options), call.version)
    batches, found = plan_arrays(plan)
    traits = traits_of(call.engine)
    cuts = cuts_of(batches, found, found.tile_keys, by_request=traits.requests_in_turn)
    kernel = traits.time_kernel(call.engine, plan.is_split)
    variant = wanted_variant(
        kernel, step.geometry, step.kv, plan.tile_keys, plan.block_rows, split=plan.is_split,
        resident=plan.resident_blocks,
    )  # fmt: skip
    return TimedLaunch(
        step=number,
        call=call,
        ragged=step.ragged,
        measured_s=measured_s,
        plan=plan,
        variant=variant,
        work=pick(work_of(call.engine, step.geometry, batches, step.kv, found, cuts), 0),
        tiles=None if closed_form(cuts, batches)[0] else cuts.order(0).tiles,
    )


def timed_entry(step: ProbeStep, results: Iterable[tuple[OwnCall, float | str]]) -> dict[str, Any]:
    """A step with what its launches took (seconds), or why one of them did not run, in the form of a file of times."""
    times, failed = [], []
    for call, result in results:
        entry = {"engine": call.engine, "version": call.version, "options": dict(call.options)}
        entry.update({"mode": call.mode} if call.mode else {})
        if isinstance(result, str):
            failed.append({**entry, "why": result[:200]})
        else:
            times.append({**entry, **({"default": True} if call.default else {}), "us": float(f"{result * 1e6:.5g}")})
    return {**step.to_dict(), "times": times, **({"failed": failed} if failed else {})}


def timings_of(entries: Sequence[Mapping[str, Any]], gpu: Gpu, first: int = 0) -> Iterator[TimedLaunch]:
    """The timed launches of a file's steps, numbered from `first`. Launches that the policy refuses are left out."""
    for number, entry in enumerate(entries, first):
        step = step_of(entry)
        for time in entry["times"]:
            call = OwnCall(
                engine=time["engine"], version=time["version"], options=time["options"], mode=time.get("mode", ""),
                default=bool(time.get("default")),
            )  # fmt: skip
            try:
                yield timing_of(number, step, call, time["us"] * 1e-6, gpu)
            except DecodecalcError:
                continue


def check_times(data: Any, where: str) -> list[dict[str, Any]]:
    """The steps of a file of times. InputError where it is something else."""
    if not isinstance(data, dict) or data.get("schema") != TIMES_SCHEMA or not isinstance(data.get("steps"), list):
        raise InputError(f"{where} holds no times of engines' kernels ({TIMES_SCHEMA})")
    return list(data["steps"])


def ranges_of(timings: Sequence[TimedLaunch]) -> TimedSteps:
    """What these launches ranged over."""
    batches = [t.plan.batch for t in timings]
    sizes, longest = [b.size for b in batches], [b.max_seq_len for b in batches]
    pages = sorted({t.plan.kv.page_size for t in timings})
    return TimedSteps(
        batch=(min(sizes), max(sizes)),
        context=(min(longest), max(longest)),
        pages=tuple(pages),
        times=len(timings),
        q_lens=tuple(sorted({b.max_q_len for b in batches})),
        windows=any(t.plan.geometry.window is not None for t in timings),
    )
