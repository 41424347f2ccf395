"""Figures: one module per figure, each with the rows that it shows and the drawing of them.

A figure module has `rows(request, said, **options) -> list[dict]`: the data behind the figure, as plain values with a
unit in each name and the names of `series.WHO`; a sentence goes to `said` for everything that was asked for and is not
drawn. `draw(canvas, rows, **options)` draws those rows and computes nothing that they do not hold. A module may have
`DEFAULT_ENGINES` and `DEFAULT_GPUS` (what is drawn when the user names none), `AGAINST` (what can stand on the x axis)
and `TAKES_MEASURED`. `decodecalc plot --data` writes the rows. The figures of a verification report are in
`verification`, drawn from the report's own rows.
"""

from __future__ import annotations

from typing import Any

from decodecalc.plot.figures import FIGURES, load_figure

__all__ = ["FIGURES", "draw", "load_figure"]


def draw(figure: str, **words: Any) -> Any:
    """Draw a figure for a notebook: the list of its matplotlib axes, whose `figure` shows and saves it.

    words: the options of `decodecalc plot`, with underscores: `draw("occupancy", model="llama3-8b", gpu="h200",
    batch=[1, 8], dark=True)`. A list stands for a comma list. Raises what the command would print as an error.
    """
    from decodecalc.plot.drawing import draw_words

    return draw_words(figure, words).fig.axes
