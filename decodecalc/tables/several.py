"""One table of several: the same question for several models, GPUs, degrees, cache types and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from decodecalc.errors import DecodecalcError
from decodecalc.tables.columns import ranging
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import sentence

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.models import Model
    from decodecalc.request import Request

    About = tuple[Model | None, Gpu | None]
    Solved = tuple[dict[str, Any], Table, About]

TITLES = {"model": "model", "gpu": "GPU", "tp": "TP", "kv_dtype": "KV dtype", "page_size": "page size"}
FEW = 3  # up to this many answers are all repeated


def labels_of(request: Request) -> dict[str, Any]:
    """What a request may differ in from others of its table."""
    s = request.scenarios
    return {
        "model": request.layers.label,
        "gpu": s.gpu.name,
        "tp": request.layers.tp,
        "kv_dtype": s.kv.dtype,
        "page_size": s.kv.page_size,
    }


def requests_table(
    values: dict[str, Any], make: Callable[[Request], Table], default_engine: str | None = None
) -> tuple[Table, list[About]]:
    """One table of all requests that the values stand for, and what each request is about."""
    from decodecalc.request import combinations, resolve

    def solved(chosen: dict[str, Any]) -> Solved:
        request = resolve(chosen) if default_engine is None else resolve(chosen, default_engine)
        return labels_of(request), make(request), (request.layers.model, request.scenarios.gpu)

    return several(combinations(values), solved)


def several(chosen: Sequence[dict[str, Any]], solve: Callable[[dict[str, Any]], Solved]) -> tuple[Table, list[About]]:
    """One table of what every choice gives, and what each is about. One of several that cannot be is a note; where none
    can be, the last one's error is raised."""
    found: list[Solved] = []
    impossible: list[str] = []
    for values in chosen:
        try:
            found.append(solve(values))
        except DecodecalcError as error:
            if len(chosen) == 1 or (not found and values is chosen[-1]):
                raise
            impossible.append(f"not shown: {error}")
    labels, tables, about = zip(*found)
    return joined(tables, labels, impossible), list(about)


def joined(tables: Sequence[Table], labels: Sequence[Mapping[str, Any]], impossible: Sequence[str] = ()) -> Table:
    """The rows of all tables, with a column for what varies."""
    varying = [key for key in labels[0] if len({str(one[key]) for one in labels}) > 1]
    if not varying:
        first, *_ = tables
        return first if not impossible else _with_notes(first, impossible)
    told = [{key: one[key] for key in varying} for one in labels]
    rows = [{**label, **row} for label, table in zip(told, tables) for row in table.rows]
    shown = [{**label, **row} for label, table in zip(told, tables) for row in table.shown_rows()]
    columns = _columns([table.shown_columns() for table in tables])
    known = {column.key for column in columns}
    mine = [
        Column(key, TITLES[key], align="right" if key in ("tp", "page_size") else "left", rank=0)
        for key in varying
        if key not in known
    ]
    names = [", ".join(_named(key, value) for key, value in label.items()) for label in told]
    heading = [_scenario(labels), *_shared([table.heading[1:] for table in tables])]
    return Table(
        tables[0].command,
        _inputs([table.inputs for table in tables], labels),
        rows,
        [*mine, *columns],
        heading,
        [*impossible, *_told([table.notes for table in tables], told)],
        shown,
        tables[0].schema,
        answer=_answer(tables, told, names),
        measured=tables[0].measured,
        facts=_told([table.facts for table in tables], told),
        details=_told([table.details for table in tables], told),
    )


def _with_notes(table: Table, notes: Sequence[str]) -> Table:
    from dataclasses import replace

    return replace(table, notes=[*table.notes, *notes])


def _columns(several_columns: Sequence[Sequence[Column]]) -> list[Column]:
    """Every column once, each behind the one that it follows where it first stands."""
    out: list[Column] = []
    for columns in several_columns:
        place = 0
        for column in columns:
            keys = [known.key for known in out]
            if column.key in keys:
                place = keys.index(column.key) + 1
            else:
                out.insert(place, column)
                place += 1
    return out


def _named(key: str, value: Any) -> str:
    return f"{TITLES[key]} {value}" if key in ("tp", "page_size") else str(value)


def _scenario(labels: Sequence[Mapping[str, Any]]) -> str:
    """What the table is of, in one line."""
    values = {key: list(dict.fromkeys(str(one[key]) for one in labels)) for key in labels[0]}
    return "; ".join(f"{TITLES[key]} {', '.join(found)}" for key, found in values.items())


def _shared(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines that stand above every table."""
    return [line for line in dict.fromkeys(lines[0]) if all(line in others for others in lines)]


def _told(lines: Sequence[Sequence[str]], labels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of all tables, the first of each before the second: those of some tables with what they share in front."""
    out: dict[str, None] = {}
    for together in zip_longest(*lines):
        for line in filter(None, together):
            having = [i for i, others in enumerate(lines) if line in others]
            out[f"{_place(having, labels)}{line}"] = None
    return list(out)


def _place(having: Sequence[int], labels: Sequence[Mapping[str, Any]]) -> str:
    """Which of the tables these are: nothing for all, else what they alone have, as far as one key says it."""
    if len(having) == len(labels):
        return ""
    for key in labels[0]:
        mine = {str(labels[i][key]): _named(key, labels[i][key]) for i in having}
        if having == [i for i, label in enumerate(labels) if str(label[key]) in mine]:
            return f"{', '.join(mine.values())}: "
    return f"{'; '.join(', '.join(_named(key, value) for key, value in labels[i].items()) for i in having)}: "


def _answer(tables: Sequence[Table], labels: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """The range of what was asked, over the rows of the engine that stands first in each table; else all answers."""
    measured = tables[0].measured
    if measured is not None:
        words, column = measured
        mine: list[dict[str, Any]] = []
        for table, label in zip(tables, labels):
            rows = table.shown_rows()
            mine += [{**label, **row} for row in rows if row.get("engine") == rows[0].get("engine")]
        engines = {row.get("engine") for row in mine} - {None}
        told = ranging(f"{words} with {engines.pop()}" if len(engines) == 1 else words, mine, column)
        if told:
            return sentence(told)
    answers = [f"{name}: {table.answer}" for name, table in zip(names, tables)]
    more = len(answers) - FEW
    return " ".join(answers[:FEW]) + (f" The other {more} have rows below." if more > 0 else "")


def _inputs(inputs: Sequence[Mapping[str, Any]], labels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was asked: a value that all share as it is, others as a list."""
    out: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in inputs for key in one):
        values = [one.get(key) for one in inputs]
        out[key] = values[0] if all(value == values[0] for value in values) else _distinct(values)
    return out


def _distinct(values: Iterable[Any]) -> list[Any]:
    out: list[Any] = []
    for value in values:
        if value not in out:
            out.append(value)
    return out
