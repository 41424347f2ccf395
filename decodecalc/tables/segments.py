"""Rows and columns of `segments`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.segments import segments
from decodecalc.errors import InputError
from decodecalc.scenario import Planned
from decodecalc.sizes import check_rows
from decodecalc.tables.columns import scenario_columns, varies
from decodecalc.tables.memory import cautions
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import absent, sentence
from decodecalc.units import counted

if TYPE_CHECKING:
    from decodecalc.request import Request


def segments_table(request: Request, only: int | None = None) -> Table:
    """One row per split of every plan; of a uniform batch, request 0 stands for all unless `only` names one."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    refused: list[tuple[str, str]] = []
    words: dict[str, None] = {}
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            refused.append((item.engine, item.reason))
            continue
        plan, batch = item.plan, item.batch
        if only is not None and not 0 <= only < batch.size:
            raise InputError(f"--request must be between 0 and {batch.size - 1}, not {only}")
        which = 0 if only is None and batch.is_uniform else only
        if only is None and batch.is_uniform and batch.size > 1:
            notes.append(f"all {batch.size} requests have the same length, so only request 0 is shown")
        first = len(rows)
        for segment in segments(plan, which):
            rows.append(
                {
                    "engine": plan.engine,
                    "version": plan.version,
                    "layer_group": item.layer_group.name,
                    "batch": batch.size,
                    "context": batch.seq_lens[segment.request],
                    "q_len": batch.max_q_len,
                    "path": plan.path,
                    "tile_keys": plan.tile_keys,
                    **segment.to_dict(),
                }
            )
        words[_sentence(rows[first:])] = None
        check_rows(len(rows), "splits", "choose fewer batches or one --request")
    reasons, details = absent(refused)
    answer, *others = words
    return Table(
        "segments",
        request.inputs,
        rows,
        _columns(rows),
        request.heading,
        [*cautions(request), *others, *dict.fromkeys(notes), *reasons],
        answer=answer,
        details=details,
    )


def _sentence(rows: list[dict[str, Any]]) -> str:
    """How the keys of the longest request of one plan are divided."""
    longest = max(rows, key=lambda r: r["context"])
    mine = [r for r in rows if r["request"] == longest["request"]]
    live = [r["keys"] for r in mine if r["keys"]]
    name = "" if longest["layer_group"] == "all" else f" in {longest['layer_group']} layers"
    who = f"{longest['engine']}{name}"
    if len(live) == 1:
        text = f"{who} does not split the {longest['context']} keys of a request"
    else:
        sizes = f"{max(live)} keys" if min(live) == max(live) else f"{min(live)} to {max(live)} keys"
        text = f"{who} splits the {longest['context']} keys of a request into {len(live)} pieces of {sizes}"
    idle = sum(not r["keys"] for r in mine)
    outside = sum(r["state"] == "outside window" for r in mine)
    text += f"; {counted(idle, 'more split')} without keys {'is' if idle == 1 else 'are'} launched" if idle else ""
    return sentence(text + (f"; {outside} of the pieces lie outside the window" if outside else ""))


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    common = [c for c in scenario_columns(rows) if varies(rows, c.key)]
    left = {"path", "state"}
    keys = ("path", "request", "split", "start", "end", "keys", "tiles", "visible_keys", "state")
    rank = {"path": 2, "tiles": 1, "visible_keys": 1, "request": 1}
    return [
        *common,
        *(Column(k, TITLES.get(k, k), align="left" if k in left else "right", rank=rank.get(k, 0)) for k in keys),
    ]


TITLES = {"start": "first key", "end": "end key", "keys": "keys in split", "visible_keys": "visible keys"}
