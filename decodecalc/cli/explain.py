"""`decodecalc explain`: the whole story of one layer."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, prefix_option, scenario_options
from decodecalc.cli.output import emit, write_text
from decodecalc.request import resolve


@click.command("explain", epilog="Example:  decodecalc explain --model llama3-8b --context 2560")
@scenario_options
@prefix_option
@output_options
def command(format_: str, output: str | None, **values: Any) -> None:
    """Explain one layer of one decode step from inputs to bytes, with the numbers in every formula."""
    from decodecalc.tables.explain import explain_table, explain_text

    request = resolve(values)
    if format_ in ("json", "csv"):
        emit(explain_table(request), format_, output)
    else:
        write_text(explain_text(request, markdown=format_ == "markdown"), output)
