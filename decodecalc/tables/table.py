"""A command's result: rows, the columns that people see of them, and how a value is worded. Holds no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from decodecalc.errors import UnknownNameError
from decodecalc.safetext import plain
from decodecalc.units import in_number

MOST_NOTES = 3  # lines below a table that people read without asking for more
GOOD, OFF, BAD = "good", "off", "bad"
"""How a page marks a value: what holds, what is beyond its tolerance, what failed."""


class Column(NamedTuple):
    """One column of the human-readable forms: the row's key, its heading, and how a value is worded."""

    key: str
    """The row's key."""
    title: str
    """The heading, which `decodecalc glossary` explains."""
    show: Callable[[Any], str] | None = None
    """How a value is worded; None for the usual way (`cell`)."""
    align: str = "right"
    """Where the text stands: `left` or `right`."""
    rank: int = 1
    """What a narrow terminal leaves out first, the highest; 0 always stays."""
    below: bool = False
    """Whether the cell goes to a line of its own below the row, whole, where the row has no place for it: text that
    people copy."""
    mark: Callable[[Any], str] | None = None
    """How a page colours a value: GOOD, OFF, BAD, or nothing."""

    def marked(self, row: Mapping[str, Any]) -> str:
        """The mark of the cell: GOOD, OFF, BAD, or an empty text."""
        value = row.get(self.key)
        return "" if self.mark is None or value is None else self.mark(value)

    def text(self, row: Mapping[str, Any]) -> str:
        """The cell's text; a dash where there is no value."""
        value = row.get(self.key)
        if value is None:
            return "-"
        return plain(self.show(value) if self.show else cell(value))


@dataclass(frozen=True, slots=True)
class Table:
    """What a command found. `rows` go whole into json and csv; everything else is for people."""

    command: str
    """The command that made it."""
    inputs: Mapping[str, Any]
    """What was asked, for json."""
    rows: Sequence[Mapping[str, Any]]
    """Flat rows, whole in json and csv."""
    columns: Sequence[Column] = ()
    """What people see of the rows; empty for every key."""
    heading: Sequence[str] = ()
    """Lines between the answer and the table: the scenario and the defaults used."""
    notes: Sequence[str] = field(default=())
    """Lines below the table, the most important first. Below an answer people see MOST_NOTES of them until they ask for
    more."""
    shown: Sequence[Mapping[str, Any]] | None = None
    """The rows that people see, in their order, where those are not all rows as they stand (what was refused is in json
    and csv, and in a note)."""
    schema: int = 1
    """Number of the JSON schema, raised where a key goes away or a value is spelled differently."""
    answer: str = ""
    """The answer in one sentence or two, the first thing that people read."""
    measured: tuple[str, Column] | None = None
    """What was asked in words, and the column that says it: a table of several scenarios answers with its range."""
    facts: Sequence[str] = ()
    """Lines below the table that belong to the answer and are always shown."""
    details: Sequence[str] = ()
    """Lines that people see only when they ask for more: reasons why something is absent, sources."""

    def shown_columns(self) -> Sequence[Column]:
        """The columns for people: those given, or every key of the first row."""
        if self.columns:
            return self.columns
        return [Column(key, key) for key in (self.rows[0] if self.rows else ())]

    def shown_rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows for people."""
        return self.rows if self.shown is None else self.shown

    def below(self, verbose: bool = False) -> list[str]:
        """The lines below the rows, with how many were left out. A table without an answer leaves none out."""
        if verbose or not self.answer:
            return [in_number(line) for line in (*self.facts, *self.notes, *self.details)]
        shown = list(self.notes[:MOST_NOTES])
        hidden = len(self.notes) + len(self.details) - len(shown)
        more = [f"-v shows {hidden} more note{'s' if hidden > 1 else ''}."] if hidden else []
        return [in_number(line) for line in (*self.facts, *shown, *more)]

    def sorted_by(self, spec: str) -> Table:
        """The same rows by the value of one column, named by its heading or by its key, the least first; with `-` in
        front the greatest first. Rows without a value come last. UnknownNameError names the columns that there are."""
        name, descending = spec.strip().removeprefix("-"), spec.strip().startswith("-")
        columns = self.shown_columns()
        keys = {**{key: key for row in self.rows for key in row}, **{c.title: c.key for c in columns if c.title}}
        wanted = {alike(known): key for known, key in keys.items()}.get(alike(name))
        if wanted is None:
            raise UnknownNameError("column", name, keys)

        def in_order(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
            known = [row for row in rows if row.get(wanted) is not None]
            known.sort(key=lambda row: _sort_key(row[wanted]), reverse=descending)
            return [*known, *(row for row in rows if row.get(wanted) is None)]

        return replace(self, rows=in_order(self.rows), shown=None if self.shown is None else in_order(self.shown))

    def _repr_html_(self) -> str:
        """The columns for people as an HTML table, for notebooks."""
        from html import escape

        columns = self.shown_columns()
        cells = [[c.title for c in columns], *([c.text(row) for c in columns] for row in self.shown_rows())]
        head, *body = (
            "".join(f"<{tag}>{escape(text)}</{tag}>" for text in line)
            for tag, line in zip(["th"] + ["td"] * len(cells), cells)
        )
        rows = "".join(f"<tr>{line}</tr>" for line in body)
        caption = escape(self.answer or self.command)
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame (pandas is imported here and nowhere else)."""
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.rows])


def alike(name: str) -> str:
    """A heading or a key as it is compared: `splits_live` and `Splits live` are one name."""
    return " ".join(name.replace("_", " ").replace("-", " ").lower().split())


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Numbers before texts; a list by its greatest number."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, (int, float)) for v in value):
        value = max(value)
    return (False, value) if isinstance(value, (int, float)) else (True, str(value))


def with_versions(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The rows with `name@version` for an engine's name, where several versions of that engine are among them."""
    versions: dict[Any, set[Any]] = {}
    for row in rows:
        if row.get("version") is not None and isinstance(row.get("engine"), str):
            versions.setdefault(row["engine"], set()).add(row["version"])
    several = {name for name, of in versions.items() if len(of) > 1}
    if not several:
        return rows
    return [
        {**row, "engine": f"{row['engine']}@{row['version']}"}
        if row.get("engine") in several and row.get("version") is not None
        else row
        for row in rows
    ]


def cell(value: Any) -> str:
    """A value as people read it: integers of a list side by side (in short where it is long), floats with four digits,
    booleans as yes/no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e7 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        if all(isinstance(v, int) for v in value):
            return summary(value)
        return "; ".join(cell(v) for v in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={cell(v)}" for k, v in value.items())
    return str(value)


def summary(values: Sequence[int], most: int = 6) -> str:
    """A long list of counts in short: the values themselves, or how many and their range."""
    if len(values) <= most:
        return " ".join(str(v) for v in values)
    return f"{len(values)} values {min(values)}..{max(values)}"


def grid_text(value: Sequence[int] | None) -> str:
    """A launch grid as (1, 8, 16)."""
    return "-" if value is None else "(" + ", ".join(str(v) for v in value) + ")"


def percent(value: float) -> str:
    """A share of one in per cent, three digits.

    >>> percent(0.0606), percent(0.9697), percent(0.00758)
    ('6.06 %', '97 %', '0.758 %')
    """
    return f"{100 * value:.3g} %"
