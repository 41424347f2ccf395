"""What the two CSV exports share: finding the header among other lines, numbers with separators, units of time."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

from decodecalc.errors import InputError

_CHATTER_LINES = 1000  # lines a tool may print before its table
_MAX_CELL = 1 << 20
_MAX_LINE = 4 << 20
# nsys writes ns, us, ms, s; ncu writes nsecond, usecond, msecond, second or the short forms.
_SECONDS = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "s": 1.0}


def rows_under_header(path: str, file: io.TextIOBase, needed: Iterable[str]) -> tuple[list[str], Iterator[list[str]]]:
    """Column names and the rows below them. The header is the first line that holds every needed column."""
    csv.field_size_limit(_MAX_CELL)
    reader = csv.reader(_lines(path, file))
    needed = tuple(needed)
    try:
        for _, row in zip(range(_CHATTER_LINES), reader):
            cells = [cell.strip() for cell in row]
            if all(any(cell.startswith(name) for cell in cells) for name in needed):
                return cells, _whole_rows(path, reader)
    except csv.Error as error:
        raise InputError(f"{path}: not readable as CSV: {error}") from None
    raise InputError(f"{path}: no header with {', '.join(needed)} in its first {_CHATTER_LINES} lines")


def _lines(path: str, file: io.TextIOBase) -> Iterator[str]:
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise InputError(
                f"{path}: a line of more than {_MAX_LINE >> 20} Mi characters: not an export of a profiler"
            )
        yield line


def _whole_rows(path: str, reader: Any) -> Iterator[list[str]]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{path}: not readable as CSV at line {reader.line_num}: {error}") from None
        if row:
            yield row


def number(text: str) -> float | None:
    """A number with or without thousands separators; None for an empty cell or a word.

    >>> number("1,234.5"), number(""), number("n/a")
    (1234.5, None, None)
    """
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def count(text: str) -> int | None:
    """A whole number, or None."""
    value = number(text)
    return int(value) if value is not None and abs(value) < 1 << 53 and value == int(value) else None


def seconds_per(unit: str) -> float | None:
    """Seconds of one unit as the tools spell it; None when it is not a unit of time.

    >>> seconds_per("ns"), seconds_per("usecond"), seconds_per("register/thread")
    (1e-09, 1e-06, None)
    """
    unit = unit.strip().strip("()").lower()
    if not re.fullmatch(r"[numµμ]?s(ec(ond)?s?)?", unit):
        return None
    return _SECONDS[unit[0]]


def extents(text: str) -> tuple[int, ...] | None:
    """`(1, 8, 16)` or `1x8x16` as a tuple; None when it is not that."""
    found = re.findall(r"\d+", text)
    return tuple(int(n) for n in found) if 1 <= len(found) <= 3 else None
