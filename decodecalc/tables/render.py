"""A table in its four spellings: aligned text, csv, json and markdown."""

from __future__ import annotations

from collections.abc import Sequence

from decodecalc.csvtext import csv_lines
from decodecalc.safetext import json_safe, markdown_safe, plain
from decodecalc.tables.table import Column, Table
from decodecalc.tables.terminal import has_label, render_terminal, sentence_lines

FORMATS = ("table", "csv", "json", "markdown")


WIDTH = 100  # characters at which headings are folded outside a terminal


def render(
    table: Table,
    format: str,
    *,
    terminal: bool = False,
    width: int = WIDTH,
    verbose: bool = False,
    color: bool = True,
) -> str:
    """The table in one of FORMATS. `terminal` lays the `table` form out for a terminal of `width` characters, in
    `color` or not; `verbose` shows every note."""
    if format == "json":
        return _json(table)
    if format == "csv":
        return _csv(table)
    if format == "markdown":
        return _markdown(table, verbose)
    if terminal:
        return render_terminal(table, width, verbose, color)
    return _aligned(table, verbose)


def _json(table: Table) -> str:
    import json

    schema = f"decodecalc/{table.command}/{table.schema}"
    payload = {"schema": schema, "answer": table.answer, "inputs": table.inputs, "rows": [dict(r) for r in table.rows]}
    return json_safe(json.dumps(payload, indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


def _csv(table: Table) -> str:
    keys = dict.fromkeys(key for row in table.rows for key in row)
    return csv_lines(keys or [c.key for c in table.columns], table.rows)


def _columns(table: Table) -> Sequence[Column]:
    """The columns to print; none below an answer that says everything."""
    return () if table.answer and not table.shown_rows() else table.shown_columns()


def _markdown(table: Table, verbose: bool) -> str:
    columns = _columns(table)
    lines = [f"**{markdown_safe(table.answer)}**", ""] if table.answer else []
    lines += [*map(markdown_safe, table.heading), ""] if table.heading else []
    if columns:
        lines.append("| " + " | ".join(c.title for c in columns) + " |")
        lines.append("|" + "|".join("---:" if c.align == "right" else "---" for c in columns) + "|")
    for r in table.shown_rows():
        lines.append("| " + " | ".join(markdown_safe(c.text(r)) for c in columns) + " |")
    below = table.below(verbose)
    if below:
        lines += ["", *(f"- {markdown_safe(line)}" for line in below)]
    return "\n".join(lines) + "\n"


def _aligned(table: Table, verbose: bool) -> str:
    columns = _columns(table)
    cells = [[c.title for c in columns]] + [[c.text(r) for c in columns] for r in table.shown_rows()]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [plain(table.answer)] if table.answer else []
    lines += [part for line in table.heading for part in sentence_lines(plain(line), WIDTH)]
    if lines and columns:
        lines.append("")
    for line in cells if columns else ():
        padded = (t.rjust(w) if c.align == "right" else t.ljust(w) for t, w, c in zip(line, widths, columns))
        lines.append("  ".join(padded).rstrip())
    below: list[str] = []
    for text in map(plain, table.below(verbose)):
        below += sentence_lines(text, WIDTH) if has_label(text) else [text]
    if below:
        lines += ["", *below] if lines else below
    return "\n".join(lines) + "\n"
