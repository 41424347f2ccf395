"""Columns that say which scenario a row is of, and the words for it in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from decodecalc.tables.table import Column
from decodecalc.units import counted

# Key of a row -> how a sentence says its value, in the order in which a sentence says them.
PHRASES: dict[str, Callable[[Any], str]] = {
    "engine": lambda v: f"with {v}",
    "version": lambda v: f"of version {v}",
    "kernel": lambda v: f"with kernel {v}",
    "model": lambda v: f"for {v}",
    "gpu": lambda v: f"on {v}",
    "tp": lambda v: f"at TP {v}",
    "kv_dtype": lambda v: f"with a cache in {v}",
    "page_size": lambda v: f"with pages of {counted(v, 'key')}",
    "layer_group": lambda v: f"in {v} layers",
    "part": lambda v: f"over the {v}",
    "batch": lambda v: f"at batch {v}",
    "context": lambda v: f"at {v} keys",
    "q_len": lambda v: f"with {counted(v, 'query token')}",
}


def varies(rows: Iterable[Mapping[str, Any]], key: str) -> bool:
    """Whether the rows differ in this key."""
    return len({str(row.get(key)) for row in rows}) > 1


def several_versions(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one engine stands there in more than one version."""
    return any(len(versions) > 1 for versions in _versions(rows).values())


def _versions(rows: Sequence[Mapping[str, Any]]) -> dict[Any, set[Any]]:
    found: dict[Any, set[Any]] = {}
    for row in rows:
        found.setdefault(row.get("engine"), set()).add(row.get("version"))
    return found


def scenario_columns(rows: Sequence[Mapping[str, Any]], *, more: Sequence[Column] = ()) -> list[Column]:
    """Engine (with its version where that tells rows apart), `more`, layers, batch, keys and query tokens; layers and
    query tokens only where rows differ in them."""
    columns = [Column("engine", "engine", align="left", rank=0)]
    columns += [Column("version", "version", align="left", rank=0)] if several_versions(rows) else []
    columns += more
    columns += [Column("layer_group", "layers", align="left", rank=0)] if varies(rows, "layer_group") else []
    columns += [Column("part", "part", align="left", rank=0)] if varies(rows, "part") else []
    for key, title in (("batch", "batch"), ("context", "keys")):
        columns.append(Column(key, title, rank=0 if varies(rows, key) else 1))
    columns += [Column("q_len", "query tokens", rank=0)] if varies(rows, "q_len") else []
    return columns


def told_apart(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], value: str | None = None) -> str:
    """What tells this row from the others, in words; empty where nothing does. value: the key of a value; what makes no
    difference to its range is then left out.

    >>> told_apart({"engine": "a", "batch": 4}, [{"engine": "a", "batch": 1}, {"engine": "a", "batch": 4}])
    'at batch 4'
    """
    keys = [key for key in PHRASES if row.get(key) is not None and varies(rows, key)]
    same_engine = [other for other in rows if other.get("engine") == row.get("engine")]
    keys = [key for key in keys if key not in ("version", "kernel") or varies(same_engine, key)]
    if value is not None:
        keys = [key for key in keys if _matters(key, value, rows)]
    return " ".join(PHRASES[key](row[key]) for key in keys)


def _matters(key: str, value: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the range of a value is another one for some rows that share this key."""
    ranges = {
        (min(values), max(values))
        for one in {str(row.get(key)) for row in rows}
        for values in [[row[value] for row in rows if str(row.get(key)) == one]]
    }
    return len(ranges) > 1


def ranging(what: str, rows: Sequence[Mapping[str, Any]], column: Column) -> str:
    """One clause on the least and the greatest value of a column, with what they belong to; empty without a value.

    >>> rows = [{"engine": "a", "batch": 1, "n": 3}, {"engine": "a", "batch": 2, "n": 9}]
    >>> ranging("the count", rows, Column("n", "n"))
    'the count is 3 at batch 1 and 9 at batch 2'
    """
    known = [row for row in rows if row.get(column.key) is not None]
    if not known:
        return ""
    low = min(known, key=lambda row: row[column.key])
    high = max(known, key=lambda row: row[column.key])
    if column.text(low) == column.text(high):
        return f"{what} is {column.text(low)} in every row" if len(known) > 1 else f"{what} is {column.text(low)}"
    if len(known) == 2:
        first, second = known
        return f"{what} is {_at(first, known, column)} and {_at(second, known, column)}"
    return f"{what} ranges from {_at(low, known, column)} to {_at(high, known, column)}"


def _at(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], column: Column) -> str:
    words = told_apart(row, rows, column.key)
    return f"{column.text(row)} {words}" if words else column.text(row)
