"""Runs the text of a Triton attention kernel, up to its tile loop, as plain Python: which program visits which tiles.

`triton.language` is replaced by a few NumPy functions; the kernel is cut at its first loop and returns that loop's
bounds. None means that the program exits early.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Array(np.ndarray):
    """An array with Triton's cast."""

    def to(self, kind: Any) -> Array:
        return self


def array(values: Any) -> Any:
    """As an `Array`."""
    return np.asarray(values).view(Array)


class Pointer:
    """A pointer into `data`, or into memory whose contents do not matter."""

    def __init__(self, data: Any = None, offset: Any = 0) -> None:
        self.data, self.offset = data, offset

    def __add__(self, step: Any) -> Pointer:
        return Pointer(self.data, self.offset + step)

    def load(self) -> Any:
        if self.data is None:
            return array(np.zeros(np.shape(self.offset)))
        return int(self.data[self.offset])


class Language:
    """The functions of triton.language that come before the tile loop."""

    program: tuple[int, ...] = (0, 0, 0)

    def __getattr__(self, name: str) -> Any:
        return object()

    def program_id(self, axis: int) -> int:
        return self.program[axis]

    def load(self, pointer: Pointer, mask: Any = None, other: Any = None, **hints: Any) -> Any:
        return pointer.load()

    def arange(self, start: int, end: int) -> Any:
        return array(np.arange(start, end))

    def zeros(self, shape: Any, dtype: Any = None) -> Any:
        return array(np.zeros([int(n) for n in shape], dtype=np.int8))

    def full(self, shape: Any, value: float, dtype: Any = None) -> Any:
        return array(np.full([int(n) for n in shape], value))

    def where(self, condition: Any, one: Any, two: Any) -> Any:
        return array(np.where(condition, one, two))

    def sum(self, values: Any, axis: int) -> Any:
        return array(np.asarray(values).sum(axis))

    def minimum(self, one: Any, two: Any) -> Any:
        return min(one, two)

    def maximum(self, one: Any, two: Any) -> Any:
        return max(one, two)

    def cdiv(self, one: int, two: int) -> int:
        return -(-one // two)

    def static_assert(self, *args: Any) -> None: ...


def kernel_until_tile_loop(modules: list[types.ModuleType], name: str) -> tuple[Callable[..., Any], Language]:
    """The kernel as a function that returns its tile loop's (first, end), and the language object it reads."""
    language = Language()
    names: dict[str, Any] = {}
    for module in modules:
        names.update(vars(module))
    names["tl"] = language
    for module in modules:
        for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
                node.decorator_list = []
                if node.name == name:
                    _cut(node)
                tree = ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[]))
                exec(compile(tree, str(module.__file__), "exec"), names)
    return names[name], language


def _cut(node: ast.FunctionDef) -> None:
    at = next(i for i, statement in enumerate(node.body) if isinstance(statement, ast.For))
    loop = node.body[at]
    assert isinstance(loop, ast.For)
    assert isinstance(loop.iter, ast.Call)
    first, end = loop.iter.args[:2]
    node.body[at:] = [ast.Return(ast.Tuple([first, end], ast.Load()))]
