"""Options of an engine: frozen dataclasses whose fields carry their kind, their help text and the engine's own flag."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from decodecalc.errors import InputError, UnknownNameError

T = TypeVar("T", bound="EngineOptions")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def option(
    default: Any, kind: str, help: str, flag: str | None = None, choices: tuple[str, ...] = (), low: int = 0
) -> Any:
    """A dataclass field that is an engine option.

    kind: int, bool, float, str or ints (a list), followed by `?` when None is allowed. flag: how the engine itself
    spells the option. low: the least value of an int. choices: all values of a str, or words that replace a value of
    another kind.
    """
    return field(default=default, metadata={"kind": kind, "help": help, "flag": flag, "choices": choices, "low": low})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Base of every engine's options. `from_mapping` validates what the API or the command line was given."""

    @classmethod
    def from_mapping(cls: type[T], engine: str, values: Mapping[str, Any]) -> T:
        """Options from names and values; strings are parsed. Raises UnknownNameError and InputError."""
        known = {f.name: f for f in fields(cls)}
        for name in values:
            if name not in known:
                raise UnknownNameError(f"option of {engine}", name, known, f"see `decodecalc engines {engine}`")
        return cls(
            **{name: _convert(f"{engine} option {name}", value, known[name].metadata) for name, value in values.items()}
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)}


def _convert(what: str, value: Any, meta: Mapping[str, Any]) -> Any:
    kind: str = meta["kind"]
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null", "")):
        if kind.endswith("?"):
            return None
        raise InputError(f"{what} needs a value ({kind})")
    kind = kind.rstrip("?")
    if isinstance(value, str) and kind != "str" and value in meta["choices"]:
        return value
    try:
        if kind == "ints":
            items = value.split(",") if isinstance(value, str) else list(value)
            return tuple(_int(item, meta["low"]) for item in items)
        if kind == "int":
            return _int(value, meta["low"])
        if kind == "bool":
            return _bool(value)
        if kind == "float":
            return _finite(value)
    except (TypeError, ValueError, OverflowError):
        least = f" of at least {meta['low']}" if kind.startswith("int") else ""
        raise InputError(f"{what} must be {kind}{least}, not {value!r:.60}") from None
    text = str(value)
    if meta["choices"] and text not in meta["choices"]:
        raise UnknownNameError(what, text, meta["choices"])
    return text


def _int(value: Any, low: int) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
        raise ValueError
    number = int(value)
    if number < low or number > 1 << 40:
        raise ValueError
    return number


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ValueError
    return text in _TRUE
