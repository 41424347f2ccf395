"""Readers find constants by syntax, wherever they stand, and say so when they do not."""

from __future__ import annotations

import pytest

from decodecalc.drift.checks import (
    AnyOf,
    Argument,
    Computes,
    Constant,
    Defined,
    Keyword,
    Local,
    Mentions,
    NotFoundError,
    Reader,
    Reading,
    SetTo,
    Text,
    Uses,
)
from decodecalc.drift.package import packages
from decodecalc.engines import load_policy

SOURCE = '''
"""Docstring that mentions LIMIT = 99."""
LIMIT = 4 * 32
class Config:
    splits: int = 32
    sizes = [1, 2, LIMIT]
def run(x, page_size=1):
    chunk = 256
    n = get_env("TILE", 2048)
    declare("x", cap=16)
    chunk = 512
    return x // chunk
'''


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (Constant("LIMIT"), Reading(128, 3)),
        (Constant("Config.splits"), Reading(32, 5)),
        (Constant("Config.sizes"), Reading((1, 2, 128), 6)),
        (Local("run", "chunk"), Reading(256, 8)),
        (Argument("TILE"), Reading(2048, 9)),
        (Keyword("declare", "cap"), Reading(16, 10)),
        (SetTo("splits"), Reading(32, 5)),
        (Defined("run"), Reading(True, 7)),
        (Defined("walk"), Reading(False, 0)),
        (Uses("run", "page_size"), Reading(True, 7)),
        (Uses("run", "pages"), Reading(False, 7)),
        (Computes("run", "return", ({"x": 1024}, {"x": 5})), Reading((2, 0), 7)),
        (Computes("run", "chunk", ({"x": 0},)), Reading((512,), 8)),
        (AnyOf((Constant("GONE"), Constant("LIMIT"))), Reading(128, 3)),
        (Mentions(r"page_size\s*="), Reading(True, 7)),
        (Mentions("nowhere"), Reading(False, 0)),
    ],
)
def test_readers_find_values_and_lines(reader: Reader, expected: Reading) -> None:
    """Each reader on one file."""
    assert reader.read(SOURCE) == expected


@pytest.mark.parametrize(
    "reader",
    [
        Constant("GONE"), Constant("run"), Local("run", "gone"), Local("gone", "chunk"), Argument("GONE"),
        Keyword("declare", "gone"), SetTo("gone"), Uses("gone", "x"), Computes("gone", "return", ({},)),
        Computes("run", "return", ({},)), AnyOf((Constant("A"), Constant("B"))), Text("nowhere (1)"),
    ],
)  # fmt: skip
def test_readers_say_when_there_is_nothing(reader: Reader) -> None:
    """A symbol that is gone, or a value that does not follow, is a NotFoundError with a reason."""
    with pytest.raises(NotFoundError, match=r"\w"):
        reader.read(SOURCE)


@pytest.mark.parametrize("text", ["128", "128U", "0.8f", "0.8", "name"])
def test_text_reads_numbers_as_numbers(text: str) -> None:
    """C++ suffixes are dropped."""
    expected = {"128": 128, "128U": 128, "0.8f": 0.8, "0.8": 0.8, "name": "name"}[text]
    assert Text(r"x = ([\w.]+);").read(f"\nx = {text};") == Reading(expected, 2)


def test_text_finds_all() -> None:
    """Every match in order."""
    assert Text(r"SIZE = (\d+)", all=True).read("SIZE = 1\nSIZE = 2") == Reading((1, 2), 1)


def test_every_check_has_an_expectation_for_every_version() -> None:
    """No check's expected value fails to compute for a version that it applies to, and each version has a check."""
    for package in packages():
        for followed in package.follows:
            policy = load_policy(followed.engine)
            for version in followed.candidates(policy):
                for check in followed.checks:
                    if check.when(version.rules):
                        assert check.expected(version) is not None, (followed.engine, version.name, check.what)
