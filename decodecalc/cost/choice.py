"""`choose` finds S_opt for one step, and compares the time of every engine's own rule with the time at S_opt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.advice import Adviser, ServedStep
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.load import own_calibration
from decodecalc.cost.own_launch import MLA_KERNEL, in_warp_groups, row_block, used_rows
from decodecalc.cost.parameters import Variant
from decodecalc.cost.prediction import predict
from decodecalc.cost.tuning import Tuning, gathered, path_rates, split_curve, tune
from decodecalc.cost.variants import BUNDLED, wanted_variant
from decodecalc.engines.registry import load_policies
from decodecalc.errors import DecodecalcError, InputError
from decodecalc.intmath import cdiv
from decodecalc.launch.coverage import s_star
from decodecalc.launch.plan import check_step
from decodecalc.units import human_seconds
from decodecalc.values import Shown

if TYPE_CHECKING:
    from pandas import DataFrame

    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One split count that can be launched."""

    splits: int
    """Splits of the longest request."""
    split_keys: int
    """Keys of every split."""
    total_s: float
    """Predicted time of one layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret(Shown):
    """One engine's rule against S_opt."""

    engine: str
    """The engine."""
    version: str
    """Its version."""
    path: str | None = None
    """The path that its plan takes; None when the engine refuses the step, as everything below."""
    splits: int | None = None
    """Live splits of the request that has most."""
    rule_s: float | None = None
    """Time of the bundled kernel under the engine's rule."""
    regret: float | None = None
    """`rule_s` over the time at S_opt of the same kernel: 1 is no loss."""
    own_s: float | None = None
    """Time of the engine's own kernel under its rule; None where it was not calibrated."""
    flag: str | None = None
    """The text of the server's setting that is advised for this step alone (`cost.advice`); None where the default is
    to stay, or where no advice can be given."""
    flag_splits: int | None = None
    """Splits of a request that this setting asks for."""
    flag_s: float | None = None
    """Time of the engine's own kernel with that setting."""
    flag_times: tuple[tuple[str, float], ...] = ()
    """Every setting that was tried, with its time."""
    refused: str | None = None
    """Why the engine would not run the step."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Shown):
    """The fastest launch of the bundled kernel for one step, and what the alternatives cost.

    `to_frame()` is one row; `curve_frame()` has one for each split count and `regrets_frame()` one for each engine.
    """

    s_star: int
    """Smallest split count whose first wave covers the SMs."""
    s_opt: int
    """Split count of least predicted time."""
    split_keys: int
    """Keys of a split at `s_opt`."""
    tile_keys: int
    """Keys of a tile."""
    rows: int
    """Query rows of a block."""
    warps: int
    """Warps of a block."""
    stages: int
    """Loads in flight."""
    total_s: float
    """Predicted time of one layer at `s_opt`."""
    s_star_s: float
    """Predicted time at `s_star`."""
    unsplit_s: float
    """Predicted time with one split."""
    l2: str
    """`cold` or `warm`."""
    calibration: str
    """Where the parameters come from."""
    variant: str
    """The kernel variant that was chosen."""
    curve: tuple[CurvePoint, ...]
    """Time against every distinct count of that variant, ascending."""
    regrets: tuple[Regret, ...]
    """Every engine's rule against `s_opt`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested."""
        return asdict(self)

    def curve_frame(self) -> DataFrame:
        """One row for each split count. pandas is imported here."""
        import pandas as pd

        return pd.DataFrame([asdict(point) for point in self.curve])

    def regrets_frame(self) -> DataFrame:
        """One row for each engine. pandas is imported here."""
        import pandas as pd

        return pd.DataFrame([regret.to_dict() for regret in self.regrets])

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"S_opt {self.s_opt} ({human_seconds(self.total_s)}, {self.split_keys} keys a split), S* {self.s_star} "
            f"({human_seconds(self.s_star_s)}), unsplit {human_seconds(self.unsplit_s)}; {self.variant}; L2 {self.l2}, "
            f"calibration {self.calibration}"
        )

    def time_at(self, splits: int) -> float:
        """Predicted time at the launchable count nearest below or at `splits`."""
        return _time_at(self.curve, splits)


def choose(
    geo: Geometry,
    batch: Batch,
    *,
    kv: KvCache | None = None,
    gpu: Gpu | str = "h100-sxm",
    calibration: Calibration | None = None,
    engines: Sequence[str | tuple[Policy, str | None]] | None = None,
    options: Mapping[str, Any] | None = None,
    l2: str = "cold",
    library: bool = False,
) -> Choice:
    """The fastest split count, tile and variant for one step, and every engine's regret.

    engines: names (`name` or `name@version`, `all`) or (policy, version) pairs; None takes all, an empty list none.
    options: engine options, each engine taking those it has. library: whether settings count that no server takes and
    only a caller of the engine's library can pass. gpu takes a name too; kv defaults to bf16 with pages of 16
    keys. Raises UnknownNameError for an engine that does not exist.
    """
    from decodecalc.gpus import load_gpu
    from decodecalc.kvcache import KvCache as Cache

    check_step(geo, batch, kv)
    device, cache, batch = load_gpu(gpu), kv or Cache(), batch.seen_by(geo)
    known = own_calibration(calibration, device)
    best = tune(geo, batch, cache, device, known, l2=l2)
    exchanged = _exchanged_s(geo, batch, cache, device, known)
    best = best._replace(total_s=best.total_s + exchanged)
    rows = used_rows(geo, batch.max_q_len, best.warps)
    variant = wanted_variant(BUNDLED, geo, cache, best.tile_keys, rows, best.warps, best.stages)
    curve = tuple(
        replace(point, total_s=point.total_s + exchanged)
        for point in time_curve(geo, batch, cache, device, variant, known, l2=l2)
    )
    unsplit = sum(geo.kv_heads * cdiv(q * geo.group, best.rows) for n, q in zip(batch.seq_lens, batch.q_lens) if n)
    covering = s_star(device.sm_count, unsplit)
    plain = best
    if in_warp_groups(best.warps):
        plain = tune(geo, batch, cache, device, known, l2=l2, any_rule=True)
        plain = plain._replace(total_s=plain.total_s + exchanged)
    found = _Regrets(geo, batch, cache, device, known, dict(options or {}), l2, best, plain, library)
    return Choice(
        s_star=covering,
        s_opt=best.splits,
        split_keys=best.split_keys,
        tile_keys=best.tile_keys,
        rows=best.rows,
        warps=best.warps,
        stages=best.stages,
        total_s=best.total_s,
        s_star_s=_time_at(curve, covering),
        unsplit_s=curve[0].total_s,
        l2=l2,
        calibration=known.label_of(BUNDLED),
        variant=variant.label(),
        curve=curve,
        regrets=tuple(found.of(policy, version) for policy, version in _engines(engines)),
    )


def _exchanged_s(geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu, calibration: Calibration) -> float:
    """What every choice pays in addition where keys are divided over ranks."""
    if geo.share is None:
        return 0.0
    from decodecalc.cost.collectives import layer_exchange_s

    rate = calibration.parameters["l2_bytes_per_s"].number
    return layer_exchange_s(geo, kv, gpu, batch.query_tokens, rate)


def time_curve(
    geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu, variant: Variant, calibration: Calibration, *, l2: str = "cold"
) -> tuple[CurvePoint, ...]:
    """Predicted time against every distinct split count of one variant, ascending."""
    rates = path_rates(calibration, gpu, variant, kv, l2)
    rows = row_block(geo, batch.max_q_len, variant.warps)
    counts, sizes, total = split_curve(geo, gathered(batch), kv, rates, variant.tile_keys, rows)
    points: dict[int, Any] = {}
    for s, size, t in zip(counts[0].tolist(), sizes[0].tolist(), total[0].tolist()):
        points.setdefault(s, CurvePoint(splits=s, split_keys=size, total_s=t))
    return tuple(points[s] for s in sorted(points))


def _time_at(curve: tuple[CurvePoint, ...], splits: int) -> float:
    """The curve's time at its last count that is not above `splits`."""
    return max((p for p in curve if p.splits <= splits), key=lambda p: p.splits, default=curve[0]).total_s


def _engines(given: Sequence[str | tuple[Policy, str | None]] | None) -> Iterator[tuple[Policy, str | None]]:
    if isinstance(given, str):
        raise InputError(f"engines must be a list of names, for example [{given!r:.60}], not one name")
    for engine in ["all"] if given is None else given:
        if isinstance(engine, str):
            yield from load_policies([engine])
        else:
            yield engine


@dataclass(frozen=True, slots=True)
class _Regrets:
    """Regrets of one step: everything but the engine."""

    geo: Geometry
    batch: Batch
    kv: KvCache
    gpu: Gpu
    calibration: Calibration
    options: Mapping[str, Any]
    l2: str
    best: Tuning
    """The fastest launch."""
    plain: Tuning
    """The fastest launch of the kernel that runs engines' rules."""
    library: bool

    def of(self, policy: Policy, version: str | None) -> Regret:
        """One engine's regret; an engine that refuses the step says why."""
        name = policy.version(version).name
        try:
            plan = policy.plan(self.geo, self.batch, self.kv, self.gpu, policy.own_options(self.options), version)
            rule = predict(plan, self.gpu, self.calibration, kernel=BUNDLED, l2=self.l2).known_s
            own = None if plan.engine == BUNDLED else predict(plan, self.gpu, self.calibration, l2=self.l2).total_s
            advice = self._adviser.setting(policy, version, [ServedStep(geometry=self.geo, batch=self.batch)])
        except DecodecalcError as refused:
            return Regret(engine=policy.name, version=name, refused=str(refused))
        return Regret(
            engine=policy.name,
            version=name,
            path=plan.path,
            splits=max(plan.splits.live),
            rule_s=rule,
            regret=rule / (self.best if plan.stage1.name == MLA_KERNEL else self.plain).total_s,
            own_s=own,
            flag=advice.setting,
            flag_splits=advice.splits,
            flag_s=advice.then_s,
            flag_times=advice.tried,
        )

    @property
    def _adviser(self) -> Adviser:
        return Adviser(
            kv=self.kv, gpu=self.gpu, calibration=self.calibration, options=self.options, l2=self.l2,
            library=self.library,
        )  # fmt: skip
