"""One style for every figure: colour-blind-safe, legible in greyscale, for a slide, a page or a paper's column.

Colours are Okabe and Ito's eight (Color Universal Design, 2008), ordered so that neighbours also differ in lightness;
lines differ in dash and marker too, so that a greyscale print keeps them apart.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decodecalc.errors import InputError
from decodecalc.units import short_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Theme(NamedTuple):
    """The colours of a figure on light or on dark ground."""

    paper: str
    """The ground."""
    ink: str
    """Text and axes."""
    quiet: str
    """Reference lines, and text of second rank."""
    grid: str
    """Grid lines."""
    idle: str
    """The fill of what does nothing."""
    colors: tuple[str, ...]
    """The colours of series, in the order of their use."""


class Measures(NamedTuple):
    """The measures of a figure. Inches and points."""

    width: float
    """Inches of the whole figure."""
    height: float
    """Inches of one row of panels; the header stands above it."""
    font: float
    """Points of every text but the title."""
    title: float
    """Points of the title."""
    line: float
    """Points of a line's width."""
    columns: int
    """Panels beside one another, at most."""
    dpi: int
    """Dots per inch of a PNG, unless the user says otherwise."""


LIGHT = Theme(
    "#FFFFFF", "#1B1F24", "#59636E", "#DDDDDD", "#E3E3E3",
    ("#0072B2", "#E69F00", "#000000", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8A8A8A"),
)  # fmt: skip
DARK = Theme(
    "#14171A", "#E6E8EA", "#9AA4AD", "#353A40", "#3A3F45",
    ("#56B4E9", "#E69F00", "#FFFFFF", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#9A9A9A"),
)  # fmt: skip
# A 16:9 slide's content area, the text width of a page, one column of a two-column paper, and a web page, whose figures
# shrink to a phone's width with letters that can still be read.
SIZES = {
    "slide": Measures(9.0, 4.1, 11, 15, 2.0, 4, 150),
    "page": Measures(6.5, 3.2, 9, 11.5, 1.6, 3, 200),
    "column": Measures(3.4, 2.2, 8, 9.5, 1.2, 2, 300),
    "screen": Measures(6.4, 3.7, 11, 13, 1.8, 3, 150),
}
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SUFFIXES = (".png", ".svg", ".pdf")
MOST_STYLES = len(DASHES) * len(MARKERS)
LEAST_DPI, MOST_DPI = 50, 1200


def size_named(name: str) -> Measures:
    """One of SIZES. InputError names them."""
    if name not in SIZES:
        raise InputError(f"--size must be one of {', '.join(SIZES)}, not {name!r}")
    return SIZES[name]


def check_dpi(dpi: int | None) -> None:
    """InputError unless it can be drawn."""
    if dpi is not None and not LEAST_DPI <= dpi <= MOST_DPI:
        raise InputError(f"--dpi must be between {LEAST_DPI} and {MOST_DPI}, not {dpi}")


def settings(size: Measures, theme: Theme) -> dict[str, Any]:
    """matplotlib's settings of a figure. Sizes are numbers: a relative one would change with a notebook's settings."""
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    fonts = ("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
    return {
        **dict.fromkeys(names, theme.ink),
        **dict.fromkeys(fonts, size.font),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.paper),
        "axes.grid": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "lines.linewidth": size.line,
        "hatch.linewidth": 0.6,
        "figure.dpi": size.dpi,
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
        assert isinstance(text, Text)
        text.set_parse_math(False)


def line_style(i: int, theme: Theme = LIGHT) -> dict[str, Any]:
    """Colour, dash and marker of the i-th series; no two of MOST_STYLES are the same."""
    shift = i + i // len(theme.colors)
    return {
        "color": theme.colors[i % len(theme.colors)],
        "linestyle": DASHES[shift % len(DASHES)],
        "marker": MARKERS[shift % len(MARKERS)],
        "markersize": 4,
    }


def check_suffix(path: str) -> str:
    """The format that a file name asks for; InputError names the formats there are."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot write {path}: figures end in {', '.join(SUFFIXES)}")
    return suffix[1:]


def figure_bytes(fig: Figure, format: str, dpi: int | None = None, outlines: bool = False) -> bytes:
    """The figure as a file's bytes, the same for the same data (no dates inside).

    dpi: of a PNG; the size's own where it is None. outlines: text of an SVG becomes shapes, for readers whose machines
    lack the font that the layout was made for.
    """
    import io

    literal_text(fig)
    out = io.BytesIO()
    undated: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}}
    as_text = {"svg.fonttype": "path" if outlines else "none", "svg.hashsalt": "decodecalc", "pdf.fonttype": 42}
    with matplotlib_without_display().rc_context(as_text):
        fig.savefig(
            out, format=format, dpi=dpi or "figure", metadata=undated.get(format), facecolor=fig.get_facecolor()
        )
    return out.getvalue()


@functools.lru_cache(maxsize=4096)
def text_inches(text: str, points: float, bold: bool = False) -> float:
    """How wide a line of text is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=points, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72


def wrap(text: str, points: float, inches: float, bold: bool = False) -> str:
    """The text with line breaks at spaces, so that no line is wider than `inches` where its words allow it."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_inches(longer, points, bold) <= inches:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def plain_log_ticks(axis: Any, few: bool = False) -> None:
    """A base-10 axis with plain numbers at 1, 2 and 5 of every decade, or only at 1 where there is room for `few`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, subs=(1.0,) if few else (1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def log2_ticks(axis: Any, most: int = 12) -> None:
    """A base-2 axis with at most that many numbers: 1/4, 1/2, 1, 2, 4 … 512, 1k … 128k."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=2, numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: short_count(v) if v >= 1 else f"1/{1 / v:g}"))
