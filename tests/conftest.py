"""Options of the whole suite (folders of data that stand in for the committed copies) and its shared fixtures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from decodecalc.cli.main import run

# No test asserts wall time, so examples have no deadline. CI draws the same examples every time: what it reports can be
# had again; everybody else's runs go on exploring.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("suite"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "suite")

DATA = Path(__file__).parent / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, what in (
        ("golden", "launches recorded from the engines' own code (ENGINE.*.json)"),
        ("configs", "model configurations (configs.json, configs_expected.json)"),
        ("traces", "profiler traces (NAME.json.gz beside NAME.inputs.json)"),
    ):
        parser.addoption(
            f"--{name}-dir", default=str(DATA / name), help=f"folder of {what}; default: the committed copy"
        )


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The committed test data."""
    return DATA


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
