"""The architecture page names places that exist, and answers what a newcomer asks."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:decodecalc|tests|kernels|benchmarks|reports|docs)/[^`*]*)`", PAGE)))
QUESTIONS = re.findall(r"^\*\*([^*]+\?)\*\*(.*?)(?=\n\n)", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMED)
def test_each_named_place_exists(name: str) -> None:
    """A path of the page is a file or, with a slash at its end, a folder of the repository."""
    assert (ROOT / name).is_dir() if name.endswith("/") else (ROOT / name).is_file()


@pytest.mark.parametrize(("question", "answer"), QUESTIONS, ids=[q for q, _ in QUESTIONS])
def test_each_question_is_answered_with_a_place(question: str, answer: str) -> None:
    """The answer names a path; bare file names in it are files of the first folder that it names."""
    places = re.findall(r"`([^`]*/[^`]*)`", answer)
    assert places, question
    folder = ROOT / places[0] if places[0].endswith("/") else (ROOT / places[0]).parent
    for file in re.findall(r"`(\w+\.py)`", answer):
        assert (folder / file).is_file() or any((ROOT / place).name == file for place in places), file


def test_there_are_a_dozen_questions() -> None:
    """A newcomer's usual ones."""
    assert len(QUESTIONS) >= 12
    assert len(NAMED) >= 24


def test_the_figure_shows_each_package_of_the_code(docs_module: Any) -> None:
    """Every package and top-level module is in a layer, and the figure is a picture."""
    layers: ModuleType = docs_module("layers")
    known = {name.split("/")[0] for layer in layers.LAYERS for name in layer.names} | {"data", "__init__"}
    there = {p.stem for p in (ROOT / "decodecalc").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert there <= known
    assert layers.draw().startswith(b"\x89PNG")
