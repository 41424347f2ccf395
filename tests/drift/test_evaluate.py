"""The evaluator computes what Python would, says unknown where it cannot know, and never runs anything."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.drift.evaluate import UNKNOWN, Evaluator, Thing, TooMuchError
from decodecalc.drift.module import parse


def evaluate(source: str, result: str = "return", **names: Any) -> Any:
    """Result of f in `source`; dots in names are written as two underscores."""
    module = parse(textwrap.dedent(source))
    given_names = {name.replace("__", "."): value for name, value in names.items()}
    evaluator = Evaluator(module.definitions, given_names)
    function = module.definitions["f"]
    return evaluator.returns(function) if result == "return" else evaluator.variable(function, result)


EXPRESSIONS = (
    "a // b", "a % b", "max(a, b)", "min(a, b, 7)", "a if a > b else b", "a < b and b < 90", "not a == b", "a > 3 or b",
    "sum([a, b, 1])", "len(range(a))", "sorted({a, b, 3})", "[i * a for i in range(3) if i != 1]", "(a, b)[0]",
    "-a + b", "a & b | 1", "abs(a - b)", "1 <= a <= 50", "min([a, b], key=lambda x: abs(x - 20))", "[1, 2, 3][:a]",
)  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(a=st.integers(0, 100), b=st.integers(1, 100))
def test_expressions_have_pythons_value(expression: str, a: int, b: int) -> None:
    """Every kind of expression that rules use evaluates as in Python."""
    assert evaluate(f"def f(a, b):\n    return {expression}", a=a, b=b) == eval(expression, {"a": a, "b": b})


@given(n=st.integers(0, 60), limit=st.integers(1, 20))
def test_statements_have_pythons_effect(n: int, limit: int) -> None:
    """Loops, conditions, augmented assignment, inner functions and list methods do what they do in Python."""
    source = """
    def f(n, limit):
        def step(x):
            return x * 2 if x < limit else x + 1
        found = []
        total: int = 0
        for i in range(n):
            if i % 3 == 0:
                continue
            if total > 40:
                break
            total += step(i)
            found.append(total)
        while total > limit:
            total -= limit
        return found + [total]
    """
    scope: dict[str, Any] = {}
    exec(textwrap.dedent(source), scope)
    assert evaluate(source, n=n, limit=limit) == scope["f"](n, limit)


def test_a_decisive_operand_decides_among_unknowns() -> None:
    """`or` with one true operand is true whatever the unknown ones are; without one it is unknown."""
    source = "def f(q):\n    return not (tensor.ndim == 3 or q > 1)"
    assert evaluate(source, q=2) is False
    assert evaluate(source, q=1) is UNKNOWN


def test_what_an_unknown_branch_may_set_is_unknown() -> None:
    """After `if unknown:` the variables of its branches are unknown, the others are not."""
    source = """
    def f(a):
        x = y = a
        sizes = [a]
        if device.is_new():
            x = 5
            sizes.append(9)
        return x
    """
    assert evaluate(source, "x", a=1) is UNKNOWN
    assert evaluate(source, "sizes", a=1) is UNKNOWN
    assert evaluate(source, "y", a=1) == 1
    assert evaluate("def f():\n    if g():\n        return 1\n    return 2") is UNKNOWN


def test_given_names_keep_their_value_and_parameters_do_not() -> None:
    """A given name overrides the function's own assignment; a parameter is only its first value."""
    assert evaluate("def f():\n    n = len(batch)\n    return n", n=7) == 7
    assert evaluate("def f(n):\n    n = n * 2\n    return n", n=7) == 14
    assert evaluate("def f(self):\n    return self.config.limit + props().count", self__config__limit=3) is UNKNOWN
    source = "def f(self):\n    return self.config.limit + ask().count"
    assert evaluate(source, **{"self__config__limit": 3, "ask()__count": 4}) == 7


def test_the_files_own_functions_constants_and_records_are_followed() -> None:
    """Module constants, helper functions, methods of self and records made by the file's classes."""
    source = """
    LIMIT = 4
    class Row:
        pass
    ROWS = (Row(warps=4, most=LIMIT * 3), Row(warps=2, most=9))
    def half(n):
        return n // 2
    class Backend:
        def cap(self, n):
            return max(n, ROWS[0].most)
    def f(self, n):
        return self.cap(half(n))
    """
    assert evaluate(source, n=50) == 25
    assert evaluate(source, n=2) == 12


def test_a_thing_exists() -> None:
    """A tensor stand-in is not None and is true; nothing else of it is known."""
    source = "def f(t):\n    return 1 if t is not None and t else 2"
    assert evaluate(source, t=Thing()) == 1
    assert evaluate("def f(t):\n    return t + 1", t=Thing()) is UNKNOWN


@pytest.mark.parametrize(
    "body",
    [
        "return 10 ** 10 ** 10", "return 1 << 10 ** 9", "return list(range(10 ** 15))", "return 'a' * 10 ** 12",
        "return [0] * 10 ** 12", "return __import__('os').system('x')", "return open('/x').read()",
        "return (lambda: 0).__class__", "return f", "return 1 / 0", "return [][3]", "return {}['x']", "return int('x')",
        "return eval('1')", "return f()",
    ],
)  # fmt: skip
def test_what_is_dangerous_or_wrong_is_unknown(body: str) -> None:
    """Huge values, calls of anything else, attributes of objects and errors give unknown, at once."""
    value = evaluate(f"def f():\n    {body}")
    assert value is UNKNOWN or not isinstance(value, (int, str, list))


def test_endless_loops_end() -> None:
    """A loop that does not end reaches the step limit."""
    with pytest.raises(TooMuchError):
        evaluate("def f():\n    n = 1\n    while n:\n        n = 3 - n\n    return n")


def test_launches_are_recorded_with_their_grid() -> None:
    """`kernel[grid](…)` is a launch; one in a branch that may not run makes the whole unknown."""
    module = parse(
        "def f(n):\n"
        "    grid = (n, 2)\n"
        "    if n > 3:\n"
        "        k2d[grid](x, TILE=16)\n"
        "    else:\n"
        "        k3d[(n, 2, 16)](x, TILE=32)\n"
        "    if other():\n"
        "        extra[(1,)](x)\n"
    )
    function = module.definitions["f"]
    (launch,) = Evaluator(module.definitions, {"n": 2, "other()": False}).launches(function)  # type: ignore[misc]
    assert (launch.kernel, launch.grid, launch.keywords["TILE"]) == ("k3d", (2, 2, 16), 32)
    (launch,) = Evaluator(module.definitions, {"n": 4, "other()": False}).launches(function)  # type: ignore[misc]
    assert (launch.kernel, launch.grid) == ("k2d", (4, 2))
    assert Evaluator(module.definitions, {"n": 2}).launches(function) is UNKNOWN
