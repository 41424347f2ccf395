"""`--dcp` in the commands: what a rank launches, what is exchanged, when it pays, and bad input."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from click.testing import CliRunner

from decodecalc.cli.main import cli

BASE = ["--model", "deepseek-v3", "--tp", "8", "--gpu", "h200", "--page-size", "64", "--context", "64k"]
FLASHMLA = [*BASE, "--engine", "flashmla"]


def _run(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def _rows(*words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(_run(*words, "--format", "json"))["rows"]
    return rows


def test_grid_shows_what_a_rank_launches() -> None:
    """All 128 heads over an eighth of the keys."""
    (row,) = _rows("grid", *FLASHMLA, "--dcp", "8")
    assert (row["grid"], row["q_heads"], row["context"]) == ([2, 1, 66], 128, 65536)
    assert (row["dcp"], row["rank_keys"]) == (8, [8192] * 8)
    assert row["collectives"] == ["all_gather", "all_gather", "reduce_scatter"]
    assert (row["exchange_launches"], row["exchange_received_bytes"]) == (4, 247296)


@pytest.mark.parametrize("command", ["grid", "predict", "choose", "explain", "merge", "roofline", "paging", "segments"])
def test_dcp_1_is_today(command: str) -> None:
    """The option with its default changes no character."""
    assert _run(command, *FLASHMLA, "--dcp", "1", "--format", "json") == _run(command, *FLASHMLA, "--format", "json")


def test_predict_prices_the_exchange_and_says_when_it_pays() -> None:
    """A layer at 64k keys is slower divided, and the note names the context from which it is faster."""
    (row,) = _rows("predict", *FLASHMLA, "--dcp", "2")
    assert row["exchange_s"] == pytest.approx(39.7e-6, rel=0.02)
    assert row["total_s"] > row["without_dcp_s"]
    assert row["break_even_keys"] > 65536
    text = _run("predict", *FLASHMLA, "--dcp", "2")
    assert f"from about {row['break_even_keys']} keys" in text
    assert "measured on 2 x NVIDIA H200" in text
    assert "extrapolated to 8" in _run("predict", *FLASHMLA, "--dcp", "8")


def test_another_exchange_and_interleave() -> None:
    """Runs of 64 keys lie on a rank, and one all-to-all merges."""
    (row,) = _rows("grid", *FLASHMLA, "--dcp", "8", "--dcp-interleave", "64", "--dcp-exchange", "a2a")
    assert row["collectives"] == ["all_gather", "all_to_all"]
    assert row["dcp_interleave"] == 64


def test_a_sweep_over_ranks() -> None:
    """Degrees that do not fit are skipped, and the columns of the exchange come by themselves."""
    text = _run(
        "sweep", "--model", "deepseek-v3", "--tp", "8", "--dcp", "1,3,8", "--gpu", "h200", "--page-size", "64",
        "--engine", "flashmla", "--context", "64k", "--select", "time",
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(r["dcp"], r["rank_keys"], r["grid"]) for r in rows] == [("1", "65536", "1x1x132"), ("8", "8192", "2x1x66")]
    assert float(rows[0]["exchange_s"]) == 0
    assert float(rows[1]["total_s"]) > float(rows[1]["exchange_s"]) > 4e-5


def test_engines_that_cannot_merge_are_named() -> None:
    """A table of all engines says which of them keep their log-sum-exp."""
    text = _run("grid", *BASE, "--dcp", "2", "--engine", "all", "-v")
    assert "tensorrt-llm-xqa" in text
    assert "log-sum-exp" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--dcp", "3"], "valid: 1, 2, 4, 8"),
        (["--dcp", "0"], "at least 1"),
        (["--dcp-interleave", "4"], "give --dcp too"),
        (["--dcp", "2", "--dcp-interleave", "0"], "interleave"),
        (["--dcp", "2", "--dcp-exchange", "ring"], "ring"),
    ],
)
def test_bad_input(words: list[str], says: str) -> None:
    """One sentence, exit code 2."""
    from decodecalc.cli.main import run

    result = CliRunner().invoke(cli, ["grid", *FLASHMLA, *words])
    assert result.exit_code != 0
    assert says in (result.output + str(result.exception))
    assert run(["grid", *FLASHMLA, *words]) == 2
