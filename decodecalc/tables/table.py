"""A command's result: rows, the columns that people see of them, and how a value is worded. Holds no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decodecalc.safetext import plain


class Column(NamedTuple):
    """One column of the human-readable forms: the row's key, its heading, and how a value is worded.

    rank: what a narrow terminal leaves out first, the highest; 0 always stays.
    """

    key: str
    title: str
    show: Callable[[Any], str] | None = None
    align: str = "right"
    rank: int = 1

    def text(self, row: Mapping[str, Any]) -> str:
        """The cell's text; a dash where there is no value."""
        value = row.get(self.key)
        if value is None:
            return "-"
        return plain(self.show(value) if self.show else cell(value))


@dataclass(frozen=True, slots=True)
class Table:
    """What a command found. `rows` are flat and go whole into json and csv; `columns` choose what people see.

    heading: lines above the table (the scenario and the defaults used); notes: lines below it. shown: the rows that
    people see, where those are not all (what was refused is in json and csv, and in a note). schema: number of the JSON
    schema, raised where a key goes away or a value is spelled differently.
    """

    command: str
    inputs: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[Column] = ()
    heading: Sequence[str] = ()
    notes: Sequence[str] = field(default=())
    shown: Sequence[Mapping[str, Any]] | None = None
    schema: int = 1

    def shown_columns(self) -> Sequence[Column]:
        """The columns for people: those given, or every key of the first row."""
        if self.columns:
            return self.columns
        return [Column(key, key) for key in (self.rows[0] if self.rows else ())]

    def shown_rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows for people."""
        return self.rows if self.shown is None else self.shown

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
        return f"<table><caption>{escape(self.command)}</caption><tr>{head}</tr>{rows}</table>"

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame (pandas is imported here and nowhere else)."""
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.rows])


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
