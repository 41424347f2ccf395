"""`decodecalc choose`."""

from __future__ import annotations

import re
from typing import Any

import pytest


def test_every_engine_gets_a_regret_and_both_split_counts_are_printed(call: Any) -> None:
    """S* and S_opt are different things and stand side by side."""
    result = call("choose", "--gpu", "h200", "--model", "llama3-70b", "--tp", "8", "--context", "128k", "-f", "json")
    assert result.code == 0, result.err
    rows = {r["engine"]: r for r in result.rows}
    assert {"vllm-triton", "sglang-triton", "flash-attention-3", "bundled"} <= set(rows)
    assert all(r["regret"] >= 0.98 for r in rows.values())
    assert rows["vllm-triton"]["s_star"] == 132
    assert rows["vllm-triton"]["regret"] > 1.2
    assert rows["bundled"]["splits_live"] == rows["bundled"]["s_opt"]


def test_the_curve_has_s_opt_marked_once(call: Any) -> None:
    """Time against S."""
    rows = call("choose", "--gpu", "h200", "--context", "32k", "--curve", "--format", "json").rows
    best = [r for r in rows if r["is_s_opt"]]
    assert len(best) == 1
    assert best[0]["over_best"] == pytest.approx(1.0)
    assert best[0]["total_s"] <= 1.01 * min(r["total_s"] for r in rows)


def test_refusals_are_listed_under_the_table(call: Any) -> None:
    """FlashMLA cannot serve GQA: counted, and named for who asks for more."""
    everyone = ("choose", "--gpu", "h200", "--engine", "all")
    assert re.search(r"^\d+ engines cannot run this and are not shown; -v says why", call(*everyone).out, re.M)
    result = call(*everyone, "-v")
    assert result.code == 0
    assert "not shown: flashmla" in result.out
    assert "S_opt" in result.out


def test_bad_input_is_exit_2(call: Any) -> None:
    """Unknown engine."""
    result = call("choose", "--engine", "sglang-trition")
    assert result.code == 2
    assert "sglang-triton" in result.err
