"""`decodecalc step`: attention beside a floor for the rest of a decode step."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import html_option, output_options, scenario_options
from decodecalc.cli.output import emit_several
from decodecalc.errors import UnknownNameError


@click.command(
    "step", epilog="Example:  decodecalc step --model llama3.1-70b --tp 8 --gpu h200 --batch 1,16,64 --context 8k"
)
@scenario_options
@click.option(
    "--weights",
    "stored",
    default=None,
    help="How the linear layers are stored: fp8, int4, nvfp4, … [default: as the model states]",
)
@click.option(
    "--expert-ranks",
    type=click.IntRange(1, 4096),
    default=None,
    help="The number of ranks that share the routed experts.",
)
@click.option(
    "--calibration",
    metavar="FILE",
    help="Use a calibration file that `decodecalc calibrate` wrote. [default: shipped or extrapolated]",
)
@html_option
@output_options
def command(
    format_: str,
    output: str | None,
    html: str | None,
    stored: str | None,
    expert_ranks: int | None,
    calibration: str | None,
    **values: Any,
) -> None:
    """Show how much of a decode step attention takes, beside the least time of everything else."""
    from decodecalc.models.weights import LINEAR_BYTES
    from decodecalc.tables.several import requests_table
    from decodecalc.tables.step import step_table

    if stored is not None and stored not in LINEAR_BYTES:
        raise UnknownNameError("storage of weights", stored, LINEAR_BYTES)
    found = requests_table(values, lambda request: step_table(request, calibration, stored, expert_ranks))
    emit_several(found, format_, output, html)
