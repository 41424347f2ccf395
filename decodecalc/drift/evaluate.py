"""Determines what a piece of someone else's Python computes, without running it.

An engine decides a launch in a few lines of integer arithmetic inside functions that need a GPU to run. This evaluator
walks the syntax tree of such a function with some names given (`{"self.num_heads_kv": 8, "_is_hip": False}`), computes
what follows from them and leaves everything else unknown. Nothing is imported or executed. Only arithmetic,
comparisons, conditionals, loops over known values, and calls of a few pure functions and of functions of the same file
exist here, with limits on the number of steps, on the size of numbers and lists, and on depth.

Given names keep their value: an assignment to one of them inside the function is skipped. The function's own parameters
are ordinary variables that start with the given values.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decodecalc.intmath import cdiv, next_power_of_2

MAX_STEPS = 200_000
MAX_DEPTH = 150  # expressions inside one another, calls counting for 8
MAX_NUMBER = 1 << 64
MAX_ITEMS = 10_000


class _Unknown:
    """A value that the given names do not determine."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()


class Thing:
    """Something of which only its existence is known: it is not None, and it is true where its truth is asked for."""

    def __repr__(self) -> str:
        return "something"


@dataclass(frozen=True)
class SourceLaunch:
    """A kernel that the function launched, `kernel[grid](…)`: its grid and its keyword arguments, unknown ones too."""

    kernel: str
    grid: Any
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """The result of calling a class of the file with known arguments: its keyword arguments."""

    fields: tuple[tuple[str, Any], ...]


class TooMuchError(Exception):
    """The limits were reached."""


class _Done(Exception):  # noqa: N818 (control flow, not an error)
    def __init__(self, value: Any) -> None:
        self.value = value


class _Broken(Exception):  # noqa: N818
    """break (again is False) or continue (True)."""

    def __init__(self, again: bool) -> None:
        self.again = again


@dataclass(frozen=True)
class _Closure:
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: dict[str, Any]


def _same(value: Any) -> Any:
    return value


def _as_type(value: Any, dtype: str | None) -> Any:
    """A value after a cast. Only whether it becomes a whole number matters here."""
    if isinstance(value, (int, float)) and dtype is not None:
        return int(value) if "int" in dtype else float(value) if "float" in dtype else value
    return value


_PURE: dict[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "bool": bool, "float": float, "frozenset": frozenset, "int": int, "len": len,
    "list": list, "max": max, "min": min, "range": range, "round": round, "set": set, "sorted": sorted, "sum": sum,
    "tuple": tuple, "str": str,
    "maximum": max, "minimum": min, "cdiv": cdiv, "ceildiv": cdiv, "ceil_div": cdiv, "next_power_of_2": next_power_of_2,
    "ceil": math.ceil, "floor": math.floor, "log2": math.log2, "constexpr": _same,
    # Marks a block size that must be a multiple of something. Only the divisor matters here.
    "MultipleOf": int,
}  # fmt: skip
_SAME = ("to", "item")  # methods that change a value's type or place only
_CHANGES: dict[str, Callable[..., Any]] = {
    "append": list.append, "extend": list.extend, "sort": list.sort, "add": set.add, "update": set.update,
}  # fmt: skip
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
    ast.Mod: lambda a, b: a % b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.LShift: lambda a, b: a << b if b < 64 else UNKNOWN,
    ast.RShift: lambda a, b: a >> b,
    ast.Pow: lambda a, b: a**b if abs(a) < 1 << 32 and 0 <= b <= 2 else UNKNOWN,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` of a name or attribute, `f().b` where a call without arguments is in between; None for anything else."""
    parts: list[str] = []
    calls = ""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr + calls)
            calls, node = "", node.value
        elif isinstance(node, ast.Call) and parts and not (node.args or node.keywords or calls):
            calls, node = "()", node.func
        else:
            return None
    return ".".join([node.id + calls, *reversed(parts)])


def _known(value: Any) -> bool:
    return value is not UNKNOWN and not isinstance(value, Thing)


def _bounded(value: Any) -> Any:
    """The value, or unknown where it is larger than any launch can need."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if abs(value) < MAX_NUMBER else UNKNOWN
    if isinstance(value, (str, list, tuple, set, frozenset, range)) and len(value) > MAX_ITEMS:
        return UNKNOWN
    return value


class Evaluator:
    """The definitions of one module and the given names.

    module: what the file defines at top level, by name (functions, classes, assigned expressions).
    """

    def __init__(self, module: Mapping[str, ast.AST], given: Mapping[str, Any]) -> None:
        self._module, self._given = module, given
        self._steps, self._depth = 0, 0
        self._resolving: set[str] = set()
        self._launches: list[SourceLaunch | None] = []

    # -- doors --------------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        """A module-level expression."""
        return self._eval(node, {})

    def returns(self, function: ast.AST) -> Any:
        """What a function returns."""
        scope: dict[str, Any] = {"?returned": True}
        result = self._outer(function, scope)
        return result if scope["?returned"] is True else UNKNOWN

    def variable(self, function: ast.AST, name: str) -> Any:
        """The value of a (dotted) variable after the function's last statement."""
        scope: dict[str, Any] = {}
        self._outer(function, scope)
        return scope.get(name, self._given.get(name, UNKNOWN))

    def launches(self, function: ast.AST) -> list[SourceLaunch] | _Unknown:
        """The kernels that a function launches; unknown where it cannot be determined whether one is launched."""
        self._launches.clear()
        self._outer(function, {})
        found = [launch for launch in self._launches if launch is not None]
        return found if len(found) == len(self._launches) else UNKNOWN

    # -- statements ---------------------------------------------------------------------------------------------------

    def _outer(self, function: ast.AST, scope: dict[str, Any]) -> Any:
        """Evaluates the body of the function that was asked for. Given parameters start its scope."""
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            args = function.args
            parameters = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
            scope.update((name, value) for name, value in self._given.items() if name in parameters)
            self._given = {name: value for name, value in self._given.items() if name not in parameters}
        return self._body(function, scope)

    def _body(self, function: ast.AST, scope: dict[str, Any]) -> Any:
        if isinstance(function, ast.Lambda):
            return self._eval(function.body, scope)
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        self._defaults(function.args, scope)
        try:
            self._run(function.body, scope)
        except _Done as done:
            return done.value
        except _Broken:
            return UNKNOWN
        return None

    def _defaults(self, args: ast.arguments, scope: dict[str, Any]) -> None:
        """Defaults of the parameters that no one gave."""
        positional = [*args.posonlyargs, *args.args]
        pairs = list(zip(positional[len(positional) - len(args.defaults) :], args.defaults))
        pairs += [(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults) if default is not None]
        for arg, default in pairs:
            if arg.arg not in scope and arg.arg not in self._given:
                scope[arg.arg] = self._eval(default, {})

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for statement in body:
            self._tick()
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        if isinstance(node, ast.Assign):
            value = self._eval(node.value, scope)
            for target in node.targets:
                self._assign(target, value, scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, self._eval(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign):
            current = self._eval(_as_load(node.target), scope)
            self._assign(node.target, self._binary(node.op, current, self._eval(node.value, scope)), scope)
        elif isinstance(node, ast.If):
            self._if(node, scope)
        elif isinstance(node, ast.For):
            self._for(node, scope)
        elif isinstance(node, ast.While):
            self._while(node, scope)
        elif isinstance(node, ast.Return):
            raise _Done(None if node.value is None else self._eval(node.value, scope))
        elif isinstance(node, ast.Raise):
            raise _Done(UNKNOWN)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope[node.name] = _Closure(node, scope)
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)):
            self._run(node.body, scope)
        elif isinstance(node, (ast.Break, ast.Continue)):
            raise _Broken(isinstance(node, ast.Continue))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if isinstance(node.value.func, ast.Subscript):
                self._launch(node.value, node.value.func, scope)
            else:
                self._change(node.value, scope)

    def _if(self, node: ast.If, scope: dict[str, Any]) -> None:
        test = self._truth(self._eval(node.test, scope))
        if test is not None:
            self._run(node.body if test else node.orelse, scope)
            return
        # Either branch may run, so everything that one of them sets is unknown afterwards.
        for branch in (node.body, node.orelse):
            self._forget(branch, scope)

    def _forget(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for statement in body:
            for inner in ast.walk(statement):
                self._tick()
                if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Store):
                    self._assign(inner, UNKNOWN, scope)
                elif isinstance(inner, ast.Return) and "?returned" in scope:
                    scope["?returned"] = False
                elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Subscript):
                    self._launches.append(None)
                elif isinstance(inner, ast.Call) and _changes_in_place(inner.func, scope):
                    self._assign(inner.func.value, UNKNOWN, scope)  # type: ignore[attr-defined]

    def _for(self, node: ast.For, scope: dict[str, Any]) -> None:
        items = self._eval(node.iter, scope)
        if not isinstance(items, (list, tuple, range, set, frozenset)):
            self._forget([node], scope)
            return
        for item in items:
            self._tick()
            self._assign(node.target, item, scope)
            try:
                self._run(node.body, scope)
            except _Broken as broken:
                if not broken.again:
                    return
        self._run(node.orelse, scope)

    def _while(self, node: ast.While, scope: dict[str, Any]) -> None:
        while True:
            self._tick()
            test = self._truth(self._eval(node.test, scope))
            if test is None:
                self._forget([node], scope)
                return
            if not test:
                return
            try:
                self._run(node.body, scope)
            except _Broken as broken:
                if not broken.again:
                    return

    def _assign(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            items = list(value) if isinstance(value, (tuple, list)) and len(value) == len(target.elts) else None
            for i, inner in enumerate(target.elts):
                self._assign(inner, UNKNOWN if items is None else items[i], scope)
            return
        if isinstance(target, ast.Starred):
            target, value = target.value, UNKNOWN
        name = dotted(target)
        if name is not None and name not in self._given:
            scope[name] = value
        elif isinstance(target, ast.Subscript):
            # One entry changed in a way that is not known, so the whole content is no longer known.
            self._assign(target.value, UNKNOWN, scope)

    def _launch(self, call: ast.Call, target: ast.Subscript, scope: dict[str, Any]) -> None:
        grid = self._eval(target.slice, scope)
        keywords = {k.arg: self._eval(k.value, scope) for k in call.keywords if k.arg is not None}
        self._launches.append(SourceLaunch(dotted(target.value) or "?", grid, keywords))

    def _change(self, call: ast.Call, scope: dict[str, Any]) -> None:
        """A method that changes a known list or set in place."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _CHANGES:
            return
        held = self._eval(call.func.value, scope)
        if not isinstance(held, (list, set)):
            return
        args = [self._eval(arg, scope) for arg in call.args]
        try:
            if all(_known(arg) for arg in args) and not call.keywords and len(held) < MAX_ITEMS:
                _CHANGES[call.func.attr](held, *args)
                return
        except Exception:
            pass
        self._assign(call.func.value, UNKNOWN, scope)

    # -- expressions --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooMuchError

    @staticmethod
    def _truth(value: Any) -> bool | None:
        if isinstance(value, Thing):
            return True
        if not _known(value) or isinstance(value, (_Closure, Record)):
            return None
        try:
            return bool(value)
        except Exception:
            return None

    def _eval(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        self._tick()
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                return UNKNOWN
            return _bounded(self._expression(node, scope))
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            return UNKNOWN
        finally:
            self._depth -= 1

    def _expression(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._name(node, scope)
        if isinstance(node, ast.BinOp):
            return self._binary(node.op, self._eval(node.left, scope), self._eval(node.right, scope))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node.op, self._eval(node.operand, scope))
        if isinstance(node, ast.BoolOp):
            return self._either(node, scope)
        if isinstance(node, ast.Compare):
            return self._compare(node, scope)
        if isinstance(node, ast.IfExp):
            test = self._truth(self._eval(node.test, scope))
            if test is None:
                return UNKNOWN
            return self._eval(node.body if test else node.orelse, scope)
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            items = [self._eval(item, scope) for item in node.elts]
            if isinstance(node, ast.Set):
                return set(items) if all(_known(item) for item in items) else UNKNOWN
            return tuple(items) if isinstance(node, ast.Tuple) else items
        if isinstance(node, ast.Dict):
            keys = [UNKNOWN if key is None else self._eval(key, scope) for key in node.keys]
            values = [self._eval(value, scope) for value in node.values]
            return dict(zip(keys, values)) if all(isinstance(key, (str, int)) for key in keys) else UNKNOWN
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return self._comprehension(node, scope)
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        if isinstance(node, ast.Lambda):
            return _Closure(node, scope)
        if isinstance(node, ast.NamedExpr):
            value = self._eval(node.value, scope)
            self._assign(node.target, value, scope)
            return value
        return UNKNOWN

    def _name(self, node: ast.Name | ast.Attribute, scope: dict[str, Any]) -> Any:
        name = dotted(node)
        if name is not None:
            if name in self._given:
                return self._given[name]
            if name in scope:
                return scope[name]
            if name in self._module:
                return self._global(name)
        if isinstance(node, ast.Attribute):
            held = self._eval(node.value, scope)
            if isinstance(held, Record):
                return dict(held.fields)[node.attr]
        return UNKNOWN

    def _global(self, name: str) -> Any:
        definition = self._module[name]
        if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _Closure(definition, {})
        if not isinstance(definition, ast.expr) or name in self._resolving:
            return UNKNOWN
        self._resolving.add(name)
        try:
            return self._eval(definition, {})
        finally:
            self._resolving.discard(name)

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        rule = _BINARY.get(type(op))
        if rule is None or not _known(left) or not _known(right):
            return UNKNOWN
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if not numbers and not (isinstance(op, (ast.Add, ast.BitOr)) and type(left) is type(right)):
            return UNKNOWN
        return rule(left, right)

    def _unary(self, op: ast.unaryop, value: Any) -> Any:
        if isinstance(op, ast.Not):
            truth = self._truth(value)
            return UNKNOWN if truth is None else not truth
        if not isinstance(value, (int, float)):
            return UNKNOWN
        return -value if isinstance(op, ast.USub) else value if isinstance(op, ast.UAdd) else UNKNOWN

    def _either(self, node: ast.BoolOp, scope: dict[str, Any]) -> Any:
        """`and` / `or` with unknown operands: one decisive operand determines the result, whatever the others are."""
        stops_at = isinstance(node.op, ast.Or)
        undecided = False
        value: Any = UNKNOWN
        for operand in node.values:
            value = self._eval(operand, scope)
            truth = self._truth(value)
            if truth is stops_at:
                return truth if undecided else value
            undecided = undecided or truth is None
        return UNKNOWN if undecided else value

    def _compare(self, node: ast.Compare, scope: dict[str, Any]) -> Any:
        left = self._eval(node.left, scope)
        for op, comparator in zip(node.ops, node.comparators):
            right = self._eval(comparator, scope)
            if isinstance(op, (ast.Is, ast.IsNot)):
                if left is UNKNOWN or right is UNKNOWN:
                    return UNKNOWN
                holds = (left is right) if right is None or isinstance(right, bool) else UNKNOWN
                holds = holds if holds is UNKNOWN or isinstance(op, ast.Is) else not holds
            elif not _known(left) or not _known(right):
                return UNKNOWN
            else:
                holds = _COMPARE[type(op)](left, right)
            if holds is UNKNOWN or not holds:
                return holds
            left = right
        return True

    def _subscript(self, node: ast.Subscript, scope: dict[str, Any]) -> Any:
        held = self._eval(node.value, scope)
        if isinstance(held, dict) and not isinstance(node.slice, ast.Slice):
            return held[self._eval(node.slice, scope)]
        if not isinstance(held, (list, tuple, str, range)):
            return UNKNOWN
        if isinstance(node.slice, ast.Slice):
            bounds = [
                None if b is None else self._eval(b, scope) for b in (node.slice.lower, node.slice.upper)
            ]  # steps do not occur
            return held[bounds[0] : bounds[1]] if all(_known(b) for b in bounds) else UNKNOWN
        index = self._eval(node.slice, scope)
        return held[index] if isinstance(index, int) else UNKNOWN

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: dict[str, Any]) -> Any:
        found: list[Any] = []
        if not self._collect(node.generators, node.elt, dict(scope), found):
            return UNKNOWN
        return set(found) if isinstance(node, ast.SetComp) else found

    def _collect(
        self, generators: Sequence[ast.comprehension], element: ast.expr, scope: dict[str, Any], found: list[Any]
    ) -> bool:
        if not generators:
            found.append(self._eval(element, scope))
            return len(found) <= MAX_ITEMS
        first, *rest = generators
        items = self._eval(first.iter, scope)
        if not isinstance(items, (list, tuple, range, set, frozenset)):
            return False
        for item in items:
            self._tick()
            self._assign(first.target, item, scope)
            tests = [self._truth(self._eval(test, scope)) for test in first.ifs]
            if None in tests:
                return False
            if all(tests) and not self._collect(rest, element, scope, found):
                return False
        return True

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        name = dotted(node.func)
        if name is not None and f"{name}()" in self._given:
            return self._given[f"{name}()"]
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
            return _as_type(self._eval(node.func.value, scope), dotted(node.args[0]) if node.args else None)
        if name in ("tl.cast", "cast") and len(node.args) == 2:
            return _as_type(self._eval(node.args[0], scope), dotted(node.args[1]))
        if name is None:
            return UNKNOWN
        args = [self._eval(arg, scope) for arg in node.args if not isinstance(arg, ast.Starred)]
        keywords = {k.arg: self._eval(k.value, scope) for k in node.keywords if k.arg is not None}
        if len(args) < len(node.args) or len(keywords) < len(node.keywords):
            return UNKNOWN
        target = self._name(node.func, scope) if isinstance(node.func, (ast.Name, ast.Attribute)) else UNKNOWN
        if isinstance(target, _Closure):
            return self._invoke(target, args, keywords)
        if name.startswith("self.") and name.count(".") == 1:
            for qualified, definition in self._module.items():
                if qualified.endswith("." + name[5:]) and isinstance(definition, ast.FunctionDef):
                    static = any(dotted(d) == "staticmethod" for d in definition.decorator_list)
                    return self._invoke(_Closure(definition, scope), args if static else [Thing(), *args], keywords)
        if isinstance(self._module.get(name), ast.ClassDef) and not args:
            return Record(tuple(keywords.items()))
        return self._pure(name.rsplit(".", 1)[-1], args, keywords)

    def _pure(self, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        rule = _PURE.get(name)
        if rule is None:
            return UNKNOWN
        key = keywords.get("key")
        if isinstance(key, _Closure) and rule in (min, max, sorted):
            keywords = {**keywords, "key": lambda item: self._invoke(key, [item], {})}
            if not isinstance(args[0], (list, tuple, set, range)):
                return UNKNOWN
        elif name == "max" and len(args) == 1 and isinstance(args[0], (int, float)):
            return args[0]  # a reduction over one row
        flat = [*args, *keywords.values()]
        nested = [inner for value in flat if isinstance(value, (list, tuple, set)) for inner in value]
        if not all(_known(value) for value in (*flat, *nested)):
            return UNKNOWN
        if rule is range:
            return range(*args)
        if name == "next_power_of_2":
            return int(next_power_of_2(int(args[0]))) if args[0] > 0 else UNKNOWN
        return rule(*args, **keywords)

    def _invoke(self, closure: _Closure, args: list[Any], keywords: dict[str, Any]) -> Any:
        if self._depth > MAX_DEPTH:
            return UNKNOWN
        parameters = closure.node.args
        names = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args)]
        scope = {**closure.scope, **dict(zip(names, args)), **keywords}
        # A parameter of an inner function is a name of its own, even where the same name is given outside.
        inner = Evaluator(self._module, {k: v for k, v in self._given.items() if k not in {*names, *keywords}})
        inner._steps, inner._depth, inner._resolving = self._steps, self._depth + 8, self._resolving
        scope["?returned"] = True
        result = inner._body(closure.node, scope)
        self._steps = inner._steps
        return result if scope["?returned"] is True else UNKNOWN


def _changes_in_place(function: ast.expr, scope: Mapping[str, Any]) -> bool:
    """Whether this is a method that changes a variable of the scope."""
    return isinstance(function, ast.Attribute) and function.attr in _CHANGES and dotted(function.value) in scope


def _as_load(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment, read."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    return ast.Constant(UNKNOWN)  # type: ignore[arg-type]
