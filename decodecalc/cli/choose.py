"""`decodecalc choose`: the fastest split count."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit
from decodecalc.request import resolve


@click.command("choose", epilog="Example:  decodecalc choose --model llama3-70b --tp 8 --gpu h200 --context 32k")
@scenario_options
@click.option("--curve", is_flag=True, help="Time against every split count instead of the engines.")
@click.option("--l2", type=click.Choice(["cold", "warm"]), default="cold", show_default=True, help="KV in L2 or not.")
@click.option(
    "--workload",
    metavar="FILE",
    help="Steps that the server runs, with weights, in place of --batch and --context: a JSON list of "
    '{"batch": 8, "context": 4096, "weight": 3} or {"seq_lens": [512, 9000]}.',
)
@click.option(
    "--library", is_flag=True, help="Advise on settings too that no server takes: a caller of the library passes them."
)
@click.option("--calibration", metavar="FILE", help="From `decodecalc calibrate` (default: shipped or extrapolated).")
@output_options
def command(
    format_: str,
    output: str | None,
    curve: bool,
    l2: str,
    workload: str | None,
    library: bool,
    calibration: str | None,
    **values: Any,
) -> None:
    """S* and S_opt, the tile to use, and what each engine's own rule costs against S_opt.

    S*: smallest count whose first wave covers the SMs. S_opt: the count of least predicted time. A server has one
    setting for all steps that it runs: give lists to --batch and --context, or a --workload.
    """
    from decodecalc.tables.choose import choose_table

    request, weights = resolve(values, default_engine="all"), None
    if workload is not None:
        request, weights = request.on_workload(workload)
    emit(choose_table(request, l2, calibration, curve, weights, library), format_, output)
