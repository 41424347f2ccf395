"""What a check reads from an engine's source, and what it should find there.

A check is data: which files may hold the value, how to read it, and what our policy of a version expects. Expected
values come from the policy itself (its rules or its plans), so a check compares the engine with what decodecalc would
answer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from decodecalc.drift.evaluate import UNKNOWN, Evaluator, Record, Thing, TooMuchError, dotted
from decodecalc.drift.module import Module, NotPythonError, line_of, parse

THING = Thing()  # stands for a tensor in a check's given names


class NotFoundError(Exception):
    """The symbol is not in the file, or its value cannot be determined from this source."""


@dataclass(frozen=True)
class Reading:
    """A value read from a file, and its line (0 stands for the file as a whole)."""

    value: Any
    line: int = 0


class Reader:
    """How a value is read from a file's text. Raises NotFoundError."""

    def read(self, text: str) -> Reading:
        """The value."""
        raise NotImplementedError


@lru_cache(maxsize=16)  # several checks read one file
def _module(text: str) -> Module:
    try:
        return parse(text)
    except NotPythonError as error:
        raise NotFoundError(f"not Python: {error}") from None


def _evaluated(compute: Callable[..., Any], *args: Any) -> Any:
    try:
        return compute(*args)
    except (TooMuchError, RecursionError):
        return UNKNOWN


@dataclass(frozen=True)
class Constant(Reader):
    """A module's or class's constant: `NAME` or `Class.NAME`."""

    name: str

    def read(self, text: str) -> Reading:
        """The constant's value."""
        module = _module(text)
        node = module.definitions.get(self.name)
        if not isinstance(node, ast.expr):
            raise NotFoundError(f"no constant {self.name}")
        value = _evaluated(Evaluator(module.definitions, {}).value, node)
        return Reading(_plain(value, self.name), module.lines[self.name])


@dataclass(frozen=True)
class Local(Reader):
    """The value that is first assigned to a local variable of a function, where it is a constant."""

    function: str
    name: str

    def read(self, text: str) -> Reading:
        """The first value assigned."""
        module = _module(text)
        function = module.definitions.get(self.function)
        for node in ast.walk(function) if function else ():
            if isinstance(node, ast.Assign) and any(dotted(t) == self.name for t in node.targets):
                value = _evaluated(Evaluator(module.definitions, {}).value, node.value)
                return Reading(_plain(value, self.name), node.lineno)
        raise NotFoundError(f"no variable {self.name} in {self.function}")


@dataclass(frozen=True)
class Keyword(Reader):
    """A constant keyword argument of the first call of `callee` anywhere in the file (or in `function`)."""

    callee: str
    keyword: str

    def read(self, text: str) -> Reading:
        """The argument's value."""
        tree = _tree(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = dotted(node.func) or ""
                for argument in node.keywords:
                    if argument.arg == self.keyword and name.rsplit(".", 1)[-1] == self.callee:
                        value = _evaluated(Evaluator({}, {}).value, argument.value)
                        return Reading(_plain(value, self.keyword), argument.value.lineno)
        raise NotFoundError(f"no call {self.callee}({self.keyword}=…)")


@dataclass(frozen=True)
class SetTo(Reader):
    """The constant that a (dotted) name is set to anywhere in the file, in a class of any name too."""

    name: str

    def read(self, text: str) -> Reading:
        """The first constant."""
        for node in ast.walk(_tree(text)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            if any(dotted(t) == self.name for t in targets):
                assert isinstance(node, (ast.Assign, ast.AnnAssign))
                if isinstance(node.value, ast.Constant):
                    return Reading(node.value.value, node.lineno)
        raise NotFoundError(f"nothing sets {self.name} to a constant")


@dataclass(frozen=True)
class Argument(Reader):
    """A constant argument that follows another constant one, as in get_int_env_var("NAME", 256)."""

    after: str

    def read(self, text: str) -> Reading:
        """The argument after the one that is `after`."""
        for node in ast.walk(_tree(text)):
            if isinstance(node, ast.Call):
                for first, second in zip(node.args, node.args[1:]):
                    if isinstance(first, ast.Constant) and first.value == self.after:
                        value = _evaluated(Evaluator({}, {}).value, second)
                        return Reading(_plain(value, self.after), second.lineno)
        raise NotFoundError(f"no default of {self.after}")


@dataclass(frozen=True)
class Defined(Reader):
    """Whether a function, method, class or constant exists."""

    name: str

    def read(self, text: str) -> Reading:
        """Whether it does."""
        module = _module(text)
        return Reading(self.name in module.definitions, module.lines.get(self.name, 0))


@dataclass(frozen=True)
class Uses(Reader):
    """Whether a function has a parameter, a variable or an attribute of some name."""

    function: str
    name: str

    def read(self, text: str) -> Reading:
        """Whether it occurs."""
        module = _module(text)
        function = module.definitions.get(self.function)
        if function is None:
            raise NotFoundError(f"no {self.function}")
        for node in ast.walk(function):
            name = getattr(node, "arg", None) if isinstance(node, (ast.arg, ast.keyword)) else dotted(node)
            if name == self.name:
                return Reading(True, getattr(node, "lineno", 0))
        return Reading(False, module.lines[self.function])


@dataclass(frozen=True)
class Computes(Reader):
    """What a function computes in several cases.

    result: a (dotted) variable after the last line of the function, or "return". cases: the names given in each case;
    `given` applies to all of them. A name that ends in () stands for what a call of it returns.
    """

    function: str
    result: str
    cases: tuple[Mapping[str, Any], ...]
    given: Mapping[str, Any] = field(default_factory=dict)

    def read(self, text: str) -> Reading:
        """A tuple with one value for each case."""
        module = _module(text)
        function = module.definitions.get(self.function)
        if function is None:
            raise NotFoundError(f"no function {self.function}")
        values = []
        for case in self.cases:
            evaluator = Evaluator(module.definitions, {**self.given, **case})
            if self.result == "return":
                value = _evaluated(evaluator.returns, function)
            else:
                value = _evaluated(evaluator.variable, function, self.result)
            values.append(_plain(value, f"{self.result} of {self.function}"))
        line = module.lines[self.function] if self.result == "return" else line_of(function, self.result)
        return Reading(tuple(values), line)


@dataclass(frozen=True)
class LaunchCalls(Reader):
    """The kernels that a function launches in several cases, as (name, grid, values of `keywords`) each, or only the
    first one."""

    function: str
    cases: tuple[Mapping[str, Any], ...]
    given: Mapping[str, Any] = field(default_factory=dict)
    keywords: tuple[str, ...] = ()
    first_only: bool = False

    def read(self, text: str) -> Reading:
        """For each case a tuple of launches."""
        module = _module(text)
        function = module.definitions.get(self.function)
        if function is None:
            raise NotFoundError(f"no function {self.function}")
        values = []
        for case in self.cases:
            evaluator = Evaluator(module.definitions, {**self.given, **case})
            found = _evaluated(evaluator.launches, function)
            if not isinstance(found, list):
                raise NotFoundError(f"the launches of {self.function} cannot be determined from this source")
            launches = found[:1] if self.first_only else found
            what = f"the launch of {self.function}"
            values.append(
                tuple(
                    (
                        launch.kernel,
                        _plain(launch.grid, what),
                        *(_plain(launch.keywords.get(k, UNKNOWN), f"{k} of {what}") for k in self.keywords),
                    )
                    for launch in launches
                )
            )
        return Reading(tuple(values), module.lines[self.function])


@dataclass(frozen=True)
class AnyOf(Reader):
    """The first of several readers that finds something, for values that moved between releases."""

    readers: tuple[Reader, ...]

    def read(self, text: str) -> Reading:
        """What the first reader finds."""
        problems = []
        for reader in self.readers:
            try:
                return reader.read(text)
            except NotFoundError as problem:
                problems.append(str(problem))
        raise NotFoundError("; ".join(problems))


@dataclass(frozen=True)
class Text(Reader):
    """What the group of a pattern finds in a file of any language; with `all`, every match in order. Numbers become
    ints."""

    pattern: str
    all: bool = False

    def read(self, text: str) -> Reading:
        """The group's text, or a tuple of all matches."""
        found = list(re.finditer(self.pattern, text))
        if not found:
            raise NotFoundError("the expression that defines it is not in the file")
        line = text.count("\n", 0, found[0].start()) + 1
        values = tuple(_number(m[1]) for m in found)
        return Reading(values if self.all else values[0], line)


@dataclass(frozen=True)
class Mentions(Reader):
    """Whether a pattern occurs in a file of any language."""

    pattern: str

    def read(self, text: str) -> Reading:
        """Whether it does."""
        found = re.search(self.pattern, text)
        return Reading(found is not None, 0 if found is None else text.count("\n", 0, found.start()) + 1)


def _tree(text: str) -> ast.AST:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotFoundError(f"not Python: {error}") from None


def _number(text: str) -> int | float | str:
    cleaned = text.strip().rstrip("uUlL")
    try:
        return int(cleaned)
    except ValueError:
        try:
            return float(cleaned.rstrip("f"))
        except ValueError:
            return text


def _plain(value: Any, what: str) -> Any:
    """The value with records as numbers. Raises NotFoundError where it is not known."""
    if value is UNKNOWN or isinstance(value, Thing):
        raise NotFoundError(f"{what} cannot be determined from this source")
    if isinstance(value, Record):
        return tuple(v for _, v in value.fields)
    if isinstance(value, (tuple, list)):
        return tuple(_plain(v, what) for v in value)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(_plain(v, what) for v in value))
    return value


@dataclass(frozen=True)
class Check:
    """One quantity that decides a policy.

    what: the quantity in words. files: where it may be, newest place first, relative to the package. expected: its
    value, from the rules of the version (for `Computes`, from our plans). when: whether a version has it. cases: names
    of the cases of a `Computes`, for messages.
    """

    what: str
    files: Sequence[str]
    reader: Reader
    expected: Callable[[Any], Any]
    when: Callable[[Any], bool] = lambda rules: True
    cases: Sequence[str] = ()
