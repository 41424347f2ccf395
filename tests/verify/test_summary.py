"""What rows add up to, and what counts as a regression."""

from __future__ import annotations

import pytest

from decodecalc.verify.report.summary import compare, summarise


def row(case="c", claim=3, verdict="pass", observed=None, predicted=None, spread=None, engine="e", kv=1000, **more):
    quantities = []
    if claim == 10 and observed:
        quantities = [
            {"name": "total", "predicted": predicted, "observed": observed},
            {"name": "baseline: roofline", "predicted": observed / 10, "observed": observed},
        ]
    return {"case": case, "scenario": case, "engine": engine, "claim": claim, "verdict": verdict, "observed": observed,
            "predicted": predicted, "spread": spread, "reason": "why", "kv_read_bytes": kv, "quantities": quantities,
            **more}  # fmt: skip


def timed(errors, **more):
    return [row(f"c{i}", 10, "pass", 1.0, 1.0 + e, 0.01, **more) for i, e in enumerate(errors)]


def test_counts_follow_the_verdicts():
    (claim,) = summarise([row(verdict=v) for v in ("pass", "pass", "fail", "off", "error", "skip", "note")]).claims
    assert (claim.checked, claim.passed, claim.failed, claim.off, claim.errors, claim.skipped) == (5, 2, 1, 1, 1, 1)


@pytest.mark.parametrize("verdict", ["fail", "error"])
def test_one_bad_row_fails_the_whole(verdict):
    assert summarise([row(), row()]).passed
    assert not summarise([row(), row(verdict=verdict)]).passed


def test_nothing_checked_is_no_success():
    assert not summarise([]).passed
    assert not summarise([row()], interrupted=True).passed


def test_the_time_bars_hold_the_mean_and_the_ninetieth_percentile():
    assert summarise(timed([0.05] * 20)).passed
    assert "mean error" in summarise(timed([0.10] * 20)).why
    assert not summarise(timed([0.0] * 17 + [0.3] * 3)).passed
    assert summarise(timed([0.0] * 19 + [0.5])).passed


def test_a_handful_of_rows_is_judged_by_each_rows_tolerance():
    few = timed([0.10] * 3)
    assert summarise(few).passed
    assert not summarise([*few, row("x", 10, "off", 1.0, 1.5)]).passed


def test_times_are_grouped_with_baselines_beside_them():
    times = {t.name: t for t in summarise(timed([0.1, 0.2], engine="a") + timed([0.0], engine="b", kv=10**9)).times}
    assert times["all"].mape == pytest.approx(0.1)
    assert times["a"].worst == pytest.approx(0.2)
    assert times["KV of 64 MB and more"].rows == 1
    assert times["all"].roofline_mape == pytest.approx(0.9)
    assert times["all"].bytes_mape is None


def test_a_verdict_that_turned_bad_is_a_regression_and_one_that_was_bad_is_not():
    before = [row(verdict="pass"), row("d", verdict="fail")]
    found = compare([row(verdict="fail"), row("d", verdict="fail"), row("new", verdict="fail")], before)
    assert [r.case for r in found.regressions] == ["c"]
    assert found.compared == 2


def test_a_slower_time_is_a_regression_beyond_both_spreads_only():
    before = [row("c", 10, "pass", 1.00, 1.0, 0.03)]
    assert not compare([row("c", 10, "pass", 1.05, 1.0, 0.03)], before).regressions
    (slow,) = compare([row("c", 10, "pass", 1.07, 1.0, 0.03)], before).regressions
    assert "+7.0%" in slow.what
    assert compare([row("c", 10, "pass", 0.9, 1.0, 0.03)], before).faster == 1
