"""A table in its four spellings: aligned text, csv, json and markdown."""

from __future__ import annotations

from decodecalc.csvtext import csv_lines
from decodecalc.safetext import json_safe, markdown_safe, plain
from decodecalc.tables.table import Table

FORMATS = ("table", "csv", "json", "markdown")


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
    return json_safe(json.dumps(payload, indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


def _csv(table: Table) -> str:
    keys = dict.fromkeys(key for row in table.rows for key in row)
    return csv_lines(keys or [c.key for c in table.columns], table.rows)


def _markdown(table: Table) -> str:
    columns = table.shown_columns()
    lines = [*map(markdown_safe, table.heading), ""] if table.heading else []
    lines.append("| " + " | ".join(c.title for c in columns) + " |")
    lines.append("|" + "|".join("---:" if c.align == "right" else "---" for c in columns) + "|")
    for r in table.shown_rows():
        lines.append("| " + " | ".join(markdown_safe(c.text(r)) for c in columns) + " |")
    if table.notes:
        lines += ["", *(f"- {markdown_safe(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _aligned(table: Table) -> str:
    columns = table.shown_columns()
    cells = [[c.title for c in columns]] + [[c.text(r) for c in columns] for r in table.shown_rows()]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [*map(plain, table.heading), ""] if table.heading else []
    for line in cells if columns else ():
        padded = (t.rjust(w) if c.align == "right" else t.ljust(w) for t, w, c in zip(line, widths, columns))
        lines.append("  ".join(padded).rstrip())
    if table.notes:
        lines += ["", *map(plain, table.notes)] if columns else map(plain, table.notes)
    return "\n".join(lines) + "\n"
