"""`decodecalc plot`: figures, and the data behind them."""

from __future__ import annotations

import os
from typing import Any

import click

from decodecalc.cli.options import scenario_options
from decodecalc.engines.registry import SERVED
from decodecalc.errors import InputError
from decodecalc.files import check_output, write_together
from decodecalc.plot import FIGURES, load_figure
from decodecalc.request import resolve
from decodecalc.units import parse_counts


@click.command(
    "plot", epilog="Example:  decodecalc plot occupancy --model llama3-8b --engine vllm-triton -o coverage.png"
)
@click.argument("figure", type=click.Choice(FIGURES))
@scenario_options
@click.option(
    "--tps", default=None, help="Tensor-parallel degrees to draw side by side: 1,2,8 (occupancy, splits, merge)."
)
@click.option("--against", default=None, help="For occupancy: draw against batch or splits on the x axis.")
@click.option(
    "--measured",
    type=click.Path(exists=True, dir_okay=False),
    help="A JSON report of verify whose measurements to draw as well.",
)
@click.option(
    "--size",
    default="slide",
    show_default=True,
    help="The size of the figure: slide, or column for one column of a paper.",
)
@click.option("--data", default=None, help="Also write the figure's data to this file (.csv or .json).")
@click.option("--output", "-o", default=None, help="The file to write: .png, .svg or .pdf. [default: FIGURE.png]")
def command(
    figure: str,
    tps: str | None,
    against: str | None,
    measured: str | None,
    size: str,
    data: str | None,
    output: str | None,
    **values: Any,
) -> None:
    """Draw FIGURE. The suffix of the output file decides between PNG, SVG and PDF."""
    from decodecalc.plot.style import check_suffix, figure_bytes, fit_titles
    from decodecalc.plot.style import figure as new_figure
    from decodecalc.tables.render import render
    from decodecalc.tables.table import Table

    module = load_figure(figure)
    choices = getattr(module, "AGAINST", ())
    if against is not None and against not in choices:
        raise InputError(f"--against must be one of {', '.join(choices)} for {figure}, not {against!r}")
    target = output or f"{figure}.png"
    format = check_suffix(target)
    engines = getattr(module, "DEFAULT_ENGINES", ",".join(SERVED))
    gpus = [part.strip() for part in (values["gpu"] or "").split(",") if part.strip()]
    if len(gpus) > 1:
        if not getattr(module, "SEVERAL_GPUS", False):
            raise InputError(f"plot {figure} draws one GPU: give --gpu once, or draw `plot gpus`")
        values["gpu"] = gpus[0]
    request = resolve(values, default_engine=engines)
    options: dict[str, Any] = {
        "gpus": tuple(gpus),
        "against": against or (choices[0] if choices else None),
        "measured": measured,
    }
    requests = [request]
    if tps is not None:
        degrees = parse_counts(tps, "--tps")
        requests = [resolve({**values, "tp": tp}, default_engine=engines) for tp in degrees]
    rows = [row for each in requests for row in module.rows(each, **options)]
    if not rows:
        raise InputError(f"there is nothing to draw: none of the chosen engines runs this {figure} scenario")
    for path in filter(None, (data, target)):
        check_output(path)
    written: dict[str | os.PathLike[str], bytes | str] = {}
    if data is not None:
        kind = "json" if data.endswith(".json") else "csv"
        written[data] = render(Table(f"plot-{figure}", request.inputs, rows), kind)
    with new_figure(size) as (fig, ax):
        module.draw(fig, ax, rows, request, **options)
        fit_titles(fig, size)
        written[target] = figure_bytes(fig, format)
    write_together(written)
    for file in written:
        click.echo(f"wrote {os.fspath(file)}", err=True)
