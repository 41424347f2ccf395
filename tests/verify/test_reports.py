"""Reports on disk: the JSON form, the journal, joining of shards."""

from __future__ import annotations

import json
from html import unescape

import pytest

from decodecalc.errors import InputError
from decodecalc.tables.verify import html_page, markdown, terminal_text
from decodecalc.verify.report.files import PROVES, SCHEMA, Journal, make_report, merge_reports, read_report


def row(case="c", claim=3, verdict="pass"):
    return {"case": case, "claim": claim, "verdict": verdict, "scenario": case, "engine": "e", "observed": float("nan"),
            "quantities": [], "reason": "", "kv_read_bytes": 1}  # fmt: skip


def test_a_report_is_json_with_one_row_a_line_and_reads_back(tmp_path):
    report = make_report({"device": "x", "shard": None}, [row(), row("d", verdict="fail")])
    path = tmp_path / "r.json"
    path.write_text(report.to_json(), encoding="utf-8")
    data = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["schema"] == SCHEMA
    assert not data["summary"]["passed"]
    assert sum(line.startswith('{"case"') for line in path.read_text().splitlines()) == 2
    again = read_report(str(path))
    assert [r["case"] for r in again.rows] == ["c", "d"]
    assert again.verdict == report.verdict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "schema"),
        ('{"schema": "decodecalc/verify/9"}', "verify/9"),
        (f'{{"schema": "{SCHEMA}", "inputs": {{}}, "rows": [{{}}]}}', "damaged"),
        (f'{{"schema": "{SCHEMA}", "inputs": {{}}, "rows": 3}}', "damaged"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, text, message):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_report(str(path))


def test_a_missing_file_is_refused():
    with pytest.raises(InputError, match="cannot be read"):
        read_report("nowhere.json")


def test_shards_join_and_a_missing_one_is_named():
    parts = [make_report({"shard": f"{i}/3"}, [row(f"c{i}")]) for i in (1, 2, 3)]
    whole = merge_reports(parts)
    assert len(whole.rows) == 3
    assert whole.passed
    partial = merge_reports(parts[:2])
    assert not partial.passed
    assert "3/3" in partial.verdict


def test_a_check_found_twice_is_taken_from_the_last_file():
    merged = merge_reports([make_report({}, [row(verdict="fail")]), make_report({}, [row()])])
    assert [r["verdict"] for r in merged.rows] == ["pass"]


def test_an_interrupted_part_keeps_the_whole_from_passing():
    assert not merge_reports([make_report({"interrupted": True}, [row()])]).passed


def test_the_journal_gives_back_finished_cases_and_drops_a_line_cut_off(tmp_path):
    journal = Journal(str(tmp_path / "j"), "key")
    assert journal.read() == []
    journal.start()
    journal.add([row("a")])
    journal.add([row("b")])
    with open(journal.path, "a") as file:
        file.write('[{"case": "c"')
    assert [rows[0]["case"] for rows in journal.read()] == ["a", "b"]
    journal.remove()
    assert journal.read() == []


def test_the_journal_of_another_run_is_refused(tmp_path):
    Journal(str(tmp_path / "j"), "one").start()
    with pytest.raises(InputError, match="another run"):
        Journal(str(tmp_path / "j"), "two").read()


def test_a_report_says_what_it_proves():
    """The bundled kernel cuts as the plan says, so that only a run of the engines' own kernels proves a rule; the
    report says so wherever it is shown, and a report that joins runs of both kinds says both."""
    bundled, own = (make_report({"device": "x", "kernel": kernel}, [row()]) for kernel in ("bundled", "own"))
    for report, kinds in ((bundled, ["bundled"]), (own, ["own"]), (merge_reports([own, bundled]), ["bundled", "own"])):
        assert report.proves == [PROVES[kind] for kind in kinds]
        assert json.loads(report.to_json())["proves"] == report.proves
        for shown in (terminal_text(report), markdown(report), html_page(report)):
            words = " ".join(unescape(shown).replace("\\", "").split())
            assert [kind for kind, text in PROVES.items() if text.replace("`", "") in words.replace("`", "")] == kinds


def test_two_runs_do_not_keep_one_journal_at_a_time(tmp_path):
    """The second run is refused and leaves the first one's cases; once the first has ended, the name is free."""
    path = str(tmp_path / "j")
    first = Journal(path, "key")
    first.start()
    first.add([row("a")])
    with pytest.raises(InputError, match="another run is writing"):
        Journal(path, "key").start()
    first.add([row("b")])
    assert [rows[0]["case"] for rows in Journal(path, "key").read()] == ["a", "b"]
    first.remove()
    Journal(path, "key").start()
