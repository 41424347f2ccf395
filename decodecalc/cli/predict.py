"""`decodecalc predict`: how long it takes."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit
from decodecalc.request import resolve


@click.command("predict", epilog="Example:  decodecalc predict --model llama3-8b --gpu h200 --context 2k,32k --l2 cold")
@scenario_options
@click.option(
    "--kernel",
    type=click.Choice(["own", "bundled", "both"]),
    default="own",
    show_default=True,
    help="The engine's kernel, the bundled kernel under its rule, or a row for each.",
)
@click.option(
    "--stand-in",
    is_flag=True,
    help="Where the engine's kernel was not calibrated, show the bundled kernel's time in its place, marked.",
)
@click.option("--l2", type=click.Choice(["cold", "warm"]), default="cold", show_default=True, help="KV in L2 or not.")
@click.option(
    "--launch", type=click.Choice(["graph", "stream"]), default="graph", show_default=True, help="CUDA graph or eager."
)
@click.option("--calibration", metavar="FILE", help="From `decodecalc calibrate` (default: shipped or extrapolated).")
@click.option("--provenance", is_flag=True, help="List every parameter used, with its source.")
@output_options
def command(
    format_: str,
    output: str | None,
    kernel: str,
    stand_in: bool,
    l2: str,
    launch: str,
    calibration: str | None,
    provenance: bool,
    **values: Any,
) -> None:
    """Time per layer and per token, with its terms, what bounds it, an interval and two baselines.

    roofline: data-sheet bandwidth and peak alone. overhead + bytes: launches plus bytes at the sustained rate.
    """
    from decodecalc.tables.predict import predict_table

    request = resolve(values)
    emit(predict_table(request, kernel, l2, launch, calibration, provenance, stand_in), format_, output)
