"""What no command may do, whatever it is given."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

EXIT_CODES = (0, 1, 2, 3)


class GotThroughError(Exception):
    """A case that ended as none may end."""


def run_command(argv: list[str], computed: bool = True) -> tuple[int, Any]:
    """(exit code, the object that it printed as JSON or None) of one command in this process.

    Raises GotThroughError where the exit code is none of the contract's, an error has no message or a traceback, the
    command ended by running out of memory, JSON does not parse or holds what no number is, or an escape sequence
    or a mark that turns text around was printed. computed: the numbers of the rows are the project's own, not copied
    from the input, and must be possible.
    """
    from decodecalc.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"{}"))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(argv)
    finally:
        sys.stdin = stdin
    said, printed = err.getvalue(), out.getvalue()
    shown = f"{argv!r:.600}: exit {code}, {said[:400]!r}"
    if code not in EXIT_CODES:
        raise GotThroughError(f"exit code: {shown}")
    if "internal error" in said or "Traceback" in said:
        raise GotThroughError(f"internal error: {shown}")
    if "out of memory" in said:
        raise GotThroughError(f"not refused before it was built: {shown}")
    if code in (2, 3) and not said:
        raise GotThroughError(f"no message: {shown}")
    if any(mark in printed + said for mark in ("\x1b[2J", "\u202e")):
        raise GotThroughError(f"escapes: {shown}")
    if code != 2 and "json" in argv and printed.startswith("{"):
        try:
            value = json.loads(printed, parse_constant=_no_number)
        except ValueError as error:
            raise GotThroughError(f"JSON: {error}: {shown}") from None
        if computed:
            check_rows(value, shown)
        return code, value
    return code, None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def check_rows(value: Any, shown: str) -> None:
    """GotThroughError where a printed number says what cannot be: a share over 1, fewer launched than live blocks,
    an interval that its time is outside of, a negative count, time or size."""
    for row in value.get("rows", ()) if isinstance(value, dict) else ():
        if not isinstance(row, dict):
            continue
        for name, number in _numbers(row):
            impossible = number < 0 and name.endswith(("_bytes", "_s", "blocks", "_count", "launches", "layers"))
            of_one = name.endswith("coverage") or name in ("share_of_kernel_time", "attention_share_low")
            share = of_one and not 0 <= number <= 1 + 1e-9
            if impossible or share:
                raise GotThroughError(f"impossible {name} = {number}: {shown}")
        if _both(row, "live_blocks", "launched_blocks") and row["live_blocks"] > row["launched_blocks"]:
            raise GotThroughError(f"more blocks live than launched: {shown}")
        bounded = _both(row, "low_s", "high_s") and _both(row, "total_s", "low_s")
        if bounded and not row["low_s"] <= row["total_s"] <= row["high_s"]:
            raise GotThroughError(f"a time outside its own interval: {shown}")


def _numbers(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield name, value


def _both(row: dict[str, Any], a: str, b: str) -> bool:
    return all(isinstance(row.get(name), (int, float)) for name in (a, b))
