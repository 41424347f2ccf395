"""Rows and columns of `predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.load import load_calibration
from decodecalc.cost.model import Terms
from decodecalc.cost.prediction import BOUNDS, Prediction, predict
from decodecalc.cost.token import sum_known
from decodecalc.launch.plan import LaunchPlan
from decodecalc.scenario import Planned, Refusal
from decodecalc.tables.columns import ranging, scenario_columns, varies
from decodecalc.tables.defaults import default_columns, in_order, leading, mark_defaults
from decodecalc.tables.memory import cautions
from decodecalc.tables.ranks import rank_columns, rank_notes
from decodecalc.tables.table import Column, Table, cell, percent
from decodecalc.tables.text import absent, sentence
from decodecalc.units import human_seconds

if TYPE_CHECKING:
    from decodecalc.request import Request

WAYS = {"graph": "from a CUDA graph", "stream": "one by one on a stream"}


def predict_table(
    request: Request,
    kernel: str,
    l2: str,
    launch: str,
    calibration: str | None,
    provenance: bool,
    stand_in: bool = False,
) -> Table:
    """One row per plan and kernel. A token's time is given where every layer group of the engine could be planned."""
    s = request.scenarios
    known = load_calibration(calibration, s.gpu)
    rows: list[dict[str, Any]] = []
    refused: list[tuple[str, str]] = []
    notes: dict[str, None] = {}
    plans: list[LaunchPlan] = []
    for item in s.plans():
        if isinstance(item, Refusal):
            refused.append((item.engine, item.reason))
            continue
        plans.append(item.plan)
        found = [
            predict(item.plan, s.gpu, known, kernel=k, stand_in=stand_in, l2=l2, launch=launch)
            for k in (("own", "bundled") if kernel == "both" else (kernel,))
        ]
        for p in found if len({(p.kernel, p.variant) for p in found}) > 1 else found[:1]:
            rows.append({**_row(item, p), **rank_columns(item.plan)})
            notes.update(dict.fromkeys(f"{item.plan.engine}: {note}" for note in p.notes))
    _add_tokens(rows, len(s.layer_groups))
    verdicts = _add_undivided(request, rows, known, kernel, l2, launch)
    mark_defaults(request, rows)
    reasons, details = absent(refused)
    labels = dict.fromkeys(row["calibration"] for row in rows) or {known.label: None}
    lines = [f"The L2 is {l2} and kernels are launched {WAYS[launch]}; calibration: {label}" for label in labels]
    inputs = {**request.inputs, "kernel": kernel, "l2": l2, "launch": launch, "calibration": known.label}
    shown = in_order(rows)
    return Table(
        "predict",
        inputs,
        rows,
        _columns(rows),
        request.heading,
        [*cautions(request), *verdicts, *notes, *rank_notes(request, plans), *reasons, *lines],
        shown,
        answer=_answer(shown),
        measured=("The predicted time of the attention of one layer", TIME),
        facts=_provenance(rows) if provenance else (),
        details=details,
    )


def _answer(rows: list[dict[str, Any]]) -> str:
    """The time of the only row, or the least and the greatest of all."""
    first, (who, mine) = rows[0], leading(rows)
    if len(mine) > 1:
        return sentence(ranging(f"The predicted time of the attention of one layer with {who}", mine, TIME))
    return " ".join([_one(first, who), *_fastest(first, rows)])


def _fastest(first: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """The engine of least time, where another than the first one has it."""
    best = min((row for row in rows if row["total_s"] is not None), key=lambda row: row["total_s"], default=first)
    if best is first or best["total_s"] == first["total_s"]:
        return []
    return [f"The fastest in this table is {best['engine']} with {human_seconds(best['total_s'])}."]


def _one(first: dict[str, Any], who: str) -> str:
    """The time of one row."""
    if first["total_s"] is None:
        floor = human_seconds(first["floor_s"])
        return (
            f"{who} takes at least {floor} for the attention of one layer; its kernel was not calibrated for this, so "
            "that no time is predicted."
        )
    text = (
        f"{who} takes {human_seconds(first['total_s'])} for the attention of one layer (between "
        f"{human_seconds(first['low_s'])} and {human_seconds(first['high_s'])} in 90 % of runs)"
    )
    if first["token_s"] is not None and first["layers"] > 1:
        text += f" and {human_seconds(first['token_s'])} for the {first['layers']} layers of a token"
    return sentence(f"{text}; most of it is {BOUNDS[first['bound']]}")


def _row(item: Planned, p: Prediction) -> dict[str, Any]:
    plan = item.plan
    return {
        "engine": plan.engine,
        "version": plan.version,
        "kernel": p.kernel,
        "layer_group": item.layer_group.name,
        "layers": item.layer_group.layers,
        "batch": item.batch.size,
        "context": item.batch.max_seq_len,
        "q_len": item.batch.max_q_len,
        "path": plan.path,
        "splits_live": max(plan.splits.live),
        "total_s": p.total_s,
        "floor_s": p.floor_s,
        "stand_in": p.stand_in,
        "layers_s": sum_known([(item.layer_group.layers, p.total_s)]),
        "token_s": None,
        "low_s": p.low_s,
        "high_s": p.high_s,
        "bound": p.bound,
        **{name: p.terms.get(name) for name in Terms._fields},
        "roofline_s": p.roofline_s,
        "overhead_plus_bytes_s": p.overhead_plus_bytes_s,
        "l2": p.l2,
        "launch": p.launch,
        "variant": p.variant,
        "calibration": p.calibration,
        "numbers": p.numbers,
        "extrapolated": list(p.extrapolated),
        "provenance": [parameter.to_dict() for parameter in p.provenance.values()],
        "notes": list(p.notes),
        "case": item.case,
    }


def _add_tokens(rows: list[dict[str, Any]], groups: int) -> None:
    """Put the sum over layer groups into every row of one engine, kernel side and batch; `case` is used up."""
    sums: dict[Any, list[tuple[int, float | None]]] = {}
    # Cases are numbered layer group by layer group: the same batch recurs every `cases per group` numbers.
    per_group = max((row["case"] for row in rows), default=0) + 1
    per_group = max(per_group // groups, 1)
    keys = []
    for row in rows:
        side = row["kernel"] == "bundled"
        keys.append((row["engine"], row["version"], side, row.pop("case") % per_group))
        sums.setdefault(keys[-1], []).append((row["layers"], row["total_s"]))
    for row, key in zip(rows, keys):
        row["token_s"] = sum_known(sums[key]) if len(sums[key]) == groups else None


def _add_undivided(
    request: Request, rows: list[dict[str, Any]], known: Calibration, kernel: str, l2: str, launch: str
) -> list[str]:
    """Put the time without --dcp into every row, and the context from which on it pays; a sentence for each."""
    s = request.scenarios
    if request.layers.share is None:
        return []
    from decodecalc.cost.breakeven import MOST_KEYS, break_even, undivided

    notes: list[str] = []
    found: dict[Any, Any] = {}
    policies = {(policy.name, policy.version(version).name): (policy, version) for policy, version in s.engines}
    for row in rows:
        policy, version = policies[row["engine"], row["version"]]
        group = next(group for group in s.layer_groups if group.name == row["layer_group"])
        side = "bundled" if row["kernel"] == "bundled" and kernel != "own" else kernel if kernel != "both" else "own"
        batch = Batch.uniform(row["batch"], row["context"], row["q_len"]) if len(s.batches) > 1 else s.batches[0]
        options = s.options_of(policy)
        plan = policy.plan(undivided(group.geometry), batch, s.kv, s.gpu, options, version)
        alone = predict(plan, s.gpu, known, kernel=side, l2=l2, launch=launch)
        key = (row["engine"], row["version"], side, group.name, row["batch"], row["q_len"])
        if key not in found:
            found[key] = break_even(
                policy, group.geometry, s.kv, s.gpu, batch=row["batch"], q_len=row["q_len"], options=options,
                version=version, calibration=known, kernel=side, l2=l2, launch=launch,
            )  # fmt: skip
        even = found[key]
        row["without_dcp_s"], row["break_even_keys"] = alone.total_s, even.keys
        if alone.total_s is None or row["total_s"] is None:
            continue
        name = f"{row['engine']}, batch {row['batch']}"
        if even.keys is None:
            notes.append(f"{name}: dividing the keys never makes a layer faster, up to {MOST_KEYS} keys of a request")
        else:
            notes.append(
                f"{name}: dividing the keys makes a layer faster from about {even.keys} keys of a request on, where it "
                f"takes {human_seconds(even.divided_s)}"
            )
    return notes


def _provenance(rows: list[dict[str, Any]]) -> list[str]:
    lines: dict[str, None] = {}
    for row in rows:
        for p in row["provenance"]:
            note = f" ({p['note']})" if p["note"] else ""
            spread = f" ± {percent(p['spread'])}" if p["spread"] else ""
            unit = "" if p["unit"] == "1" else f" {p['unit']}"  # 1 is a plain number
            value = f"{_shown(p['value'])}{unit}{spread}, {p['provenance']}{note}"
            lines[f"{row['kernel']}: {p['name']} = {value}"] = None
    return list(lines)


def _shown(value: float | tuple[float, ...]) -> str:
    """A number, or a curve's ends and how many values it has."""
    if isinstance(value, tuple):
        return f"{value[0]:.4g} to {value[-1]:.4g} ({len(value)} values)"
    return f"{value:.4g}"


TIME = Column("total_s", "time", human_seconds, rank=0)


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    divided = any(row["exchange_s"] for row in rows)
    computes = any((row["compute_s"] or 0) > 1e-8 for row in rows)
    by_engine = {row["engine"]: row["kernel"] for row in rows}
    sides = any(by_engine[row["engine"]] != row["kernel"] for row in rows)
    kernel = Column("kernel", "kernel", align="left", rank=0 if sides else 2)
    return [
        *scenario_columns(rows, more=[kernel, *default_columns(rows)]),
        Column("splits_live", "splits live"),
        TIME,
        Column("low_s", "low", human_seconds, rank=0),
        Column("high_s", "high", human_seconds, rank=0),
        *([Column("without_dcp_s", "without DCP", human_seconds, rank=0)] if divided else []),
        Column("token_s", "token time", human_seconds),
        *([Column("floor_s", "at least", human_seconds)] if any(r["total_s"] is None for r in rows) else []),
        Column("bound", "bound by", lambda v: BOUNDS[v], align="left"),
        Column("launch_s", "launching", human_seconds, rank=2),
        Column("fixed_s", "start", human_seconds, rank=2),
        Column("stream_s", "stream", human_seconds, rank=2),
        Column("latency_s", "latency", human_seconds, rank=2),
        # The tensor cores' share matters for MLA-like groups only; without it the terms would not add up there.
        *([Column("compute_s", "compute", human_seconds, rank=2)] if computes else []),
        Column("tail_s", "tail", human_seconds, rank=2),
        Column("gap_s", "gap", human_seconds, rank=2),
        Column("merge_s", "merge", human_seconds, rank=2),
        *([Column("exchange_s", "exchange", human_seconds, rank=0)] if divided else []),
        Column("roofline_s", "roofline", human_seconds, rank=2),
        Column("overhead_plus_bytes_s", "overhead + bytes", human_seconds, rank=2),
        *([Column("numbers", "numbers", align="left")] if varies(rows, "numbers") else []),
        *([Column("extrapolated", "extrapolated", lambda v: f"{len(v)} parameters" if v else cell("no"))]
          if any(row["extrapolated"] for row in rows) else []),
    ]  # fmt: skip
