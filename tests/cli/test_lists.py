"""Lists of models, GPUs, degrees, cache types and pages: one table of all, with a column for what varies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decodecalc.tables.several import joined
from decodecalc.tables.table import Column, Table

COMMANDS = ("grid", "predict", "choose", "explain", "merge", "roofline", "segments", "paging", "step", "kv")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_two_gpus_and_two_degrees(call: Any, command: str) -> None:
    """Four requests, whose rows say which is which; each has the rows that it has alone."""
    argv = (command, "--model", "llama3-8b", "--format", "json")
    found = json.loads(call(*argv, "--gpu", "h100,h200", "--tp", "1,8").out)
    assert found["inputs"]["gpu"] == ["h100-sxm", "h200-sxm"]
    assert found["inputs"]["tp"] == [1, 8]
    places = list(dict.fromkeys((row["gpu"], row["tp"]) for row in found["rows"]))
    assert places == [("h100-sxm", 1), ("h100-sxm", 8), ("h200-sxm", 1), ("h200-sxm", 8)]
    alone = json.loads(call(*argv, "--gpu", "h200", "--tp", "8").out)
    mine = [row for row in found["rows"] if (row.pop("gpu"), row.pop("tp")) == ("h200-sxm", 8)]
    assert mine == alone["rows"]
    assert found["schema"] == alone["schema"]


def test_models_and_cache_types_vary_too(call: Any) -> None:
    """The first line compares, and the table has a column for each."""
    out = call("predict", "--model", "llama3-8b,llama3-70b", "--kv-dtype", "bf16,fp8", "--gpu", "h200").out
    assert out.startswith("The predicted time of the attention of one layer with vllm-triton ranges from ")
    header = next(line for line in out.splitlines() if line.startswith("model "))
    assert header.split()[:4] == ["model", "llama3-8b,", "llama3-70b;", "GPU"]
    head = next(line for line in out.splitlines() if line.startswith("model  "))
    assert head.split()[:3] == ["model", "KV", "dtype"]


def test_what_cannot_be_is_a_note_among_others_and_an_error_alone(call: Any) -> None:
    """A degree that does not fit is said; the rest of the table is there."""
    found = call("grid", "--tp", "1,3", "--engine", "vllm-triton")
    assert found.code == 0
    assert "not shown: tp 3 does not fit llama3-8b" in found.out
    assert call("grid", "--tp", "3").code == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("grid", "--tp", "1:64:1", "--gpu", "h100,h200"), "more than the 64 that one table may hold"),
        (
            ("verify", "--model", "llama3-8b", "--tp", "1,2", "--dry-run"),
            "--tp takes one value here, not the 2 of '1,2'",
        ),
        (("verify", "--model", "llama3-8b", "--kv-dtype", "bf16,fp8", "--dry-run"), "--kv-dtype takes one value here"),
        (("grid", "--tp", "two"), "--tp: 'two' is not a whole number"),
    ],
)
def test_lists_that_are_too_long_or_not_taken_are_errors(call: Any, argv: tuple[str, ...], message: str) -> None:
    """The sentence says what is wrong."""
    result = call(*argv)
    assert result.code == 2
    assert message in result.err


def test_rows_keep_their_columns_where_tables_differ() -> None:
    """A column that only one table has stands where it stood there; notes of one table name it."""
    first = Table("t", {"a": 1}, [{"n": 1}], [Column("n", "n")], ["one"], ["of all", "of one"], answer="It is 1.")
    columns = [Column("extra", "extra"), Column("n", "n")]
    second = Table("t", {"a": 1}, [{"n": 2, "extra": 3}], columns, ["two"], ["of all"], answer="It is 2.")
    table = joined([first, second], [{"gpu": "x", "tp": 1}, {"gpu": "y", "tp": 1}])
    assert [column.title for column in table.columns] == ["GPU", "extra", "n"]
    assert [dict(row) for row in table.rows] == [{"gpu": "x", "n": 1}, {"gpu": "y", "n": 2, "extra": 3}]
    assert table.notes == ["of all", "x: of one"]
    assert table.answer == "x: It is 1. y: It is 2."
    assert table.inputs == {"a": 1}
