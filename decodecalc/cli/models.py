"""`decodecalc models`: the zoo, or one model's attention layers."""

from __future__ import annotations

import click

from decodecalc.cli.options import output_options
from decodecalc.cli.output import emit


@click.command("models", epilog="Example:  decodecalc models gemma3-27b --tp 4")
@click.argument("model", required=False)
@click.option("--tp", type=int, default=1, show_default=True, help="Show one rank's share.")
@output_options
def command(model: str | None, tp: int, format_: str, output: str | None) -> None:
    """List the zoo, or show MODEL (zoo name, config.json, folder, - for stdin, cached repo id)."""
    from decodecalc.tables.models import model_table, zoo_table

    emit(zoo_table() if model is None else model_table(model, tp), format_, output)
