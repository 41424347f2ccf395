"""Flags of a server's command line: a table of those that matter, and the reading of words by it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from decodecalc.errors import InputError

# How a flag's words become a value.
INT, COUNT, FLOAT, STR, ON, OFF, JSON, INTS, IGNORED = "int", "count", "float", "str", "on", "off", "json", "ints", "-"
_TRUE = ("1", "true", "yes", "on")
_SUFFIX = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Flags that take no value in servers' parsers begin with one of these.
_BARE = ("--enable-", "--disable-", "--no-", "--trust-", "--skip-", "--allow-", "--log-", "--async-", "--enforce-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of a server."""

    names: tuple[str, ...]
    """How it is spelled; underscores and dashes are the same."""
    key: str
    """The quantity that it sets."""
    kind: str
    """`int`, `count` (2k is 2000, 2K is 2048), `float`, `str`, `on` and `off` (no value), `json`, `ints` (several
    words) or `-` (one value, ignored)."""
    meaning: str = ""
    """What it does to decode attention or to memory."""


def flag(names: str, key: str, kind: str, meaning: str = "") -> Flag:
    """A line of a table: the names are separated by spaces."""
    return Flag(names=tuple(names.split()), key=key, kind=kind, meaning=meaning)


@dataclass(slots=True)
class Read:
    """What a command line says."""

    values: dict[str, Any] = field(default_factory=dict)
    """Values by the flags' keys; those of `json` flags are merged."""
    positional: list[str] = field(default_factory=list)
    """Words that belong to no flag."""
    ignored: list[str] = field(default_factory=list)
    """Flags that are not in the table, each once."""
    swallowed: list[str] = field(default_factory=list)
    """Words that were taken for values of those."""


def read_flags(words: Sequence[str], table: Sequence[Flag]) -> Read:
    """Read a command's words. InputError for a value that a flag cannot take."""
    known = {_plain(name): entry for entry in table for name in entry.names}
    found = Read()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-") or _is_number(word):
            if word != "--":
                found.positional.append(word)
            continue
        name, equals, value = word.partition("=")
        entry, path = _entry(name, known)
        if entry is None:
            _ignore(found, name, rest, bool(equals))
            continue
        taken = [value] if equals else []
        if entry.kind in (ON, OFF):
            _put_switch(found, entry, taken)
            continue
        while rest and (not taken or (entry.kind == INTS and not equals)) and not _is_flag(rest[0]):
            taken.append(rest.pop(0))
        if not taken:
            raise InputError(f"{name} needs a value")
        if entry.kind == IGNORED:
            found.ignored.append(name)
            continue
        _put(found, entry, name, taken, path)
    found.ignored = list(dict.fromkeys(found.ignored))
    return found


def _plain(name: str) -> str:
    """Long names in one spelling: `--max_num_seqs` is `--max-num-seqs`."""
    return name.replace("_", "-") if name.startswith("--") else name


def _entry(name: str, known: dict[str, Flag]) -> tuple[Flag | None, tuple[str, ...]]:
    """The table's line, and the path inside a JSON value: `--attention-config.backend` is (`backend`,)."""
    head, _, tail = name.partition(".")
    plain = _plain(head)
    entry = known.get(plain)
    if entry is None and plain.startswith("--") and len(plain) > 8:  # an abbreviation, which argparse accepts
        near = {id(line): line for spelled, line in known.items() if spelled.startswith(plain)}
        entry = next(iter(near.values())) if len(near) == 1 else None
    if entry is not None and tail and entry.kind != JSON:
        return None, ()
    return entry, tuple(part.replace("-", "_") for part in tail.split(".")) if tail else ()


def _ignore(found: Read, name: str, rest: list[str], has_value: bool) -> None:
    found.ignored.append(name)
    if has_value or _plain(name).startswith(_BARE):
        return
    while rest and not _is_flag(rest[0]):
        found.swallowed.append(rest.pop(0))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _is_number(word)


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", word) is not None


def _put_switch(found: Read, entry: Flag, taken: list[str]) -> None:
    on = not taken or taken[0].lower() in _TRUE
    found.values[entry.key] = on if entry.kind == ON else not on


def _put(found: Read, entry: Flag, name: str, taken: list[str], path: tuple[str, ...]) -> None:
    if entry.kind == JSON:
        value = _json(name, taken[0]) if not path else _loose(taken[0])
        for part in reversed(path):
            value = {part: value}
        if not isinstance(value, dict):
            raise InputError(f"{name} must be a JSON object, not {taken[0]!r:.60}")
        old = found.values.setdefault(entry.key, {})
        _merge(old, value)
        return
    try:
        found.values[entry.key] = _convert(entry.kind, taken)
    except ValueError:
        raise InputError(f"{name} must be {_WORDS[entry.kind]}, not {' '.join(taken)!r:.60}") from None


_WORDS = {INT: "a whole number", COUNT: "a whole number", FLOAT: "a number", STR: "a word", INTS: "whole numbers"}


def _convert(kind: str, taken: list[str]) -> Any:
    if kind == INT:
        return int(taken[0])
    if kind == COUNT:
        return count(taken[0])
    if kind == FLOAT:
        return float(taken[0])
    if kind == INTS:
        return [int(part) for word in taken for part in word.replace(",", " ").split()]
    return taken[0]


def count(text: str) -> int:
    """A count with a suffix as servers read it: `2k` is 2000, `2K` is 2048.

    >>> count("32k"), count("32K"), count("1.5k"), count("-1")
    (32000, 32768, 1500, -1)
    """
    if text.lower() == "auto":  # as much as fits, or the model's own
        return -1
    factor = _SUFFIX.get(text[-1:])
    if factor is None:
        return int(text)
    value = float(text[:-1]) * factor
    if value != int(value):
        raise ValueError(text)
    return int(value)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: {text[:60]!r} is not JSON ({error.msg})") from None


def _loose(text: str) -> Any:
    """A value of a dotted flag: JSON where it is JSON, else the word itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _merge(old: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            _merge(old[key], value)
        else:
            old[key] = value
