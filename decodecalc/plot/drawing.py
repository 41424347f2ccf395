"""From a user's words to a drawn figure: requests, the rows of each, and the canvas that they are drawn on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.engines.registry import SERVED
from decodecalc.errors import InputError, UnknownNameError, check_type
from decodecalc.plot.canvas import Look, canvas
from decodecalc.plot.figures import FIGURES, load_figure
from decodecalc.plot.series import Row, scenario
from decodecalc.plot.style import figure_bytes
from decodecalc.request import Request, combinations, resolve, said
from decodecalc.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure and what is behind it. It shows itself in a notebook."""

    fig: Figure
    """The matplotlib figure."""
    rows: list[Row]
    """The data that it shows, as plain values with a unit in each name."""
    requests: list[Request]
    """What was asked: one for each model, GPU and tensor-parallel degree."""
    said: list[str]
    """Sentences: the defaults that were used, warnings, and everything that was asked for and is not drawn."""

    @property
    def axes(self) -> list[Axes]:
        """The matplotlib axes of its panels, to change what it shows."""
        return list(self.fig.axes)

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame. pandas is imported here."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def _repr_png_(self) -> bytes:
        return figure_bytes(self.fig, "png")


def figure(name: str, **words: Any) -> Drawn:
    """One of the figures of `decodecalc plot`: `figure("occupancy", model="llama3-8b", tp=8)`.

    words: the command's options with underscores; lists may be given as lists, `size` is slide, page or column,
    `dark` is for dark ground, and `title` replaces the question. Raises InputError for a figure or a word that there
    is not, and where not everything that was asked for can be drawn.
    """
    check_type("name", name, str, f"one of {', '.join(FIGURES)}")
    return draw_words(name, words)


def draw_words(figure: str, words: Mapping[str, Any]) -> Drawn:
    """The figure that these options of `decodecalc plot` ask for. InputError where they cannot all be drawn."""
    if figure not in FIGURES:
        raise UnknownNameError("figure", figure, FIGURES)
    module = load_figure(figure)
    values = said(words, MORE)
    axes = getattr(module, "AGAINST", ())
    against, measured = values.pop("against"), values.pop("measured")
    if against is not None and against not in axes:
        raise InputError(f"--against must be one of {', '.join(axes)} for {figure}, not {against!r}" if axes else
                         f"--against is for figures of lines; {figure} has no x axis to choose")  # fmt: skip
    if measured is not None and not getattr(module, "TAKES_MEASURED", False):
        raise InputError(f"--measured is drawn by latency and roofline, not by {figure}")
    options: dict[str, Any] = {"against": against or (axes[0] if axes else None), "measured": measured}
    look = Look(*(values.pop(name) for name in Look._fields))
    if values["gpu"] is None and hasattr(module, "DEFAULT_GPUS"):
        values["gpu"] = ",".join(module.DEFAULT_GPUS)
    engines = getattr(module, "DEFAULT_ENGINES", ",".join(SERVED))
    requests = [resolve(chosen, default_engine=engines) for chosen in combinations(values)]
    sentences: list[str] = []
    rows: list[Row] = []
    for request in requests:
        scenarios = request.scenarios
        who = {
            "model": request.layers.label,
            "tp": request.layers.tp,
            "gpu": scenarios.gpu.name,
            "kv_dtype": scenarios.kv.dtype,
            "page_size": scenarios.kv.page_size,
        }
        rows += [{**who, **row} for row in module.rows(request, sentences, **options)]
        pages = scenarios.imposed_pages().items()
        sentences += [f"{engine} is drawn with its own pages of {counted(keys, 'key')}" for engine, keys in pages]
        sentences += [*request.heading[1:], *request.cautions]
    sentences = list(dict.fromkeys(sentences))
    if not rows:
        raise InputError("; ".join([f"there is nothing to draw in {figure}", *sentences[:3]]))
    with canvas(look) as made:
        made.question = FIGURES[figure]
        module.draw(made, rows, **options)
        made.scenario = scenario(rows) + made.scenario
    return Drawn(made.fig, rows, requests, sentences)


MORE: dict[str, Any] = {"against": None, "measured": None, **Look()._asdict()}
"""The words of a figure beside those of its scenario, and their values where nothing is said."""
