"""Feeds recorded launches to the adapters: a module names its file with `GOLDEN = "engine"` and takes `case`.

Every case of every `GOLDEN.*.json` (and `GOLDEN.json`) in --golden-dir becomes one test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    name = metafunc.module.GOLDEN
    folder = Path(metafunc.config.getoption("--golden-dir"))
    files = sorted({*folder.glob(f"{name}.json"), *folder.glob(f"{name}.*.json")})
    cases: list[Any] = []
    for file in files:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        cases += [
            pytest.param({**case, "version": recorded["version"]}, id=f"{file.name}-{i}")
            for i, case in enumerate(recorded["cases"])
        ]
    if not cases:
        cases = [pytest.param(None, marks=pytest.mark.skip(reason=f"no {name}.*.json in {folder}"))]
    metafunc.parametrize("case", cases)


@pytest.fixture
def check():
    """Compares a recorded `out` with what the adapter made of our plan; names the fields that differ or are missing."""

    def compare(recorded: dict[str, Any], ours: dict[str, Any], left_out: dict[str, str]) -> None:
        wrong = {
            key: {"recorded": value, "ours": ours.get(key, "(missing)")}
            for key, value in recorded.items()
            if key not in left_out and (key not in ours or ours[key] != value)
        }
        assert not wrong, wrong

    return compare
