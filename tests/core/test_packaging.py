"""What is installed is what is in the repository, under names that cannot clash."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    """The project's own metadata."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_folder_is_installed(project: dict) -> None:
    """The explicit package list (the price of renaming kernels/) misses no folder."""
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "decodecalc").rglob("__init__.py")}
    listed = set(project["tool"]["setuptools"]["packages"])
    assert listed == folders | {"decodecalc_kernels"} | kernel_subpackages()


def kernel_subpackages() -> set[str]:
    """Packages below kernels/, under their installed name."""
    below = (path.parent.relative_to(ROOT / "kernels").parts for path in (ROOT / "kernels").rglob("__init__.py"))
    return {".".join(("decodecalc_kernels", *parts)) for parts in below if parts}


def test_the_kernels_do_not_take_the_name_of_another_project() -> None:
    """`kernels` belongs to another package; ours imports as decodecalc_kernels, from this repository's folder."""
    ours = importlib.import_module("decodecalc_kernels")
    assert Path(ours.__file__).resolve().parent.name in ("kernels", "decodecalc_kernels")


def test_the_version_has_one_home(project: dict) -> None:
    """Metadata takes it from decodecalc._version."""
    import decodecalc

    assert project["project"]["dynamic"] == ["version"]
    assert decodecalc.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_ci_runs_the_readmes_own_test_command() -> None:
    """The test line of README.md stands in .ci/run word for word."""
    readme = (ROOT / "README.md").read_text()
    line = next(line for line in readme.splitlines() if line.endswith("-m pytest -n auto"))
    assert line.strip() in (ROOT / ".ci" / "run").read_text()
