"""The answer to a serve command: what runs, how long it takes, what fits, what to change.

The command is read by `servers.commands`, the backend resolved by `servers`, the launch planned by the engine's
policy, its time predicted by `cost`, and the memory counted by `analysis.memory` and the model's weights.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.memory import CacheSize, cache_size
from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.collectives import shipped_collectives
from decodecalc.cost.load import load_calibration
from decodecalc.cost.prediction import Prediction, predict
from decodecalc.cost.step import StepFloor, step_floor
from decodecalc.cost.token import TokenTime
from decodecalc.cost.variants import BUNDLED
from decodecalc.errors import DecodecalcError, InputError
from decodecalc.keyshare import A2A, EXCHANGES, KeyShare
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup, Model, load_model
from decodecalc.models.naming import recognise
from decodecalc.models.weights import LINEAR_BYTES, storage_of
from decodecalc.servers import Resolution, resolve_layers, settings_of_model
from decodecalc.servers.commands import Command, Facts, facts_of
from decodecalc.servers.commands.facts import SHARE_HELD_BACK, SHARE_OF_FREE
from decodecalc.servers.commands.read import with_words
from decodecalc.servers.policies import as_policy
from decodecalc.units import human_seconds
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

# What a server takes beside weights and cache on every GPU: the context, communication buffers, activations and the
# graphs. Start-up logs of servers on GPUs of 24 to 80 GB show 0.7 to 3.1 GiB.
RESERVE_BYTES = 2 << 30
TYPICAL_CONTEXT = 8192
SHORTEST_ADVISED = 1024  # tokens of a sequence below which a shorter limit is no advice
WORTH = 0.95  # a flag is named when it takes at least 5 % off the attention's time
_FLOATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# How servers' words for cache types begin, and the layout that they stand for.
_CACHES = (
    ("fp8", "fp8"), ("nvfp4", "nvfp4"), ("fp4", "nvfp4"), ("int8", "int8"), ("int4", "int4"), ("bfloat16", "bf16"),
    ("bf16", "bf16"), ("float16", "fp16"), ("fp16", "fp16"), ("fp32", "fp32"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswer:
    """What the server runs for one layer group."""

    group: LayerGroup
    """The group, as one rank has it."""
    answer: Resolution
    """The server's answer."""
    unplanned: str | None = None
    """Why no launch is shown; None where one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launch of one layer of a group at one batch."""

    group: LayerGroup
    """The layer group."""
    plan: LaunchPlan
    """The launch."""
    layer: Prediction
    """The time of one layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One decode step of the server."""

    batch: int
    """Sequences."""
    context: int
    """Tokens of each."""
    fits: bool | None
    """Whether their cache fits; None where that is not known."""
    launches: tuple[Launch, ...]
    """One for every layer group; fewer where no policy plans a group."""
    attention: TokenTime | None
    """All attention layers; None where a group has no launch, or the cache does not fit."""
    floor: StepFloor | None
    """A floor under the rest of the step; None where the weights are not known, or the cache does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Shown):
    """One GPU's memory, divided as the server does. All in bytes; None where it is not known."""

    total: int | None
    """The GPU's memory."""
    fraction: float
    """The server's memory fraction."""
    weights: float | None
    """Weights on this GPU."""
    reserve: int
    """Allowance for activations, graphs and communication: an assumption."""
    available: float | None
    """What is left for the cache; negative where the weights alone do not fit."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the unit in their names."""
        return {
            "total_bytes": self.total,
            "memory_fraction": self.fraction,
            "weight_bytes": self.weights,
            "reserve_bytes": self.reserve,
            "available_bytes": self.available,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagAdvice:
    """One change to the command."""

    flag: str
    """The exact words to add."""
    why: str
    """What it does, in numbers."""
    saves_s: float | None = None
    """Seconds that it takes off a step's attention, where that is its point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(Shown):
    """The whole answer."""

    command: Command
    """The command."""
    facts: Facts
    """What is known of its server."""
    model: Model
    """The model."""
    gpu: Gpu
    """The GPU."""
    layers: tuple[LayerAnswer, ...]
    """What runs, for every layer group."""
    loads: tuple[Load, ...]
    """Decode steps, by batch."""
    cache: CacheSize
    """Bytes of the cache on one GPU."""
    memory: Memory
    """The GPU's memory."""
    max_num_seqs: int
    """Most sequences of a step, given or the server's default."""
    max_model_len: int | None
    """Most tokens of a sequence, given or the model's own."""
    context: int
    """Tokens of a sequence in the steps shown."""
    calibration: Calibration
    """Where the times come from."""
    advice: tuple[FlagAdvice, ...]
    """What to change."""
    notes: tuple[str, ...]
    """What a user should know, in whole sentences."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the shown times come from: the label of every kernel's own calibration, and the word for its numbers
        where they are another variant's."""
        shown = [one.layer for load in self.loads for one in load.launches]
        found = dict.fromkeys(
            p.calibration if p.calibration.startswith(p.numbers) else f"{p.numbers}, {p.calibration}" for p in shown
        )
        return tuple(found) or (self.calibration.label,)

    @property
    def cautions(self) -> list[str]:
        """What a user should know before the numbers are used. Overridden configurations may extend the positions."""
        longest, asked = self.model.max_position, self.max_model_len
        if longest is None or asked is None or asked <= longest or self.command.hf_overrides:
            return []
        text = f"{asked} tokens are more than the {longest} positions that {self.model.name} is made for"
        switch = self.facts.longer_than_model
        if switch is None:
            return [f"{text}."]
        if switch in self.command.text:
            return [f"{text}; {switch} lets the server start all the same."]
        return [f"{text}: the server refuses to start, unless {switch} is set."]

    @property
    def refused(self) -> Resolution | None:
        """The first answer with which the server does not start."""
        return next((one.answer for one in self.layers if one.answer.refused is not None), None)

    @property
    def fitting(self) -> int | None:
        """Sequences of `context` tokens whose cache fits; None where that is not known."""
        if self.memory.available is None:
            return None
        return self.cache.sequences(max(self.memory.available, 0.0), self.context)

    @property
    def full(self) -> Load | None:
        """The step with the most sequences that is shown with a time."""
        timed = [load for load in self.loads if load.attention is not None]
        return max(timed, key=lambda load: load.batch, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested."""
        return {
            "command": self.command.to_dict(),
            "model": self.model.name,
            "gpu": self.gpu.label,
            "layers": [
                {"layer_group": one.group.name, **one.answer.to_dict(), "unplanned": one.unplanned}
                for one in self.layers
            ],
            "cache": self.cache.to_dict(),
            "memory": self.memory.to_dict(),
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "context": self.context,
            "fitting_sequences": self.fitting,
            "warnings": self.cautions,
            "advice": [{"flag": a.flag, "why": a.why, "saves_s": a.saves_s} for a in self.advice],
            "calibration": "; ".join(self.sources),
            "notes": list(self.notes),
        }


def serve(
    command: Command,
    *,
    gpu: Gpu,
    version: str | None = None,
    model: str | None = None,
    context: int | None = None,
    batches: Sequence[int] | None = None,
    calibration: Calibration | None = None,
    reserve_bytes: int = RESERVE_BYTES,
    advise: bool = True,
) -> Serving:
    """Answer a serve command on `gpu`.

    version: the server's release, else the one of the command's container, else the newest known. model: the model to
    take for a path that names none (`load_model`'s words). context, batches: the steps to show; by default 8192 tokens,
    or the longest the server takes if that is less, and one, some and all sequences. Errors: InputError and its
    subclasses where the model, a degree or a release is not known; a server that refuses is an answer.
    """
    asked = _Asked(command, gpu, version or command.version, model, context, calibration, reserve_bytes)
    return asked.answer(batches, advise)


class _Asked:
    """One command on its way to its answer."""

    def __init__(
        self,
        command: Command,
        gpu: Gpu,
        version: str | None,
        model: str | None,
        context: int | None,
        calibration: Calibration | None,
        reserve_bytes: int,
    ) -> None:
        self.command, self.gpu, self.version, self.reserve = command, gpu, version, reserve_bytes
        self.spec = model
        self.facts = facts_of(command.server)
        self.notes: list[str] = list(command.notes)
        self.model, self.stored = _model(command, model, self.notes)
        self.known = calibration or load_calibration(gpu=gpu)
        self.share = _share(command, self.facts, self.notes)
        self.rank = self.model.shard(command.tp, self.share or 1)
        self.dtype = command.dtype or next(word for word, ours in _FLOATS.items() if ours == gpu.half_type)
        self.max_model_len = command.max_model_len or self.model.max_position
        self.max_num_seqs = command.max_num_seqs or self.facts.default_seqs(gpu)
        most = self.max_model_len or TYPICAL_CONTEXT
        if context is not None and context > most:
            raise InputError(f"--context {context} is longer than the longest sequence of the server, {most} tokens")
        self.context = context or min(most, TYPICAL_CONTEXT)
        self.layers = tuple(self._layer(group, answer) for group, answer in self._resolve())
        self.kv = self._cache()
        self.cache = cache_size(self.model, self.kv, tp=command.tp, dcp=self.share or 1, pp=command.pp)
        self.memory = self._memory()

    def _resolve(self) -> tuple[tuple[LayerGroup, Resolution], ...]:
        command = self.command
        settings = {**settings_of_model(command.server, self.model), **command.settings}
        states = self.model.states
        return resolve_layers(
            command.server,
            self.version,
            self.rank,
            self.gpu,
            command.kv_cache_dtype,
            dtype=self.dtype,
            page_size=command.page_size,
            backend=command.backend,
            state_bytes=None if states is None else states.bytes_per_sequence(command.tp, layers=1),
            **settings,
        )

    def _layer(self, group: LayerGroup, answer: Resolution) -> LayerAnswer:
        why = None
        try:
            as_policy(answer)
        except InputError as error:
            why = str(error)
        return LayerAnswer(group=group, answer=answer, unplanned=why)

    def _cache(self) -> KvCache:
        """The cache's layout: its type in our words, on the page that the server's manager hands out."""
        first = self.layers[0].answer
        words = str(first.detail.get("kv_cache_dtype") or self.command.kv_cache_dtype or "auto")
        half = _FLOATS[self.dtype]
        dtype = next((ours for start, ours in _CACHES if words.startswith(start)), half)
        query = "fp8" if (first.query_dtype or "").startswith(("fp8", "float8")) else half
        return KvCache(dtype, first.page_size or self.facts.page_size, None, query)

    def _memory(self) -> Memory:
        command, weights, rule = self.command, self.model.weights, self.facts.memory_rule
        fraction = command.memory_fraction or self.facts.memory_fraction(self.gpu, command.tp * command.dp)
        total, held = self.gpu.capacity_bytes, None
        if weights is not None:
            held = weights.rank_bytes(tp=command.tp, expert_ranks=command.expert_ranks, stored=self.stored) / command.pp
            held = max(held - command.offload_bytes, 0.0)
        available: float | None = None
        if command.kv_bytes is not None:
            available = float(command.kv_bytes)
        elif total is not None and held is not None:
            if rule == SHARE_OF_FREE:
                available = (total - held - self.reserve) * fraction
            elif rule == SHARE_HELD_BACK:
                available = total * fraction - held
            else:
                available = total * fraction - held - self.reserve
        return Memory(total=total, fraction=fraction, weights=held, reserve=self.reserve, available=available)

    def load(self, batch: int) -> Load:
        """One step of `batch` sequences."""
        launches = [found for found in (self._launch(one, batch) for one in self.layers) if found is not None]
        available = self.memory.available
        fits = None if available is None else self.cache.sequence_bytes(self.context) * batch <= available
        timed = fits is not False and len(launches) == len(self.layers)  # what cannot be run has no time
        return Load(
            batch=batch,
            context=self.context,
            fits=fits,
            launches=tuple(launches),
            attention=TokenTime(layers=tuple((x.group.layers, x.layer) for x in launches)) if timed else None,
            floor=self._floor(batch) if fits is not False else None,
        )

    def _floor(self, batch: int) -> StepFloor | None:
        command = self.command
        if self.model.weights is None:
            return None
        return step_floor(
            self.model,
            batch=batch,
            gpu=self.gpu,
            calibration=self.known,
            kv=self.kv,
            tp=command.tp,
            q_len=1 + (command.draft_tokens or 0),
            expert_ranks=command.expert_ranks,
            stored=self.stored,
            replicas=command.dp,
        )

    def _launch(self, one: LayerAnswer, batch: int) -> Launch | None:
        if one.unplanned is not None:
            return None
        command = self.command
        policy, version = as_policy(
            one.answer, max_model_len=self.max_model_len, eager=command.eager, options=command.engine_options
        )
        options = policy.own_options({}, self.rank.model_kv_heads)
        seen = one.group.seen_batch(Batch.uniform(batch, self.context, 1 + (command.draft_tokens or 0)))
        try:
            plan = policy.plan(one.group.geometry, seen, self.kv, self.gpu, options, version)
        except InputError as refused:
            self.notes.append(f"No launch is shown for batch {batch}: {refused}.")
            return None
        launch = "stream" if command.eager else "graph"
        return Launch(group=one.group, plan=plan, layer=predict(plan, self.gpu, self.known, launch=launch))

    def steps(self) -> list[int]:
        """One sequence, some, and all: all that fit, and the server's limit where that is more."""
        limit, fitting = self.max_num_seqs, self.max_num_seqs
        if self.memory.available is not None:
            fitting = min(limit, self.cache.sequences(max(self.memory.available, 0.0), self.context))
        full = max(fitting, 1)
        typical = 1 << (full.bit_length() // 2)
        return sorted({1, min(typical, full), full})

    def answer(self, batches: Sequence[int] | None, advise: bool) -> Serving:
        """The answer, with advice."""
        chosen = list(batches) if batches else self.steps()
        starts = all(one.answer.refused is None for one in self.layers)
        loads = tuple(self.load(batch) for batch in chosen) if starts else ()
        found = Serving(
            command=self.command,
            facts=self.facts,
            model=self.model,
            gpu=self.gpu,
            layers=self.layers,
            loads=loads,
            cache=self.cache,
            memory=self.memory,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            context=self.context,
            calibration=self.known,
            advice=(),
            notes=self._notes(),
        )
        return replace(found, advice=tuple(_advice(self, found))) if advise else found

    def _notes(self) -> tuple[str, ...]:
        notes = [*self.notes, *(f"{warning}." for warning in self.model.warnings)]
        for one in self.layers:
            if one.unplanned is not None and one.answer.refused is None:
                notes.append(f"No launch is shown for {one.group.name} layers: {one.unplanned}.")
            notes += [note for note in one.answer.notes if one.answer.refused is None]
        if self.model.weights is None:
            notes.append(
                "How many sequences fit is not known, because the configuration does not state the shapes of "
                "the weights."
            )
        elif self.stored is not None and self.stored != self.model.weights.stored:
            notes.append(
                f"Linear layers are assumed to be stored in {self.stored}, {LINEAR_BYTES[self.stored]:.2g} "
                f"bytes per weight."
            )
        if self.command.pp > 1:
            notes.append(
                f"Times are those of all {self.command.pp} pipeline stages together, because a token passes "
                f"through each of them."
            )
        if self.share is not None and self.gpu.interconnect_bytes_per_s_per_direction is not None:
            label = shipped_collectives(self.gpu, self.share.ranks).label(self.gpu, self.share.ranks)
            notes.append(
                f"Times of layers hold the exchange between {self.share.ranks} ranks; its collectives: {label}."
            )
        if self.command.draft_tokens:
            notes.append(f"A step verifies {1 + self.command.draft_tokens} tokens of every sequence.")
        return tuple(dict.fromkeys(notes))


def _share(command: Command, facts: Facts, notes: list[str]) -> KeyShare | None:
    """How the command divides keys over ranks; None where it does not."""
    if command.dcp == 1:
        return None
    way = command.dcp_exchange or facts.dcp_exchange
    if way not in EXCHANGES:
        notes.append(f"The exchange {way} is priced as {A2A}, with times of NCCL.")
        way = A2A
    return KeyShare(command.dcp, command.dcp_interleave, way, command.dcp_replicated)


def _model(command: Command, spec: str | None, notes: list[str]) -> tuple[Model, str | None]:
    """The model, and how its linear layers are stored where that is not the configuration's own way."""
    name = spec or command.model
    found = recognise(name)
    model: Model | None = None
    try:
        model = load_model(name)
    except DecodecalcError as error:
        if found.zoo is None or spec is not None:
            raise InputError(f"{error}; give --model another name, or a config.json, for {name!r:.60}") from None
        model = load_model(found.zoo)
        notes.append(f"{name} is assumed to be {model.name}, because of its name.")
    if command.hf_overrides:
        model = _overridden(model, command, notes)
    stored = found.stored if found.stored != "bf16" else None
    if command.quantization is not None:
        method = storage_of(command.quantization)
        if method is None:
            notes.append(
                f"The quantization {command.quantization} is not known; weights are counted as the model's "
                f"configuration states."
            )
        stored = method or stored
    return model, stored


def _overridden(model: Model, command: Command, notes: list[str]) -> Model:
    """The model with fields of its configuration replaced, where only its longest sequence changes; else a note."""
    fields = dict(command.hf_overrides)
    most = fields.pop("max_position_embeddings", None)
    fields.pop("rope_scaling", None)
    fields.pop("rope_parameters", None)
    if fields:
        notes.append(
            f"Overrides of {', '.join(sorted(fields))} are not applied; give a changed config.json with --model."
        )
    return replace(model, max_position=most) if isinstance(most, int) else model


def _advice(asked: _Asked, found: Serving) -> list[FlagAdvice]:
    """What to change, what does not fit first."""
    if found.refused is not None:
        return _starts_with(asked, found)
    out: dict[str, FlagAdvice] = {}
    for advice in [*_fitting(asked, found), *_faster(asked, found), *_spread(asked, found)]:
        old = out.get(advice.flag)
        both = replace(advice, why=f"{old.why}; it {advice.why}") if old is not None else advice
        out[advice.flag] = both
    return list(out.values())


def _with(asked: _Asked, flag: str) -> _Asked | None:
    """The same question with a flag added; None where that is refused."""
    try:
        command = with_words(asked.command, shlex.split(flag))
        changed = _Asked(command, asked.gpu, asked.version, asked.spec, None, asked.known, asked.reserve)
    except DecodecalcError:
        return None
    changed.context = asked.context
    return None if any(one.answer.refused is not None for one in changed.layers) else changed


def _starts_with(asked: _Asked, found: Serving) -> list[FlagAdvice]:
    """Without the flag that is refused, where the automatic choice then starts."""
    for name, words in (
        ("backend", "the backend"),
        ("page_size", "the page size"),
        ("kv_cache_dtype", "the cache type"),
    ):
        if getattr(asked.command, name) is None:
            continue
        changes: dict[str, Any] = {name: None}
        command = replace(asked.command, **changes)
        try:
            changed = _Asked(command, asked.gpu, asked.version, asked.spec, None, asked.known, asked.reserve)
        except DecodecalcError:
            continue
        if all(one.answer.refused is None for one in changed.layers):
            backend = changed.layers[0].answer.backend
            flag = next((line.names[0] for line in found.facts.flags_table if line.key == name), name)
            return [
                FlagAdvice(
                    flag=f"leave out {flag} {getattr(asked.command, name)}",
                    why=f"without {words} the server runs {backend}",
                )
            ]
    return []


def _fitting(asked: _Asked, found: Serving) -> list[FlagAdvice]:
    available, fitting = found.memory.available, found.fitting
    if available is None or fitting is None:
        return []
    if available <= 0 or fitting == 0:
        return _more_ranks(asked, found)
    if fitting >= found.max_num_seqs:
        return []
    out: list[FlagAdvice] = []
    smaller = found.facts.smaller_cache
    if smaller is not None and found.cache.token_bytes and asked.kv.element_bytes > 1:
        changed = _with(asked, smaller)
        if changed is not None and changed.memory.available is not None:
            count = changed.cache.sequences(changed.memory.available, found.context)
            backend = changed.layers[0].answer.backend
            if count > fitting:
                out.append(
                    FlagAdvice(flag=smaller, why=f"{count} sequences fit instead of {fitting}, and {backend} runs")
                )
    flag = found.facts.flag("max_num_seqs", fitting)
    if flag is not None:
        out.append(
            FlagAdvice(flag=flag, why=f"no more sequences of {found.context} tokens fit, so further ones would wait")
        )
    longest = found.cache.longest(available, found.max_num_seqs)
    flag = found.facts.flag("max_model_len", longest)
    if flag is not None and SHORTEST_ADVISED <= longest < found.context:
        out.append(FlagAdvice(flag=flag, why=f"{found.max_num_seqs} sequences of that length fit"))
    return out


def _more_ranks(asked: _Asked, found: Serving) -> list[FlagAdvice]:
    """The least tensor-parallel degree at which the weights leave room for a sequence."""
    for tp in found.model.valid_tp():
        if tp <= asked.command.tp:
            continue
        flag = found.facts.flag("tp", tp)
        changed = _with(asked, flag) if flag is not None else None
        if changed is None or flag is None or changed.memory.available is None or tp > 64:
            continue
        count = changed.cache.sequences(max(changed.memory.available, 0.0), found.context)
        if count:
            return [FlagAdvice(flag=flag, why=f"{count} sequences of {found.context} tokens fit beside the weights")]
    return []


def _faster(asked: _Asked, found: Serving) -> list[FlagAdvice]:
    """Other backends that take the layers, the smaller cache and the server's own settings, where they save time."""
    full = found.full
    if full is None or full.attention is None:
        return []
    now = full.attention.total_s
    if now is None:
        return []
    trials = [*found.facts.trials]
    if found.facts.flag("backend", "") is not None and not found.layers[0].answer.forced:
        valid = [set(one.answer.valid) for one in found.layers]
        for name in found.layers[0].answer.valid:
            if name != found.layers[0].answer.backend and all(name in names for names in valid):
                trials.append(found.facts.flag("backend", name) or "")
    if found.facts.smaller_cache is not None and asked.kv.element_bytes > 1:
        trials.append(found.facts.smaller_cache)
    best: list[FlagAdvice] = []
    for flag in trials:
        changed = _with(asked, flag)
        if changed is None:
            continue
        attention = changed.load(full.batch).attention
        if attention is None or attention.total_s is None or not _is_calibrated(attention):
            continue
        if attention.total_s > WORTH * now:
            continue
        apart = attention.high_s is not None and attention.high_s < full.attention.least_s
        sure = "" if apart else "; the intervals of the two predictions overlap, so measure it"
        share = 100 * (1 - attention.total_s / now)
        backend = changed.layers[0].answer.backend
        runs = "" if backend == found.layers[0].answer.backend else f" with {backend}"
        why = f"takes {share:.0f} % off the attention at batch {full.batch}{runs}{sure}"
        best.append(FlagAdvice(flag=flag, why=why, saves_s=now - attention.total_s))
    best.sort(key=lambda advice: -(advice.saves_s or 0.0))
    seen: dict[str, FlagAdvice] = {}
    for advice in best:  # one value of each flag
        seen.setdefault(advice.flag.split()[0], advice)
    return list(seen.values())[:3]


def _is_calibrated(attention: TokenTime) -> bool:
    """Whether the kernels themselves were measured: a stand-in's time is no reason to change a server."""
    return all(layer.kernel != BUNDLED for _, layer in attention.layers)


def _spread(asked: _Asked, found: Serving) -> list[FlagAdvice]:
    """KV heads that several ranks hold: a flag that divides the keys instead, and what that does to the time."""
    copies = max(group.copies for group in found.cache.groups)
    flag = found.facts.flag("dcp", min(copies, found.command.tp))
    if copies <= 1 or found.command.dcp > 1 or flag is None:
        return []
    changed = _with(asked, flag)
    if changed is None:
        return []
    why = f"{copies} ranks hold the same KV heads; dividing a sequence's keys over them fits {copies} times the tokens"
    full = found.full
    now = None if full is None or full.attention is None else full.attention.total_s
    divided = None if full is None else changed.load(full.batch).attention
    if full is not None and now is not None and divided is not None and divided.total_s is not None:
        why += (
            f", and attention at batch {full.batch} then takes {human_seconds(divided.total_s)} instead of "
            f"{human_seconds(now)}"
        )
    return [FlagAdvice(flag=flag, why=why)]


__all__ = ["RESERVE_BYTES", "FlagAdvice", "Launch", "LayerAnswer", "Load", "Memory", "Serving", "serve"]
