"""A few seconds of the fuzz tool: nothing gets through, and the tool notices what would."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

import decodecalc as dc
from benchmarks.fuzz import __main__ as tool
from benchmarks.fuzz import commands
from benchmarks.fuzz.contract import GotThroughError, check_rows, run_command
from benchmarks.fuzz.values import mutate_json

ROOT = Path(__file__).parents[2]


def test_a_short_run_finds_nothing() -> None:
    """Twenty seconds of every kind of case, in a process with a memory limit of its own."""
    command = [sys.executable, "-m", "benchmarks.fuzz", "--seconds", "20"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    assert all(f" {kind}" in ran.stdout for kind in tool.KINDS)


def test_a_case_can_be_run_again() -> None:
    """The same seed and number give the same case."""
    rows = [mutate_json(random.Random("1/x/3"), {"a": [1, {"b": 2}]}, 3) for _ in range(2)]
    assert repr(rows[0]) == repr(rows[1])


def test_every_command_and_every_figure_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name of the command line comes up, with every kind of figure and every suite of `verify`."""
    from decodecalc.cli.main import COMMANDS, cli

    seen: set[tuple[str, ...]] = set()
    monkeypatch.setattr(commands, "run_command", lambda argv: seen.add(tuple(argv)))
    for case in range(4000):
        commands.commands(random.Random(case), tmp_path)
    assert {name for name in COMMANDS if not any(name in argv for argv in seen)} == set()
    for name, parameter in (("plot", "figure"), ("verify", "suite")):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        choices = next(p.type.choices for p in command.params if p.name == parameter)
        assert {c for c in choices if not any(name in argv and c in argv for argv in seen)} == set()
    assert all("--dry-run" in argv for argv in seen if argv[:1] == ("verify",))


@pytest.mark.parametrize("kind", ["commands", "plans"])
def test_an_exception_an_internal_error_and_a_wrong_exit_code_are_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tool is for is what it reports."""
    module = importlib.import_module("decodecalc.cli.main")

    def broken(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(dc, "plan", broken)
    monkeypatch.setattr(module, "run", lambda argv: 7)
    found = [tool.one(kind, 1, case)[0] for case in range(5)]
    assert any(text and ("planted" in text or "exit code" in text) for text in found)


def test_memory_that_was_not_refused_first_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that says that it ran out of memory was not estimated before it was built."""
    module = importlib.import_module("decodecalc.cli.main")

    def runs_out(argv: list[str]) -> int:
        module._say("out of memory; ask for fewer scenarios at once")
        return 2

    monkeypatch.setattr(module, "run", runs_out)
    with pytest.raises(GotThroughError, match="not refused before"):
        run_command(["grid"])


def test_a_case_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on after a case that never ends, and names it."""

    def endless(rng: random.Random, folder: Path) -> tuple[str, int]:
        while True:
            try:
                time.sleep(0)
            except Exception:  # what is tested may swallow every error of its own
                continue

    monkeypatch.setitem(tool.KINDS, "commands", endless)
    monkeypatch.setattr(tool, "SLOW_S", 0.1)
    found, _, _ = tool.one("commands", 1, 0)
    assert found is not None
    assert found.startswith("slow")


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal holds what is done: no case runs twice, and what was found stays found."""
    ran: list[str] = []

    def case(rng: random.Random, folder: Path) -> tuple[str, int]:
        ran.append(f"{rng.random()}")
        if len(ran) == 2:
            raise GotThroughError("planted")
        return "", 3

    monkeypatch.setitem(tool.KINDS, "plans", case)
    path = tmp_path / "journal.json"
    for cases in (2, 5):
        tool.fuzz(tool.Journal.of(path, 1), ["plans"], None, {"plans": cases}, say=lambda text: None)
    journal = tool.Journal.of(path, 1)
    assert journal.done == {"plans": 5}
    assert journal.calls == {"plans": 4 * 3 + 1}
    assert len(set(ran)) == 5
    assert journal.failures == 1
    assert "planted" in journal.found[0]
    with pytest.raises(SystemExit, match="seed 1"):
        tool.Journal.of(path, 2)


def test_journals_of_several_processes_are_added_up(tmp_path: Path) -> None:
    """Runs of different seeds give one sum of each kind, and everything that any of them found."""
    for seed in (1, 2):
        journal = tool.Journal(seed, path=tmp_path / f"{seed}.json")
        journal.add("loaders", 2, 0.5, None)
        journal.add("plans", 4, 0.5, f"planted {seed}" if seed == 2 else None)
        journal.save()
    said: list[str] = []
    assert tool.add_up([tool.Journal.of(tmp_path / f"{seed}.json", None) for seed in (1, 2)], said.append) == 1
    assert {"loaders: 4 calls in 2 cases", "plans: 8 calls in 2 cases", "1 got through"} <= set(said)
    assert "loaders and plans together: 12 calls" in said
    assert "got through: planted 2" in said
    assert tool.counts("plans=3,commands=2") == {"commands": 2, "plans": 3}
    assert tool.counts("7") == dict.fromkeys(tool.KINDS, 7)
    with pytest.raises(SystemExit, match="is no journal"):
        tool.Journal.of(tmp_path / "none.json", None)


@pytest.mark.parametrize(
    "row",
    [
        {"sm_coverage": 1.5},
        {"kv_read_bytes": -1},
        {"live_blocks": 9, "launched_blocks": 8},
        {"total_s": 3.0, "low_s": 1.0, "high_s": 2.0},
    ],
)
def test_numbers_that_cannot_be_are_noticed(row: dict[str, Any]) -> None:
    """A silent wrong answer is found where it contradicts itself."""
    with pytest.raises(GotThroughError):
        check_rows({"rows": [row]}, "")
