"""`decodecalc explain`: the whole story of one layer."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, prefix_option, scenario_options
from decodecalc.cli.output import emit, write_text
from decodecalc.request import combinations, resolve


@click.command("explain", epilog="Example:  decodecalc explain --model llama3-8b --context 2560")
@scenario_options
@prefix_option
@output_options
def command(format_: str, output: str | None, **values: Any) -> None:
    """Explain one layer of one decode step from inputs to bytes, with the numbers in every formula."""
    from decodecalc.tables.explain import explain_table, explain_text
    from decodecalc.tables.several import requests_table

    if format_ in ("json", "csv"):
        table, _ = requests_table(values, explain_table)
        emit(table, format_, output)
    else:
        texts = [explain_text(resolve(chosen), markdown=format_ == "markdown") for chosen in combinations(values)]
        write_text("\n".join(texts), output)
