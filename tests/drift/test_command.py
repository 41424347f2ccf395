"""`decodecalc engines --installed`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

Build = Callable[[Mapping[str, str]], Path]
Files = Callable[..., dict[str, str]]
Call = Callable[..., Any]


def test_everything_same_exits_0(call: Call, tree: Build, flash_attn: Files) -> None:
    """One line per policy."""
    path = tree(flash_attn("2.8.4"))
    result = call("engines", "--installed", "--path", path)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-2:] == [
        "package     installed version  policy             policy's version  verdict  checks  differing checks",
        "flash-attn  2.8.4              flash-attention-2  2.8.4             same          9                 0",
    ]


def test_a_difference_exits_1_and_says_where(call: Call, tree: Build, flash_attn: Files) -> None:
    """file:line, expected and found."""
    result = call("engines", "--installed", "--path", tree(flash_attn("2.8.4", page=64)))
    assert result.code == 1
    assert (
        "flash-attn: csrc/flash_attn/flash_api.cpp:10: keys that a page must be a multiple of: expected 256, found 64"
        in result.out
    )


def test_an_unknown_version_exits_0_and_says_what_would_be_used(call: Call, tree: Build, flash_attn: Files) -> None:
    """Nothing differs, so nothing failed; but no one has read that release."""
    result = call("engines", "--installed", "--path", tree(flash_attn("3.1.0")))
    assert result.code == 0
    assert "no policy version is known to cover it; flash-attention-2@2.8.4 would be used" in result.out


def test_json_has_one_flat_row_per_check(call: Call, tree: Build, flash_attn: Files) -> None:
    """With the values on both sides."""
    result = call("engines", "--installed", "--path", tree(flash_attn("2.8.3")), "--format", "json")
    payload = json.loads(result.out)
    assert payload["schema"] == "decodecalc/engines/1"
    row = next(r for r in payload["rows"] if r["check"] == "most splits")
    assert (row["status"], row["expected"], row["found"], row["line"]) == ("same", 128, 128, 9)
    assert {"package", "package_version", "engine", "policy_version", "version_known", "file"} <= set(row)


def test_compiled_packages_say_so(call: Call, tree: Build) -> None:
    """No source, no difference: exit 0, and a way on."""
    path = tree({"flash_attn/flash_attn_interface.py": "", "flash_attn-2.8.3.dist-info/METADATA": ""})
    result = call("engines", "--installed", "--path", path)
    assert result.code == 0
    assert "no source" in result.out
    assert "--path takes a source checkout" in result.out


def test_nothing_installed_exits_3(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter without engines: an optional dependency is missing."""
    monkeypatch.setattr(metadata, "distributions", lambda: iter(()))
    result = call("engines", "--installed")
    assert (result.code, result.out) == (3, "")
    assert "none of vllm, sglang" in result.err
    assert "--path" in result.err


def test_installed_packages_are_found_by_distribution(
    call: Call, tree: Build, flash_attn: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running interpreter's packages come from importlib.metadata, with their version."""
    path = tree({**flash_attn("0"), "flash_attn-2.8.4.dist-info/METADATA": "Name: flash-attn\nVersion: 2.8.4\n"})
    found = metadata.Distribution.at(path / "flash_attn-2.8.4.dist-info")
    monkeypatch.setattr(metadata, "distributions", lambda: iter([found, found]))
    result = call("engines", "--installed", "--format", "json")
    assert result.code == 0
    assert {(r["package"], r["package_version"]) for r in result.rows} == {("flash-attn", "2.8.4")}


@pytest.mark.parametrize("argv", [("--path", "."), ("--installed", "--path", "no/such/place")])
def test_bad_paths_exit_2(call: Call, argv: tuple[str, ...], tmp_path: Path) -> None:
    """--path without --installed, and a place that does not exist."""
    result = call("engines", *argv)
    assert result.code == 2
    assert "path" in result.err.lower()
    assert "Traceback" not in result.err


def test_terminal_escapes_of_a_version_are_not_printed(call: Call, tree: Build) -> None:
    """Names come from files that anyone may have written."""
    files = {"flash_attn/flash_attn_interface.py": "", "flash_attn-2\x1b[31m.dist-info/METADATA": ""}
    result = call("engines", "--installed", "--path", tree(files))
    assert "\x1b" not in result.out
