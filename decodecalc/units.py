"""Conversions between what people type or read and the SI units that the package uses inside."""

from __future__ import annotations

import re
from collections.abc import Iterable

from decodecalc.errors import InputError

_COUNT = re.compile(r"^([0-9]+(?:\.[0-9]+)?)\s*([kKmMgG]?)$")
MAX_SHARD_DIGITS = 9
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_count(text: str, name: str = "value") -> int:
    """A whole number with an optional binary suffix, which is how people write context lengths.

    >>> parse_count("2560"), parse_count("128k"), parse_count("1.5k")
    (2560, 131072, 1536)
    """
    match = _COUNT.match(text.strip())
    if not match or len(text) > 24:
        raise InputError(f"{name}: {text[:40]!r} is not a whole number (examples: 2560, 32k, 1m; k is 1024)")
    value = (
        float(match[1]) * _FACTOR[match[2].lower()] if "." in match[1] else int(match[1]) * _FACTOR[match[2].lower()]
    )
    if value != int(value):
        raise InputError(f"{name}: {text!r} is not a whole number of units")
    return int(value)


def parse_counts(text: str, name: str = "value", limit: int = 100_000) -> list[int]:
    """Numbers and ranges joined by commas: `1,4,16`, `1:256:x2` (each is twice the one before), `1:64:1` (inclusive).

    >>> parse_counts("1:16:x2"), parse_counts("1:4,8"), parse_counts("2k")
    ([1, 2, 4, 8, 16], [1, 2, 3, 4, 8], [2048])
    """
    values: list[int] = []
    for part in text.split(","):
        pieces = part.strip().split(":")
        if len(pieces) == 1:
            values.append(parse_count(pieces[0], name))
        elif len(pieces) in (2, 3):
            values.extend(_range(pieces, part, name, limit))
        else:
            raise InputError(f"{name}: {part!r} is not a range (start:stop, start:stop:step or start:stop:xN)")
        if len(values) > limit:
            raise InputError(f"{name}: {text[:40]!r} expands to more than {limit} values")
    return values


def _range(pieces: list[str], part: str, name: str, limit: int) -> list[int]:
    start, stop = parse_count(pieces[0], name), parse_count(pieces[1], name)
    step = pieces[2].strip() if len(pieces) == 3 else "1"
    if stop < start:
        raise InputError(f"{name}: range {part!r} is empty: it ends before it starts")
    if step[:1] in "x*" and step:
        factor = parse_count(step[1:], name)
        if factor < 2 or start < 1:
            raise InputError(f"{name}: range {part!r} needs a start of at least 1 and a factor of at least 2")
        out = [start]
        while out[-1] * factor <= stop:
            out.append(out[-1] * factor)
        return out
    stride = parse_count(step, name)
    if stride < 1:
        raise InputError(f"{name}: range {part!r} needs a step of at least 1")
    if (stop - start) // stride >= limit:
        raise InputError(f"{name}: range {part!r} expands to more than {limit} values")
    return list(range(start, stop + 1, stride))


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """A share of the work: `3/8` as (3, 8); None stands for all of it.

    >>> parse_shard("3/8")
    (3, 8)
    """
    if text is None:
        return None
    i, slash, n = text.partition("/")
    numbers = slash and all(part.isascii() and part.isdecimal() and len(part) <= MAX_SHARD_DIGITS for part in (i, n))
    if not numbers or not 1 <= int(i) <= int(n):
        raise InputError(f"--shard {text[:20]!r}: write I/N with I from 1 to N, for example 3/8")
    return int(i), int(n)


def short_count(n: float) -> str:
    """A count as `parse_count` reads it: with a binary suffix where it is a whole number of them.

    >>> short_count(8192), short_count(2560), short_count(1 << 20), short_count(100)
    ('8k', '2560', '1M', '100')
    """
    for size, suffix in ((1 << 20, "M"), (1 << 10, "k")):
        if n >= size and n % size == 0:
            return f"{n / size:g}{suffix}"
    return f"{n:g}" if n < 1e6 else f"{n:.0f}"


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "block"), counted(20, "block"), counted(2, "launch")
    ('1 block', '20 blocks', '2 launches')
    """
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"


_ONE = re.compile(
    r"(?<![\w.,/^-])1 ((?:query|key|KV|work|head|scratch|row|context|cached|live|output|promised|requested) )?"
    r"(request|split|block|key|token|layer|head|page|tile|segment|chunk|rank|partition|row|cluster|CTA|item|slot"
    r"|sub-sequence|piece|sequence|group|unit|state)s\b"
    r"( (?:are|have|need|make|give|fit|share|serve|allow|run|ask)\b)?"
)
_OF_ONE = {"are": "is", "have": "has"}


def in_number(text: str) -> str:
    """A sentence that was made for several, with the nouns after a 1 in the singular, and their verb.

    >>> in_number("1 requests need 24 bytes, and 1 of 1 splits have keys"), in_number("11 splits for 1 KV heads")
    ('1 request needs 24 bytes, and 1 of 1 split has keys', '11 splits for 1 KV head')
    """

    def one(found: re.Match[str]) -> str:
        adjective, noun, verb = (part or "" for part in found.groups())
        if verb and not text[: found.start()].endswith(" and "):
            verb = " " + _OF_ONE.get(verb[1:], verb[1:] + "s")
        return f"1 {adjective}{noun}{verb}"

    return _ONE.sub(one, text)


def listed(items: Iterable[str]) -> str:
    """Words joined as a sentence joins them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    words = list(items)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def human_bytes(n: float) -> str:
    """Bytes with a decimal unit, three digits.

    >>> human_bytes(335544320)
    '336 MB'
    """
    return _human(n, "B", 1e3)


def human_seconds(s: float) -> str:
    """Seconds with a fitting unit, three digits.

    >>> human_seconds(12.4e-6), human_seconds(5e-12)
    ('12.4 µs', '0 ns')
    """
    if abs(s) < 5e-11:  # no time of a launch is known so finely
        return "0 ns"
    for scale, unit in ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms")):
        if abs(s) < scale * 999.5:
            return f"{s / scale:.3g} {unit}"
    return f"{s:.3g} s"


def human_rate(bytes_per_s: float) -> str:
    """Bytes per second with a decimal unit, three digits."""
    return _human(bytes_per_s, "B/s", 1e3)


def _human(n: float, unit: str, base: float) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if abs(n) < base * 0.9995 or prefix == "T":
            return f"{n:.0f} {prefix}{unit}" if not prefix and n == int(n) else f"{n:.3g} {prefix}{unit}"
        n /= base
    raise AssertionError("unreachable")
