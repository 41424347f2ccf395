"""Rows and columns of `choose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.advice import Advice, Adviser, ServedStep
from decodecalc.cost.choice import Choice, Regret, choose
from decodecalc.cost.load import load_calibration
from decodecalc.cost.token import sum_layers
from decodecalc.cost.variants import BUNDLED
from decodecalc.errors import DecodecalcError
from decodecalc.models import LayerGroup
from decodecalc.scenario import Planned
from decodecalc.tables.columns import scenario_columns
from decodecalc.tables.defaults import default_clause, default_columns, in_order, mark_defaults
from decodecalc.tables.memory import cautions
from decodecalc.tables.ranks import rank_notes
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import absent, sentence
from decodecalc.units import counted, human_seconds

if TYPE_CHECKING:
    from decodecalc.request import Request
    from decodecalc.scenario import Scenarios

FEW_ENGINES = 3  # up to this many, the sentences say of every engine what can be advised, not only what should be set


def choose_table(
    request: Request,
    l2: str,
    calibration: str | None,
    curve: bool,
    weights: Sequence[float] | None = None,
    library: bool = False,
) -> Table:
    """One row per engine (or per split count, with `curve`) of every layer group and batch.

    weights: how often each of the request's batches comes; None: all alike. library: advise on settings too that no
    server takes.
    """
    s = request.scenarios
    given = weights or [1.0] * len(s.batches)
    weighted = {batch: weight / sum(given) for batch, weight in zip(s.batches, given)}
    known = load_calibration(calibration, s.gpu)
    rows: list[dict[str, Any]] = []
    verdicts: list[str] = []
    refused: list[tuple[str, str]] = []
    for group in s.layer_groups:
        for batch in s.batches:
            seen = group.seen_batch(batch)
            engines = [] if curve else s.engines
            options = {**s.options, **({"model_kv_heads": s.model_kv_heads} if s.model_kv_heads else {})}
            found = choose(
                group.geometry,
                seen,
                kv=s.kv,
                gpu=s.gpu,
                calibration=known,
                engines=engines,
                options=options,
                l2=l2,
                library=library,
            )
            head = _head(group, batch, found)
            rows += _curve_rows(head, found) if curve else [_row(head, r) for r in found.regrets if not r.refused]
            verdicts.append(_verdict(group, batch, found, len(s.layer_groups) * len(s.batches) > 1))
            refused += [(r.engine, r.refused) for r in found.regrets if r.refused]
    advised: dict[str, Advice] = {}
    answer = verdicts[0]
    if not curve:
        steps = [
            ServedStep(
                geometry=group.geometry, batch=group.seen_batch(batch), layers=group.layers, weight=weighted[batch]
            )
            for batch in s.batches
            for group in s.layer_groups
        ]
        adviser = Adviser(kv=s.kv, gpu=s.gpu, calibration=known, options=s.options, l2=l2, library=library)
        advised = _advice(s, adviser, steps)
        mark_defaults(request, rows)
        answer = _answer(rows, advised) if rows else answer
        for row in rows:
            known_advice = advised.get(row["engine"])
            row["advice"] = None if known_advice is None else known_advice.sentence
        refused += [(engine, reason) for engine, _, reason in s.excluded]
    set_now = [a.sentence for a in advised.values() if a.setting is not None or len(s.engines) <= FEW_ENGINES]
    caches = [] if curve else _caches(s, adviser, steps)
    reasons, details = absent(refused)
    label = known.label_of(BUNDLED)
    plans = [] if request.layers.share is None else [p.plan for p in s.plans() if isinstance(p, Planned)][:1]
    notes = [
        *cautions(request),
        *(text for text in set_now if text.partition(": ")[2] not in answer),
        *caches,
        *(verdict for verdict in verdicts if verdict != answer),
        *rank_notes(request, plans),
        *reasons,
        f"The L2 is {l2} and kernels are launched from a CUDA graph; calibration: {label}",
    ]
    return Table(
        "choose",
        {**request.inputs, "l2": l2, "calibration": label},
        rows,
        _curve_columns() if curve else _columns(rows),
        request.heading,
        list(dict.fromkeys(notes)),
        None if curve else _in_order(rows),
        answer=answer,
        details=details,
    )


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a server runs first, then by the time of the engines' own kernels, where it is known."""
    return in_order(rows, lambda r: (r["own_kernel_s"] is None, r["own_kernel_s"] or r["rule_s"]))


def _answer(rows: list[dict[str, Any]], advised: dict[str, Advice]) -> str:
    """What to set for the engine that a server runs here (or for the only one), or for another that gains by it."""
    first = _in_order(rows)[0]
    mine = advised.get(first["engine"])
    others = [a for a in advised.values() if a.setting is not None and a is not mine]
    best = min(others, key=lambda a: (a.then_s or 0.0) / (a.now_s or 1.0), default=None)
    gains = [] if best is None else [sentence(best.sentence)]
    if mine is None:
        return " ".join(gains) or f"No advice can be given for {first['engine']}."
    if mine.setting is not None:
        return sentence(mine.sentence)
    why = mine.sentence.removeprefix(f"{mine.engine}: ")
    return " ".join([sentence(f"{mine.engine}{default_clause(first)}: {why}"), *gains])


def _advice(s: Scenarios, adviser: Adviser, steps: Sequence[ServedStep]) -> dict[str, Advice]:
    """What to set for all steps together, by engine; without those that refuse a step."""
    found: dict[str, Advice] = {}
    for policy, version in s.engines:
        mine = replace(adviser, options=s.options_of(policy))
        try:
            advice = mine.setting(policy, version, steps)
        except DecodecalcError:  # the engine refuses a step: its rows say why
            continue
        found.setdefault(policy.name, advice)
    return found


def _caches(s: Scenarios, adviser: Adviser, steps: Sequence[ServedStep]) -> list[str]:
    """What another type of the cache would change, where few engines were asked for."""
    if len(s.engines) > FEW_ENGINES:
        return []
    found = [replace(adviser, options=s.options_of(p)).cache(p, version, steps) for p, version in s.engines]
    return [text for text in found if text]


def _verdict(group: LayerGroup, batch: Batch, found: Choice, several: bool) -> str:
    layers = "" if group.name == "all" else f"{group.name} layers, "
    where = f"{layers}batch {batch.size}, {batch.max_seq_len} keys: " if several else ""
    return (
        f"{where}S_opt is {counted(found.s_opt, 'split')} of {found.split_keys} keys and takes "
        f"{human_seconds(found.total_s)} a layer; S* is {found.s_star} and takes {human_seconds(found.s_star_s)}, and "
        f"one split takes {human_seconds(found.unsplit_s)} (bundled kernel: {found.variant})."
    )


def _head(group: LayerGroup, batch: Batch, found: Choice) -> dict[str, Any]:
    return {
        "layer_group": group.name,
        "layers": group.layers,
        "batch": batch.size,
        "context": batch.max_seq_len,
        "q_len": batch.max_q_len,
        "s_star": found.s_star,
        "s_opt": found.s_opt,
        "s_opt_split_keys": found.split_keys,
        "s_opt_s": found.total_s,
        "s_star_s": found.s_star_s,
        "unsplit_s": found.unsplit_s,
        "tile_keys": found.tile_keys,
        "rows": found.rows,
        "warps": found.warps,
        "stages": found.stages,
        "l2": found.l2,
        "variant": found.variant,
    }


def _row(head: dict[str, Any], r: Regret) -> dict[str, Any]:
    return {
        "engine": r.engine,
        "version": r.version,
        **head,
        "path": r.path,
        "splits_live": r.splits,
        "rule_s": r.rule_s,
        "regret": r.regret,
        "own_kernel_s": r.own_s,
        "flag": r.flag,
        "flag_splits": r.flag_splits,
        "flag_s": r.flag_s,
        "saves_s_per_token": _saving(head["layers"], r),
    }


def _saving(layers: int, r: Regret) -> float | None:
    """Seconds that the flag takes off one token, over all layers of the group; None where there is no flag to set."""
    return None if r.flag_s is None or r.own_s is None else sum_layers([(layers, r.own_s - r.flag_s)])


def _curve_rows(head: dict[str, Any], found: Choice) -> list[dict[str, Any]]:
    return [
        {
            **head,
            "splits": p.splits,
            "split_keys": p.split_keys,
            "total_s": p.total_s,
            "over_best": p.total_s / found.total_s,
            "is_s_opt": p.splits == found.s_opt,
        }
        for p in found.curve
    ]


def _times(value: float) -> str:
    return f"{value:.3g}x"


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    return [
        *scenario_columns(rows, more=default_columns(rows)),
        Column("splits_live", "S now", rank=0),
        Column("flag_splits", "S to set", rank=0),
        Column("own_kernel_s", "time now", human_seconds, rank=0),
        Column("flag_s", "time then", human_seconds, rank=0),
        Column("flag", "setting", align="left", below=True),
        Column("saves_s_per_token", "saved per token", human_seconds),
        Column("s_star", "S*", rank=2),
        Column("s_opt", "S_opt", rank=2),
        Column("s_opt_s", "time at S_opt", human_seconds, rank=2),
        Column("rule_s", "rule's time", human_seconds, rank=3),
        Column("regret", "regret", _times, rank=3),
    ]


def _curve_columns() -> list[Column]:
    return [
        Column("layer_group", "layers", align="left"),
        Column("batch", "batch"),
        Column("context", "keys"),
        Column("splits", "splits", rank=0),
        Column("split_keys", "keys per split"),
        Column("total_s", "time", human_seconds, rank=0),
        Column("over_best", "time / best time", _times),
        Column("is_s_opt", "S_opt", lambda v: "<-" if v else "", align="left", rank=0),
    ]
