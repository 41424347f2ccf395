"""Frozen dataclasses that cost next to nothing to define.

`dataclasses` writes and compiles up to six functions per class, about half a millisecond each class; a start-up that
defines eighty of them notices. A `@record` class is a dataclass in every respect that matters (`fields`, `replace`,
`asdict`, `is_dataclass`, a frozen instance, equality by value, a hash, a repr), but its methods are these generic ones,
and its fields are entered as `dataclasses` itself enters them (`__dataclass_fields__`, the same since Python 3.7).
"""

from __future__ import annotations

from dataclasses import _FIELD, MISSING, Field, FrozenInstanceError, field, fields  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):  # typing_extensions' meaning, without the dependency
        return lambda decorator: decorator


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    names = cls.__record_names__
    if len(args) > len(names):
        raise TypeError(f"{cls.__name__} takes {len(names)} values, not {len(args)}")
    values = self.__dict__
    values.update(zip(names, args))
    for name in kwargs:
        if name not in cls.__record_set__:
            raise TypeError(f"{cls.__name__} has no field {name!r}")
        if name in values:
            raise TypeError(f"{cls.__name__}: {name} is given twice")
    values.update(kwargs)
    if len(values) < len(names):
        for f in fields(cls):
            if f.name not in values:
                if f.default is not MISSING:
                    values[f.name] = f.default
                elif f.default_factory is not MISSING:
                    values[f.name] = f.default_factory()
                else:
                    raise TypeError(f"{cls.__name__} needs {f.name}")
    if cls.__record_post__:
        self.__post_init__()


def _frozen(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(self.__dict__[name] for name in type(self).__record_compared__)


def _eq(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _fields_of(cls: type) -> tuple[Field[Any], ...]:
    """The fields of `cls`, those of its bases first, as `dataclasses` keeps them."""
    found: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        found.update(getattr(base, "__dataclass_fields__", {}))
    for name, annotation in cls.__annotations__.items():
        if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = vars(cls).get(name, MISSING)
        made: Any = default if isinstance(default, Field) else field(default=default)
        made.name, made.type, made._field_type = name, annotation, _FIELD
        found[name] = made
        if made.default is not MISSING:
            setattr(cls, name, made.default)
        elif default is not MISSING:
            delattr(cls, name)
    return tuple(found.values())


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen record. A class that sets `__eq__` and `__hash__` (say to object's) keeps its own.

    >>> @record
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0), hash(Point(1)) == hash(Point(1))
    (Point(x=1, y=0), True, True)
    """
    made: Any = cls
    found = _fields_of(cls)
    made.__dataclass_fields__ = {f.name: f for f in found}
    made.__record_names__ = tuple(f.name for f in found)
    made.__record_set__ = frozenset(made.__record_names__)
    made.__record_compared__ = tuple(f.name for f in found if f.compare)
    made.__record_post__ = hasattr(made, "__post_init__")
    for name, method in (("__init__", _init), ("__eq__", _eq), ("__hash__", _hash), ("__repr__", _repr)):
        # A class that brings its own keeps it; `__hash__` is None in a class that defines only `__eq__`.
        if vars(cls).get(name) is None:
            setattr(made, name, method)
    made.__setattr__ = made.__delattr__ = _frozen
    return made
