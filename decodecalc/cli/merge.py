"""`decodecalc merge`: what combining partial states costs in bytes."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit


@click.command("merge", epilog="Example:  decodecalc merge --model llama3-8b --context 128,512,2560,32k --engine all")
@scenario_options
@output_options
def command(format_: str, output: str | None, **values: Any) -> None:
    """Compare the bytes of the partial states, allocated and moved, with the KV bytes, per layer and token."""
    from decodecalc.tables.merge import merge_table
    from decodecalc.tables.several import requests_table

    table, _ = requests_table(values, merge_table)
    emit(table, format_, output)
