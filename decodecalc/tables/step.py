"""Rows and columns of `step`: attention beside a floor for the rest of a decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.cost.load import load_calibration
from decodecalc.cost.prediction import Prediction, predict
from decodecalc.cost.step import REST_SLACK, Step, step_floor
from decodecalc.cost.token import TokenTime
from decodecalc.errors import InputError
from decodecalc.scenario import Refusal
from decodecalc.tables.columns import scenario_columns, told_apart, varies
from decodecalc.tables.memory import cautions
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import absent, sentence
from decodecalc.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from decodecalc.request import Request

NOTE = (
    "A real step takes longer than the least step, because launches, activations, routing and sampling are not counted."
)


def step_table(request: Request, calibration: str | None, stored: str | None, expert_ranks: int | None) -> Table:
    """One row for every engine and batch."""
    s, model = request.scenarios, request.layers.model
    if model is None or model.weights is None:
        raise InputError(
            f"the weights of {request.layers.label} are not known; step needs a model whose configuration states their "
            "shapes (hidden_size, intermediate_size, vocab_size, …)"
        )
    known = load_calibration(calibration, s.gpu)
    times: dict[Any, list[tuple[int, Prediction]]] = {}
    refused: list[tuple[str, str]] = []
    per_group = len(s.batches)
    for item in s.plans():
        if isinstance(item, Refusal):
            refused.append((item.engine, item.reason))
            continue
        key = (item.case % per_group, item.plan.engine, item.plan.version)
        times.setdefault(key, []).append((item.layer_group.layers, predict(item.plan, s.gpu, known)))
    rows = []
    for (case, engine, version), layers in times.items():
        if len(layers) < len(s.layer_groups):
            continue
        batch = s.batches[case]
        floor = step_floor(
            model,
            batch=batch.size,
            gpu=s.gpu,
            calibration=known,
            kv=s.kv,
            tp=request.layers.tp,
            q_len=batch.max_q_len,
            expert_ranks=expert_ranks,
            stored=stored,
        )
        rows.append(_row(engine, version, batch, Step(attention=TokenTime(layers=tuple(layers)), floor=floor)))
    rows.sort(key=lambda row: (row["batch"], row["context"]))
    predictions = [p for layers in times.values() for _, p in layers]
    labels = dict.fromkeys(p.calibration for p in predictions) or {known.label: None}
    inputs = {**request.inputs, "calibration": known.label, "weights": stored or model.weights.stored}
    reasons, details = absent(refused)
    notes = [*cautions(request), *reasons, NOTE]
    if model.states is not None:
        notes.append(f"{model.states.layers} layers keep a recurrent state, which every step reads and writes")
    cold = "The L2 is cold and kernels are launched from a CUDA graph; calibration:"
    notes += [f"{cold} {label}" for label in labels]
    return Table(
        "step",
        inputs,
        rows,
        _columns(rows),
        request.heading,
        notes,
        answer=_answer(rows, model.name),
        details=details,
        measured=("The time of attention in a step", ATTENTION),
    )


def _answer(rows: list[dict[str, Any]], model: str) -> str:
    """Attention's share of a step, of the only row or of all."""
    if not rows:
        return "No engine runs all layers of this model, so that no step can be told."
    first = rows[0]
    if len(rows) > 1:
        last = rows[-1]
        ends = [(first, told_apart(first, rows)), (last, told_apart(last, rows))]
        told = " and ".join(f"{_share(row)} {words}" for row, words in ends)
        return sentence(f"Of a decode step of {model}, attention takes {told}")
    rest, time = human_seconds(first["rest_floor_s"]), first["attention_s"]
    beside = f"its own time is not predicted, and everything else takes at least {rest}"
    if time is not None:
        beside = f"{human_seconds(time)} beside at least {rest} for everything else"
    return f"Attention takes {_share(first)} of a decode step of {model} with {first['engine']}: {beside}."


def _row(engine: str, version: str, batch: Any, step: Step) -> dict[str, Any]:
    attention, floor = step.attention, step.floor
    return {
        "engine": engine,
        "version": version,
        "batch": batch.size,
        "context": batch.max_seq_len,
        "q_len": batch.max_q_len,
        "attention_s": attention.total_s,
        "attention_low_s": attention.low_s,
        "attention_high_s": attention.high_s,
        "rest_floor_s": floor.total_s,
        "weights_s": floor.weights_s,
        "states_s": floor.states_s,
        "kv_write_s": floor.kv_write_s,
        "exchange_s": floor.exchange_s,
        "weight_bytes": floor.weight_bytes,
        "state_bytes": floor.state_bytes,
        "kv_write_bytes": floor.kv_write_bytes,
        "collectives": floor.collectives,
        "collective_bytes": floor.collective_bytes,
        "step_least_s": step.least_s,
        "attention_share_low": step.share(REST_SLACK),
        "attention_share_high": step.most_share,
        "numbers": ", ".join(dict.fromkeys(p.numbers for _, p in attention.layers)),
    }


def _share(row: dict[str, Any]) -> str:
    low, high = row["attention_share_low"], row["attention_share_high"]
    if high is None:  # the kernel was not calibrated: there is no upper end
        return f"at least {100 * low:.0f} %"
    return f"{100 * low:.0f} to {100 * high:.0f} %"


ATTENTION = Column("attention_s", "attention", human_seconds, rank=0)


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    for row in rows:
        row["attention_share"] = _share(row)
    states = any(row["state_bytes"] for row in rows)
    return [
        *scenario_columns(rows),
        ATTENTION,
        Column("rest_floor_s", "least rest", human_seconds, rank=0),
        Column("step_least_s", "least step", human_seconds, rank=0),
        Column("attention_share", "attention's share", align="left", rank=0),
        Column("weight_bytes", "weight bytes", human_bytes),
        Column("weights_s", "weights' time", human_seconds, rank=2),
        *(
            [Column("state_bytes", "state bytes", human_bytes), Column("states_s", "states' time", human_seconds)]
            if states
            else []
        ),
        Column("exchange_s", "rank exchanges", human_seconds, rank=2),
        *([Column("numbers", "numbers", align="left")] if varies(rows, "numbers") else []),
    ]
