"""Rows and columns of `choose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.advice import Adviser, ServedStep
from decodecalc.cost.choice import Choice, Regret, choose
from decodecalc.cost.load import load_calibration
from decodecalc.cost.token import sum_layers
from decodecalc.cost.variants import BUNDLED
from decodecalc.errors import DecodecalcError
from decodecalc.models import LayerGroup
from decodecalc.tables.memory import capacity_notes
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import because
from decodecalc.units import human_seconds

if TYPE_CHECKING:
    from decodecalc.request import Request
    from decodecalc.scenario import Scenarios

NOTES = (
    "Times are for one layer. S* is the smallest split count whose first wave covers every SM. S_opt is the split "
    "count "
    "of least predicted time for the bundled kernel, which takes the time at S_opt.",
    "engine's splits is the count that the engine's own rule picks. rule's time is that of the bundled kernel launched "
    "by this rule, and regret is the rule's time divided by the time at S_opt.",
    "engine's time is that of the engine's own kernel; it is missing where that kernel was not calibrated on this GPU.",
    "setting is what to pass to the server for this step alone, and new time is the engine's time with it. A setting "
    "is "
    "shown only where its values were timed on a GPU and the gain exceeds the error of two predictions' ratio.",
)
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
    notes: list[str] = []
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
            notes += [_verdict(group, batch, found)]
            notes += [f"not shown: {because(r.engine, r.refused)}" for r in found.regrets if r.refused]
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
        notes = [*advised.values(), *notes]
        for row in rows:
            row["advice"] = advised.get(row["engine"])
        notes += [f"not shown: {because(engine, reason)}" for engine, _, reason in s.excluded]
    lines = [
        f"The L2 is {l2} and kernels are launched from a CUDA graph; calibration: {known.label_of(BUNDLED)}",
        *capacity_notes(request),
    ]
    inputs = {**request.inputs, "l2": l2, "calibration": known.label_of(BUNDLED)}
    columns = _curve_columns() if curve else _columns(rows)
    return Table(
        "choose", inputs, rows, columns, request.heading, [*dict.fromkeys(notes), *lines, *(() if curve else NOTES)]
    )


def _advice(s: Scenarios, adviser: Adviser, steps: Sequence[ServedStep]) -> dict[str, str]:
    """What to set for all steps together, by engine. Of many engines only those that a server can be told about."""
    found: dict[str, str] = {}
    for policy, version in s.engines:
        mine = replace(adviser, options=s.options_of(policy))
        try:
            advice = mine.setting(policy, version, steps)
        except DecodecalcError:  # the engine refuses a step: its rows say why
            continue
        sentences = [advice.sentence] if advice.needed is not None or len(s.engines) <= FEW_ENGINES else []
        cache = mine.cache(policy, version, steps) if len(s.engines) <= FEW_ENGINES else None
        if sentences or cache:
            found[policy.name] = ". ".join([*sentences, *([cache] if cache else [])])
    return found


def _verdict(group: LayerGroup, batch: Batch, found: Choice) -> str:
    layers = "" if group.name == "all" else f"{group.name} layers, "
    return (
        f"{layers}batch {batch.size}, {batch.max_seq_len} keys: S* {found.s_star} "
        f"takes {human_seconds(found.s_star_s)}, S_opt {found.s_opt} ({found.split_keys} keys in a split) takes "
        f"{human_seconds(found.total_s)}, and one split takes {human_seconds(found.unsplit_s)}; kernel: {found.variant}"
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
    groups = len({row["layer_group"] for row in rows}) > 1
    return [
        Column("engine", "engine", align="left", rank=0),
        *([Column("layer_group", "layers", align="left")] if groups else []),
        Column("batch", "batch"),
        Column("context", "keys"),
        Column("s_star", "S*"),
        Column("s_opt", "S_opt"),
        Column("s_opt_s", "time at S_opt", human_seconds),
        Column("splits_live", "engine's splits", rank=0),
        Column("rule_s", "rule's time", human_seconds, rank=3),
        Column("regret", "regret", _times, rank=2),
        Column("own_kernel_s", "engine's time", human_seconds, rank=0),
        Column("flag", "setting", align="left", rank=0),
        Column("flag_s", "new time", human_seconds, rank=0),
        Column("saves_s_per_token", "saved per token", human_seconds, rank=0),
    ]


def _curve_columns() -> list[Column]:
    return [
        Column("layer_group", "layers", align="left"),
        Column("batch", "batch"),
        Column("context", "keys"),
        Column("splits", "splits"),
        Column("split_keys", "keys per split"),
        Column("total_s", "time", human_seconds),
        Column("over_best", "time / best time", _times),
        Column("is_s_opt", "S_opt", lambda v: "<-" if v else "", align="left"),
    ]
