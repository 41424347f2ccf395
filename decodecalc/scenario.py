"""From what a user names (model, TP, GPU, engines, batches, contexts) to the plans that answer it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from decodecalc.batch import Batch
from decodecalc.engines.registry import ALL, SERVED_HERE, engine_names, out_of_scope, with_sparse_engines
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import Policy
from decodecalc.models import LayerGroup
from decodecalc.prefix import WHOLE, parts

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.servers.policies import Place


class Refusal(NamedTuple):
    """An engine that would not run a scenario at all, and why."""

    engine: str
    version: str | None
    layer_group: LayerGroup
    batch: Batch
    code: str
    reason: str


class Planned(NamedTuple):
    """One plan with the layer group it is for and the batch as the user gave it (before chunking).

    case numbers the (layer group, batch) pair within its `Scenarios`. part: which launch of a step with a shared prefix
    it is (`prefix.Part`).
    """

    case: int
    layer_group: LayerGroup
    batch: Batch
    plan: LaunchPlan
    part: str = WHOLE


@dataclass(frozen=True, slots=True)
class Scenarios:
    """A set of scenarios: layer groups of one rank x batches x engines, on one GPU with one cache layout.

    options: engine options; each engine takes those it has, and every one must belong to some engine.
    model_kv_heads: the model-wide KV-head count of the rank, for engines whose rule looks at it. excluded: (engine,
    code, reason) of those that `all` left out because they serve other layers or other GPUs. place: what servers'
    choices depend on, for the marks of a table. first: (engine, version) of those that the asked server runs.
    shared_prefix: keys that all requests of every batch share, and that are attended apart; 0 for none.
    """

    layer_groups: tuple[LayerGroup, ...]
    batches: tuple[Batch, ...]
    engines: tuple[tuple[Policy, str | None], ...]
    gpu: Gpu
    kv: KvCache
    options: Mapping[str, Any] = field(default_factory=dict)
    model_kv_heads: int | None = None
    excluded: tuple[tuple[str, str, str], ...] = ()
    place: Place | None = None
    first: tuple[tuple[str, str], ...] = ()
    shared_prefix: int = 0

    def __post_init__(self) -> None:
        known = {name for policy, _ in self.engines for name in policy.option_names()}
        for name in self.options:
            if name not in known:
                raise UnknownNameError("engine option", name, known, "see `decodecalc engines NAME`")

    def does_not_apply(self) -> dict[str, list[str]]:
        """Options given, each with the chosen engines that have no such option.

        The option by which one engine enters its reproducible mode is left out: each engine has its own name for that.
        """
        modes = {policy.traits.invariant_option[0] for policy, _ in self.engines if policy.traits.invariant_option}
        out: dict[str, list[str]] = {}
        for name in [option for option in self.options if option not in modes]:
            without = [policy.name for policy, _ in self.engines if name not in policy.option_names()]
            if without:
                out[name] = list(dict.fromkeys(without))
        return out

    def options_of(self, policy: Policy) -> dict[str, Any]:
        """The options that this engine has, with the model-wide KV-head count where its rule asks for it."""
        return policy.own_options(self.options, self.model_kv_heads)

    def on_imposed_pages(self) -> Scenarios:
        """The same scenarios with every engine on pages that it takes, where only the size of the pages stops it."""
        engines = []
        for policy, version in self.engines:
            pages = [
                policy.imposed_page(group.geometry, self.kv, self.gpu, self.options_of(policy), version)
                for group in self.layer_groups
            ]
            page = max((page for page in pages if page is not None), default=None)
            engines.append((policy if page is None else policy.configured({}, page), version))
        return replace(self, engines=tuple(engines))

    def imposed_pages(self) -> dict[str, int]:
        """Engines whose pages are not those of the cache's layout, with the keys of a page."""
        return {
            policy.name: policy.preset_page
            for policy, _ in self.engines
            if policy.preset_page not in (None, self.kv.page_size)
        }

    def step_plans(
        self, group: LayerGroup, batch: Batch, policy: Policy, version: str | None
    ) -> list[tuple[str, LaunchPlan]]:
        """The plan of a step, or those of its parts where a prefix is shared: (part, plan). GateError when the engine
        refuses the scenario."""
        if self.shared_prefix and group.chunk is not None:
            raise InputError("a shared prefix needs layers that read every key: not those with chunks")
        step = parts(group.geometry, group.seen_batch(batch), self.shared_prefix, policy.traits.folds_queries)
        options = self.options_of(policy)
        try:
            return [
                (part.name, policy.plan(part.geometry, part.batch, self.kv, self.gpu, options, version))
                for part in step
            ]
        except GateError as refused:
            raise with_sparse_engines(refused) from None

    def plans(self) -> Iterator[Planned | Refusal]:
        """Every combination, in the order layer group, batch, engine.

        Of several engines, one that cannot run a step is a Refusal; a single engine's refusal is raised, and so is that
        of all of them (InputError).
        """
        refusals: list[Refusal] = []
        planned = False
        pairs = [(group, batch) for group in self.layer_groups for batch in self.batches]
        for case, (group, batch) in enumerate(pairs):
            for policy, version in self.engines:
                try:
                    found = self.step_plans(group, batch, policy, version)
                except InputError as refused:
                    if len(self.engines) == 1:
                        raise
                    name, code = policy.version(version).name, getattr(refused, "code", "")
                    refusals.append(Refusal(policy.name, name, group, batch, code, str(refused)))
                    yield refusals[-1]
                else:
                    planned = True
                    for part, plan in found:
                        yield Planned(case, group, batch, plan, part)
            for engine, code, reason in self.excluded:
                yield Refusal(engine, None, group, batch, code, reason)
        if refusals and not planned:
            reasons = dict.fromkeys(
                r.reason if r.reason.startswith(r.engine) else f"{r.engine}: {r.reason}" for r in refusals
            )
            raise InputError("none of the chosen engines runs this: " + "; ".join(list(reasons)[:3]))


def make_scenarios(
    layer_groups: Sequence[LayerGroup],
    batches: Sequence[Batch],
    engines: Sequence[str],
    gpu: Gpu,
    kv: KvCache,
    options: Mapping[str, Any] | None = None,
    model_kv_heads: int | None = None,
    *,
    server: str | None = None,
    place: Place | None = None,
) -> Scenarios:
    """Scenarios from engine names (`name`, `name@version`, `all` or `served`) and names of servers and their backends.

    `served` stands for the engines that servers run at this place, by themselves or when told to; where there is none,
    for all.

    server: a server (`name` or `name@release`) whose own choice comes first. place: what that choice depends on, and
    whether plans are those of CUDA graphs; engines' own defaults on one rank where it is not given.
    """
    from decodecalc.servers.policies import Place, default_policies, policies_named, served_policies

    if not batches:
        raise InputError("there is no batch; give --batch and --context, or --seq-lens")
    geometries = [group.geometry for group in layer_groups]
    where = place or Place(groups=tuple(layer_groups), gpu=gpu, kv=kv)
    first = [] if server is None else policies_named(server, where)
    words = [spec.strip().lower() for spec in engines]
    served = served_policies(where) if SERVED_HERE in words else []
    everyone = ALL in words or (SERVED_HERE in words and not served)
    defaults = default_policies(place) if everyone and place is not None else {}
    policies: list[tuple[Policy, str | None]] = []
    excluded: list[tuple[str, str, str]] = []
    for spec, word in zip(engines, words):
        if word == SERVED_HERE and served:
            policies += served
        elif word not in (ALL, SERVED_HERE):
            policies += policies_named(spec, where)
        else:
            for name in engine_names():
                why = out_of_scope(name, geometries, gpu)
                if why is None:
                    policies += [defaults[name]] if name in defaults else policies_named(name, where)
                else:
                    excluded.append((name, *why))
    asked = dict.fromkeys((policy.name, policy.version(version).name) for policy, version in first)
    others = [
        (policy, version) for policy, version in policies if (policy.name, policy.version(version).name) not in asked
    ]
    return Scenarios(
        tuple(layer_groups),
        tuple(batches),
        (*first, *others),
        gpu,
        kv,
        dict(options or {}),
        model_kv_heads,
        tuple(excluded),
        where,
        tuple(asked),
    )
