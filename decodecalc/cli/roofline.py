"""`decodecalc roofline`: arithmetic against bytes."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit


@click.command("roofline", epilog="Example:  decodecalc roofline --model llama3-8b --gpu h100-sxm --compare")
@scenario_options
@click.option(
    "--compare", is_flag=True, help="Also show layers with the same number of query heads as MHA, GQA, MQA and MLA."
)
@output_options
def command(format_: str, output: str | None, compare: bool, **values: Any) -> None:
    """Show FLOP, bytes and arithmetic intensity of the layer and of one tile, and how memory-bound they are."""
    from decodecalc.tables.roofline import roofline_table
    from decodecalc.tables.several import requests_table

    table, _ = requests_table(values, lambda request: roofline_table(request, compare))
    emit(table, format_, output)
