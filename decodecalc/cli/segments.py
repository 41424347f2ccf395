"""`decodecalc segments`: every split's key range."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit


@click.command("segments", epilog="Example:  decodecalc segments --model llama3-8b --context 257 --engine vllm-triton")
@scenario_options
@click.option("--request", type=int, default=None, help="Show only this request of the batch; 0 is the first.")
@output_options
def command(format_: str, output: str | None, request: int | None, **values: Any) -> None:
    """List every split of every request: its keys, its tiles, and whether it has work to do."""
    from decodecalc.tables.segments import segments_table
    from decodecalc.tables.several import requests_table

    table, _ = requests_table(values, lambda asked: segments_table(asked, request))
    emit(table, format_, output)
