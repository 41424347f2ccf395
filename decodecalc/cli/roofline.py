"""`decodecalc roofline`: arithmetic against bytes."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit
from decodecalc.request import resolve


@click.command("roofline", epilog="Example:  decodecalc roofline --model llama3-8b --gpu h100-sxm --compare")
@scenario_options
@click.option("--compare", is_flag=True, help="The same head count as MHA, GQA, MQA and MLA beside the layer.")
@output_options
def command(format_: str, output: str | None, compare: bool, **values: Any) -> None:
    """FLOP, bytes, intensity of the layer and of one tile, wasted tile rows, the ridge, how far memory-bound."""
    from decodecalc.tables.roofline import roofline_table

    emit(roofline_table(resolve(values), compare), format_, output)
