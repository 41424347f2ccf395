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
@click.option("--calibration", metavar="FILE", help="From `decodecalc calibrate` (default: shipped or extrapolated).")
@output_options
def command(format_: str, output: str | None, curve: bool, l2: str, calibration: str | None, **values: Any) -> None:
    """S* and S_opt, the tile to use, and what each engine's own rule costs against S_opt.

    S*: smallest count whose first wave covers the SMs. S_opt: the count of least predicted time.
    """
    from decodecalc.tables.choose import choose_table

    emit(choose_table(resolve(values, default_engine="all"), l2, calibration, curve), format_, output)
