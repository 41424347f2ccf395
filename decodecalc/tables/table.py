"""A command's result as rows, and its four spellings: table, csv, json, markdown. Holds no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodecalc.csvtext import csv_lines
from decodecalc.tables.text import plain

FORMATS = ("table", "csv", "json", "markdown")


@dataclass(frozen=True, slots=True)
class Column:
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
    """A value as people read it: lists as 1x8x16 when they are a grid, floats with four digits, booleans as yes/no."""
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


def render(table: Table, format: str, *, terminal: bool = False, width: int = 100) -> str:
    """The table in one of FORMATS. `terminal` allows box drawing and colour in the `table` form."""
    if format == "json":
        return _json(table)
    if format == "csv":
        return _csv(table)
    if format == "markdown":
        return _markdown(table)
    if terminal:
        from decodecalc.tables.terminal import render_terminal

        return render_terminal(table, width)
    return _aligned(table)


def _json(table: Table) -> str:
    import json

    schema = f"decodecalc/{table.command}/{table.schema}"
    payload = {"schema": schema, "inputs": table.inputs, "rows": [dict(r) for r in table.rows]}
    return json.dumps(payload, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _csv(table: Table) -> str:
    keys = dict.fromkeys(key for row in table.rows for key in row)
    return csv_lines(keys or [c.key for c in table.columns], table.rows)


def _markdown(table: Table) -> str:
    columns = table.shown_columns()
    lines = [*table.heading, ""] if table.heading else []
    lines.append("| " + " | ".join(c.title for c in columns) + " |")
    lines.append("|" + "|".join("---:" if c.align == "right" else "---" for c in columns) + "|")
    for r in table.shown_rows():
        lines.append("| " + " | ".join(c.text(r).replace("|", "\\|") for c in columns) + " |")
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _aligned(table: Table) -> str:
    columns = table.shown_columns()
    cells = [[c.title for c in columns]] + [[c.text(r) for c in columns] for r in table.shown_rows()]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [*table.heading, ""] if table.heading else []
    for line in cells:
        padded = (t.rjust(w) if c.align == "right" else t.ljust(w) for t, w, c in zip(line, widths, columns))
        lines.append("  ".join(padded).rstrip())
    if table.notes:
        lines += ["", *table.notes]
    return "\n".join(lines) + "\n"
