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


def test_a_run_of_skipped_checks_proves_nothing_and_fails():
    """A report in which no check passed is no success, whatever was skipped or only noted."""
    for verdicts in (["skip"] * 13, ["skip", "note"], ["note"]):
        found = summarise([row(verdict=v) for v in verdicts])
        assert not found.passed
        assert "nothing was proved" in found.why


def test_a_choice_of_splits_that_is_off_everywhere_fails():
    """Claim 11 may be off in single scenarios, and not in all of several."""
    off = [row(f"c{i}", 11, "off") for i in range(3)]
    assert not summarise([*off, row()]).passed
    assert summarise([*off[:2], row("c2", 11), row()]).passed


def test_all_hold_is_not_said_beside_what_is_off_or_skipped():
    """What a passing run says of itself counts what did not hold."""
    assert summarise([row()]).held == "all hold"
    assert (
        summarise([row(), row(verdict="off"), row(verdict="skip")]).held
        == "nothing failed: 1 hold, 1 are off, 1 skipped"
    )


@pytest.mark.parametrize("verdict", ["skip", "off", "fail", "error"])
def test_a_check_that_held_and_does_not_any_more_is_a_regression(verdict):
    """Also where it is only skipped or off now."""
    assert len(compare([row(verdict=verdict)], [row()]).regressions) == 1
    assert not compare([row()], [row()]).regressions


def test_a_case_that_is_gone_is_a_regression_unless_this_is_a_shard():
    """A case that held and is missing is named; claims that were not asked for are not missed."""
    before = [row("a"), row("b"), row("a", 4)]
    assert [r.case for r in compare([row("a")], before).regressions] == ["b"]
    assert not compare([row("a")], before, whole=False).regressions
