"""`decodecalc grid`: the launch itself."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import html_option, output_options, prefix_option, scenario_options
from decodecalc.cli.output import emit_several
from decodecalc.engines.registry import SERVED_HERE


@click.command(
    "grid", epilog="Example:  decodecalc grid --model llama3-8b --gpu h200 --batch 1,4,16,17,64 --engine vllm-triton"
)
@scenario_options
@prefix_option
@html_option
@output_options
def command(format_: str, output: str | None, html: str | None, **values: Any) -> None:
    """Show the exact launch: path, grid, launched and live blocks, SM coverage, S*, splits, merge and gates.

    Without --engine, the table lists the engines that servers run here, by themselves or when told to, and the bundled
    kernel. --engine all lists every engine.
    """
    from decodecalc.tables.grid import grid_table
    from decodecalc.tables.several import requests_table

    emit_several(requests_table(values, grid_table, SERVED_HERE), format_, output, html)
