"""A command's text as words: shell quoting, line continuations, environment variables, containers."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from decodecalc.errors import InputError

MAX_CHARACTERS = 1 << 20
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SEPARATORS = ("&&", "||", ";", "&", "|")
# Words in front of a program that change nothing here; `-x` words behind them belong to them.
_WRAPPERS = ("sudo", "nohup", "exec", "time", "env", "numactl", "nice", "srun", "stdbuf", "uv", "run", "bash", "sh")


@dataclass(slots=True)
class Words:
    """One program's words and its environment."""

    words: list[str] = field(default_factory=list)
    """The program and its arguments."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables."""


def split(text: str) -> list[Words]:
    """The programs of a shell text, in order, each with the variables set before it. InputError for open quotes."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"a command of {len(text)} characters is too long")
    text = re.sub(r"\\[ \t]*\r?\n", " ", text)
    found: list[Words] = []
    exported: dict[str, str] = {}
    for line in text.splitlines():
        line = re.sub(r"^\s*[$%#>]\s+", "", line)  # a prompt in front of a pasted line, or a comment
        try:
            words = _lex(line)
        except ValueError as error:
            raise InputError(f"cannot read the command: {error} in {line.strip()[:80]!r}") from None
        for segment in _segments(words):
            env = {}
            while segment and (_ASSIGNMENT.fullmatch(segment[0]) or segment[0] in ("export", "env", "set")):
                name, equals, value = segment.pop(0).partition("=")
                if equals:
                    env[name] = value
            if not segment:
                exported.update(env)
                continue
            found.append(Words(segment, {**exported, **env}))
    return found


def _lex(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def _segments(words: list[str]) -> list[list[str]]:
    out: list[list[str]] = [[]]
    for word in words:
        if word in _SEPARATORS:
            out.append([])
        else:
            out[-1].append(word)
    return [segment for segment in out if segment]


def unwrapped(words: list[str]) -> list[str]:
    """The words behind wrappers such as `sudo` and `nohup`; the text of `sh -c` is read in its place."""
    rest = list(words)
    while rest and rest[0].rpartition("/")[2] in _WRAPPERS:
        name = rest.pop(0).rpartition("/")[2]
        options: list[str] = []
        while rest and rest[0].startswith("-"):
            options.append(rest.pop(0))
        if name in ("bash", "sh") and any(option.endswith("c") for option in options) and rest:
            inner = split(rest[0])
            return unwrapped(inner[-1].words) if inner else []
    return rest
