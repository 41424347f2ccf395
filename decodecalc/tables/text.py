"""Text that is safe to show: names from files may carry terminal escapes."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: object) -> str:
    """`text` with control characters, terminal escapes and direction overrides shown as escapes, tabs and newlines too.

    >>> plain("a" + chr(27) + "[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROL.sub(_escape, str(text).replace("\t", " ").replace("\n", " "))


def because(engine: str, reason: str) -> str:
    """Why an engine is not there, its name in front exactly once.

    >>> because("mine", "pages must hold 64 keys"), because("mine", "mine: pages must hold 64 keys")
    ('mine: pages must hold 64 keys', 'mine: pages must hold 64 keys')
    """
    return reason if reason.startswith(engine) else f"{engine}: {reason}"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
