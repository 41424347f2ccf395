"""Drives the command line in this process and gives back what a shell would see."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from decodecalc.cli.main import run


@dataclass(frozen=True)
class Result:
    """Exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of a --format json run."""
        return json.loads(self.out)["rows"]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """call("grid", "--model", "llama3-8b") runs one command."""

    def invoke(*argv: str) -> Result:
        capsys.readouterr()
        code = run([str(a) for a in argv])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return invoke
