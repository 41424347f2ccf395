"""`decodecalc.table`: a command's table, asked from Python instead of from a shell."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from decodecalc.cli.main import cli
from decodecalc.cli.output import Invocation
from decodecalc.errors import InputError, UnknownNameError, check_type
from decodecalc.files import watching_inputs
from decodecalc.tables.table import Table

ASKED = (
    "grid", "segments", "merge", "roofline", "paging", "predict", "choose", "kv", "step", "serve", "audit", "models",
    "gpus", "engines", "glossary",
)  # fmt: skip
"""Commands that make a table."""
WRITING = ("format", "output", "html")


def table(command: str, *arguments: str | os.PathLike[str], **words: Any) -> Table:
    """The table that a command of the command line makes: `table("grid", model="llama3-8b", tp=8)`.

    command: one of ASKED; arguments: what stands behind it without a name (the files of `audit`, the command of
    `serve`); words: the command's options with underscores, where True stands for an option without a value, a list
    for a comma list and a mapping `opts` for several `--opt NAME=VALUE`. The table shows itself in a notebook and has
    `to_frame()`. Raises UnknownNameError for a command without a table, and InputError for words that the command
    refuses.
    """
    check_type("command", command, str, "for example grid")
    if command not in ASKED:
        raise UnknownNameError("command with a table", command, ASKED)
    for name in WRITING:
        if name in words:
            raise InputError(f"{name} says where a command writes; a table in Python has to_frame()")
    argv = [command, *(option for name, value in words.items() for option in _options(name, value)), "--"]
    argv += [os.fspath(argument) for argument in arguments]
    invocation = Invocation(argv, [])
    try:
        with watching_inputs():
            cli.main(argv, prog_name="decodecalc", standalone_mode=False, obj=invocation)
    except click.ClickException as error:
        raise InputError(f"{command}: {error.format_message()}") from None
    assert invocation.kept, command
    return invocation.kept[-1]


def _options(name: str, value: Any) -> list[str]:
    """An option as a shell would give it."""
    if name == "opts":
        pairs = [f"{key}={one}" for key, one in value.items()] if isinstance(value, Mapping) else list(value)
        return [f"--opt={pair}" for pair in pairs]
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ",".join(map(str, value))
    return [f"{option}={value}"]
