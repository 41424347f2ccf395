"""Writes values as cells of CSV text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from decodecalc.safetext import formula_safe, json_safe, plain


def csv_value(value: Any) -> Any:
    """A value in one CSV cell: numbers of a list are joined by x (grids), nested values become JSON, None becomes
    empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, int) for v in value):
        return "x".join(str(v) for v in value)
    if isinstance(value, (list, tuple, Mapping)):
        return json_safe(json.dumps(value, ensure_ascii=False))
    return formula_safe(plain(value)) if isinstance(value, str) else value


def csv_cell(value: Any) -> str:
    """A value as the text of its cell, quoted where CSV asks for it."""
    text = repr(value) if isinstance(value, float) else str(csv_value(value))
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text


def csv_lines(keys: Iterable[str], rows: Iterable[Mapping[str, Any]], header: bool = True) -> str:
    """Rows as CSV text with these columns."""
    names = list(keys)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(names)
    writer.writerows([csv_value(row.get(name)) for name in names] for row in rows)
    return out.getvalue()
