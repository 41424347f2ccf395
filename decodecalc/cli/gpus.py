"""`decodecalc gpus`: the table, or one GPU's fields with their sources."""

from __future__ import annotations

import click

from decodecalc.cli.complete import complete_gpus
from decodecalc.cli.options import output_options
from decodecalc.cli.output import emit


@click.command("gpus", epilog="Example:  decodecalc gpus h200-sxm")
@click.argument("gpu", required=False, shell_complete=complete_gpus)
@output_options
def command(gpu: str | None, format_: str, output: str | None) -> None:
    """List the GPUs, or show one GPU's fields with their source, confidence and what other sources say."""
    from decodecalc.tables.gpus import fields_table, gpus_table

    emit(gpus_table() if gpu is None else fields_table(gpu), format_, output)
