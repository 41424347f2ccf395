"""The glossary: every heading of every table and every code is explained, once and in full sentences."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import COMMANDS

import decodecalc
from decodecalc.engines.registry import all_codes
from decodecalc.tables.glossary import HEADINGS, find, meaning, terms
from decodecalc.tables.table import Table

PACKAGE = Path(decodecalc.__file__).parent


def headings_in_the_source() -> set[str]:
    """Every heading that stands in a `Column(...)` of the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Column" and len(node.args) > 1:
                title = node.args[1]
                if isinstance(title, ast.Constant) and title.value:
                    found.add(title.value)
    return found


def test_every_heading_of_the_source_is_explained() -> None:
    """A new column needs a definition; a definition that no column needs goes with the column."""
    written = headings_in_the_source()
    assert len(written) > 100
    assert sorted(written - {term.name for term in HEADINGS}) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_heading_that_a_command_prints_is_explained_for_it(table_of: Callable[..., Table], name: str) -> None:
    """Also the headings that are put together while the command runs; each has a meaning in that command's tables."""
    table = table_of(*COMMANDS[name])
    headings = [column.title for column in table.shown_columns()]
    assert headings
    assert [title for title in headings if meaning(title, table.command) is None] == []


def test_each_meaning_has_one_home_and_is_a_sentence() -> None:
    """No term is explained twice for the same commands; meanings end like sentences."""
    keys = [(term.name, term.kind, command) for term in terms() for command in (term.commands or ("",))]
    assert len(keys) == len(set(keys))
    for term in HEADINGS:
        assert term.meaning[0].isupper() or term.meaning.startswith(("live:", "(")), term
        assert term.meaning.endswith("."), term


def test_codes_of_gates_and_refusals_are_terms() -> None:
    """What stands in JSON can be looked up."""
    codes = all_codes()
    known = {term.name for term in terms()}
    assert set(codes.gates) | set(codes.refusals) <= known
    assert {term.kind for term in find("page_size")} == {"heading", "gate", "refusal"}


def test_the_command_answers_in_its_first_line(call: Any) -> None:
    """Words need no quotes; spelling may differ; a name with a command of its own says which."""
    assert call("glossary", "live", "blocks").out.startswith("live blocks: Blocks that have keys")
    assert call("glossary", "S_OPT").out.startswith("S_opt: The split count of least predicted time")
    assert "`decodecalc engines flashmla` shows it" in call("glossary", "flashmla").out
    wrong = call("glossary", "covrage")
    assert wrong.code == 2
    assert "did you mean coverage" in wrong.err
    rows = call("glossary", "--format", "json").rows
    assert {"coverage", "threshold", "geometry"} <= {row["term"] for row in rows}
