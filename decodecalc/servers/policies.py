"""Policies as a server runs them: its options, its pages, its release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from decodecalc.engines.registry import (
    ALL,
    BUNDLED,
    engine_names,
    load_policies,
    load_policy,
    out_of_scope,
    split_version,
)
from decodecalc.errors import DecodecalcError, InputError, UnknownNameError
from decodecalc.intmath import cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.policy import Policy
from decodecalc.models import LayerGroup
from decodecalc.servers.layers import question_of
from decodecalc.servers.names import SGLANG_NAMES, VLLM_NAMES, ServerName, server_name
from decodecalc.servers.registry import SERVERS, TITLES, resolve
from decodecalc.servers.resolution import Resolution
from decodecalc.units import human_bytes

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

# Servers whose automatic choice a table of engines marks.
MARKED = ("vllm", "sglang")
# SGLang takes nearly every backend's name without a check. These are the ones that it runs on the GPUs their kernels
# are written for, whatever the model (docs/advanced_features/attention_backend.md, v0.5.23).
_OFFERED = {"sglang": ("flashinfer", "triton")}


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a server's choice depends on beside its own settings."""

    groups: Sequence[LayerGroup]
    """Layer groups of one rank."""
    gpu: Gpu
    """The GPU."""
    kv: KvCache
    """The cache; its pages are the server's choice."""
    tp: int = 1
    """Ranks that divide the heads."""
    architecture: str | None = None
    """The configuration's architecture, for servers that look at it."""
    batch_invariant: bool = False
    """The server's reproducible mode."""
    eager: bool | None = None
    """The server runs without CUDA graphs; None is with graphs for a server, and an engine's own defaults for one."""
    state_bytes: int | None = None
    """Bytes of a recurrent layer's state of one sequence, for hybrids: their pages of keys are as large."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the server."""

    @cached_property
    def own_choices(self) -> tuple[tuple[str, LayerGroup, Resolution | None], ...]:
        """What the newest release of every marked server chooses by itself for every layer group: (server, group,
        answer). The answer is None for a layer that no question of the server describes. Resolved once for a place."""
        out: list[tuple[str, LayerGroup, Resolution | None]] = []
        for server in MARKED:
            for group in self.groups:
                try:
                    question = question_of(server, group, self.gpu, self.kv, **self.settings(server))
                    out.append((server, group, resolve(server, None, question)))
                except InputError:
                    out.append((server, group, None))
        return tuple(out)

    def settings(self, server: str) -> dict[str, Any]:
        """The settings of one server that stand for this place, and the state of a hybrid's recurrent layers."""
        extra = {**self.extra, **({} if self.state_bytes is None else {"state_bytes": self.state_bytes})}
        if server == "vllm":
            graphs = {"cudagraph_mode": "NONE"} if self.eager else {}
            return {"batch_invariant": self.batch_invariant, **graphs, **extra}
        if server == "sglang":
            own = {"architecture": self.architecture, "tp_size": self.tp, "deterministic": self.batch_invariant}
            return {**own, **extra}
        return extra


def answers(server: str, version: str | None, place: Place, backend: str | None = None) -> tuple[Resolution, ...]:
    """The server's answer for every layer group. A layer that no server question describes raises InputError."""
    settings = place.settings(server)
    return tuple(
        resolve(server, version, question_of(server, group, place.gpu, place.kv, backend=backend, **settings))
        for group in place.groups
    )


def as_policy(
    answer: Resolution,
    *,
    max_model_len: int | None = None,
    eager: bool = False,
    options: Mapping[str, Any] | None = None,
) -> tuple[Policy, str | None]:
    """The policy and version that plan an answer, with the options that follow from the server.

    max_model_len: the longest sequence that the server allows, where launches under graphs follow it. options: further
    ones, of which the engine takes those it has. GateError where the server does not start, InputError where no policy
    plans its kernel.
    """
    backend = answer.need_backend()
    if answer.engine is None:
        kernel = f" ({answer.kernel})" if answer.kernel else ""
        raise InputError(f"{answer.server} {answer.version} runs {backend}{kernel} here, for which there is no policy")
    policy = load_policy(answer.engine)
    traits, own = policy.traits, policy.option_names()
    preset: dict[str, Any] = {}
    if traits.replay_option is not None and not eager:
        preset.update([traits.replay_option])
    if traits.eager_option is not None and eager:
        preset.update([traits.eager_option])
    if traits.longest_option is not None and max_model_len is not None and not eager:
        pages = cdiv(max_model_len, answer.kernel_page_size or 1)
        preset[traits.longest_option] = pages if traits.longest_in_pages else max_model_len
    preset.update(answer.options)
    preset.update({name: value for name, value in (options or {}).items() if name in own})
    return policy.configured(preset, answer.kernel_page_size), answer.engine_version


def policies_named(spec: str, place: Place) -> list[tuple[Policy, str | None]]:
    """What a word of `--engine` stands for: an engine (`name`, `name@version`), a server, or a server's backend.

    A backend may run another kernel on another kind of layer: there is then one policy for each.
    UnknownNameError for a word that is none of these.
    """
    name, _ = split_version(spec)
    # FLASHINFER is a server's backend, flashinfer an engine: a backend in capitals may run another engine's kernel.
    is_backend = spec.partition("@")[0].strip() in VLLM_NAMES
    if name in (*engine_names(), ALL) and not is_backend:
        return [_with_graphs(policy, asked, place.eager) for policy, asked in load_policies([spec])]
    found = server_name(spec)
    if found is None:
        raise UnknownNameError("engine", spec, [*engine_names(), *SERVERS, *VLLM_NAMES, *SGLANG_NAMES])
    return server_policies(found, place)


def server_policies(name: ServerName, place: Place) -> list[tuple[Policy, str | None]]:
    """The policies that a server, or one backend of it, runs for the layer groups, without repetition."""
    return _policies_of(answers(name.server, name.version, place, name.backend), place)


def _policies_of(found: Iterable[Resolution], place: Place) -> list[tuple[Policy, str | None]]:
    """The policies that plan these answers, without repetition. InputError where no policy plans one of them."""
    out: dict[Any, tuple[Policy, str | None]] = {}
    for answer in found:
        policy, version = as_policy(answer, eager=bool(place.eager))
        key = (policy.name, version, tuple(sorted(policy.preset.items(), key=str)), policy.preset_page)
        out.setdefault(key, (policy, version))
    return list(out.values())


def _with_graphs(policy: Policy, version: str | None, eager: bool | None) -> tuple[Policy, str | None]:
    if eager is None:
        return policy, version
    chosen = policy.version(version)
    options = policy.eager_options(chosen) if eager else policy.graph_options(chosen)
    return (policy.configured(options) if options else policy), version


def default_policies(place: Place) -> dict[str, tuple[Policy, str | None]]:
    """The engines that servers run by themselves at this place, by name, as those servers set them.

    Where two servers run one engine, the first server's settings count. A server that refuses the layers, or whose
    kernel has no policy, contributes nothing.
    """
    out: dict[str, tuple[Policy, str | None]] = {}
    for server in MARKED:
        found = [answer for name, _, answer in place.own_choices if name == server]
        if None in found:
            continue
        try:
            planned = _policies_of([answer for answer in found if answer is not None], place)
        except InputError:
            continue
        for policy, version in planned:
            out.setdefault(policy.name, (policy, version))
    return out


def served_policies(place: Place) -> list[tuple[Policy, str | None]]:
    """The engines that servers run at this place: first by themselves, then when they are told to, as those servers set
    them; the bundled kernel comes last. Empty where no server runs the layers."""
    found = default_policies(place)
    accepted = [(s, c.name) for s, _, answer in place.own_choices if answer for c in answer.candidates if c.valid]
    offered = [(server, name) for server, names in _OFFERED.items() for name in names]
    geometries = [group.geometry for group in place.groups]
    for server, backend in dict.fromkeys([*accepted, *offered]):
        try:
            planned = _policies_of(answers(server, None, place, backend), place)
        except DecodecalcError:
            continue  # the server does not start with it here, or nothing plans its kernel
        for policy, version in planned:
            if out_of_scope(policy.name, geometries, place.gpu) is None:
                found.setdefault(policy.name, (policy, version))
    return [*found.values(), (load_policy(BUNDLED), None)] if found else []


class Mark(NamedTuple):
    """That a server runs an engine by itself."""

    server: str
    """The server."""
    title: str
    """Its name as people write it."""
    version: str
    """The engine's version that it runs."""


def marks(place: Place) -> dict[tuple[str, str], list[Mark]]:
    """Which servers run an engine by themselves: (layer group, engine) -> marks, for the servers' newest releases.

    A server that does not run the layer, or whose kernel has no policy, marks nothing.
    """
    out: dict[tuple[str, str], list[Mark]] = {}
    for server, group, answer in place.own_choices:
        if answer is not None and answer.refused is None and answer.engine is not None:
            version = load_policy(answer.engine).version(answer.engine_version).name
            mark = Mark(server=server, title=TITLES[server], version=version)
            out.setdefault((group.name, answer.engine), []).append(mark)
    return out


def state_pages(place: Place) -> list[str]:
    """A line for every server whose pages of keys are as large as a recurrent layer's state; none without such layers.

    The manager's page is a multiple of what the kernel takes; where the kernel does not take it, it sees smaller pages.
    """
    if place.state_bytes is None:
        return []
    lines: dict[str, None] = {}
    for server, _, answer in place.own_choices:
        page, seen = (None, None) if answer is None else (answer.page_size, answer.kernel_page_size)
        if answer is None or page is None or server != "vllm":
            continue
        kernel = "and so does its kernel" if seen == page else f"and its kernel sees pages of {seen}"
        lines[
            f"{TITLES[server]} {answer.version} keeps {page} keys in a page here, as large as a recurrent layer's "
            f"state ({human_bytes(place.state_bytes)}), {kernel}"
        ] = None
    return list(lines)


def unplanned(place: Place) -> list[str]:
    """Lines for the servers whose own choice on these layers is a kernel that no policy plans."""
    found: dict[str, list[str]] = {}
    for server, group, answer in place.own_choices:
        if answer is not None and answer.refused is None and answer.engine is None:
            kernel = f" ({answer.kernel})" if answer.kernel and answer.kernel != answer.backend else ""
            found.setdefault(f"{TITLES[server]} {answer.version} runs {answer.backend}{kernel}", []).append(group.name)
    return [f"{runs} on {' and '.join(names)} layers here, which no policy plans." for runs, names in found.items()]
