"""Rows, columns and lines of `audit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodecalc.safetext import plain
from decodecalc.tables.html import Details, Figure, Origin, Section, page
from decodecalc.tables.pages import rule_sources, sources
from decodecalc.tables.table import BAD, GOOD, OFF, Column, Table, cell, grid_text, percent
from decodecalc.trace.against_model import AS_PREDICTED
from decodecalc.trace.judged import CONSISTENT, MATCH, MISMATCH, NEEDS, NO_GRID, REFUSED, VERIFIED
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.rows import MOST_KERNEL_NAME
from decodecalc.units import human_rate, human_seconds

if TYPE_CHECKING:
    from decodecalc.trace.audit import Audit
    from decodecalc.trace.judged import JudgedLaunch

MARKS = {MATCH: GOOD, CONSISTENT: GOOD, MISMATCH: BAD, REFUSED: BAD, NEEDS: OFF, NO_GRID: OFF}
"""How statuses are coloured; those of launches that are not judged have no colour."""
SCHEMA = 2  # 2: codes of warnings in snake case


def audit_table(audit: Audit, inputs: Mapping[str, Any], heading: list[str]) -> Table:
    """One row per launch group: those that failed, those that could not be checked, and the others; in each of these
    the group that takes most time comes first."""
    rows = audit.to_rows()
    return Table(
        "audit", inputs, rows, _columns(rows), [plain(line) for line in heading], _notes(audit), schema=SCHEMA,
        answer=plain(audit.verdict), facts=_facts(audit), details=_details_below(audit),
    )  # fmt: skip


def _mark(status: str) -> str:
    return MARKS.get(status, "")


def audit_page(audit: Audit, table: Table, command: str, figures: Sequence[Figure] = ()) -> str:
    """The same as an HTML page, with the timeline of a step and every claim of every group to open."""
    from os.path import basename

    blocks = [_details(group) for group in audit.worst_first]
    title = "decodecalc audit: " + ", ".join(basename(trace.path) for trace in audit.traces[:4])
    groups = Section("Launch groups", replace(table, heading=()), blocks)
    step = [Section("The step", figures=figures)] if figures else []
    failed = not audit.passed
    sections = [groups, *step] if failed else [*step, groups]
    pairs = [*sources(audit.known.model, audit.gpu)]
    pairs += [(trace.path, f"{trace.format}, {trace.log.kernels} kernels") for trace in audit.traces]
    rules = dict.fromkeys((g.engine, g.version) for g in audit.groups if g.engine and g.version)
    pairs += rule_sources(rules)
    mark = BAD if failed else OFF if any(g.is_idle or g.to_set for g in audit.with_status(*VERIFIED)) else GOOD
    return page(title, sections, answer=audit.verdict, mark=mark, origin=Origin(command, pairs))


def _details(audit: JudgedLaunch) -> Details:
    group = audit.group
    name = audit.engine or function_name(group.stage1.name)[:MOST_KERNEL_NAME]
    pairs = [("kernel", group.stage1.name[:400]), ("taken for", audit.attribution.why)]
    if audit.versions:
        pairs.append(("versions that agree", ", ".join(audit.versions)))
    if audit.seen.how:
        pairs.append(("inferred from", audit.seen.how))
    if audit.inferred:
        pairs.append(("not given, inferred", ", ".join(audit.inferred)))
    if audit.setting:
        pairs.append(("setting", audit.setting))
    if audit.plan is not None:
        pairs += [
            (f"condition {gate.name}", ("it holds: " if gate.passed else "it does not hold: ") + gate.reason)
            for gate in audit.plan.gates
        ]
    lines = [
        f"{'holds' if claim.holds else 'DIFFERS'}: {claim.what}: predicted {_value(claim.predicted)}, "
        f"observed {_value(claim.observed)}"
        for claim in audit.claims
    ]
    lines = sorted(lines, key=lambda line: not line.startswith("DIFFERS"))
    lines += [text for text in (audit.explanation, audit.note, audit.to_set) if text] + [
        f"warning: {w.text}" for w in audit.warnings
    ]
    return Details(f"{name} {grid_text(group.stage1.grid)}: {audit.status}", lines, pairs, _mark(audit.status))


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    def any_of(key: str) -> bool:
        return any(r[key] is not None for r in rows)

    differs = any(r["status"] == MISMATCH for r in rows)
    named = Column("engine", "engine", align="left", rank=0)
    return [
        Column("status", "status", align="left", rank=0, mark=_mark),
        named if any_of("engine") else Column("kernel", "kernel", align="left", rank=0),
        *(
            [Column("layer_group", "layers", align="left")]
            if len({r["layer_group"] for r in rows} - {None}) > 1
            else []
        ),
        Column("path", "path", align="left"),
        Column("launches", "launches"),
        Column("grid", "grid", grid_text, align="left", rank=0),
        *([Column("predicted_grid", "predicted grid", grid_text, align="left", rank=0)] if differs else []),
        *([Column("merge_grid", "merge grid", grid_text, align="left", rank=3)] if any_of("merge_grid") else []),
        Column("batch", "batch", rank=2),
        *([Column("live_blocks", "live blocks", rank=2)] if any_of("live_blocks") else []),
        Column("sm_coverage" if any_of("sm_coverage") else "sm_coverage_launched", "coverage", percent, rank=0),
        Column("measured_s", "measured", human_seconds, rank=0),
        *(
            [
                Column("predicted_s", "predicted", human_seconds, rank=0),
                Column("against_prediction", "against prediction", align="left", mark=_off_prediction),
                Column("l2", "L2", align="left", rank=2),
            ]
            if any_of("predicted_s")
            else []
        ),
        Column("share_of_kernel_time", "share of kernel time", percent),
        *([Column("achieved_kv_bytes_per_s", "KV read rate", human_rate)] if any_of("achieved_kv_bytes_per_s") else []),
        *(
            [Column("s_opt", "S_opt", rank=2), Column("best_s", "time at S_opt", human_seconds, rank=3)]
            if any_of("s_opt")
            else []
        ),
        *([Column("to_set", "setting", align="left", rank=0)] if any_of("to_set") else []),
        *(
            [Column("saving_s_per_token", "saved per token", human_seconds, rank=2)]
            if any_of("saving_s_per_token")
            else []
        ),
    ]


def _off_prediction(compared: str) -> str:
    return GOOD if compared == AS_PREDICTED else OFF


def _facts(audit: Audit) -> list[str]:
    """What differs, and what is missing to check the rest."""
    lines: list[str] = []
    for group in audit.worst_first:
        where = _where(group)
        for claim in group.failed:
            lines.append(f"{where}: {claim.what} is {_value(claim.observed)}, predicted {_value(claim.predicted)}")
        if group.explanation:
            lines.append(f"{where}: {group.explanation}")
        if group.note and group.status not in VERIFIED:
            lines.append(f"{where}: {'this needs ' if group.status == NEEDS else ''}{group.note}")
    return [plain(line) for line in dict.fromkeys(lines)]


def _notes(audit: Audit) -> list[str]:
    """What to set, what is known to cost time, and what the predictions took for granted."""
    said = audit.verdict
    lines = [f"{g.engine}: {g.to_set}" for g in audit.with_status(*VERIFIED) if g.to_set and g.to_set not in said]
    for group in audit.groups:
        lines += [f"warning, {_where(group)}: {w.text}" for w in group.warnings]
    lines += [
        f"predicted times are for a {group.l2} L2: {group.l2_why}"
        for group in audit.groups
        if group.compared is not None
    ]
    if all(group.sm_coverage is None for group in audit.groups) and any(g.launched_coverage for g in audit.groups):
        lines.append("give the lengths to count only blocks that have keys to read; coverage counts all blocks now")
    return [plain(line) for line in dict.fromkeys([*audit.notes, *lines])]


def _details_below(audit: Audit) -> list[str]:
    """What the launches were recognised by, and what the columns mean."""
    lines = []
    for group in audit.groups:
        if group.engine:
            versions = f" ({group.versions[-1]} to {group.versions[0]})" if len(group.versions) > 1 else ""
            lines.append(f"{group.engine}{versions}: {group.attribution.why}")
    if any(group.against_model.s_opt is not None for group in audit.groups):
        lines += [
            "measured is the median time of stage 1 and the merge, with a scheduler only where the engine runs it for "
            "every layer. predicted is the time of the planned launch in the engine's own kernel.",
            "S_opt is the split count of least predicted time, and the time at S_opt is that of the bundled kernel.",
        ]
    if any(group.sm_coverage is not None for group in audit.groups):
        lines.append("coverage is the share of the SMs that get a block with keys to read.")
    return [plain(line) for line in dict.fromkeys(lines)]


def _where(group: JudgedLaunch) -> str:
    name = group.engine or function_name(group.group.stage1.name)[:MOST_KERNEL_NAME]
    return f"{name} {grid_text(group.group.stage1.grid)}"


def _value(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 3 and all(isinstance(v, int) for v in value):
        return grid_text(value)
    return cell(value)
