"""The scenarios of a suite: a model's layer group on one rank, a decode step, a cache, and the engines that plan it.

`quick` takes about a minute, `standard` is what reports are made of, and `full` adds long contexts, wide batches and
every engine. `tiny` is small enough for Triton's CPU interpreter. `engines` holds the steps on which engines' own
kernels are checked: every engine that has a runner, with what it serves besides plain GQA. `dcp` divides the keys of
every request over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.engines.registry import LIBRARIES, REFERENCE, SERVED, SERVED_MLA, split_version
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.geometry import Geometry
from decodecalc.keyshare import A2A, KeyShare
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup, load_model
from decodecalc.sizes import MAX_PLANS

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.launch.policy import Policy

DENSE = ("bundled", *SERVED)
LATENT = ("bundled", *SERVED_MLA)


@dataclass(frozen=True)
class Scenario:
    """One decode step of one layer group. model_kv_heads: the model-wide count, for rules that look at it."""

    label: str
    layer_group: LayerGroup
    batch: Batch
    kv: KvCache
    engines: tuple[str, ...]
    model_kv_heads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def geometry(self) -> Geometry:
        """The layer's geometry on one rank."""
        return self.layer_group.geometry

    @property
    def seen_batch(self) -> Batch:
        """The batch as the layer's kernel sees it (chunked layers see less)."""
        return self.layer_group.seen_batch(self.batch)

    @property
    def id(self) -> str:
        """Names the scenario in reports; equal ids are equal scenarios."""
        batch = self.batch
        shape = (
            f"b{batch.size}/c{batch.max_seq_len}" if batch.is_uniform else "ragged" + "-".join(map(str, batch.seq_lens))
        )
        if len(shape) > 60:
            shape = f"ragged-b{batch.size}-min{min(batch.seq_lens)}-max{batch.max_seq_len}-sum{batch.total_keys}"
        q = f"/q{batch.max_q_len}" if batch.max_q_len > 1 else ""
        return f"{self.label}/{self.layer_group.name}/{shape}{q}/{self.kv.dtype}/p{self.kv.page_size}"


@dataclass(frozen=True)
class Case:
    """A scenario under one engine's rule. `plan` is None when the engine refuses it; `refusal` then says why."""

    scenario: Scenario
    policy: Policy
    version: str
    plan: LaunchPlan | None
    refusal: str = ""
    is_broken: bool = False
    """Whether there is no plan because its parts contradict each other, which is an error and no refusal."""

    @property
    def id(self) -> str:
        """Names the case in reports; equal ids are equal cases."""
        return f"{self.scenario.id}/{self.policy.name}@{self.version}"


RAGGED = (128, 8192, 777, 2560, 1, 4096, 333, 16384)


@dataclass(frozen=True)
class _Spec:
    """One line of a suite: a zoo model, its TP degree, decode steps, and what differs from the usual."""

    model: str
    tp: int
    steps: tuple[tuple[int, int] | tuple[int, ...], ...] = ()
    ragged: tuple[tuple[int, ...], ...] = ()
    dtype: str = "bf16"
    page: int = 16
    q_len: int = 1
    group: str | None = None
    engines: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    share: KeyShare | None = None


_QUICK = (
    _Spec("llama3-8b", 1, ((1, 2560), (16, 2560))),
    _Spec("llama3-8b", 8, ((1, 2560), (1, 32768))),
    _Spec("qwen2-7b", 1, ((1, 2560),)),
    _Spec("deepseek-v3", 8, ((1, 4096),), page=64),
)
_STANDARD = (
    _Spec("llama3-8b", 1, ((1, 512), (1, 2560), (1, 32768), (16, 2560), (64, 8192))),
    _Spec("llama3-8b", 8, ((1, 2560), (1, 131072), (64, 8192))),
    _Spec("llama3-8b", 1, ragged=(RAGGED,)),
    _Spec("llama3-8b", 1, ((4, 8192),), dtype="fp8"),
    _Spec("llama3-8b", 1, ((2, 4096),), q_len=4, engines=DENSE[:2]),
    _Spec("qwen2-7b", 1, ((1, 2560), (8, 8192))),  # 7 query heads a KV head
    _Spec("llama2-7b", 1, ((1, 4096), (8, 2048))),  # MHA
    _Spec("falcon-7b", 1, ((4, 2048),)),  # MQA, 71 heads, head_dim 64
    _Spec("llama3.2-1b", 1, ((4, 4096),)),  # head_dim 64
    _Spec("phi-2", 1, ((2, 2048),)),  # head_dim 80
    _Spec("gemma-2b", 1, ((1, 8192), (16, 4096))),  # MQA, head_dim 256
    _Spec("gpt-oss-20b", 1, ((4, 4096),), group="sliding"),  # window 128, sinks
    _Spec("deepseek-v3", 8, ((1, 4096), (16, 4096)), page=64),  # MLA
)
_FULL_EXTRA = (
    _Spec("llama3-8b", 1, ((1, 131072), (2, 16384), (4, 1024), (32, 4096), (128, 1024))),
    _Spec("llama3-70b", 8, ((1, 8192), (32, 8192), (128, 2048))),
    _Spec("llama3-8b", 8, ((1, 512), (16, 2560), (256, 1024))),
    _Spec("llama3-8b", 1, ((1, 2560),), page=1),
    _Spec("llama3-8b", 1, ((1, 2560),), page=256),
    _Spec("qwen2-7b", 4, ((1, 32768), (32, 2048)), dtype="fp8"),
    _Spec("gemma3-27b", 1, ((1, 8192), (8, 8192)), group="sliding"),
    _Spec("gemma3-27b", 1, ((1, 8192), (8, 8192)), group="full"),
    _Spec("gemma2-9b", 1, ((2, 8192),), group="full"),
    _Spec("gpt-oss-20b", 1, ((1, 32768),), group="full"),
    _Spec("deepseek-v2-lite", 1, ((1, 32768), (32, 4096)), page=64),
    _Spec("llama2-7b", 8, ((1, 4096), (64, 4096))),
    _Spec("llama3-8b", 1, ragged=(tuple(range(100, 6500, 200)),)),
)
SUITES = ("quick", "standard", "full", "tiny", "engines", "dcp")


def suite_scenarios(name: str, engines: Sequence[str] | None = None) -> list[Scenario]:
    """The scenarios of a suite; `engines` instead of the suite's own choice."""
    if name == "tiny":
        return _tiny(engines)
    if name == "engines":
        return list(own_scenarios(engines))
    if name == "dcp":
        return dcp_scenarios(engines)
    specs = {"quick": _QUICK, "standard": _STANDARD, "full": _STANDARD + _FULL_EXTRA}.get(name)
    if specs is None:
        raise UnknownNameError("suite", name, SUITES)
    return [scenario for spec in specs for scenario in _scenarios(spec, engines, every=name == "full")]


def _scenarios(spec: _Spec, engines: Sequence[str] | None, every: bool) -> Iterator[Scenario]:
    rank = load_model(spec.model).shard(spec.tp, spec.share or 1)
    groups = [g for g in rank.layer_groups if spec.group in (None, g.name)][:1]
    batches = [Batch.uniform(b, c, spec.q_len) for b, c in spec.steps]
    batches += [Batch(lens, spec.q_len) for lens in spec.ragged]
    kv = KvCache(spec.dtype, spec.page)
    for group in groups:
        usual = spec.engines or (LATENT if group.geometry.mla else DENSE)
        more = () if group.geometry.mla else (REFERENCE, *LIBRARIES)
        chosen = tuple(engines or (usual + more if every else usual))
        for batch in batches:
            dcp = f"/dcp{spec.share.ranks}i{spec.share.interleave}{spec.share.exchange}" if spec.share else ""
            label = " ".join([f"{spec.model}/tp{spec.tp}{dcp}", *(f"{name}={value}" for name, value in spec.options)])
            yield Scenario(label, group, batch, kv, chosen, rank.model_kv_heads, dict(spec.options))


def own_scenarios(engines: Sequence[str] | None) -> Iterator[Scenario]:
    """Steps for engines' own kernels: each engine on those that its runner says it serves."""
    from decodecalc.verify.own.runner import all_runners

    for runner in all_runners():
        if engines is not None and runner.engine not in [split_version(spec)[0] for spec in engines]:
            continue
        name = next((spec for spec in engines or () if split_version(spec)[0] == runner.engine), runner.engine)
        for step in runner.steps:
            spec = _Spec(
                step.model, step.tp, steps=() if step.ragged else ((step.batch, step.context),),
                ragged=(step.ragged,) if step.ragged else (), dtype=step.dtype, page=step.page, q_len=step.q_len,
                group=step.group, engines=(name,), options=step.options,
            )  # fmt: skip
            yield from _scenarios(spec, None, every=False)


def _tiny(engines: Sequence[str] | None) -> list[Scenario]:
    """Shapes for the interpreter: one GQA step, a ragged 7-group one, a windowed one, a latent one."""

    def make(label: str, geo: Geometry, batch: Batch, usual: tuple[str, ...], page: int = 16) -> Scenario:
        return Scenario(label, LayerGroup("all", 1, geo), batch, KvCache(page_size=page), tuple(engines or usual))

    return [
        make("tiny-gqa", Geometry(4, 1, 32), Batch([130, 40]), SERVED),
        make("tiny-group7", Geometry(7, 1, 32), Batch([150, 16, 33]), (REFERENCE,)),
        make("tiny-window", Geometry(2, 1, 32, window=40), Batch([130]), SERVED[:1]),
        make("tiny-mla", Geometry(16, 1, 96, 64, mla=True), Batch([70]), SERVED_MLA[:1]),
    ]


def dcp_scenarios(engines: Sequence[str] | None, ranks: int = 2) -> list[Scenario]:
    """Steps whose keys `ranks` ranks divide: latent layers with all heads and with some, grouped heads and one KV head,
    short and long, one request and many, both ways of merging and runs of one key and of a page."""
    usual = tuple(engines or ("bundled",))
    page = KeyShare(ranks, 64, A2A)
    specs = (
        _Spec("deepseek-v3", ranks, ((1, 65536), (1, 8192), (16, 16384)), page=64, share=KeyShare(ranks)),
        _Spec("deepseek-v3", 8 * ranks, ((1, 65536), (128, 4096)), page=64, share=page),
        _Spec("llama3-70b", 8 * ranks, ((1, 131072), (16, 8192)), share=KeyShare(ranks)),
        _Spec("llama3-70b", 8 * ranks, ragged=(RAGGED,), share=replace(page, interleave=16)),
        _Spec("gemma-2b", ranks, ((4, 8192),), share=KeyShare(ranks)),
    )
    return [scenario for spec in specs for scenario in _scenarios(replace(spec, engines=usual), None, every=False)]


def tiny_dcp(engines: Sequence[str] | None, ranks: int | None = None) -> list[Scenario]:
    """Divided keys for the interpreter: grouped heads, a latent, and requests that some ranks have no keys of. ranks:
    of every case, where processes fix it."""

    def make(label: str, geo: Geometry, batch: Batch, share: KeyShare, page: int = 16) -> Scenario:
        share = share if ranks is None else replace(share, ranks=ranks)
        group = LayerGroup("all", 1, replace(geo, q_heads=geo.q_heads * share.ranks, share=share))
        name = f"{label}/dcp{share.ranks}i{share.interleave}{share.exchange}"
        return Scenario(name, group, batch, KvCache(page_size=page), tuple(engines or (REFERENCE,)))

    return [
        make("tiny-gqa", Geometry(4, 2, 32), Batch([130, 41]), KeyShare(2)),
        make("tiny-short", Geometry(2, 1, 32), Batch([90, 3]), KeyShare(4, 7)),
        make("tiny-mla", Geometry(8, 1, 96, 64, mla=True), Batch([70]), KeyShare(2, 16, A2A)),
        make("tiny-index-list", Geometry(2, 1, 32), Batch([60, 33]), KeyShare(3), page=1),
    ]


def cases(scenarios: Sequence[Scenario], gpu: Gpu, options: Mapping[str, Any] | None = None) -> list[Case]:
    """Every scenario under the rule of each of its engines, planned for `gpu`, in order.

    `options` reach the engines that have them. Raises UnknownNameError for an option that no engine has, and
    InputError for more than MAX_PLANS.
    """
    from decodecalc.engines.registry import load_policies

    given = dict(options or {})
    out: list[Case] = []
    known: set[str] = set()
    ruled = [(scenario, load_policies(scenario.engines)) for scenario in scenarios]
    count = sum(len(policies) for _, policies in ruled)
    if count > MAX_PLANS:
        raise InputError(
            f"{count} cases of {len(scenarios)} scenarios are more than the {MAX_PLANS} that one run of verify takes: "
            "give fewer batches and contexts, or fewer engines"
        )
    for scenario, policies in ruled:
        for policy, version in policies:
            known.update(policy.option_names())
            chosen = policy.own_options({**scenario.options, **given}, scenario.model_kv_heads)
            release = policy.version(version).name
            try:
                plan = policy.plan(scenario.geometry, scenario.seen_batch, scenario.kv, gpu, chosen, version)
            except GateError as refused:
                out.append(Case(scenario, policy, release, None, str(refused)))
            except AssertionError as broken:
                out.append(Case(scenario, policy, release, None, f"the plan contradicts itself: {broken}", True))
            else:
                out.append(Case(scenario, policy, release, plan))
    for name in given:
        if name not in known:
            raise UnknownNameError("engine option", name, known, "see `decodecalc engines NAME`")
    return out


def deal(items: Sequence[Case], part: int, parts: int) -> list[Case]:
    """Part `part` (from 1) of `parts`. Whole scenarios are dealt in turn, because the engines of a scenario share its
    data."""
    order = {name: i for i, name in enumerate(dict.fromkeys(case.scenario.id for case in items))}
    return [case for case in items if order[case.scenario.id] % parts == part - 1]
