"""Text that is safe to show or to hand on: names from files may carry terminal escapes, markup or formulas."""

from __future__ import annotations

import re

# Control characters, and marks that change the direction or the look of what stands around them; half characters come
# from names that are not UTF-8.
_MARKS = "\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
_UNSAFE = re.compile(f"[\x00-\x1f{_MARKS}]")
_UNSAFE_IN_JSON = f"[{_MARKS}]"  # JSON itself escapes what is below a space
_FORMULA = ("=", "+", "-", "@")


def plain(text: object) -> str:
    """`text` on one line, with control characters, terminal escapes and direction marks shown as escapes.

    >>> plain("a" + chr(27) + "[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _UNSAFE.sub(_escape, str(text).replace("\t", " ").replace("\n", " "))


def json_safe(text: str) -> str:
    """JSON text with the characters that `plain` escapes as JSON's own escapes: the value stays the same.

    >>> json_safe(chr(34) + chr(0x202E) + chr(34))
    '"\\\\u202e"'
    """
    return re.sub(_UNSAFE_IN_JSON, lambda found: f"\\u{ord(found[0]):04x}", text)


def markdown_safe(text: object) -> str:
    """`plain` text that Markdown takes for text: no HTML tag begins in it, and no table cell ends.

    >>> markdown_safe("<b> | c")
    '&lt;b> \\\\| c'
    """
    return plain(text).replace("<", "&lt;").replace("|", "\\|")


def formula_safe(text: str) -> str:
    """Text that a spreadsheet takes for text: a word that would begin a formula gets an apostrophe in front.

    >>> formula_safe("=1+1"), formula_safe("llama"), formula_safe("-3")
    ("'=1+1", 'llama', '-3')
    """
    if not text.startswith(_FORMULA) or _is_number(text):
        return text
    return "'" + text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
