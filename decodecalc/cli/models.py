"""`decodecalc models`: the zoo, or one model's attention layers."""

from __future__ import annotations

import click

from decodecalc.cli.complete import complete_models
from decodecalc.cli.options import output_options
from decodecalc.cli.output import emit


@click.command("models", epilog="Examples:  decodecalc models qwen   |   decodecalc models gemma3-27b --tp 4")
@click.argument("model", required=False, shell_complete=complete_models)
@click.option(
    "--tp", type=int, default=1, show_default=True, help="Show the share of one rank at this tensor-parallel degree."
)
@output_options
def command(model: str | None, tp: int, format_: str, output: str | None) -> None:
    """List the known models, those whose names hold MODEL, or show the attention layers of MODEL.

    MODEL is a zoo name or a part of one, a config.json or its folder, - for stdin, or a cached Hugging Face repository.
    """
    from decodecalc.tables.models import named_table, zoo_table

    emit(zoo_table() if model is None else named_table(model, tp), format_, output)
