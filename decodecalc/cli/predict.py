"""`decodecalc predict`: how long it takes."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import html_option, output_options, prefix_option, scenario_options
from decodecalc.cli.output import emit_several
from decodecalc.errors import InputError
from decodecalc.request import Request
from decodecalc.tables.table import Table


@click.command("predict", epilog="Example:  decodecalc predict --model llama3-8b --gpu h200 --context 2k,32k --l2 cold")
@scenario_options
@prefix_option
@click.option(
    "--kernel",
    type=click.Choice(["own", "bundled", "both"]),
    default="own",
    show_default=True,
    help="Time the engine's own kernel, the bundled kernel launched by the engine's rule, or both.",
)
@click.option(
    "--stand-in",
    is_flag=True,
    help="Where the engine's kernel was not calibrated, show the bundled kernel's time instead, and mark it.",
)
@click.option(
    "--l2",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    show_default=True,
    help="Whether the KV cache is in L2.",
)
@click.option(
    "--launch",
    type=click.Choice(["graph", "stream"]),
    default="graph",
    show_default=True,
    help="Whether kernels are launched from a CUDA graph or one by one on a stream.",
)
@click.option(
    "--calibration",
    metavar="FILE",
    help="Use a calibration file that `decodecalc calibrate` wrote. [default: shipped or extrapolated]",
)
@click.option("--provenance", is_flag=True, help="List every parameter that was used, with its source.")
@html_option
@output_options
def command(
    format_: str,
    output: str | None,
    html: str | None,
    kernel: str,
    stand_in: bool,
    l2: str,
    launch: str,
    calibration: str | None,
    provenance: bool,
    **values: Any,
) -> None:
    """Predict the time per layer and per token, with its terms, what limits it, an interval and two baselines.

    The baseline `roofline` uses only the data sheet's bandwidth and peak. The baseline `overhead + bytes` adds the
    launch overhead to the bytes at the sustained bandwidth.
    """
    from decodecalc.tables.predict import predict_table
    from decodecalc.tables.several import requests_table

    def table(request: Request) -> Table:
        if request.scenarios.shared_prefix:
            return _shared(request, kernel, l2, launch, calibration, provenance or stand_in)
        return predict_table(request, kernel, l2, launch, calibration, provenance, stand_in)

    emit_several(requests_table(values, table), format_, output, html)


def _shared(request: Request, kernel: str, l2: str, launch: str, calibration: str | None, more: bool) -> Table:
    """The table of a step with a shared prefix; InputError for options that it has no columns for."""
    from decodecalc.tables.prefix import prefix_table

    if more or kernel == "both":
        raise InputError("--shared-prefix shows one kernel: leave --provenance and --stand-in out, and give no both")
    return prefix_table(request, kernel, l2, launch, calibration)
