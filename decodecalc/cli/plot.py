"""`decodecalc plot`: figures, and the data behind them."""

from __future__ import annotations

import os
from typing import Any

import click

from decodecalc.cli.options import scenario_options
from decodecalc.cli.say import say
from decodecalc.files import check_output, write_together
from decodecalc.plot import FIGURES

MOST_SAID = 8  # lines on stderr


@click.command(
    "plot", epilog="Example:  decodecalc plot occupancy --model llama3-8b --engine vllm-triton -o coverage.png"
)
@click.argument("figure", type=click.Choice(list(FIGURES)))
@scenario_options
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
    help="The size of the figure: slide, page, column (of a paper), or screen for a web page.",
)
@click.option("--dark", is_flag=True, help="Draw on dark ground.")
@click.option("--title", default=None, help="The title. [default: the question that the figure answers]")
@click.option("--dpi", type=int, default=None, help="Dots per inch of a PNG. [default: 150; page 200, column 300]")
@click.option("--data", default=None, help="Also write the figure's data to this file (.csv or .json).")
@click.option("--output", "-o", default=None, help="The file to write: .png, .svg or .pdf. [default: FIGURE.png]")
def command(figure: str, data: str | None, output: str | None, dpi: int | None, **words: Any) -> None:
    """Draw FIGURE. The suffix of the output file decides between PNG, SVG and PDF."""
    from decodecalc.plot.drawing import draw_words
    from decodecalc.plot.style import check_dpi, check_suffix, figure_bytes
    from decodecalc.tables.render import render
    from decodecalc.tables.table import Table

    target = output or f"{figure}.png"
    format = check_suffix(target)
    check_dpi(dpi)
    drawn = draw_words(figure, words)
    for path in filter(None, (data, target)):
        check_output(path)
    written: dict[str | os.PathLike[str], bytes | str] = {}
    if data is not None:
        kind = "json" if data.endswith(".json") else "csv"
        written[data] = render(Table(f"plot-{figure}", drawn.requests[0].inputs, drawn.rows), kind)
    written[target] = figure_bytes(drawn.fig, format, dpi)
    write_together(written)
    more = len(drawn.said) - MOST_SAID
    lines = drawn.said[:MOST_SAID] + ([f"and {more} more"] if more > 0 else [])
    for line in [*lines, *(f"wrote {os.fspath(file)}" for file in written)]:
        say(line)
