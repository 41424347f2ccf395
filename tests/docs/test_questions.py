"""The page of ten questions: each is answered by the first line of one command, which a person can read at a glance."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from decodecalc.cli.main import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "questions.md"


def test_ten_questions_have_one_command_and_one_line_each(docs_module: Callable[[str], ModuleType]) -> None:
    """Ten questions, each with one command whose first line the page shows. That the command prints this line now is
    tested with all pages."""
    doc = docs_module("blocks")
    questions = re.findall(r"^## (.+\?)$", PAGE.read_text(encoding="utf-8"), re.M)
    blocks = doc.blocks(PAGE)
    assert len(questions) == len(blocks) == 10
    asked = [doc.commands(block) for block in blocks]
    assert all(len(commands) == 1 and commands[0][0] in COMMANDS for commands in asked)
    assert len({commands[0][0] for commands in asked}) >= 8
    for block in blocks:
        assert block.output.lines == "1"
        answer = block.output.text.splitlines()[0]
        assert answer.endswith(".")
        assert len(answer) <= 200
        assert any(character.isdigit() for character in answer) or answer.startswith("coverage: ")
