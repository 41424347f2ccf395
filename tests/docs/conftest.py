"""Access to docs/, which is no package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def docs_module() -> Callable[[str], ModuleType]:
    """docs_module("blocks") imports docs/blocks.py."""

    def load(name: str) -> ModuleType:
        key = f"decodecalc_docs_{name}"
        if key not in sys.modules:
            spec = importlib.util.spec_from_file_location(key, ROOT / "docs" / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            sys.modules[key] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[key])
        return sys.modules[key]

    return load
