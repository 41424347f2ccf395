"""Rows and columns of `step`: attention beside a floor for the rest of a decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.cost.load import load_calibration
from decodecalc.cost.prediction import Prediction, predict
from decodecalc.cost.step import REST_SLACK, Step, step_floor
from decodecalc.cost.token import TokenTime
from decodecalc.errors import InputError
from decodecalc.scenario import Refusal
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import because
from decodecalc.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from decodecalc.request import Request

NOTES = (
    "attention is the time of all attention layers. least rest is the time to read the weights once, to read and write "
    "recurrent states, to write the new keys and to exchange data between ranks.",
    "A real step takes longer than the least step, because launches, activations, routing and sampling are not "
    "counted.",
    "attention's share is a range: attention takes its 90 % interval, and the rest takes between the least rest and "
    f"{REST_SLACK:g} times as long.",
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
    refused: list[str] = []
    per_group = len(s.batches)
    for item in s.plans():
        if isinstance(item, Refusal):
            refused.append(f"not shown: {because(item.engine, item.reason)}")
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
    heading = [
        *request.heading,
        f"The L2 is cold and kernels are launched from a CUDA graph; calibration: {known.label}",
    ]
    inputs = {**request.inputs, "calibration": known.label, "weights": stored or model.weights.stored}
    notes = [*NOTES, *dict.fromkeys(refused)]
    if model.states is not None:
        notes.insert(0, f"{model.states.layers} layers keep a recurrent state, which every step reads and writes")
    return Table("step", inputs, rows, _columns(rows), heading, notes)


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
    }


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['attention_share_low']:.0f} to {100 * row['attention_share_high']:.0f} %"


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    for row in rows:
        row["attention_share"] = _share(row)
    states = any(row["state_bytes"] for row in rows)
    return [
        Column("engine", "engine", align="left", rank=0),
        Column("batch", "batch"),
        Column("context", "keys"),
        Column("attention_s", "attention", human_seconds, rank=0),
        Column("rest_floor_s", "least rest", human_seconds, rank=0),
        Column("weight_bytes", "weight bytes", human_bytes),
        Column("weights_s", "weights' time", human_seconds, rank=2),
        *(
            [Column("state_bytes", "state bytes", human_bytes), Column("states_s", "states' time", human_seconds)]
            if states
            else []
        ),
        Column("exchange_s", "rank exchanges", human_seconds, rank=2),
        Column("step_least_s", "least step", human_seconds, rank=0),
        Column("attention_share", "attention's share", align="left", rank=0),
    ]
