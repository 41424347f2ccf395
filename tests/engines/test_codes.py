"""Every code that a policy's source can emit is listed with a sentence, and every listed code is emitted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lawful import BOTH, MLA, laws

import decodecalc
from decodecalc.engines import engine_names, load_policy
from decodecalc.engines.registry import all_codes
from decodecalc.launch import takes
from decodecalc.launch.codes import Codes

ROOT = Path(decodecalc.__file__).parent
SOURCES = sorted([*ROOT.glob("engines/**/*.py"), *ROOT.glob("launch/*.py"), ROOT / "cost" / "bundled.py"])
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
CALLS = {"GateError": (1, "code"), "GateArray": (0, "name")}


def literals(node: ast.expr) -> list[str]:
    """The texts that an expression may be, with `*` for what is formatted in; a variable gives none."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return literals(node.body) + literals(node.orelse)
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)]
    return []


def behind(tree: ast.Module, name: str) -> Iterator[str]:
    """Texts that a variable of a call may hold: what it runs over, a row's entry of a table, or a returned pair's code.

    A row is a tuple that a loop unpacks; a pair is (code, reason), which functions return that raise nothing.
    """
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.For, ast.comprehension))
            and isinstance(node.target, ast.Name)
            and node.target.id == name
        ):
            yield from (text for item in getattr(node.iter, "elts", ()) for text in literals(item))
        if isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Tuple):
            names = [getattr(item, "id", "") for item in node.target.elts]
            if name in names and isinstance(node.iter, ast.Name):
                yield from rows(tree, node.iter.id, names.index(name))


def rows(tree: ast.Module, table: str, column: int) -> Iterator[str]:
    """Texts of one column of the tuples that a variable is set to."""
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(getattr(target, "id", "") == table for target in targets):
            for item in getattr(getattr(node, "value", None), "elts", ()):
                if isinstance(item, ast.Tuple) and len(item.elts) > column:
                    yield from literals(item.elts[column])


def returned(tree: ast.Module) -> Iterator[str]:
    """Codes of the pairs (code, reason) that functions return."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            yield from (text for text in literals(node.value.elts[0]) if SNAKE.fullmatch(text))


def emitted(call: str) -> set[str]:
    """Codes of all calls of `GateError` or `GateArray` in the sources of policies."""
    place, keyword = CALLS[call]
    found: set[str] = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if call == "GateError":
            found |= set(returned(tree))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != call:
                continue
            given = [k.value for k in node.keywords if k.arg == keyword] + node.args[place : place + 1]
            assert given, f"{path.name}:{node.lineno} raises without a code"
            found |= set(literals(given[0]))
            if isinstance(given[0], ast.Name):
                found |= set(behind(tree, given[0].id))
    return found


def listed(call: str) -> set[str]:
    """The codes that have a sentence."""
    return set(all_codes().refusals if call == "GateError" else all_codes().gates)


def matches(pattern: str, code: str) -> bool:
    """Whether a code is what a text with formatted parts may become."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[a-z0-9]+"), code) is not None


@pytest.mark.parametrize(("call", "least"), [("GateError", 90), ("GateArray", 75)])
def test_every_emitted_code_has_a_sentence(call: str, least: int) -> None:
    """Codes are read from the sources; a text with a formatted part stands for at least one listed code."""
    codes = emitted(call)
    assert len(codes) >= least
    missing = sorted(code for code in codes if not any(matches(code, known) for known in listed(call)))
    assert not missing, f"give {', '.join(missing)} a sentence in the codes.py of the engine's folder"


@pytest.mark.parametrize("call", CALLS)
def test_every_listed_code_is_emitted(call: str) -> None:
    """No sentence outlives its code. The combinations' own codes are in launch/takes.py."""
    codes = emitted(call) | (set(takes._VALID) if call == "GateError" else set())
    unused = sorted(code for code in listed(call) if not any(matches(emits, code) for emits in codes))
    assert not unused, unused


def test_codes_are_snake_case_and_sentences_are_sentences() -> None:
    """A code is lower case with underscores; its text begins with a capital letter and ends with a full stop."""
    for table in (all_codes().refusals, all_codes().gates):
        for code, text in table.items():
            assert SNAKE.fullmatch(code), code
            assert re.fullmatch(r"[A-Z].{14,}\.", text), (code, text)


@pytest.mark.parametrize("name", engine_names())
def test_plans_carry_listed_gates(name: str) -> None:
    """The gates of a plan of every version are in the list."""
    law, policy = laws()[name], load_policy(name)
    latent = decodecalc.Geometry(16, 1, 576, 512, mla=True)
    layers = {MLA: [latent], BOTH: [latent, decodecalc.Geometry(32, 8, 128)]}.get(
        law.layers, [decodecalc.Geometry(32, 8, 128)]
    )
    for version in policy.versions:
        for layer in layers:
            for gpu in law.devices_of():
                if any(not one.against(layer, law.cache, gpu) for one in policy.takes(version.name)):
                    plan = policy.plan(layer, decodecalc.Batch([300, 5000]), law.cache, gpu, {}, version.name)
                    assert {gate.name for gate in plan.gates} <= set(all_codes().gates)


def test_a_code_has_one_sentence() -> None:
    """A folder may repeat a shared code, but not give it another meaning."""
    first = Codes(refusals={"page_size": "The engine does not take pages of this size."})
    assert first.with_(first) == first
    with pytest.raises(ValueError, match="page_size"):
        first.with_(Codes(refusals={"page_size": "Something else."}))


def test_combinations_refuse_with_listed_codes() -> None:
    """The reasons that a combination may have are all listed."""
    assert set(takes._VALID) <= set(all_codes().refusals)
    with pytest.raises(decodecalc.InputError, match="lists no combination"):
        takes.admit("mine", "1", (), decodecalc.Geometry(8, 8, 64), decodecalc.KvCache(), decodecalc.load_gpu("h100"))
    assert takes.Takes().against(decodecalc.Geometry(8, 8, 64), decodecalc.KvCache(), decodecalc.load_gpu("h100")) == []
