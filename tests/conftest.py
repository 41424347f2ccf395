"""Options of the whole suite: folders of data that stand in for the committed copies."""

from __future__ import annotations

from pathlib import Path

import pytest

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
