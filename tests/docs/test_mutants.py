"""The list of faults stays one that can be planted, and the page shows what became of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    """benchmarks/mutants.py."""
    spec = importlib.util.spec_from_file_location("decodecalc_mutants", ROOT / "benchmarks" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_fault_can_be_planted(mutants: ModuleType) -> None:
    """Its text is in its file exactly once, is changed by it, and its tests exist."""
    for mutant in mutants.MUTANTS:
        assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1, mutant.name
        assert mutant.old != mutant.new
        assert all((ROOT / name).is_file() for name in mutant.tests if name.startswith("tests/"))
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS)


def test_the_page_shows_the_last_run_of_this_list(mutants: ModuleType) -> None:
    """Every fault of the list is in the page's table, and all were noticed."""
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    assert mutants.report((mutant, True) for mutant in mutants.MUTANTS) in page


def test_a_fault_that_survives_is_said(mutants: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that pass with the fault do not notice it; the file is as before afterwards."""
    mutant = mutants.Mutant("a", "x.py", "1", "2", ("t",))
    (tmp_path / "x.py").write_text("x = 1\n")
    seen: list[str] = []

    def passes(folder: Path, tests: tuple[str, ...]) -> bool:
        seen.append((folder / "x.py").read_text())
        return len(seen) == 1

    monkeypatch.setattr(mutants, "passes", passes)
    assert [mutants.is_noticed(mutant, tmp_path), mutants.is_noticed(mutant, tmp_path)] == [False, True]
    assert seen == ["x = 2\n", "x = 2\n"]
    assert (tmp_path / "x.py").read_text() == "x = 1\n"
    assert "**survives**" in mutants.report([(mutant, False)])
