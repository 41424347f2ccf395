"""What a trace may hold is bounded: text, depth, names, lines, distinct launches, and tables only."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from decodecalc.errors import InputError
from decodecalc.trace import audit as audit_module
from decodecalc.trace.events import MAX_NAME, EventLog
from decodecalc.trace.readers import kineto, read_trace, tables


def kernel(**changes: Any) -> dict[str, Any]:
    args = {"grid": [1, 8, 16], "block": [128, 1, 1], "device": 0, "stream": 7, "correlation": 1}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "kernel_unified_attention",
        "ts": 1.0,
        "dur": 5.0,
        "args": args,
        **changes,
    }


def saved(folder: Path, raw: bytes) -> str:
    (folder / "t.json").write_bytes(raw)
    return str(folder / "t.json")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"traceEvents": [{"name": "' + b"x" * (9 << 20) + b'"}]}', "one text or list"),
        (b'{"traceEvents": [{"name": "' + b'\\"' * (5 << 20) + b'"}]}', "one text or list"),
        (b'{"traceEvents": [{"args": [' + b"1," * (5 << 20) + b"1]}]}", "one text or list"),
        (b'{"traceEvents": [' + b"[" * 30_000 + b"]" * 30_000 + b"]}", "nests too deeply"),
        (b'{"traceEvents": [' + b'{"a":' * 30_000 + b"1" + b"}" * 30_000 + b"]}", "nests too deeply"),
        (b'{"x": ' + b"[" * 30_000 + b"]" * 30_000 + b', "traceEvents": []}', "nests too deeply"),
    ],
    ids=["text", "escaped text", "list", "lists", "objects", "header"],
)
def test_what_no_profile_holds_is_refused_before_it_is_built(tmp_path: Path, raw: bytes, said: str) -> None:
    """Long texts, long lists and deep nesting end the reading where they are found."""
    with pytest.raises(InputError, match=said):
        read_trace(saved(tmp_path, raw), lambda _: True)


def test_names_just_below_the_limits_are_read(tmp_path: Path) -> None:
    """A name of 2 MiB and brackets inside names are odd, and no reason to refuse a trace."""
    events = [kernel(name="x" * (2 << 20)), kernel(name="f[" * 300 + "kernel_unified_attention")]
    log = read_trace(saved(tmp_path, json.dumps({"traceEvents": events}).encode()), lambda _: True).log
    assert log.kernels == 2
    assert max(len(shape.name) for shape in log.shapes) == MAX_NAME


def test_verdicts_on_names_are_bounded_by_bytes() -> None:
    """Many long names do not stay in memory."""
    log = EventLog(lambda name: False)
    for i in range(20_000):
        log.is_wanted(f"{i}" + "x" * 100_000)
    assert sum(map(len, log.verdicts)) <= 1 << 26


def test_a_line_that_never_ends_is_refused() -> None:
    """A CSV export has lines of a few hundred characters."""
    with pytest.raises(InputError, match="a line of more than"):
        tables.rows_under_header("x.csv", io.StringIO("a" * (5 << 20)), ("Name",))
    assert csv.field_size_limit() >= 1 << 20


def test_a_view_is_no_table(tmp_path: Path) -> None:
    """A view could compute for ever; only tables are read."""
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start "
            "FROM n) SELECT start, start AS end, 'k' AS demangledName FROM n"
        )
    with pytest.raises(InputError, match="without CUPTI_ACTIVITY_KIND_KERNEL"):
        read_trace(str(path), lambda _: True)


def test_of_very_many_launch_groups_the_longest_are_judged(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is counted in a note, so that nothing is left out in silence."""
    monkeypatch.setattr(audit_module, "MAX_GROUPS", 3)
    events = [
        kernel(ts=20.0 * i, dur=float(1 + i), args={**kernel()["args"], "grid": [1 + i, 8, 16], "correlation": i})
        for i in range(6)
    ]
    result = call(
        "audit", saved(tmp_path, json.dumps({"traceEvents": events}).encode()), "-m", "llama3-8b", "-g", "h200"
    )
    assert "3 of 6 launch groups" in result.out
    rows = call(
        "audit",
        saved(tmp_path, json.dumps({"traceEvents": events}).encode()),
        "-m",
        "llama3-8b",
        "-g",
        "h200",
        "-f",
        "json",
    ).rows
    assert len(rows) == 3


def test_a_header_without_the_columns_themselves_is_named(tmp_path: Path) -> None:
    """Columns that only begin like the needed ones are not taken for them."""
    header = '"StartX (ns)","Duration (ns)","GrdX","GrdY","GrdZ","BlkX","BlkY","BlkZ","Name"\n'
    (tmp_path / "t.csv").write_text(header + '1,2,1,8,16,128,1,1,"k"\n')
    with pytest.raises(InputError, match="no column Start"):
        read_trace(str(tmp_path / "t.csv"), lambda _: True)


def test_the_last_quote_is_found_behind_escaped_ones() -> None:
    """An escaped quotation mark does not end a text."""
    assert kineto._last_quote(b'a"b\\"c') == 1
    assert kineto._last_quote(b"abc") == -1
