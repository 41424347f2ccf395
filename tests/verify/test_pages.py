"""A report as text, Markdown and a page with figures, from rows made here."""

from __future__ import annotations

import re

import pytest

from decodecalc import load_gpu
from decodecalc.plot.verification import figures
from decodecalc.tables.verify import amount, html_page, markdown, terminal_text
from decodecalc.verify.claims.claim import CLAIMS, FAIL, PASS, Finding, Quantity, exact, skip
from decodecalc.verify.report.files import make_report
from decodecalc.verify.report.summary import rows_of
from decodecalc.verify.run.runner import Result
from decodecalc.verify.session.suites import Case, cases, suite_scenarios


def findings(case: Case, i: int) -> tuple[Finding, ...]:
    """One finding of every claim; claim 4 of the second case fails."""
    found = []
    for claim in CLAIMS:
        if claim.number == 10:
            total, said = 1e-5 * (i + 1), 1.05e-5 * (i + 1)
            facts = {
                "total_s": total,
                "predicted_total_s": said,
                "roofline_s": said / 3,
                "overhead_plus_bytes_s": said / 2,
            }
            found.append(Finding(10, PASS, (Quantity("total", said, total, "s"),), "a graph", spread=0.01, facts=facts))
        elif claim.number == 11:
            facts = {"s_opt": 4, "s_star": 2, "s_best": 4, "split_times_s": [[1, 3e-5], [2, 2e-5], [4, 1e-5]]}
            found.append(Finding(11, PASS, (Quantity("S", 4, 4),), "a sweep", facts=facts))
        elif claim.number == 8:
            found.append(skip(8, "no counters <here>"))
        else:
            found.append(exact(claim.number, [Quantity("n", 1, 2 if (claim.number, i) == (4, 1) else 1)], "seen"))
    return tuple(found)


@pytest.fixture(scope="module")
def report():
    planned = cases(suite_scenarios("quick"), load_gpu("h200"))
    rows = [row for i, case in enumerate(planned) for row in rows_of(Result(case, findings(case, i), "a rule"))]
    return make_report({"device": "GPU <x>", "torch": "2", "triton": "3", "date_utc": "now", "decodecalc": "0"}, rows)


def test_the_summary_counts_and_names_what_failed(report):
    assert not report.passed
    by_number = {c.claim: c for c in report.summary.claims}
    assert (by_number[4].checked, by_number[4].failed) == (18, 1)
    assert (by_number[8].checked, by_number[8].skipped) == (0, 18)
    assert report.verdict == "18 cases of 6 scenarios, 234 checks: claim 4 (keys): 1 failed, 0 raised an error"


def test_text_and_markdown_show_every_case_the_claims_and_the_trouble(report):
    for text in (terminal_text(report), markdown(report, {"a picture": "x.svg"})):
        assert text.count("deepseek-v3/tp8") >= 3
        assert "FAIL" in text
        assert "n: predicted 1, observed 2" in text
        assert "4.76 %" in text or "5 %" in text  # the mean error of the times
    assert "![a picture](x.svg)" in markdown(report, {"a picture": "x.svg"})


def test_the_page_holds_its_figures_and_every_check_and_nothing_from_elsewhere(report):
    drawn = figures(report)
    assert set(drawn) == {"time", "errors", "splits"}
    page = html_page(report, list(drawn.values()))
    assert page.count("<svg") == 3
    assert page.count("<details>") == 19  # the last one says what the headings mean
    assert "GPU &lt;x&gt;" in page
    assert "no counters &lt;here&gt;" in page
    assert not re.search(r'(src|href)="(?!#)|http', page)
    assert "<script" not in page


def test_what_failed_is_the_first_thing_on_the_page_and_red(report):
    """Below the answer stands what did not pass, failures before what is off; every place that names it is marked."""
    late = [
        {**r, "verdict": "off"} if r["claim"] == 10 and r["case"] == report.rows[0]["case"] else r for r in report.rows
    ]
    page = html_page(make_report(report.inputs, late))
    first = page.partition("</h2>")[2].partition("</table>")[0]
    assert page.index("What did not pass") < page.index("Claims")
    assert first.index('<td class="bad" data-label="verdict">FAIL</td>') < first.index(
        '<td class="off" data-label="verdict">off</td>'
    )
    assert 'class="answer bad"' in page
    claims = page.partition("<h2>Claims</h2>")[2].partition("</table>")[0]
    assert '<td class="right bad" data-label="failed">1</td>' in claims
    assert '<td class="right off" data-label="off">1</td>' in claims
    cases = page.partition("<h2>Cases</h2>")[2]
    assert '<td class="bad" data-label="4">FAIL</td>' in cases.partition("</tr>")[2].partition("</tr>")[0]
    assert cases.index('<summary class="bad">') < cases.index('<summary class="off">') < cases.index("<summary>")


def test_a_run_that_passed_with_times_off_is_amber(report):
    """Nothing failed, so the answer is not red; something is off, so it is not green."""
    rows = [
        {**r, "verdict": "off" if r["claim"] == 11 and r["case"] == report.rows[0]["case"] else "pass"}
        for r in report.rows
    ]
    assert 'class="answer off"' in html_page(make_report(report.inputs, rows))
    assert 'class="answer good"' in html_page(
        make_report(report.inputs, [{**r, "verdict": "pass"} for r in report.rows])
    )


def test_figures_are_the_same_for_the_same_rows(report):
    first, second = figures(report), figures(report)
    assert all(first[name][0] == second[name][0] for name in first)
    assert first["time"][0].startswith(b"<?xml")


def test_without_times_there_are_no_figures(report):
    bare = make_report(report.inputs, [r for r in report.rows if r["claim"] < 8])
    assert figures(bare) == {}
    assert "<figure>" not in html_page(bare)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(None, "", "-"), (2e-6, "s", "2 µs"), ([1, 8, 16], "", "1 8 16"), (3, "blocks", "3 blocks"), (True, "x", "yes")],
)
def test_amounts_carry_their_units(value, unit, text):
    assert amount(value, unit) == text


def test_few_cases_are_shown_check_by_check(report):
    one = make_report(report.inputs, [r for r in report.rows if r["case"] == report.rows[13]["case"]])
    text = terminal_text(one)
    assert "difference" in text
    assert FAIL in text
