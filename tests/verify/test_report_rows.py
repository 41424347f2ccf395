"""Report files come from anywhere: a row is checked before anything is computed from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.errors import InputError
from decodecalc.verify.report.files import SCHEMA, merge_reports, missing_shards, read_report
from decodecalc.verify.report.rows import row_fault, shown

GOOD: dict[str, Any] = {
    "case": "c", "claim": 3, "verdict": "pass", "scenario": "s", "engine": "e", "quantities": [],
}  # fmt: skip


def saved(folder: Path, rows: list[Any], **inputs: Any) -> str:
    path = folder / "r.json"
    path.write_text(json.dumps({"schema": SCHEMA, "inputs": inputs, "rows": rows}))
    return str(path)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "splendid"}, {"claim": 99}, {"claim": True}, {"claim": "3"}, {"case": None}, {"quantities": {}},
        {"quantities": [{"name": "x"}]}, {"total_s": "1"}, {"claim": 10, "observed": "fast"},
        {"claim": 10, "quantities": [{"name": "total", "predicted": 1.0, "observed": 0}]},
    ],
)  # fmt: skip
def test_a_row_that_no_run_writes_is_refused_with_its_number(tmp_path: Path, change: dict[str, Any]) -> None:
    """The error says which row and which field, and nothing is computed from it."""
    with pytest.raises(InputError, match="damaged: row 1"):
        read_report(saved(tmp_path, [GOOD, {**GOOD, **change}]))


@given(st.dictionaries(st.sampled_from([*GOOD, "observed", "spread", "x"]), st.none() | st.integers() | st.text()))
def test_any_object_is_judged_without_an_exception(row: dict[str, Any]) -> None:
    """Judging a row never fails, whatever it holds."""
    assert isinstance(row_fault({**GOOD, **row}), str)


@pytest.mark.parametrize("shard", ["1/99999999999", "9/3", "x", "1/" + "9" * 5000, 7])
def test_a_shard_of_absurd_size_is_refused(tmp_path: Path, shard: Any) -> None:
    """No list is made of what a file claims to be a part of."""
    with pytest.raises(InputError, match="shard"):
        read_report(saved(tmp_path, [GOOD], shard=shard))


def test_missing_shards_are_named_and_texts_that_are_none_left_out() -> None:
    """Only pairs of numbers count."""
    assert missing_shards(["1/3", "3/3", "junk"]) == ["2/3"]


def test_a_report_read_can_be_merged_and_written_again(tmp_path: Path) -> None:
    """Fields that an older or foreign tool left out are filled in."""
    report = merge_reports([read_report(saved(tmp_path, [GOOD], device="\x1b[2J"))])
    assert report.passed
    assert "\x1b" not in report.to_json()
    assert shown({"a": ["\u202e"]}) == {"a": ["\\u202e"]}


def test_a_timed_row_without_its_bytes_is_counted(tmp_path: Path) -> None:
    """What a report leaves empty is no size, and no reason to fail."""
    total = {"name": "total", "predicted": 1.0, "observed": 2.0}
    row = {**GOOD, "claim": 10, "observed": 2.0, "kv_read_bytes": None, "quantities": [total]}
    assert read_report(saved(tmp_path, [row])).summary.times[0].rows == 1
