"""`decodecalc choose`: the fastest split count."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import html_option, output_options, scenario_options
from decodecalc.cli.output import emit_several
from decodecalc.engines.registry import SERVED_HERE
from decodecalc.request import Request
from decodecalc.tables.table import Table


@click.command("choose", epilog="Example:  decodecalc choose --model llama3-70b --tp 8 --gpu h200 --context 32k")
@scenario_options
@click.option("--curve", is_flag=True, help="Show the time at every split count instead of the engines.")
@click.option(
    "--l2",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    show_default=True,
    help="Whether the KV cache is in L2.",
)
@click.option(
    "--workload",
    metavar="FILE",
    help="A JSON file of the steps that the server runs and their weights, instead of --batch and --context: a list of "
    '{"batch": 8, "context": 4096, "weight": 3} or {"seq_lens": [512, 9000]}.',
)
@click.option(
    "--library",
    is_flag=True,
    help="Also advise on settings that no server takes and only a caller of the library can pass.",
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
    curve: bool,
    l2: str,
    workload: str | None,
    library: bool,
    calibration: str | None,
    **values: Any,
) -> None:
    """Find S* and S_opt, and what each engine's own rule costs compared with S_opt.

    S* is the smallest split count whose blocks cover every SM in the first wave. S_opt is the split count of least
    predicted time. A server has one setting for all the steps that it runs, so give lists to --batch and --context, or
    a --workload, to find a setting for all of them.
    """
    from decodecalc.tables.choose import choose_table
    from decodecalc.tables.several import requests_table

    def table(request: Request) -> Table:
        weights = None
        if workload is not None:
            request, weights = request.on_workload(workload)
        return choose_table(request, l2, calibration, curve, weights, library)

    emit_several(requests_table(values, table, SERVED_HERE), format_, output, html)
