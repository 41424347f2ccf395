"""Where a command's result goes: standard output, or a file that is whole or absent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from decodecalc.cli.say import say
from decodecalc.files import check_output, encoded, write_whole
from decodecalc.tables.render import WIDTH, render
from decodecalc.tables.table import Table

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.models import Model

# Where an invocation keeps what its options said of the printing: no command has to know it.
SORT, VERBOSE = "decodecalc.sort", "decodecalc.verbose"


def emit(table: Table, format: str, output: str | None = None) -> None:
    """Render `table` and send it where the user wants it, as --sort and --verbose say."""
    context = click.get_current_context(silent=True)
    asked = context.meta if context is not None else {}
    table = _sorted(table)
    invocation = None if context is None else context.find_root().obj
    if isinstance(invocation, Invocation) and invocation.kept is not None:
        invocation.kept.append(table)
        return
    if output is not None:
        check_output(output)
    terminal = output is None and sys.stdout.isatty()
    width = _columns() if terminal else WIDTH
    color, verbose = "NO_COLOR" not in os.environ, bool(asked.get(VERBOSE))
    write_text(render(table, format, terminal=terminal, width=width, verbose=verbose, color=color), output)


def _sorted(table: Table) -> Table:
    """The table in the order that --sort asks for."""
    context = click.get_current_context(silent=True)
    order = None if context is None else context.meta.get(SORT)
    return table.sorted_by(order) if order else table


def emit_with_page(
    table: Table,
    format: str,
    output: str | None,
    html: str | None,
    *,
    model: Model | None = None,
    gpu: Gpu | None = None,
) -> None:
    """`emit`, and the table's page where `html` names a file for it. Neither file is written where one cannot be."""
    emit_several((table, [(model, gpu)]), format, output, html)


def emit_several(
    found: tuple[Table, Sequence[tuple[Model | None, Gpu | None]]], format: str, output: str | None, html: str | None
) -> None:
    """`emit_with_page` for one table of several scenarios, beside the model and the GPU of each."""
    table, about = found
    if html is not None:
        from decodecalc.plot.pages import figures_of
        from decodecalc.tables.pages import table_page

        table = _sorted(table)
        check_outputs(html, output)
        write_text(table_page(table, typed(), figures_of(table), about=about), html)
    emit(table, format, output)


def check_outputs(*paths: str | None) -> None:
    """InputError, before the first is written, where one of these files cannot be written."""
    for path in filter(None, paths):
        check_output(path)


def typed() -> str:
    """The command as it was typed, to type it again."""
    return shlex.join(["decodecalc", *arguments()])


@dataclass(frozen=True, slots=True)
class Invocation:
    """One invocation of the command line."""

    argv: list[str]
    """Its arguments, the command's name first."""
    kept: list[Table] | None = None
    """Takes the tables that the command makes, where they are not to be printed."""


def arguments() -> list[str]:
    """The arguments of this invocation, the command's name first."""
    context = click.get_current_context()
    given = context.find_root().obj
    return list(given.argv) if isinstance(given, Invocation) else [str(context.info_name)]


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def write_text(text: str, output: str | None) -> None:
    """Text to standard output or, atomically, to a file."""
    if output is None:
        click.echo(encoded(text).decode(), nl=False)
        return
    write_whole(output, text)
    say(f"wrote {output}")
