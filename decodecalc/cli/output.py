"""Where a command's result goes: standard output, or a file that is whole or absent."""

from __future__ import annotations

import os
import sys

import click

from decodecalc.errors import InputError
from decodecalc.tables.table import Table, render


def emit(table: Table, format: str, output: str | None = None) -> None:
    """Render `table` and send it where the user wants it."""
    terminal = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    write_text(render(table, format, terminal=terminal, width=_columns() if terminal else 100), output)


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def write_text(text: str, output: str | None) -> None:
    """Text to standard output or, atomically, to a file."""
    if output is None:
        click.echo(text, nl=False)
        return
    write_bytes(text.encode(), output)
    click.echo(f"wrote {output}", err=True)


def write_bytes(data: bytes, output: str) -> None:
    """Bytes to a file: written beside it and moved into place, so that a failure leaves no half file."""
    import tempfile
    from pathlib import Path

    target = Path(output)
    try:
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror or error}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(part, 0o666 & ~umask)
        os.replace(part, target)
    except OSError as error:
        Path(part).unlink(missing_ok=True)
        raise InputError(f"cannot write {output}: {error.strerror or error}") from None
