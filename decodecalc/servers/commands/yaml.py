"""The part of YAML that docker-compose and Kubernetes files are written in: enough to find a container's command.

Mappings and sequences by indentation, flow lists and mappings on one or several lines, quoted and plain scalars over
several lines, literal and folded blocks. Anchors, tags and complex keys are not read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from decodecalc.errors import InputError

_KEY = re.compile(r"""^("[^"]*"|'[^']*'|[^\s#:,\[\]{}'"&*!|>-][^:#\[\]{}]*?)\s*:(?:\s+(.*))?$""")
_LINES = list[tuple[int, str]]


def looks_like_yaml(text: str) -> bool:
    """Whether a text is a manifest and not a command line."""
    return re.search(r"(?m)^\s*(?:- )?(?:command|args|image|containers|services)\s*:", text) is not None


def containers(text: str) -> Iterator[dict[str, Any]]:
    """Every mapping of the documents that has a command, arguments or an image."""
    for document in re.split(r"(?m)^---.*$", text):
        yield from _containers(load(document))


def _containers(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if any(key in value for key in ("command", "args", "image")):
            yield value
        for inner in value.values():
            yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)


def shell_words(container: dict[str, Any]) -> list[str]:
    """The words of a container's command and arguments: lists are words already, texts are split as a shell does."""
    out: list[str] = []
    for key in ("entrypoint", "command", "args"):
        value = container.get(key)
        if isinstance(value, list):
            out += [str(item) for item in value]
        elif value is not None:
            try:
                out += shlex.split(re.sub(r"\\\s*\n", " ", str(value)), comments=False)
            except ValueError as error:
                raise InputError(f"cannot read the {key} {str(value)[:60]!r}: {error}") from None
    return out


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Variables of `env` (names and values) or `environment` (a mapping, or NAME=VALUE words)."""
    found: dict[str, str] = {}
    for key in ("env", "environment"):
        value = container.get(key)
        if isinstance(value, dict):
            found.update({name: str(item) for name, item in value.items() if not isinstance(item, (dict, list))})
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict) and "name" in item and "value" in item:
                found[str(item["name"])] = str(item["value"])
            elif isinstance(item, str) and "=" in item:
                name, _, text = item.partition("=")
                found[name] = text
    return found


def load(text: str) -> Any:
    """The value of one document."""
    lines = [
        (len(line) - len(line.lstrip(" ")), line.strip())
        for line in text.expandtabs(2).splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    value, _ = _node(lines, 0, 0)
    return value


def _node(lines: _LINES, at: int, indent: int) -> tuple[Any, int]:
    if at >= len(lines) or lines[at][0] < indent:
        return None, at
    column, text = lines[at]
    if text.startswith("- ") or text == "-":
        return _sequence(lines, at, column)
    if _KEY.match(text):
        return _mapping(lines, at, column)
    return _scalar(lines, at, indent)


def _sequence(lines: _LINES, at: int, column: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    while at < len(lines) and lines[at][0] == column and (lines[at][1].startswith("- ") or lines[at][1] == "-"):
        rest = lines[at][1][1:].strip()
        if not rest:
            value, at = _node(lines, at + 1, column + 1)
        else:
            inner = column + lines[at][1].index(rest)
            lines[at] = (inner, rest)
            if _KEY.match(rest) and not rest.startswith("-"):
                value, at = _mapping(lines, at, inner)
            else:
                value, at = _value(lines, at, rest, column + 1)
        out.append(value)
    return out, at


def _mapping(lines: _LINES, at: int, column: int) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] == column:
        match = _KEY.match(lines[at][1])
        if match is None:
            break
        key, rest = match[1].strip("'\""), (match[2] or "").strip()
        if rest and not rest.startswith("#"):
            value, at = _value(lines, at, rest, column + 1)
        else:
            at += 1
            # A sequence may stand at the column of its key.
            same = at < len(lines) and lines[at][0] == column and lines[at][1].startswith("-")
            value, at = _sequence(lines, at, column) if same else _node(lines, at, column + 1)
        out[key] = value
    return out, at


def _value(lines: _LINES, at: int, first: str, indent: int) -> tuple[Any, int]:
    """The value that begins with `first` on line `at` and goes on over lines indented by at least `indent`."""
    if re.fullmatch(r"[|>][+-]?\d*", first):
        at += 1
        block = []
        while at < len(lines) and lines[at][0] >= indent:
            block.append(lines[at][1])
            at += 1
        return ("\n" if first[0] == "|" else " ").join(block), at
    lines[at] = (indent, first)
    return _scalar(lines, at, indent)


def _scalar(lines: _LINES, at: int, indent: int) -> tuple[Any, int]:
    """A plain or quoted text, or a flow collection, over as many lines as belong to it."""
    text = lines[at][1]
    at += 1
    quote = text[:1] if text[:1] in "\"'" else ""
    closing = {"[": "]", "{": "}"}.get(text[:1])
    while at < len(lines):
        if quote:
            if _quote_closed(text, quote):
                break
        elif closing:
            if _depth(text) <= 0:
                break
        elif lines[at][0] < indent:
            break
        text += " " + lines[at][1]
        at += 1
    return _flow(text), at


def _quote_closed(text: str, quote: str) -> bool:
    body = re.sub(r"\\.", "", text[1:]) if quote == '"' else text[1:].replace("''", "")
    return quote in body


def _depth(text: str) -> int:
    bare = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\'\'|[^\'])*\'', "", text)
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")


def _flow(text: str) -> Any:
    text = text.strip()
    if text.startswith("["):
        return [_flow(part) for part in _parts(text[1 : text.rfind("]")])]
    if text.startswith("{") and text.endswith("}"):
        pairs = (part.partition(":") for part in _parts(text[1:-1]))
        return {key.strip().strip("'\""): _flow(value) for key, _, value in pairs}
    if text[:1] == '"':
        return re.sub(r'\\(["\\n])', lambda m: "\n" if m[1] == "n" else m[1], text[1 : text.rfind('"')])
    if text[:1] == "'":
        return text[1 : text.rfind("'")].replace("''", "'")
    return re.sub(r"\s+#.*$", "", text)


def _parts(text: str) -> list[str]:
    """The items of a flow collection."""
    out, depth, quote, item = [], 0, "", ""
    previous = ""
    for c in text:
        if quote:
            quote = "" if c == quote and previous != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in "[{":
            depth += 1
        elif c in "]}":
            depth -= 1
        if c == "," and not quote and not depth:
            out.append(item)
            item = ""
        else:
            item += c
        previous = c
    return [part.strip() for part in [*out, item] if part.strip()]
