"""`serve` on one screen: a sentence, the launches by batch, the memory, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from decodecalc.analysis.occupancy import occupancy
from decodecalc.cost.step import REST_SLACK
from decodecalc.servers.registry import TITLES
from decodecalc.servers.resolution import Resolution
from decodecalc.serving import Launch, Load, Serving
from decodecalc.tables.html import Details, Figure, Origin, Section, page
from decodecalc.tables.pages import sources
from decodecalc.tables.table import BAD, GOOD, Column, Table, grid_text, percent, summary
from decodecalc.units import human_bytes, human_seconds

LEAD = 10  # characters of a label


def serve_table(found: Serving) -> Table:
    """One row for every batch and layer group; json holds the whole answer beside them, under `inputs`."""
    rows = [row for load in found.loads for row in _rows(load, found)]
    inputs: dict[str, Any] = {"answer": sentence(found), **found.to_dict()}
    return Table(
        "serve",
        inputs,
        rows,
        _columns(rows) if rows else (),
        _what(found),
        found.notes,
        answer=sentence(found),
        facts=_below(found),
        details=[line for one in found.layers for line in _chain(one.group.name, one.answer, len(found.layers))],
    )


def sentence(found: Serving) -> str:
    """The answer in one sentence."""
    refused = found.refused
    who = f"{TITLES[found.command.server]} {found.layers[0].answer.version}"
    gpus = found.command.gpus
    where = f"{gpus} x {found.gpu.name}" if gpus > 1 else found.gpu.name
    if refused is not None:
        return f"{who} does not start on {where} with this command: {refused.refused}."
    runs = _runs(found)
    text = f"{who} on {where} decodes with {runs}"
    if found.memory.available is not None and found.memory.available <= 0:
        return f"{text}; the weights do not fit on {'these GPUs' if gpus > 1 else 'this GPU'}."
    full, fitting = found.full, found.fitting
    if full is not None and full.attention is not None:
        total = full.attention.total_s
        taken = f"at least {human_seconds(full.attention.floor_s)}" if total is None else human_seconds(total)
        text += f"; attention takes {taken} of a step at batch {full.batch} and {full.context} keys"
    if fitting is not None:
        limit = found.max_num_seqs
        fit = f"all {limit} sequences fit" if fitting >= limit else f"{fitting} of {limit} sequences fit"
        text += f", and {fit}"
    return f"{text}."


def _runs(found: Serving) -> str:
    kinds: dict[str, list[str]] = {}
    for one in found.layers:
        answer = one.answer
        kernel = f" ({answer.kernel})" if answer.kernel and answer.kernel != answer.backend else ""
        kinds.setdefault(f"{answer.backend}{kernel}", []).append(one.group.name)
    if len(kinds) == 1:
        return next(iter(kinds))
    return " and ".join(f"{name} for {', '.join(groups)} layers" for name, groups in kinds.items())


def _line(name: str, text: str) -> list[str]:
    """One line, whole: its label in the first LEAD characters, then the text."""
    return [f"{name:<{LEAD}}{text}"]


def _what(found: Serving) -> list[str]:
    command, first = found.command, found.layers[0]
    geo = first.group.geometry
    degrees = [
        f"{name} {value}"
        for name, value in (("TP", command.tp), ("DP", command.dp), ("PP", command.pp), ("DCP", command.dcp))
        if value > 1
    ]
    heads = f"{geo.q_heads} query and {geo.kv_heads} KV head{'s' if geo.kv_heads > 1 else ''} per rank"
    parts = [" ".join([found.model.name, *degrees]), heads, f"{found.model.attention_layers} attention layers"]
    if found.memory.weights is not None:
        parts.append(f"weights {human_bytes(found.memory.weights)} per GPU")
    lines = _line("model", ", ".join(parts))
    if found.refused is None:
        lines += _line("backend", _backend(found))
    return lines


def _backend(found: Serving) -> str:
    answer = found.layers[0].answer
    how = "the command names it" if answer.forced else "the server chooses it by itself"
    others = [c.name for c in answer.candidates if not c.valid]
    parts = [f"{_runs(found)} ({how})"]
    if answer.engine is not None:
        version = f"@{answer.engine_version}" if answer.engine_version else ""
        parts.append(f"planned as {answer.engine}{version}")
    if answer.page_size is not None:
        seen = answer.kernel_page_size
        inner = f" (the kernel sees {seen})" if seen not in (None, answer.page_size) else ""
        parts.append(f"pages of {answer.page_size} key{'s' if answer.page_size > 1 else ''}{inner}")
    parts.append("without CUDA graphs" if found.command.eager else "with CUDA graphs")
    if others and not answer.forced:
        parts.append(f"not chosen: {', '.join(others[:3])}{', …' if len(others) > 3 else ''} (-v says why)")
    return ", ".join(parts)


def _chain(group: str, answer: Resolution, groups: int) -> list[str]:
    label = f"{group} layers: " if groups > 1 else ""
    lines = [line for text in answer.chain() for line in _line("why", f"{label}{text}")]
    return [*lines, *_line("source", answer.source)]


def _rows(load: Load, found: Serving) -> list[dict[str, Any]]:
    rows = [_row(load, launch, found) for launch in load.launches]
    return rows or [_row(load, None, found)]


def _row(load: Load, launch: Launch | None, found: Serving) -> dict[str, Any]:
    row: dict[str, Any] = {
        "batch": load.batch,
        "context": load.context,
        "fits": load.fits,
        "layer_group": None,
        "layers": None,
        "engine": None,
        "version": None,
        "path": None,
        "grid": None,
        "live_blocks": None,
        "sm_count": found.gpu.sm_count,
        "sm_coverage": None,
        "splits_launched": None,
        "splits_live": None,
        "layer_s": None,
    }
    if launch is not None:
        o, plan = occupancy(launch.plan), launch.plan
        live = plan.splits.live
        row.update(
            layer_group=launch.group.name,
            layers=launch.group.layers,
            engine=plan.engine,
            version=plan.version,
            path=plan.path,
            grid=list(plan.stage1.grid),
            live_blocks=o.live_blocks,
            sm_coverage=o.sm_coverage,
            splits_launched=plan.splits.launched,
            splits_live=live[0] if len(set(live)) == 1 else list(live),
            layer_s=None if load.attention is None and load.fits is False else launch.layer.total_s,
        )
    attention, floor = load.attention, load.floor
    row.update(
        attention_s=attention and attention.total_s,
        attention_low_s=attention and attention.low_s,
        attention_high_s=attention and attention.high_s,
        rest_floor_s=floor and floor.total_s,
        attention_share_low=None,
        attention_share_high=None,
    )
    if attention is not None and floor is not None:
        rest = floor.total_s
        high = attention.high_s
        row["attention_share_high"] = None if high is None else high / (high + rest)
        row["attention_share_low"] = attention.least_s / (attention.least_s + REST_SLACK * rest)
    row["kv_bytes"] = found.cache.sequence_bytes(load.context) * load.batch
    return row


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    groups = len({row["layer_group"] for row in rows}) > 1
    return [
        Column("batch", "batch", rank=0),
        Column("context", "keys"),
        *([Column("layer_group", "layers", align="left")] if groups else []),
        Column("grid", "grid", grid_text, align="left", rank=0),
        Column("live_blocks", "live blocks"),
        Column("sm_coverage", "coverage", percent, rank=0),
        Column("splits_live", "splits live", lambda v: summary(v) if isinstance(v, list) else str(v)),
        Column("layer_s", "per layer", human_seconds, rank=0),
        Column("attention_s", "attention", human_seconds, rank=0),
        Column("rest_floor_s", "least rest", human_seconds),
        Column("fits", "fits", align="left", rank=0, mark=lambda v: GOOD if v else BAD),
    ]


def _below(found: Serving) -> list[str]:
    lines = [line for text in found.cautions for line in _line("warning", text)]
    lines += [*_memory(found), *_fits(found)]
    if found.advice:
        for index, advice in enumerate(found.advice):
            lines += _line("change" if not index else "", f"{advice.flag}: {advice.why}")
    elif found.refused is None:
        lines += _line("change", "No change that is known here makes it faster or lets more sequences fit.")
    share = _share(found)
    lines += _line("time", f"calibration: {'; '.join(found.sources)}; the L2 is cold{share}")
    if found.command.ignored:
        lines += _line("ignored", " ".join(found.command.ignored))
    return lines


def _share(found: Serving) -> str:
    full = found.full
    if full is None or full.floor is None or full.attention is None:
        return ""
    if full.attention.high_s is None:
        return "; the kernel was not calibrated, so only a lower bound of its time is known"
    low = full.attention.least_s / (full.attention.least_s + REST_SLACK * full.floor.total_s)
    high = full.attention.high_s / (full.attention.high_s + full.floor.total_s)
    return (
        f"; attention is {100 * low:.0f} to {100 * high:.0f} % of a step at batch {full.batch} ("
        "least rest counts only weights, states and exchanges between ranks)"
    )


def _memory(found: Serving) -> list[str]:
    memory, cache = found.memory, found.cache
    if found.refused is not None:
        return []
    each = f"{_token_bytes(cache.token_bytes)} per token and GPU"
    if cache.state_bytes:
        each += f", states {human_bytes(cache.state_bytes)} per sequence"
    if memory.available is None or memory.total is None:
        return _line("cache", each)
    held = human_bytes(memory.weights or 0.0)
    text = (
        f"{human_bytes(memory.total)} at a memory fraction of {memory.fraction:g}, weights of {held} and about "
        f"{human_bytes(memory.reserve)} of working memory leave {human_bytes(max(memory.available, 0.0))} for the "
        f"cache; {each}"
    )
    return _line("memory", text)


def _token_bytes(value: float) -> str:
    return f"{value:.0f} B" if value < 10_000 else f"{value / 1000:.4g} kB"


def _fits(found: Serving) -> list[str]:
    available, fitting = found.memory.available, found.fitting
    if found.refused is not None or available is None or fitting is None:
        return []
    if available <= 0:
        return _line("fits", "the weights alone do not fit, so the server stops at start-up")
    limit, cache = found.max_num_seqs, found.cache
    parts = []
    if cache.keeps_every_token:
        parts.append(f"{cache.tokens(available) * cache.context_ranks:,} tokens".replace(",", " "))
    parts.append(f"{fitting} sequences of {found.context} tokens")
    given = "asked for" if found.command.max_num_seqs else found.facts.seqs_are
    if fitting >= limit:
        longest = min(cache.longest(available, limit), found.max_model_len or 1 << 24)
        parts.append(f"all {limit} ({given}) fit with up to {longest} tokens each")
    else:
        parts.append(f"{limit} ({given}) do not fit, so {limit - fitting} of them wait")
    if found.max_model_len is not None and cache.sequences(available, found.max_model_len) == 0:
        parts.append(f"not even one sequence of {found.max_model_len} tokens fits, so the server refuses to start")
    return _line("fits", ", ".join(parts))


def serve_page(found: Serving, command: str, figures: Sequence[Figure] = ()) -> str:
    """The answer as one self-contained HTML page. The browser folds lines, and the answer itself stands on top.
    command: what to type to make it again."""
    whole = serve_table(found)
    table = replace(whole, answer="", notes=[*whole.facts, *found.notes], facts=())
    chain = [
        Details(f"Why {one.answer.backend or 'it does not start'} ({one.group.name} layers)", one.answer.chain())
        for one in found.layers
    ]
    changes = Details("What to change", [f"{a.flag}: {a.why}" for a in found.advice])
    section = Section("", table, [*([changes] if found.advice else []), *chain], figures)
    mark = BAD if found.refused is not None or found.fitting == 0 else ""
    return page(
        found.command.text, [section], answer=sentence(found), mark=mark, origin=Origin(command, _origin(found))
    )


def _origin(found: Serving) -> list[tuple[str, str]]:
    """Versions and sources behind the answer."""
    pairs = sources(found.model, found.gpu)
    for one in found.layers:
        pairs.append((f"{TITLES[found.command.server]} {one.answer.version}", one.answer.source))
    return [*dict.fromkeys(pairs), ("times", found.calibration.label)]
