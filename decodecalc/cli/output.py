"""Where a command's result goes: standard output, or a file that is whole or absent."""

from __future__ import annotations

import os
import sys

import click

from decodecalc.files import check_output, encoded, write_whole
from decodecalc.tables.render import WIDTH, render
from decodecalc.tables.table import Table

# Where an invocation keeps what its options said of the printing: no command has to know it.
SORT, VERBOSE = "decodecalc.sort", "decodecalc.verbose"


def emit(table: Table, format: str, output: str | None = None) -> None:
    """Render `table` and send it where the user wants it, as --sort and --verbose say."""
    context = click.get_current_context(silent=True)
    asked = context.meta if context is not None else {}
    if asked.get(SORT):
        table = table.sorted_by(asked[SORT])
    if output is not None:
        check_output(output)
    terminal = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = _columns() if terminal else WIDTH
    write_text(render(table, format, terminal=terminal, width=width, verbose=bool(asked.get(VERBOSE))), output)


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def write_text(text: str, output: str | None) -> None:
    """Text to standard output or, atomically, to a file."""
    if output is None:
        click.echo(encoded(text).decode(), nl=False)
        return
    write_whole(output, text)
    click.echo(f"wrote {output}", err=True)
