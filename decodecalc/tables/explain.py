"""`explain` as numbered text, or as rows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from decodecalc.analysis.explain import ExplainedStep, explain
from decodecalc.analysis.occupancy import occupancy
from decodecalc.analysis.traffic import traffic
from decodecalc.prefix import WHOLE
from decodecalc.scenario import Planned
from decodecalc.tables.memory import cautions
from decodecalc.tables.table import Table, percent
from decodecalc.tables.text import sentence
from decodecalc.units import counted, human_bytes

if TYPE_CHECKING:
    from decodecalc.request import Request

WIDTH = 100


def stories(request: Request) -> Iterator[tuple[Planned, tuple[ExplainedStep, ...]]]:
    """One story per plan of the request."""
    words = {policy.name: policy.word_for_split for policy, _ in request.scenarios.engines}
    for item in request.scenarios.plans():
        if isinstance(item, Planned):
            yield item, explain(item.plan, item.layer_group.layers, words[item.plan.engine])


def explain_text(request: Request, markdown: bool = False) -> str:
    """The stories as text of at most 100 columns, or as Markdown."""
    found = list(stories(request))
    answer = [f"**{_answer(found[0][0])}**", ""] if markdown else [_answer(found[0][0])]
    out = [*answer, *request.heading, *cautions(request)]
    for item, steps in found:
        name = f"{item.plan.engine} {item.plan.version}, {item.layer_group.name} layers ({item.layer_group.layers})"
        name += "" if item.part == WHOLE else f", {item.part} of {request.scenarios.shared_prefix} shared keys"
        out += ["", f"## {name}" if markdown else name]
        for step in steps:
            title = f"{step.number}. {step.title}"
            out += ["", f"### {title}" if markdown else title]
            for line in step.lines:
                lead = "- " if markdown else "   "
                out += textwrap.wrap(line, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead) + "  ")
    return "\n".join(out) + "\n"


def _answer(item: Planned) -> str:
    """What one layer of the first plan launches and reads."""
    plan, layers = item.plan, item.layer_group.layers
    o, moved = occupancy(plan), traffic(plan)
    covered = f"{min(o.working_blocks, o.sm_count)} of {o.sm_count} SMs ({percent(o.sm_coverage)})"
    text = (
        f"{plan.engine} launches {counted(o.launched_blocks, 'block')}, which keep {covered} busy, and reads "
        f"{human_bytes(moved.kv_read_bytes)} of KV in a layer"
    )
    return sentence(f"{text}, {human_bytes(moved.kv_read_bytes * layers)} in {layers} layers" if layers > 1 else text)


def explain_table(request: Request) -> Table:
    """One row per line of every story."""
    found = list(stories(request))
    rows = [
        {
            "engine": item.plan.engine,
            "version": item.plan.version,
            "layer_group": item.layer_group.name,
            **({} if item.part == WHOLE else {"part": item.part}),
            "batch": item.batch.size,
            "context": item.batch.max_seq_len,
            "step": step.number,
            "title": step.title,
            "text": line,
        }
        for item, steps in found
        for step in steps
        for line in step.lines
    ]
    return Table("explain", request.inputs, rows, answer=_answer(found[0][0]))
