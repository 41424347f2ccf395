"""A verification report as a table, Markdown, an HTML page. Words and layout only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodecalc.safetext import markdown_safe, plain
from decodecalc.tables.html import Details, Figure, Origin, Section, page
from decodecalc.tables.render import render
from decodecalc.tables.table import BAD, GOOD, OFF, Column, Table, cell, percent
from decodecalc.units import counted, human_bytes, human_seconds
from decodecalc.verify.claims.claim import BY_NUMBER, ERROR, FAIL, PASS, SKIP
from decodecalc.verify.claims.claim import OFF as BEYOND

if TYPE_CHECKING:
    from decodecalc.verify.report.files import Report
    from decodecalc.verify.session.suites import Case

FEW_CASES = 3  # up to here people see every check, beyond it a line per case
MARKS = {"pass": "ok", "fail": "FAIL", "off": "off", "note": "note", "skip": "-", "error": "ERR"}
VERDICT_MARKS = {PASS: GOOD, BEYOND: OFF, FAIL: BAD, ERROR: BAD}
"""How pages colour the verdicts; a note and a skipped check have no colour."""
ABOUT = (
    ("device", "device"), ("ranks", "ranks"), ("torch", "torch"), ("Triton", "triton"), ("date (UTC)", "date_utc"),
    ("decodecalc", "decodecalc"),
)  # fmt: skip
"""What a page says of how a report was made: names and the keys of the report's inputs."""
WORST_FIRST = (FAIL, ERROR, BEYOND)
MOST_TROUBLES = 60


def _verdict_mark(verdict: Any) -> str:
    return VERDICT_MARKS.get(verdict, "")


def _cell_mark(text: Any) -> str:
    """The mark of a verdict as the matrix of cases spells it."""
    return next((_verdict_mark(verdict) for verdict, short in MARKS.items() if short == text), "")


def _badness(verdicts: Sequence[str]) -> int:
    """A place in the order from what failed over what is off to what holds."""
    return min((WORST_FIRST.index(v) for v in verdicts if v in WORST_FIRST), default=len(WORST_FIRST))


def amount(value: Any, unit: str | None) -> str:
    """A quantity's value with its unit, short enough for a cell.

    >>> amount(1.25e-5, "s"), amount(None, ""), amount(16777216, "B"), amount([8, 1, 16], "")
    ('12.5 µs', '-', '16.8 MB', '8 1 16')
    """
    if value is None:
        return "-"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and unit == "s":
        return human_seconds(value)
    if number and unit == "B":
        return human_bytes(value)
    text = cell(value)
    text = text if len(text) <= 60 else text[:57] + "…"
    return f"{text} {unit}" if unit and number else text


def verify_table(report: Report) -> Table:
    """Every check as one row (json and csv); people see lines per check or, in longer reports, per case."""
    rows = list(report.rows)
    if report.summary.cases <= FEW_CASES:
        columns = [
            Column("engine", "engine's rule", align="left"),
            Column("claim", "claim"),
            Column("claim_name", "", align="left"),
            Column("quantity", "quantity", align="left"),
            Column("predicted_text", "predicted"),
            Column("observed_text", "observed"),
            Column("difference_text", "difference"),
            Column("verdict", "verdict", align="left", mark=_verdict_mark),
            Column("reason", "reason", align="left"),
        ]
        shown = [{**r, **_texts(r)} for r in rows]
        heads = dict.fromkeys(f"{r['scenario']}" for r in rows)
        return Table("verify", report.inputs, shown, columns, [*_heading(report), *heads], _notes(report))
    return Table("verify", report.inputs, rows, (), _heading(report), _notes(report))


def terminal_text(report: Report) -> str:
    """What people see on a terminal."""
    table = verify_table(report)
    if report.summary.cases <= FEW_CASES:
        return render(table, "table") + f"\n{plain(report.verdict)}\n"
    parts = [render(matrix_table(report), "table"), render(claims_table(report), "table")]
    parts += [render(times_table(report), "table")] if report.summary.times else []
    parts += [render(troubles_table(report), "table")] if _troubles(report) else []
    return "\n".join(parts) + f"\n{plain(report.verdict)}\n"


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    unit = row.get("unit")
    difference = row.get("difference")
    return {
        "predicted_text": amount(row.get("predicted"), unit),
        "observed_text": amount(row.get("observed"), unit),
        "difference_text": "-" if difference is None else _signed(difference, unit, row.get("relative_difference")),
    }


def _signed(difference: float, unit: str | None, relative: float | None) -> str:
    if difference == 0:
        return "0"
    if unit in ("s", "B") and relative is not None:
        return f"{'+' if difference > 0 else '-'}{percent(abs(relative))}"
    return f"{difference:+.4g}"


def _heading(report: Report) -> list[str]:
    i = report.inputs
    ranks = f" × {i['ranks']}" if (i.get("ranks") or 1) > 1 else ""
    lines = [
        f"{i.get('device', 'unknown device')}{ranks}: torch {i.get('torch')}, Triton {i.get('triton')}, "
        f"{i.get('date_utc', 'undated')}, decodecalc {i.get('decodecalc')}"
    ]
    before, after = i.get("state_before") or {}, i.get("state_after") or {}
    if before.get("sm_clock_hz"):
        clocks = f"before: {_state(before)}; after: {_state(after)}"
        lines.append(f"driver {before.get('driver')}; {clocks}; the L2 is cold unless a row says otherwise")
    if i.get("command"):
        lines.append(f"command: {i['command']}")
    lines += report.proves
    if i.get("kernel") == "own":
        rules = dict.fromkeys((r["engine"], r["rule"]) for r in report.rows if r.get("rule"))
        lines += [f"{engine}: {rule}" for engine, rule in rules]
    if i.get("warnings"):
        lines += [f"warning: {w}" for w in i["warnings"]]
    return lines


def _state(state: Mapping[str, Any]) -> str:
    def of(key: str, scale: float, unit: str) -> str:
        value = state.get(key)
        return "-" if value is None else f"{value / scale:.0f} {unit}"

    return (
        f"SM {of('sm_clock_hz', 1e6, 'MHz')}, memory {of('memory_clock_hz', 1e6, 'MHz')}, "
        f"{of('power_w', 1, 'W')}, {of('temperature_c', 1, '°C')}"
    )


def _notes(report: Report) -> list[str]:
    return [
        "predicted values come from the policy's plan and its analysis. observed values come from the profiler, the "
        "blocks' own records, poisoned buffers, hardware counters and clocks.",
        "The verdict off means that one time missed its tolerance (18 % and the interval). A run fails only when the "
        "mean error over all rows is too large.",
    ]


def matrix_table(report: Report) -> Table:
    """One line per case: each claim's verdict, and the times."""
    numbers = [c.claim for c in report.summary.claims]
    by_case: dict[str, dict[str, Any]] = {}
    for r in report.rows:
        line = by_case.setdefault(r["case"], {"scenario": r["scenario"], "engine": r["engine"], "path": r.get("path")})
        line[f"c{r['claim']}"] = MARKS.get(r["verdict"], r["verdict"])
        if r["claim"] == 10 and r.get("total_s"):
            line["observed_s"], line["predicted_s"] = r["total_s"], r["predicted_total_s"]
            line["error"] = _signed(r["difference"], "s", r["relative_difference"])
    columns = [
        Column("scenario", "scenario", align="left"),
        Column("engine", "engine's rule", align="left"),
        Column("path", "path", align="left"),
        *(Column(f"c{n}", str(n), align="left", mark=_cell_mark) for n in numbers),
    ]
    if any("observed_s" in line for line in by_case.values()):
        columns += [
            Column("predicted_s", "predicted", human_seconds),
            Column("observed_s", "measured", human_seconds),
            Column("error", "error"),
        ]
    notes = ["claims: " + ", ".join(f"{n} {BY_NUMBER[n].name}" for n in numbers)]
    return Table("verify", report.inputs, list(by_case.values()), columns, _heading(report), notes)


def claims_table(report: Report) -> Table:
    """One line per claim."""
    rows = [
        {
            "claim": c.claim, "text": c.text, "kind": "exact" if c.exact else "measured", "checked": c.checked,
            "passed": c.passed, "failed": c.failed, "off": c.off, "errors": c.errors, "skipped": c.skipped,
        }
        for c in report.summary.claims
    ]  # fmt: skip
    columns = [
        Column("claim", "claim"),
        Column("text", "what is claimed", align="left"),
        Column("kind", "kind", align="left"),
        *(Column(k, k) for k in ("checked", "passed")),
        *(
            Column(k, k, mark=lambda n, mark=mark: mark if n else "")  # type: ignore[misc]
            for k, mark in (("failed", BAD), ("off", OFF), ("errors", BAD))
        ),
        Column("skipped", "skipped"),
    ]
    return Table("verify", report.inputs, rows, columns)


def times_table(report: Report) -> Table:
    """Errors of the predicted times beside the baselines'."""
    rows = [
        {
            "name": t.name, "rows": t.rows, "mape": t.mape, "p90": t.p90, "worst": t.worst,
            "bytes": t.bytes_mape, "roofline": t.roofline_mape,
        }
        for t in report.summary.times
    ]  # fmt: skip
    columns = [
        Column("name", "times of", align="left"),
        Column("rows", "rows"),
        Column("mape", "mean error", percent),
        Column("p90", "90th percentile", percent),
        Column("worst", "largest error", percent),
        Column("bytes", "mean error of overhead + bytes", percent),
        Column("roofline", "mean error of roofline", percent),
    ]
    regret = report.summary.regret_within_bar
    notes = (
        []
        if regret is None
        else [
            f"S_opt was within 5 % of the best time found by measuring every count in {percent(regret)} of the "
            f"scenarios"
        ]
    )
    return Table("verify", report.inputs, rows, columns, notes=notes)


def _troubles(report: Report) -> list[Mapping[str, Any]]:
    """What did not pass, failures before what is off."""
    found = [r for r in report.rows if r["verdict"] not in (PASS, SKIP, "note")]
    return sorted(found, key=lambda r: _badness([r["verdict"]]))


def troubles_table(report: Report) -> Table:
    """Checks that did not pass, in words."""
    found = _troubles(report)
    rows = [{**r, **_texts(r), "mark": MARKS.get(r["verdict"], r["verdict"])} for r in found[:MOST_TROUBLES]]
    columns = [
        Column("case", "case", align="left"),
        Column("claim", "claim"),
        Column("mark", "verdict", align="left", mark=_cell_mark),
        Column("quantity", "quantity", align="left"),
        Column("predicted_text", "predicted"),
        Column("observed_text", "observed"),
        Column("reason", "reason", align="left"),
    ]
    more = [f"{len(found) - MOST_TROUBLES} more are in the JSON report"] if len(found) > MOST_TROUBLES else []
    return Table("verify", report.inputs, rows, columns, notes=more)


def skipped_lines(report: Report) -> list[str]:
    """Why checks were skipped, with how many each reason explains."""
    reasons: dict[str, int] = {}
    for r in report.rows:
        if r["verdict"] == SKIP:
            text = f"claim {r['claim']}: {r['reason']}"
            reasons[text] = reasons.get(text, 0) + 1
    return [f"{text} ({count})" for text, count in sorted(reasons.items(), key=lambda item: -item[1])][:20]


def markdown(report: Report, pictures: Mapping[str, str] | None = None) -> str:
    """The report as Markdown. pictures: caption -> file beside it."""
    out = [
        "# decodecalc verify",
        "",
        f"**{markdown_safe(report.verdict)}**",
        "",
        *(f"{markdown_safe(line)}  " for line in _heading(report)),
        "",
    ]
    out += ["## Claims", "", render(claims_table(report), "markdown")]
    if report.summary.times:
        out += ["## Time", "", render(times_table(report), "markdown")]
    out += [f"![{caption}]({file})\n" for caption, file in (pictures or {}).items()]
    if _troubles(report):
        out += ["## What did not pass", "", render(troubles_table(report), "markdown")]
    if report.comparison:
        out += ["## Against the earlier run", "", *map(markdown_safe, _comparison_lines(report, "- ")), ""]
    matrix = matrix_table(report)
    out += ["## Cases", "", render(Table("verify", {}, matrix.rows, matrix.columns, notes=matrix.notes), "markdown")]
    skipped = skipped_lines(report)
    if skipped:
        out += ["## Skipped", "", *(f"- {markdown_safe(line)}" for line in skipped), ""]
    return "\n".join(out)


def _comparison_lines(report: Report, bullet: str = "") -> list[str]:
    c = report.comparison
    if c is None:
        return []
    lines = [f"{c.compared} checks compared: {len(c.regressions)} regressions, {c.slower} slower, {c.faster} faster"]
    lines += [f"{r.case}, claim {r.claim}: {r.what}" for r in c.regressions[:MOST_TROUBLES]]
    return [bullet + plain(line) for line in lines]


def html_page(report: Report, pictures: Sequence[tuple[bytes, str]] = ()) -> str:
    """The report as one self-contained page, figures inside: what did not pass comes first, and every check of every
    case is behind a line to open."""
    figures = [Figure(svg, text) for svg, text in pictures]
    sections = []
    if _troubles(report):
        sections.append(Section("What did not pass", troubles_table(report)))
    if report.comparison:
        sections.append(Section("Against the earlier run", Table("verify", {}, [], notes=_comparison_lines(report))))
    sections.append(Section("Claims", claims_table(report)))
    if report.summary.times:
        sections.append(Section("Time", times_table(report), figures=figures))
    elif figures:
        sections.append(Section("Figures", figures=figures))
    by_case = _by_case(report)
    lines = dict(zip(by_case, matrix_table(report).rows))
    worst_first = sorted(by_case, key=lambda case: _badness([r["verdict"] for r in by_case[case]]))
    matrix = replace(matrix_table(report), rows=[lines[case] for case in worst_first], heading=())
    sections.append(Section("Cases", matrix, [_details(case, by_case[case]) for case in worst_first]))
    skipped = skipped_lines(report)
    if skipped:
        sections.append(Section("Skipped", Table("verify", {}, [], notes=skipped)))
    off = any(r["verdict"] == BEYOND for r in report.rows)
    return page(
        f"decodecalc verify: {report.inputs.get('device', '')}",
        sections,
        answer=report.verdict,
        mark=BAD if not report.passed else OFF if off else GOOD,
        origin=_origin(report),
    )


def _origin(report: Report) -> Origin:
    """Where the numbers come from: the command, and the lines that head the report."""
    i = report.inputs
    before, after = i.get("state_before") or {}, i.get("state_after") or {}
    pairs = [(name, str(i[key])) for name, key in ABOUT if i.get(key)]
    if before.get("sm_clock_hz"):
        pairs += [("driver", str(before.get("driver"))), ("before", _state(before)), ("after", _state(after))]
    pairs.append(("L2", "cold unless a row says otherwise"))
    pairs += [("what it proves", text) for text in report.proves]
    if i.get("kernel") == "own":
        pairs += dict.fromkeys((r["engine"], r["rule"]) for r in report.rows if r.get("rule"))
    pairs += [("warning", str(text)) for text in i.get("warnings") or ()]
    return Origin(str(i.get("command") or ""), pairs)


def _by_case(report: Report) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for r in report.rows:
        found.setdefault(r["case"], []).append(r)
    return found


def _details(case: str, rows: Sequence[Mapping[str, Any]]) -> Details:
    bad = [str(r["claim"]) for r in rows if r["verdict"] in (FAIL, ERROR)]
    off = [str(r["claim"]) for r in rows if r["verdict"] == BEYOND]
    state = f"claims {', '.join(bad)} fail" if bad else f"claims {', '.join(off)} off" if off else "holds"
    pairs = []
    for r in rows:
        if r["verdict"] == SKIP:
            continue
        numbers = "; ".join(
            f"{q['name']}: {amount(q['predicted'], q['unit'])} / {amount(q['observed'], q['unit'])}"
            if q["predicted"] is not None
            else f"{q['name']}: {amount(q['observed'], q['unit'])}"
            for q in r["quantities"]
        )
        tail = f" ({r['reason']})" if r.get("reason") else ""
        pairs.append(
            (f"{r['claim']} {r.get('claim_name', '')}: {r['verdict']}", f"{numbers}{tail}. {r.get('how', '')}")
        )
    return Details(f"{case}: {state}", pairs=pairs, mark=BAD if bad else OFF if off else "")


def dry_run_table(cases: Sequence[Case], claims: Sequence[int], inputs: Mapping[str, Any]) -> Table:
    """What would be run: every case with its launch."""
    rows = []
    for case in cases:
        plan = case.plan
        rows.append(
            {
                "scenario": case.scenario.id,
                "engine": case.policy.name,
                "version": case.version,
                "path": plan.path if plan else None,
                "grid": list(plan.stage1.grid) if plan else None,
                "live_blocks": plan.live_blocks if plan else None,
                "splits_launched": plan.splits.launched if plan else None,
                "refused": case.refusal or None,
            }
        )
    columns = [
        Column("scenario", "scenario", align="left"),
        Column("engine", "engine's rule", align="left"),
        Column("path", "path", align="left"),
        Column("grid", "grid", lambda g: "(" + ", ".join(map(str, g)) + ")", align="left"),
        Column("live_blocks", "live blocks"),
        Column("splits_launched", "launched splits"),
        Column("refused", "why it is refused", lambda text: text[:60], align="left"),
    ]
    scenarios = len({case.scenario.id for case in cases})
    heading = [f"A run would check {counted(len(cases), 'case')} of {counted(scenarios, 'scenario')}; nothing was run."]
    heading += [f"warning: {text}" for text in inputs.get("warnings") or ()]
    notes = [f"{n} {BY_NUMBER[n].name}: {BY_NUMBER[n].text}" for n in claims]
    return Table("verify", {**inputs, "dry_run": True}, rows, columns, heading, notes)
