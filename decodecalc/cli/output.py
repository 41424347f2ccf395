"""Where a command's result goes: standard output, or a file that is whole or absent."""

from __future__ import annotations

import os
import sys

import click

from decodecalc.files import check_output, encoded, write_whole
from decodecalc.tables.render import render
from decodecalc.tables.table import Table


def emit(table: Table, format: str, output: str | None = None) -> None:
    """Render `table` and send it where the user wants it."""
    if output is not None:
        check_output(output)
    terminal = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    write_text(render(table, format, terminal=terminal, width=_columns() if terminal else 100), output)


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
