"""A Python file as names and syntax trees: what it defines and where, without importing it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Module:
    """What a file defines.

    definitions: functions, classes and assigned expressions by name (`NAME`, `Class.method`, `Class.FIELD`). lines: the
    line of each definition.
    """

    definitions: dict[str, ast.AST]
    lines: dict[str, int]


class NotPythonError(Exception):
    """A file that does not parse."""


def parse(text: str) -> Module:
    """The definitions of a file. Raises NotPythonError when it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in someone else's strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotPythonError(str(error) or type(error).__name__) from None
    module = Module({}, {})
    for name, node, line in _definitions(tree.body, ""):
        # The first definition is kept: a later one is a fallback, as in try/except ImportError.
        module.definitions.setdefault(name, node)
        module.lines.setdefault(name, line)
    return module


def _definitions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST, int]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node, node.lineno
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, node, node.lineno
            if not prefix:
                yield from _definitions(node.body, node.name + ".")
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, node.value, node.lineno
        elif isinstance(node, ast.AnnAssign):
            if isinstance(node.target, ast.Name) and node.value is not None:
                yield prefix + node.target.id, node.value, node.lineno
        elif isinstance(node, (ast.If, ast.Try)):
            inner = [node.body, node.orelse]
            inner += [handler.body for handler in node.handlers] if isinstance(node, ast.Try) else []
            for branch in inner:
                yield from _definitions(branch, prefix)


def line_of(function: ast.AST, name: str) -> int:
    """The line where a (dotted) variable of a function is first set, or the function's own line if it is never set."""
    from decodecalc.drift.evaluate import dotted

    found = [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store) and dotted(node) == name
    ]
    return min(found, default=getattr(function, "lineno", 0))
