"""A figure in the making: one question above, the scenario under it, panels of axes, and labels that keep apart.

A figure draws on the panels that it asks for; the header, the layout and the places of labels are made once, at the
end, from the sizes that the text really has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from decodecalc.errors import InputError
from decodecalc.intmath import cdiv
from decodecalc.plot.style import (
    DARK,
    LIGHT,
    Measures,
    Theme,
    literal_text,
    log2_ticks,
    matplotlib_without_display,
    settings,
    size_named,
    text_inches,
    wrap,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

MOST_PANELS = 32
_EDGE, _LEADING = 0.08, 1.3  # inches around the header; height of a line of text over its size


class Look(NamedTuple):
    """How a figure is to look, as a user says it."""

    size: str = "slide"
    dark: bool = False
    title: str | None = None
    """What stands in the question's place."""


class Canvas:
    """See the module. `fig` is the matplotlib figure, `theme` and `size` its colours and measures."""

    def __init__(self, look: Look) -> None:
        matplotlib_without_display()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as NewFigure

        self.size: Measures = size_named(look.size)
        self.theme: Theme = DARK if look.dark else LIGHT
        self.fig: Figure = NewFigure(figsize=(self.size.width, self.size.height), layout="constrained")
        FigureCanvasAgg(self.fig)
        self.question = ""
        self.scenario = ""
        self._title = look.title
        self._panels: list[list[Axes]] = []
        self._columns = 1
        self._body = self.size.height
        self._key: list[Any] = []
        self._beside: dict[Axes, list[Annotation]] = {}
        self._near: dict[Axes, list[Annotation]] = {}

    def panels(
        self,
        labels: Sequence[str],
        *,
        wide: bool = False,
        height: float | None = None,
        tall: Sequence[float] = (1,),
        across: Sequence[float] = (1,),
        share: str = "xy",
    ) -> list[list[Axes]]:
        """Axes for each label: as many as `tall` has shares of the panel's height, or `across` of its width.

        wide: half as many panels stand beside one another. height: inches of a panel. share: the axes, x and y, that
        all panels have in common. InputError where there are too many.
        """
        if len(labels) > MOST_PANELS:
            raise InputError(
                f"a figure has at most {MOST_PANELS} panels, and this one would have {len(labels)}: give fewer "
                "engines, batches, contexts, GPUs or models"
            )
        rows = cdiv(len(labels), max(1, self.size.columns // (2 if wide else 1)))
        self._columns = cdiv(len(labels), rows)
        self._body = rows * (height or self.size.height * (1 if rows == 1 else 0.62))
        grid = self.fig.add_gridspec(
            rows * len(tall), self._columns * len(across),
            height_ratios=[*tall] * rows, width_ratios=[*across] * self._columns,
        )  # fmt: skip
        for i, label in enumerate(labels):
            top, left = i // self._columns * len(tall), i % self._columns * len(across)
            made = [self.fig.add_subplot(grid[top + y, left + x]) for y in range(len(tall)) for x in range(len(across))]
            self._share(made, share, stacked=len(tall) > 1)
            self._panels.append(made)
            self.name_panel(made[0], label)
        return self._panels

    def name_panel(self, ax: Axes, label: str) -> None:
        """The title of a panel, above its first axes."""
        ax.set_title("\n".join(wrap(line, self.size.font, self.panel_inches - 0.6) for line in label.split("\n")))

    def _share(self, made: list[Axes], share: str, stacked: bool) -> None:
        i = len(self._panels)
        for k, ax in enumerate(made):
            if i and "x" in share:
                ax.sharex(self._panels[0][k])
            elif stacked and k:
                ax.sharex(made[0])
            if i and "y" in share:
                ax.sharey(self._panels[0][k])
                if i % self._columns:
                    ax.tick_params(labelleft=False)
            if stacked and k < len(made) - 1:
                ax.tick_params(labelbottom=False)
        if "x" in share and i >= self._columns:
            for ax in self._panels[i - self._columns]:
                ax.tick_params(labelbottom=False)

    @property
    def panel_inches(self) -> float:
        """Inches of one panel, its labels included."""
        return self.size.width / self._columns

    def name_axes(self, x: Sequence[str], y: Sequence[str]) -> None:
        """What the axes of a panel show, one name for each of its parts: x under the lowest, y beside the leftmost."""
        for i, panel in enumerate(self._panels):
            for ax, x_name, y_name in zip(panel, x, y):
                if i + self._columns >= len(self._panels):
                    ax.set_xlabel(x_name)
                if i % self._columns == 0:
                    ax.set_ylabel(y_name)

    def powers_of_two(self, ax: Axes, axes: str = "x") -> None:
        """A base-2 scale with as many numbers as fit."""
        rows = cdiv(len(self._panels), self._columns)
        inches = {"x": self.panel_inches - 0.6, "y": self._body / rows / 1.6}
        room = {"x": 3.0, "y": 1.6}  # of one number, over the size of the text
        for name in axes:
            axis = ax.xaxis if name == "x" else ax.yaxis
            (ax.set_xscale if name == "x" else ax.set_yscale)("log", base=2)
            log2_ticks(axis, max(2, int(inches[name] * 72 / self.size.font / room[name])))

    def key(self, handles: Sequence[Any]) -> None:
        """What the line styles or fills of all panels mean: a line of samples under the scenario."""
        self._key = list(handles)

    def beside(self, ax: Axes, x: float, y: float, text: str, color: str) -> None:
        """A label at the right of the axes, level with the point (x, y) as nearly as its neighbours allow."""
        label = wrap(text, self.size.font, max(1.0, 0.26 * self.size.width))
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        self._beside.setdefault(ax, []).append(
            ax.annotate(
                label, (x, y), (1.03, y), textcoords=("axes fraction", "data"), va="center", ha="left", color=color,
                arrowprops=line, annotation_clip=False,
            )
        )  # fmt: skip

    def near(self, ax: Axes, x: float, y: float, text: str, color: str) -> None:
        """A label at the point (x, y), on that side of it where nothing else stands."""
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        self._near.setdefault(ax, []).append(
            ax.annotate(
                text, (x, y), (6, 0), textcoords="offset points", va="center", color=color, arrowprops=line,
                annotation_clip=False,
            )
        )  # fmt: skip

    def finish(self) -> None:
        """Write the header, lay the figure out, and put the labels where they do not touch."""
        from matplotlib.layout_engine import ConstrainedLayoutEngine
        from matplotlib.ticker import AutoLocator

        head = self._header()
        literal_text(self.fig)
        side = 0.5 * _EDGE / self.size.width
        rect = (side, 0, 1 - 2 * side, 1 - head / (head + self._body))
        layout = self.fig.get_layout_engine()
        assert isinstance(layout, ConstrainedLayoutEngine)
        layout.set(rect=rect)
        self.fig.draw_without_rendering()
        for ax in self.fig.axes:  # names are broken to the lengths that the first pass gives the axes
            box, dpi = ax.get_window_extent(), self.fig.dpi
            ax.set_xlabel(wrap(ax.get_xlabel(), self.size.font, box.width / dpi))
            ax.set_ylabel(wrap(ax.get_ylabel(), self.size.font, box.height / dpi))
            for axis in (ax.xaxis, ax.yaxis):  # how many numbers it has may not change its length, and that their count
                numbers = axis.get_major_locator()
                if isinstance(numbers, AutoLocator):
                    numbers.set_params(nbins=min(9, max(2, axis.get_tick_space())))
        self.fig.draw_without_rendering()
        self.fig.set_layout_engine("none")
        for ax in self.fig.axes:  # the solver of the layout leaves noise in the last digits, another one each time
            left, bottom, width, height = (round(float(edge), 5) for edge in ax.get_position().bounds)
            ax.set_position((left, bottom, width, height))
        for ax, labels in self._beside.items():
            _spread(ax, labels)
        for ax, labels in self._near.items():
            _place(ax, labels, self.size.font)

    def _header(self) -> float:
        """Title, scenario and key; inches that they take."""
        width = self.size.width - 2 * _EDGE
        question = self.question if self._title is None else self._title
        lines = [
            (wrap(question, self.size.title, width, bold=True), self.size.title, "bold", self.theme.ink),
            (wrap(self.scenario, self.size.font, width), self.size.font, "normal", self.theme.quiet),
        ]
        tall = [(text.count("\n") + 1) * points / 72 * _LEADING if text else 0.0 for text, points, *_ in lines]
        columns, rows = self._key_shape(width)
        # matplotlib fills a legend column by column; these are to be read line by line.
        ordered = [handle for k in range(columns) for handle in self._key[k::columns]]
        head = _EDGE + sum(tall) + rows * self.size.font / 72 * 1.5 + _EDGE
        whole = head + self._body
        self.fig.set_size_inches(self.size.width, whole)
        top = _EDGE
        for (text, points, weight, color), inches in zip(lines, tall):
            if text:
                self.fig.text(
                    _EDGE / self.size.width, 1 - top / whole, text, fontsize=points, fontweight=weight, color=color,
                    va="top", linespacing=1.15,
                )  # fmt: skip
            top += inches
        if self._key:
            self.fig.legend(
                handles=ordered, loc="upper left", bbox_to_anchor=(_EDGE / self.size.width, 1 - top / whole),
                ncols=columns, borderpad=0, borderaxespad=0, labelspacing=0.3, handlelength=2.2, columnspacing=1.5,
            )  # fmt: skip
        return head

    def _key_shape(self, width: float) -> tuple[int, int]:
        """Columns and rows of the key."""
        if not self._key:
            return 0, 0
        font = self.size.font
        widest = max(text_inches(str(handle.get_label()), font) for handle in self._key) + 4.8 * font / 72
        columns = max(1, min(len(self._key), int(width / widest)))
        return columns, cdiv(len(self._key), columns)


def _spread(ax: Axes, labels: list[Annotation]) -> None:
    """Move labels of one column up or down until they do not touch, as little as a sweep in order can."""
    box = ax.get_window_extent()
    boxes = {label: _text_box(label) for label in labels}
    ordered = sorted(labels, key=lambda label: (boxes[label].y0 + boxes[label].y1) / 2)
    gap = 2.0
    centres = [(boxes[label].y0 + boxes[label].y1) / 2 for label in ordered]
    half = [boxes[label].height / 2 for label in ordered]
    for i in range(1, len(ordered)):  # upwards
        centres[i] = max(centres[i], centres[i - 1] + half[i - 1] + half[i] + gap)
    for i in range(len(ordered) - 1, -1, -1):  # back down where the top was passed
        top = box.y1 if i == len(ordered) - 1 else centres[i + 1] - half[i + 1] - gap
        centres[i] = min(centres[i], top - half[i])
    for label, centre in zip(ordered, centres):
        label.set_y((centre - box.y0) / box.height)
        label.anncoords = "axes fraction"


def _place(ax: Axes, labels: list[Annotation], font: float) -> None:
    """Put each label on that side of its point where it covers least of the points and labels that are there."""
    from matplotlib.transforms import Bbox

    frame = ax.get_window_extent()
    dot = font * ax.figure.dpi / 72 * 0.45
    taken = [_text_box(text) for text in ax.texts if text not in labels]
    for line in ax.get_lines():
        path = line.get_transform().transform(line.get_xydata())
        half = dot if line.get_linestyle() == "None" else dot / 4
        taken += [Bbox([[x - half, y - half], [x + half, y + half]]) for x, y in _along(path, 2 * half)]
    for label in labels:
        best: tuple[float, Any, Any] | None = None
        for x, y, ha in _SIDES:
            label.set(x=x * font, y=y * font, ha=ha)
            box = _text_box(label)
            outside = box.width * box.height - _shared(box, frame)
            covered = sum(_shared(box, other) for other in taken) + 2 * outside
            if best is None or covered < best[0] - 0.5:
                best = (covered, (x, y, ha), box)
            if not covered:
                break
        assert best is not None
        (x, y, ha), box = best[1:]
        label.set(x=x * font, y=y * font, ha=ha)
        if label.arrow_patch is not None:
            label.arrow_patch.set_visible(abs(y) > 1.5)  # a line leads to a label only where it stands further off
        taken.append(box)


# Places of a label around its point, in sizes of its text, nearest first: right, left, above and below, then further.
_SIDES = [
    (dx * (0.8 if far == 0 else 1.0), dy * far, side)
    for far in (0, 1.1, 2.2, 3.3, 4.4, 5.5, 6.6)
    for dy in ((0,) if far == 0 else (1, -1))
    for dx, side in ((1, "left"), (-1, "right"), *(((0, "center"),) if far else ()))
]


def _along(path: Any, step: float) -> Iterator[tuple[float, float]]:
    """Points of a line, and between them others so that none are much further apart than `step`."""
    import numpy as np

    path = path[np.isfinite(path).all(axis=1)]
    for start, end in pairwise(path):
        n = min(1000, 1 + int(np.hypot(*(end - start)) / step))
        yield from (tuple(start + (end - start) * k / n) for k in range(n))
    if len(path):
        yield tuple(path[-1])


def _text_box(text: Any) -> Any:
    """The box of the words alone, without the line that leads to a point."""
    from matplotlib.text import Text

    return Text.get_window_extent(text)


def _shared(a: Any, b: Any) -> float:
    """The area that two boxes have in common."""
    return max(0.0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0.0, min(a.y1, b.y1) - max(a.y0, b.y0))


@contextmanager
def canvas(look: Look) -> Iterator[Canvas]:
    """A canvas, finished at the end of the block; all of it under the settings of its size and theme."""
    mpl = matplotlib_without_display()
    theme = DARK if look.dark else LIGHT
    with mpl.rc_context(settings(size_named(look.size), theme)):
        made = Canvas(look)
        yield made
        made.finish()
