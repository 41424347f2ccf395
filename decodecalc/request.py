"""A request: what a user's words (model, TP, GPU, engines, batches, cache) resolve to, and how to say it again.

`values` are the words by option name, as the command line and notebooks give them. Defaults fill the gaps, and the
request names those that were used.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from decodecalc.batch import Batch
from decodecalc.engines.registry import (
    ALL,
    DEFAULT_ENGINE,
    REFERENCE,
    SERVED,
    SERVED_HERE,
    SERVED_MLA,
    traits_of,
)
from decodecalc.errors import InputError, UnknownNameError
from decodecalc.keyshare import AG_RS, KeyShare
from decodecalc.kvcache import KvCache
from decodecalc.models import LayerGroup, Model
from decodecalc.prefix import check_prefix
from decodecalc.sanity import sanity_lines
from decodecalc.scenario import Scenarios, make_scenarios
from decodecalc.sizes import check_plans, check_ragged, check_steps
from decodecalc.units import listed, parse_count, parse_counts

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.servers.policies import Place

DEFAULT_GPU, DEFAULT_BATCH, DEFAULT_CONTEXT, DEFAULT_MODEL = "h100-sxm", "1", "2560", "llama3-8b"
DEFAULT_KV_DTYPE, DEFAULT_PAGE = "bf16", 16


# Options that take lists in the commands that make one table of all their combinations, by the names of their values.
LISTS = ("model", "gpu", "tp", "kv_dtype", "page_size")
MAX_COMBINATIONS = 64


def parts(value: Any) -> list[Any]:
    """The values of an option that may be a list: words separated by commas, numbers as a tuple; a path is one word.

    >>> parts("h100-sxm, h200-sxm"), parts((1, 8)), parts(None)
    (['h100-sxm', 'h200-sxm'], [1, 8], [None])
    """
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, str) and "," in value and not os.path.exists(value):
        return [part.strip() for part in value.split(",") if part.strip()] or [value]
    return [value]


def one(value: Any, name: str) -> Any:
    """The value of an option that takes lists elsewhere; InputError for a list."""
    found = parts(value)
    if len(found) > 1:
        option = f"--{name.replace('_', '-')}"
        raise InputError(f"{option} takes one value here, not the {len(found)} of {','.join(map(str, found))[:60]!r}")
    return found[0]


UNSAID: dict[str, Any] = {
    **dict.fromkeys(
        ("model", "q_heads", "kv_heads", "head_dim", "head_dim_v", "window", "gpu", "engine", "server", "batch",
        "context",
         "seq_lens", "kv_dtype", "query_dtype", "dcp_interleave", "dcp_exchange")
    ),
    **dict.fromkeys(("mla", "as_dense", "eager", "batch_invariant"), False),
    "tp": 1, "dcp": 1, "q_len": "1", "page_size": None, "opts": (),
}  # fmt: skip
"""The words of a scenario and their values where nothing is said; `cli.options` has the same."""
NUMBERS = ("tp", "page_size")
COUNTS = ("batch", "context", "seq_lens", "q_len")


def said(words: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The words of a scenario from Python, completed and spelled as the command line spells them: lists become comma
    lists. more: further words that the caller takes, with their values where nothing is said. UnknownNameError for a
    word that there is not."""
    known = {**UNSAID, **(more or {})}
    for name in words:
        if name not in known:
            raise UnknownNameError("word", name, known)
    out = dict(known)
    for name, value in words.items():
        listed = isinstance(value, Sequence) and not isinstance(value, str) and name != "opts"
        counted = name in COUNTS and value is not None
        if listed and name in NUMBERS:
            out[name] = tuple(value)
            continue
        out[name] = ",".join(map(str, value)) if listed else str(value) if counted else value
    return out


class Layers(NamedTuple):
    """The layer groups of one rank, where they come from, and what had to be assumed."""

    label: str
    layer_groups: tuple[LayerGroup, ...]
    tp: int
    model: Model | None
    model_kv_heads: int | None
    warnings: tuple[str, ...]
    share: KeyShare | None = None


def resolve_layers(values: dict[str, Any]) -> Layers:
    """Layer groups from --model, or from --q-heads and its companions, sharded over --tp."""
    from decodecalc.geometry import Geometry
    from decodecalc.models import load_model

    spec, q_heads, tp = one(values["model"], "model"), values["q_heads"], one(values["tp"], "tp")
    if spec is not None and q_heads is not None:
        raise InputError("give either --model or --q-heads, not both")
    by_hand = [o for o in ("kv_heads", "head_dim", "head_dim_v", "window") if values[o] is not None]
    if q_heads is None and (by_hand or values["mla"]):
        name = (by_hand or ["mla"])[0].replace("_", "-")
        raise InputError(f"--{name} describes a layer given by --q-heads; add --q-heads and leave --model out")
    if q_heads is None:
        model = load_model(spec or DEFAULT_MODEL)
    else:
        kv_heads = values["kv_heads"] or (1 if values["mla"] else q_heads)
        head_dim = 128 if values["head_dim"] is None else values["head_dim"]
        if values["kv_heads"] == 0:
            raise InputError("--kv-heads must be at least 1, not 0")
        if values["mla"] and kv_heads != 1:
            raise InputError(
                f"an MLA layer of a model has one latent for each key, which all query heads read: kv_heads is 1, not "
                f"{kv_heads}"
            )
        geometry = Geometry(q_heads, kv_heads, head_dim, values["head_dim_v"], values["window"], mla=values["mla"])
        model = Model("custom", "custom", 1, (LayerGroup("all", 1, geometry),), kv_heads)
    share = resolve_share(values)
    rank = model.shard(tp, 1 if share is None else share)
    groups, warnings = rank.layer_groups, tuple(model.warnings)
    if values.get("as_dense") and any(group.geometry.gather for group in groups):
        names = ", ".join(group.name for group in groups if group.geometry.gather)
        groups = tuple(replace(group, geometry=group.geometry.as_dense()) for group in groups)
        warnings += (f"{names} layers read only the keys of a list; they are planned as if they read every key",)
    label = model.name if q_heads is None else _layer_label(geometry)
    return Layers(label, groups, tp, model, rank.model_kv_heads, warnings, share)


def resolve_share(values: dict[str, Any]) -> KeyShare | None:
    """How --dcp divides the keys of a request over ranks; None where it does not."""
    ranks, interleave, exchange = values.get("dcp", 1), values.get("dcp_interleave"), values.get("dcp_exchange")
    if ranks == 1:
        for name, given in (("--dcp-interleave", interleave), ("--dcp-exchange", exchange)):
            if given is not None:
                raise InputError(f"{name} says how --dcp divides the keys; give --dcp too")
        return None
    if ranks < 1:
        raise InputError(f"--dcp must be at least 1, not {ranks}")
    return KeyShare(ranks, 1 if interleave is None else interleave, exchange or AG_RS)


def resolve_gpu(name: str | None) -> Gpu:
    """The GPU named, the default, or the live one (`auto`)."""
    name = one(name, "gpu")
    if name == "auto":
        from decodecalc.gpus import detect_gpu

        return detect_gpu()
    from decodecalc.gpus import load_gpu

    return load_gpu(name or DEFAULT_GPU)


def resolve_batches(values: dict[str, Any]) -> list[Batch]:
    """One batch of --seq-lens, or the product of --batch, --context and --q-len."""
    if values["seq_lens"] is not None:
        if values["batch"] is not None or values["context"] is not None:
            raise InputError("--seq-lens describes a whole batch and cannot be combined with --batch or --context")
        lens = parse_counts(values["seq_lens"], "--seq-lens")
        check_ragged(len(lens))
        q_lens = parse_counts(values["q_len"], "--q-len")
        return [Batch(lens, q_lens[0] if len(q_lens) == 1 else q_lens)]
    batches = parse_counts(values["batch"] or DEFAULT_BATCH, "--batch")
    contexts = parse_counts(values["context"] or DEFAULT_CONTEXT, "--context")
    q_lens = parse_counts(values["q_len"], "--q-len")
    check_steps(batches, len(contexts), len(q_lens))
    for name, numbers in (("--batch", batches), ("--context", contexts), ("--q-len", q_lens)):
        if min(numbers) < 1:
            raise InputError(f"{name} must be at least 1, not {min(numbers)}")
    return [Batch.uniform(b, c, q) for b in batches for c in contexts for q in q_lens]


def _layer_label(geo: Geometry) -> str:
    """A layer given by hand as people write it: heads and widths, the value's where it is not the key's."""
    widths = f"{geo.head_dim}" if geo.v_dim == geo.head_dim else f"{geo.head_dim}/{geo.v_dim}"
    return f"{geo.q_heads}/{geo.kv_heads}/{widths}"


def resolve_kv(values: dict[str, Any], model: Model | None = None, gpu: Gpu | None = None) -> KvCache:
    """The cache layout; without --kv-dtype the element type that the model's checkpoint declares, else the 16-bit type
    that models run in on the device."""
    declared = None if model is None else model.kv_dtype
    page = one(values["page_size"], "page_size")
    half = DEFAULT_KV_DTYPE if gpu is None else gpu.half_type
    dtype = one(values["kv_dtype"], "kv_dtype") or declared or half
    query = values["query_dtype"] or half
    return KvCache(dtype, DEFAULT_PAGE if page is None else page, None, query)


def resolve_engines(name: str | None, default: str) -> list[str]:
    """Engine names from a comma list."""
    return [part.strip() for part in (name or default).split(",") if part.strip()] or [default]


def resolve_opts(opts: Sequence[str], batch_invariant: bool, engines: Sequence[str]) -> dict[str, Any]:
    """Engine options from NAME=VALUE pairs and the common flags."""
    from decodecalc.engines.registry import engine_names, load_policies, split_version

    out: dict[str, Any] = {}
    for text in opts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InputError(f"--opt {text[:40]!r} must be NAME=VALUE, for example --opt max_num_seqs=256")
        out[name.strip().replace("-", "_")] = value
    if batch_invariant:
        words = [ALL if split_version(name)[0] == SERVED_HERE else name for name in engines]
        known = [name for name in words if split_version(name)[0] in (*engine_names(), ALL)]
        modes = [policy.traits.invariant_option for policy, _ in load_policies(known)]
        found = dict(mode for mode in modes if mode is not None)
        if len(known) < len(engines):
            return out  # a server's own mode, which its answer knows
        if not found:
            raise InputError(f"--batch-invariant cannot be used: {', '.join(engines)} has no such mode")
        out = {**found, **out}
    return out


def resolve_place(values: dict[str, Any], layers: Layers, gpu: Gpu, kv: KvCache) -> Place:
    """What servers' choices depend on."""
    from decodecalc.servers import architecture_of
    from decodecalc.servers.policies import Place

    return Place(
        groups=layers.layer_groups,
        gpu=gpu,
        kv=kv,
        tp=layers.tp,
        architecture=architecture_of(layers.model) if layers.model is not None else None,
        batch_invariant=bool(values["batch_invariant"]),
        eager=bool(values.get("eager")),
        state_bytes=_state_bytes(layers),
    )


def _state_bytes(layers: Layers) -> int | None:
    """Bytes of one recurrent layer's state of a sequence on a rank; None without such layers."""
    states = None if layers.model is None else layers.model.states
    return None if states is None else states.bytes_per_sequence(layers.tp, layers=1)


class Request(NamedTuple):
    """Everything the scenario options resolve to, and how to say it again."""

    layers: Layers
    scenarios: Scenarios
    inputs: dict[str, Any]
    defaults: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """What a user should know before reading the numbers."""
    given_steps: bool = False
    """Whether --batch or --context was given."""

    @property
    def heading(self) -> list[str]:
        """What was asked, and which defaults filled the gaps."""
        s = self.scenarios
        name = self.layers.label + (f" TP {self.layers.tp}" if self.layers.tp > 1 else "")
        if self.layers.share is not None:
            name += f" DCP {self.layers.share.ranks}"
        imposed = s.imposed_pages()
        others = [
            f"{page} for {listed(engine for engine in imposed if imposed[engine] == page)}"
            for page in dict.fromkeys(imposed.values())
        ]
        kv = f"KV {s.kv.dtype}, page {s.kv.page_size}" + (f" ({', '.join(others)})" if others else "")
        lines = [f"{name} on {s.gpu.name} ({s.gpu.sm_count} SMs), {kv}"]
        if self.defaults:
            lines.append("defaults: " + ", ".join(self.defaults))
        return lines + self._state_pages()

    def _state_pages(self) -> list[str]:
        """How servers align the pages of a hybrid, where the layers are those of a model."""
        from decodecalc.servers.policies import state_pages

        place = self.scenarios.place
        return [] if place is None else state_pages(place)

    @property
    def cautions(self) -> list[str]:
        """What a user should know before the numbers are used: warnings, and options without an effect."""
        without = self.scenarios.does_not_apply().items()
        return [
            *(f"warning: {w}" for w in self.warnings),
            *(f"option {option} has no effect on {', '.join(engines)}" for option, engines in without),
        ]

    def on_workload(self, path: str) -> tuple[Request, list[float]]:
        """The same request on the steps of a workload file, and their weights."""
        from decodecalc.workload import read_workload

        if "seq_lens" in self.inputs or self.given_steps:
            raise InputError(
                "--workload describes the steps and cannot be combined with --batch, --context or --seq-lens"
            )
        steps: dict[Batch, float] = {}
        for batch, weight in read_workload(path):
            steps[batch] = steps.get(batch, 0.0) + weight
        inputs = {k: v for k, v in self.inputs.items() if k not in ("batch", "context", "q_len")}
        kept = tuple(d for d in self.defaults if d.split()[0] not in ("batch", "context"))
        request = self._replace(
            scenarios=replace(self.scenarios, batches=tuple(steps)),
            inputs={**inputs, "workload": path},
            defaults=kept,
        )
        return request, list(steps.values())


def resolve(values: dict[str, Any], default_engine: str = DEFAULT_ENGINE) -> Request:
    """The whole request behind the scenario options."""
    layers = resolve_layers(values)
    gpu, batches = resolve_gpu(values["gpu"]), resolve_batches(values)
    kv = resolve_kv(values, layers.model, gpu)
    server = values.get("server")
    default_engine = _default_for(layers, gpu, default_engine) if values["engine"] is None else default_engine
    engines = resolve_engines(values["engine"], default_engine)
    if server is not None and values["engine"] is None and default_engine not in (ALL, SERVED_HERE):
        engines = []  # the server's own choice stands in for the default
    options = resolve_opts(values["opts"], values["batch_invariant"], engines or [str(server)])
    place = resolve_place(values, layers, gpu, kv)
    scenarios = make_scenarios(
        layers.layer_groups, batches, engines, gpu, kv, options, layers.model_kv_heads, server=server, place=place
    )
    if values["page_size"] is None:
        scenarios = scenarios.on_imposed_pages()
    if values.get("shared_prefix") is not None:
        shared = parse_count(values["shared_prefix"], "--shared-prefix")
        for group in layers.layer_groups:
            for batch in batches if shared else ():
                check_prefix(group.geometry, batch, shared)
        scenarios = replace(scenarios, shared_prefix=shared)
    check_plans(
        len(batches),
        sum(batch.size for batch in batches),
        max(1, len(scenarios.engines)) * len(layers.layer_groups),
        ragged=values["seq_lens"] is not None,
    )
    warnings = layers.warnings
    if layers.model is not None and values["q_heads"] is None:
        warnings += tuple(sanity_lines(layers.model, layers.layer_groups, batches, kv, gpu, layers.tp))
    inputs: dict[str, Any] = {
        "model": layers.label,
        "tp": layers.tp,
        "gpu": gpu.name,
        "engines": engines or [server],
        "kv_dtype": kv.dtype,
        "page_size": kv.page_size,
        "options": options,
        "warnings": list(warnings),
    }
    if values["seq_lens"] is None:
        for key, default in (("batch", DEFAULT_BATCH), ("context", DEFAULT_CONTEXT), ("q_len", "1")):
            inputs[key] = parse_counts(values[key] or default, key)
    else:
        inputs["seq_lens"] = list(batches[0].seq_lens)
    if scenarios.shared_prefix:
        inputs["shared_prefix"] = scenarios.shared_prefix
    if layers.share is not None:
        inputs["dcp"] = layers.share.to_dict()
    given = values["batch"] is not None or values["context"] is not None
    used = _defaults_used(values, default_engine, layers.model, gpu)
    return Request(layers, scenarios, inputs, used, warnings, given)


def combinations(values: dict[str, Any], names: Sequence[str] = LISTS) -> list[dict[str, Any]]:
    """The values in every combination of what their lists hold; the last of `names` varies first."""
    lists = [parts(values[name]) for name in names]
    count = math.prod(map(len, lists))
    if count > MAX_COMBINATIONS:
        raise InputError(
            f"{count} combinations of {', '.join(names)} are more than the {MAX_COMBINATIONS} that one table may "
            "hold; `decodecalc sweep` takes more"
        )
    return [{**values, **dict(zip(names, chosen))} for chosen in itertools.product(*lists)]


def _default_for(layers: Layers, gpu: Gpu, default: str) -> str:
    """The engines to start from when the user names none: those that serve the layers there are, on this device."""
    if default in (ALL, SERVED_HERE):
        return default
    if gpu.vendor is not None and not any(gpu.vendor in traits_of(name).vendors for name in default.split(",")):
        return REFERENCE
    geometries = [group.geometry for group in layers.layer_groups]
    if any(geometry.gather for geometry in geometries):
        return REFERENCE if default in (DEFAULT_ENGINE, ",".join(SERVED)) else default
    if all(geometry.mla for geometry in geometries):
        return {DEFAULT_ENGINE: SERVED_MLA[0], ",".join(SERVED): ",".join(SERVED_MLA)}.get(default, default)
    return default


def _defaults_used(values: dict[str, Any], default_engine: str, model: Model | None, gpu: Gpu) -> tuple[str, ...]:
    used = []
    if values["model"] is None and values["q_heads"] is None:
        used.append(f"model {DEFAULT_MODEL}")
    if values["gpu"] is None:
        used.append(f"gpu {DEFAULT_GPU}")
    if values["seq_lens"] is None:
        used += [f"{key} {d}" for key, d in (("batch", DEFAULT_BATCH), ("context", DEFAULT_CONTEXT)) if not values[key]]
    if values["kv_dtype"] is None and model is not None and model.kv_dtype:
        used.append(f"KV cache {model.kv_dtype}, as the checkpoint declares")
    elif values["kv_dtype"] is None and gpu.half_type != DEFAULT_KV_DTYPE:
        used.append(f"KV cache {gpu.half_type}, since {gpu.name} has no {DEFAULT_KV_DTYPE} arithmetic")
    if values["engine"] is None and values.get("server") is None:
        used.append(f"engine {default_engine}")
    return tuple(used)
