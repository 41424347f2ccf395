"""A few seconds of the fuzz tool: nothing gets through, and the tool notices what would."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


def test_a_short_run_finds_nothing() -> None:
    """Twenty seconds of every kind of case, in a process with a memory limit of its own."""
    ran = subprocess.run([sys.executable, str(TOOL), "--seconds", "20"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    assert " commands" in ran.stdout


@pytest.fixture
def tool() -> Any:
    """The tool as a module."""
    spec = importlib.util.spec_from_file_location("decodecalc_fuzz", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_case_can_be_run_again(tool: Any, tmp_path: Path) -> None:
    """The same seed and number give the same case."""
    import random

    rows = [tool.mutate_json(random.Random("1/x/3"), {"a": [1, {"b": 2}]}, 3) for _ in range(2)]
    assert repr(rows[0]) == repr(rows[1])


@pytest.mark.parametrize("kind", ["commands", "calls"])
def test_an_exception_an_internal_error_and_a_wrong_exit_code_are_noticed(
    tool: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tool is for is what it reports."""
    import decodecalc as dc

    module = importlib.import_module("decodecalc.cli.main")

    def broken(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(dc, "plan", broken)
    monkeypatch.setattr(module, "run", lambda argv: 7)
    found = [tool.one(kind, 1, case)[0] for case in range(5)]
    assert any(text and ("planted" in text or "exit code" in text) for text in found)
