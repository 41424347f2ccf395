"""What commands say beside their result."""

from __future__ import annotations

import click

from decodecalc.safetext import plain


def say(text: str) -> None:
    """One line on standard error. Paths and names in it cannot steer the terminal."""
    click.echo(plain(text), err=True)
