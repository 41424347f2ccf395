"""A safe filter over columns: comparisons, arithmetic and `and`, `or`, `not` on column names and literals.

The expression is parsed by Python's own `ast`, and only listed kinds of nodes are evaluated. It can name nothing but
columns, call nothing and read no attribute.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from decodecalc.errors import InputError, UnknownNameError

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: np.isin(a, list(b)) if isinstance(a, np.ndarray) else a in b,
    ast.NotIn: lambda a, b: ~np.isin(a, list(b)) if isinstance(a, np.ndarray) else a not in b,
}
_ALLOWED: tuple[Any, ...] = (
    *(ast.Name, ast.Constant, ast.BoolOp, ast.Compare, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Load),
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd),
    *_BINARY,
    *_COMPARE,
)
MAX_LENGTH = 1000
MOST = (1 << 63) - 1
LISTS = ("grid", "merge_grid")


class Filter:
    """A parsed expression. `columns` are the names it reads; `mask(get)` is its value, get(name) giving a column."""

    def __init__(self, text: str, known: tuple[str, ...]) -> None:
        if len(text) > MAX_LENGTH:
            raise InputError(f"--where: at most {MAX_LENGTH} characters")
        try:
            self._body = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(
                f"--where: {text[:60]!r} is not an expression; use column names, plain numbers (8192, not 8k) "
                "and comparisons"
            ) from None
        self.columns = tuple(dict.fromkeys(n.id for n in ast.walk(self._body) if isinstance(n, ast.Name)))
        for name in self.columns:
            if name not in known:
                raise UnknownNameError("column in --where", name, known)
        self._check(self._body)
        if self._has_lists(self._body):
            raise InputError("--where: a grid is a list of numbers: compare launched_blocks or live_blocks instead")

    @staticmethod
    def _has_lists(body: ast.expr) -> bool:
        return any(isinstance(node, ast.Name) and node.id in LISTS for node in ast.walk(body))

    def _check(self, node: ast.AST) -> None:
        for child in ast.walk(node):
            if not isinstance(child, _ALLOWED):
                raise InputError(
                    f"--where: {type(child).__name__} is not allowed; use column names, numbers, strings, comparisons, "
                    "arithmetic, and / or / not, in"
                )
            if isinstance(child, ast.Constant) and not isinstance(child.value, (bool, int, float, str, type(None))):
                raise InputError(f"--where: {str(child.value)[:40]!r} is neither a number nor text")
            if isinstance(child, ast.Constant) and isinstance(child.value, int) and abs(child.value) > MOST:
                raise InputError(f"--where: a whole number is at most {MOST}")

    def mask(self, get: Callable[[str], Any]) -> Any:
        """True where the expression holds: a bool or a bool array."""
        try:
            with np.errstate(all="ignore"):  # a division by zero is no number, and no comparison with it holds
                value = self._value(self._body, get)
        except (TypeError, ArithmeticError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"--where: {str(error)[:100] or type(error).__name__}") from None
        if not isinstance(value, (bool, np.bool_)) and not (isinstance(value, np.ndarray) and value.dtype == bool):
            raise InputError("--where: the expression must be true or false, for example live_blocks < sm_count")
        return value

    def _value(self, node: ast.expr, get: Callable[[str], Any]) -> Any:
        if isinstance(node, ast.Name):
            return get(node.id)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self._value(item, get) for item in node.elts]
        if isinstance(node, ast.BinOp):
            return _arithmetic(type(node.op), self._value(node.left, get), self._value(node.right, get))
        if isinstance(node, ast.UnaryOp):
            inner = self._value(node.operand, get)
            if isinstance(node.op, ast.Not):
                return np.logical_not(inner)
            return _arithmetic(ast.Sub, 0, inner) if isinstance(node.op, ast.USub) else _arithmetic(ast.Add, 0, inner)
        if isinstance(node, ast.BoolOp):
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            out = self._value(node.values[0], get)
            for part in node.values[1:]:
                out = join(out, self._value(part, get))
            return out
        assert isinstance(node, ast.Compare)
        left = self._value(node.left, get)
        holds: Any = True
        for op, right_node in zip(node.ops, node.comparators):
            right = self._value(right_node, get)
            holds = np.logical_and(holds, _compared(type(op), left, right))
            left = right
        return holds


def _arithmetic(op: type[ast.operator], left: Any, right: Any) -> Any:
    """Numbers with numbers; a missing value stays missing."""
    if left is None or right is None:
        return None
    for value in (left, right):
        if isinstance(value, (str, list)) or (isinstance(value, np.ndarray) and value.dtype == object):
            raise InputError("--where: arithmetic is for numbers")
    # As floats, numbers beyond 2^53 lose their last digits and none is ever too large.
    if op in (ast.Mult, ast.Add, ast.Sub) and not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        return _BINARY[op](float(left), float(right))
    if op in (ast.Div, ast.FloorDiv, ast.Mod):
        left, right = np.asarray(left, dtype=float), np.asarray(right, dtype=float)
    found = _BINARY[op](left, right)
    return (
        found.item() if isinstance(found, np.generic) or (isinstance(found, np.ndarray) and found.ndim == 0) else found
    )


def _compared(op: type[ast.cmpop], left: Any, right: Any) -> Any:
    """A comparison; with a missing value only `==` and `!=` can hold."""
    if op in (ast.In, ast.NotIn):
        if not isinstance(right, list) or any(isinstance(item, (list, np.ndarray)) for item in right):
            raise InputError("--where: `in` takes a list of plain values, for example batch in (1, 2)")
        return _COMPARE[op](left, right)
    if isinstance(left, list) or isinstance(right, list):
        raise InputError("--where: a list goes with `in` only")
    if (left is None or right is None) and op not in (ast.Eq, ast.NotEq):
        return False
    if left is None or right is None:
        same = left is None and right is None
        return same if op is ast.Eq else not same
    return _COMPARE[op](left, right)
