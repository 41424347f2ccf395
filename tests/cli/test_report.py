"""`report merge`: shards into one report."""

from __future__ import annotations

import json

import pytest

from decodecalc.verify.report.files import make_report


def row(case, verdict="pass", claim=3):
    return {"case": case, "claim": claim, "claim_name": "live", "verdict": verdict, "scenario": case, "engine": "e",
            "path": "split", "predicted": 1, "observed": 1, "difference": 0, "relative_difference": 0.0, "unit": "",
            "quantity": "n", "quantities": [], "reason": "", "how": "seen", "kv_read_bytes": 1,
            "spread": None}  # fmt: skip


@pytest.fixture
def shards(tmp_path):
    paths = []
    for i in (1, 2):
        path = tmp_path / f"s{i}.json"
        rows = [row(f"c{i}{j}") for j in range(3)]
        path.write_text(make_report({"shard": f"{i}/2", "device": "GPU <1>", "torch": "2"}, rows).to_json())
        paths.append(str(path))
    return paths


def test_shards_become_one_report_with_all_its_files(call, shards, tmp_path):
    result = call("report", "merge", *shards, "--report", tmp_path / "all")
    assert result.code == 0
    assert "6 cases" in result.out
    assert {p.name for p in tmp_path.iterdir()} >= {"all.json", "all.md", "all.html"}
    data = json.loads((tmp_path / "all.json").read_text())
    assert len(data["rows"]) == 6
    assert [part["shard"] for part in data["inputs"]["merged_from"]] == ["1/2", "2/2"]
    assert "GPU &lt;1&gt;" in (tmp_path / "all.html").read_text()


def test_a_missing_shard_is_named_and_fails(call, shards):
    result = call("report", "merge", shards[0])
    assert result.code == 1
    assert "shards missing: 2/2" in result.out


@pytest.mark.parametrize("form", ["csv", "json", "markdown", "html", "table"])
def test_every_format_is_written(call, shards, form):
    result = call("report", "merge", *shards, "--format", form)
    assert result.code == 0
    assert "c12" in result.out


def test_files_of_another_kind_are_refused(call, tmp_path):
    other = tmp_path / "o.json"
    other.write_text('{"schema": "decodecalc/grid/1", "rows": []}')
    result = call("report", "merge", other)
    assert result.code == 2
    assert "decodecalc/grid/1" in result.err
    assert call("report", "merge").code == 2
