"""Every command and script of README.md and docs/ runs, and prints what the page says it prints."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


doc = load("blocks")
PAGES = doc.pages()
OPTIONAL = [block for page in PAGES for block in doc.blocks(page) if block.needs]


def has_gpu() -> bool:
    """Whether blocks that need a GPU would run here, and take minutes."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks end with the exit code that the page states (0 unless it says so) and print the output it shows."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the kernels' tests set it for the whole process
    if any(block.exit_code == 3 for block in doc.blocks(page)) and has_gpu():
        pytest.skip("blocks of this page measure the GPU")
    for ran in doc.run_page(page, tmp_path):
        where = f"{page.name}, line {ran.block.line}"
        assert ran.code == ran.block.exit_code, f"{where}: {ran.err}"
        if ran.block.output is not None:
            assert ran.shown == ran.block.output.text, f"{where}: run `python docs/blocks.py`"
        if ran.code > 1:  # 1 is a check that failed, told on standard output
            assert ran.err.startswith("error: "), where


@pytest.mark.parametrize("block", OPTIONAL, ids=lambda block: f"{block.page.name}-{block.needs}")
def test_optional_modules_are_there_for_their_blocks(block: object) -> None:
    """A block that needs a module outside the test extras is skipped without it, and says so."""
    if block.is_missing:  # type: ignore[attr-defined]
        pytest.skip(f"{block.needs} is not installed; the docs extra has it")  # type: ignore[attr-defined]


def test_only_the_two_set_up_commands_are_not_decodecalc(tmp_path: Path) -> None:
    """A line that is neither is refused, so that no command goes untested."""
    page = tmp_path / "page.md"
    page.write_text("```sh\npip install something\n```\n")
    (block,) = doc.blocks(page)
    with pytest.raises(ValueError, match="no decodecalc command"):
        doc.commands(block)


def test_comments_say_exit_code_and_shown_lines(tmp_path: Path) -> None:
    """The parser reads exit codes, outputs and indented blocks."""
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- exit: 2 -->\n```sh\n# comment\ndecodecalc grid \\\n  --tp 3\n```\n\n"
        "<!-- output: 1, 3-4 -->\n```text\na\n```\n    ```python\n    x = 1\n    ```\n"
    )
    first, second = doc.blocks(page)
    assert (first.exit_code, first.output.lines, first.output.text) == (2, "1, 3-4", "a")
    assert doc.commands(first) == [["grid", "--tp", "3"]]
    assert (second.language, second.code, second.exit_code, second.output) == ("python", "x = 1", 0, None)
    assert doc.pick("1\n2\n3\n4\n5\n", first.output.lines) == "1\n…\n3\n4\n…"
