"""One style for every figure: colour-blind-safe, legible in greyscale, sized for a slide or a paper column.

Colours are Okabe and Ito's eight (Color Universal Design, 2008), ordered so that neighbours also differ in lightness;
lines differ in dash and marker too, so that a greyscale print keeps them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodecalc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#E69F00", "#000000", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8A8A8A")
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SUFFIXES = (".png", ".svg", ".pdf")
# Inches: a 16:9 slide's content area, and one column of a two-column paper.
SIZES = {"slide": (9.0, 5.0), "column": (3.4, 2.5)}

_RC: dict[str, Any] = {
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "decodecalc",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def matplotlib_without_display() -> Any:
    """matplotlib, imported whatever MPLBACKEND says: figures are drawn into files and need no backend of a user's."""
    import os

    chosen = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib as mpl
    finally:
        if chosen is not None:
            os.environ["MPLBACKEND"] = chosen
    return mpl


def literal_text(fig: Figure) -> None:
    """Every text of the figure as it stands: a dollar sign in a name begins no formula."""
    from matplotlib.text import Text

    for text in fig.findobj(Text):
        text.set_parse_math(False)


@contextmanager
def figure(size: str = "slide", rows: int = 1, columns: int = 1) -> Iterator[tuple[Figure, Any]]:
    """A figure of one of SIZES and its axes (one, or an array), closed at the end. Draws without a display."""
    mpl = matplotlib_without_display()
    from matplotlib.figure import Figure as NewFigure

    if size not in SIZES:
        raise InputError(f"--size must be one of {', '.join(SIZES)}, not {size!r}")
    small = size == "column"
    font = {
        "font.size": 7.5 if small else 11,
        "axes.titlesize": 8 if small else 12,
        "lines.linewidth": 1.2 if small else 2,
    }
    with mpl.rc_context({**_RC, **font}):
        fig = NewFigure(figsize=SIZES[size])
        yield fig, fig.subplots(rows, columns)


def line_style(i: int) -> dict[str, Any]:
    """Colour, dash and marker of the i-th series."""
    return {
        "color": COLORS[i % len(COLORS)],
        "linestyle": DASHES[i % len(DASHES)],
        "marker": MARKERS[i % len(MARKERS)],
        "markersize": 4,
    }


def check_suffix(path: str) -> str:
    """The format that a file name asks for; InputError names the formats there are."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot write {path}: figures end in {', '.join(SUFFIXES)}")
    return suffix[1:]


def figure_bytes(fig: Figure, format: str) -> bytes:
    """The figure as a file's bytes, the same for the same data (no dates inside)."""
    import io

    literal_text(fig)
    out = io.BytesIO()
    undated: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}}
    fig.savefig(out, format=format, metadata=undated.get(format))
    return out.getvalue()


def is_narrow(fig: Figure) -> bool:
    """Whether this is a paper column: legends then move out of the axes."""
    return float(fig.get_size_inches()[0]) < 5


def fit_titles(fig: Figure, size: str) -> None:
    """Break the axes' titles where the figure is too narrow for them."""
    import textwrap

    most = 44 if size == "column" else 100
    for ax in fig.axes:
        lines = (textwrap.fill(line, most) for line in ax.get_title().splitlines())
        ax.set_title("\n".join(lines))


def plain_log_ticks(axis: Any) -> None:
    """A base-10 axis with plain numbers at 1, 2 and 5 of every decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())


def log2_ticks(axis: Any) -> None:
    """A base-2 axis with plain numbers, labelled where they fit."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_major_locator(LogLocator(base=2, numticks=12))
    axis.set_minor_locator(LogLocator(base=2, subs=(1.0,), numticks=1))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1024:g}k" if v >= 1024 else f"{v:g}"))
