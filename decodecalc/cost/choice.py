"""`choose`: S_opt for one step, and what every engine's own rule costs against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration, load_calibration
from decodecalc.cost.parameters import Variant
from decodecalc.cost.prediction import predict
from decodecalc.cost.tuning import Tuning, gathered, path_rates, row_block, split_curve, tune, used_rows
from decodecalc.cost.variants import BUNDLED, kernel_of, wanted_variant
from decodecalc.errors import DecodecalcError
from decodecalc.intmath import cdiv
from decodecalc.units import human_seconds

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.plan import LaunchPlan
    from decodecalc.launch.policy import Policy

# How each engine is told a split count, where it can be: {s} is the count, {pages} the pages of one split; and the
# option of our policy that stands for it. Read from the sources that the policies name.
FLAGS: dict[str, tuple[str, str]] = {
    "sglang-triton": ("--triton-attention-num-kv-splits {s}", "max_kv_splits_arg"),
    "flash-attention-2": ("num_splits={s}", "num_splits_arg"),
    "flash-attention-3": ("num_splits={s}", "num_splits_arg"),
    "flashinfer": ("fixed_split_size={pages}", "fixed_split_size_pages"),
    "flex-decoding": ("kernel_options={{'SPLIT_KV': {s}}}", "split_kv"),
    "bundled": ("num_splits={s}", "num_splits"),
}
FLAG_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
WORTH = 0.98  # a flag is worth naming when it takes at least 2 % off


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One split count that can be launched, and its predicted time."""

    splits: int
    split_keys: int
    total_s: float


@dataclass(frozen=True, slots=True)
class Regret:
    """One engine's rule against S_opt.

    rule_s: our kernel under the engine's rule; regret: rule_s over the S_opt time (1 is no loss). own_s: the engine's
    own kernel under its rule, None where it was not calibrated. flag: what to set for the best count that the flag can
    give, flag_s the time then (own kernel where calibrated, ours otherwise); None where the engine has no such flag or
    nothing beats its own choice. flag_times: every setting that was tried, with its time. refused: why the engine
    would not run the step.
    """

    engine: str
    version: str
    path: str | None = None
    splits: int | None = None
    rule_s: float | None = None
    regret: float | None = None
    own_s: float | None = None
    flag: str | None = None
    flag_s: float | None = None
    flag_times: tuple[tuple[str, float], ...] = ()
    refused: str | None = None

    @property
    def now_s(self) -> float | None:
        """What runs today: the engine's own kernel where calibrated, ours otherwise."""
        return self.own_s or self.rule_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest launch for one step, and the alternatives.

    s_star: smallest count whose first wave covers the SMs; s_opt: the count of least predicted time, with split_keys
    keys a split, in tiles of tile_keys. curve: time against every distinct count for the chosen variant.
    """

    s_star: int
    s_opt: int
    split_keys: int
    tile_keys: int
    rows: int
    warps: int
    stages: int
    total_s: float
    s_star_s: float
    unsplit_s: float
    l2: str
    calibration: str
    variant: str
    curve: tuple[CurvePoint, ...]
    regrets: tuple[Regret, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested."""
        return asdict(self)

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
    engines: Sequence[tuple[Policy, str | None]] | None = None,
    options: Mapping[str, Any] | None = None,
    l2: str = "cold",
) -> Choice:
    """The fastest split count, tile and variant for one step, and every engine's regret.

    engines: (policy, version) pairs; None takes all, an empty list none. options: engine options, each engine taking
    those it has. gpu takes a name too; kv defaults to bf16 with pages of 16 keys.
    """
    from decodecalc.gpus import load_gpu
    from decodecalc.kvcache import KvCache as Cache

    device, cache, batch = load_gpu(gpu), kv or Cache(), batch.seen_by(geo)
    known = calibration or load_calibration(gpu=device)
    best = tune(geo, batch, cache, device, known, l2=l2)
    rows = used_rows(geo, batch.max_q_len)
    variant = wanted_variant(BUNDLED, geo, cache, best.tile_keys, rows, best.warps, best.stages)
    curve = time_curve(geo, batch, cache, device, variant, known, l2=l2)
    unsplit = sum(geo.kv_heads * cdiv(q * geo.group, best.rows) for n, q in zip(batch.seq_lens, batch.q_lens) if n)
    s_star = cdiv(device.sm_count, max(unsplit, 1))
    found = _Regrets(geo, batch, cache, device, known, dict(options or {}), l2, best)
    return Choice(
        s_star=s_star,
        s_opt=best.splits,
        split_keys=best.split_keys,
        tile_keys=best.tile_keys,
        rows=best.rows,
        warps=best.warps,
        stages=best.stages,
        total_s=best.total_s,
        s_star_s=_time_at(curve, s_star),
        unsplit_s=curve[0].total_s,
        l2=l2,
        calibration=known.label,
        variant=variant.label(),
        curve=curve,
        regrets=tuple(found.of(policy, version) for policy, version in _engines(engines)),
    )


def time_curve(
    geo: Geometry, batch: Batch, kv: KvCache, gpu: Gpu, variant: Variant, calibration: Calibration, *, l2: str = "cold"
) -> tuple[CurvePoint, ...]:
    """Predicted time against every distinct split count of one variant, ascending."""
    rates = path_rates(calibration, gpu, variant, kv, l2)
    rows = row_block(geo, batch.max_q_len)
    counts, sizes, total = split_curve(geo, gathered(batch), kv, rates, variant.tile_keys, rows)
    points: dict[int, Any] = {}
    for s, size, t in zip(counts[0].tolist(), sizes[0].tolist(), total[0].tolist()):
        points.setdefault(s, CurvePoint(s, size, t))
    return tuple(points[s] for s in sorted(points))


def _time_at(curve: tuple[CurvePoint, ...], splits: int) -> float:
    """The curve's time at its last count that is not above `splits`."""
    return max((p for p in curve if p.splits <= splits), key=lambda p: p.splits, default=curve[0]).total_s


def _engines(given: Sequence[tuple[Policy, str | None]] | None) -> Sequence[tuple[Policy, str | None]]:
    if given is not None:
        return given
    from decodecalc.engines import load_policies

    return load_policies(["all"])


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

    def of(self, policy: Policy, version: str | None) -> Regret:
        """One engine's regret; an engine that refuses the step says why."""
        name = policy.version(version).name
        try:
            plan = self._plan(policy, version, {})
            rule = predict(plan, self.gpu, self.calibration, kernel=BUNDLED, l2=self.l2).total_s
            own = self._own(plan)
            tried = self._flag_times(policy, version)
        except DecodecalcError as refused:
            return Regret(policy.name, name, refused=str(refused))
        flag, flag_s = min(tried, key=lambda pair: pair[1], default=(None, None))
        if flag_s is None or flag_s > WORTH * (own or rule):
            flag = flag_s = None
        live, regret = max(plan.splits.live), rule / self.best.total_s
        return Regret(policy.name, name, plan.path, live, rule, regret, own, flag, flag_s, tried)

    def _plan(self, policy: Policy, version: str | None, more: Mapping[str, Any]) -> LaunchPlan:
        known = policy.options_type.__dataclass_fields__
        given = {k: v for k, v in self.options.items() if k in known}
        return policy.plan(self.geo, self.batch, self.kv, self.gpu, {**given, **more}, version)

    def _own(self, plan: LaunchPlan) -> float | None:
        if plan.engine == BUNDLED or kernel_of(plan.engine, plan.is_split, self.calibration) == BUNDLED:
            return None
        return predict(plan, self.gpu, self.calibration, l2=self.l2).total_s

    def _flag_times(self, policy: Policy, version: str | None) -> tuple[tuple[str, float], ...]:
        """The engine's flag at FLAG_COUNTS, each with the time it gives."""
        if policy.name not in FLAGS or policy.name == BUNDLED:
            return ()
        text, option = FLAGS[policy.name]
        if option not in policy.options_type.__dataclass_fields__:
            return ()
        longest = self.batch.max_seq_len
        found: list[tuple[str, float]] = []
        for s in FLAG_COUNTS:
            pages = max(cdiv(longest, s * self.kv.page_size), 1)
            try:
                plan = self._plan(policy, version, {option: pages if "{pages}" in text else s})
            except DecodecalcError:
                continue
            time = self._own(plan) or predict(plan, self.gpu, self.calibration, kernel=BUNDLED, l2=self.l2).total_s
            found.append((text.format(s=s, pages=pages), time))
        return tuple(found)


def server_flag(regrets: Sequence[tuple[int, Regret]]) -> tuple[str, float] | None:
    """The one setting for all layers of a model, and the seconds it saves a token; None where none is worth it.

    regrets: (layers, regret) of one engine for every layer group of one step. An engine has one flag for the whole
    server, while sliding and full layers would each like their own: what counts is the sum.
    """
    tried = [dict(r.flag_times) for _, r in regrets]
    if not tried or any(r.now_s is None for _, r in regrets):
        return None
    now = sum(layers * (r.now_s or 0.0) for layers, r in regrets)
    common = [flag for flag in tried[0] if all(flag in times for times in tried)]
    totals = [(sum(n * times[flag] for (n, _), times in zip(regrets, tried)), flag) for flag in common]
    if not totals or min(totals)[0] > WORTH * now:
        return None
    return min(totals)[1], now - min(totals)[0]
