"""The kernels of one decode step over time: the whole step as a band, and one layer kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodecalc.plot.pages import BLUE, GREEN, GREY, RED, WIDTH, drawn, small_figure
from decodecalc.tables.html import Figure
from decodecalc.trace.timeline import ATTENTION, EXCHANGE, MATRIX, OTHER
from decodecalc.units import human_seconds

if TYPE_CHECKING:
    from decodecalc.trace.timeline import Slice, Timeline

KINDS = {ATTENTION: RED, MATRIX: BLUE, EXCHANGE: GREEN, OTHER: GREY}
MOST_ROWS, LONGEST_NAME = 16, 30


def timeline_figures(found: Timeline | None) -> list[Figure]:
    """The step, and one layer of it; nothing where no step was found."""
    if found is None or not found.length_s:
        return []
    figures = [_step(found)]
    inside = _layer(found)
    return [*figures, _rows(inside)] if inside else figures


def _layer(found: Timeline) -> list[Slice]:
    """The kernels from one attention launch to the next."""
    if found.layer is None:
        return []
    start, end = found.layer
    return [s for s in found.slices if start <= s.start_s < end]


def _step(found: Timeline) -> Figure:
    scale, unit = (1e3, "ms") if found.length_s >= 2e-3 else (1e6, "µs")
    kinds = [kind for kind in KINDS if any(s.kind == kind for s in found.slices)]
    with small_figure() as (fig, ax):
        fig.set_size_inches(WIDTH, 1.0 + 0.24 * len(kinds))
        for row, kind in enumerate(kinds):
            spans = [(scale * s.start_s, scale * s.duration_s) for s in found.slices if s.kind == kind]
            ax.broken_barh(spans, (row - 0.4, 0.8), facecolor=KINDS[kind], edgecolor=KINDS[kind], linewidth=0.3)
        ax.set_yticks(range(len(kinds)), [f"{kind}, {100 * found.share(kind):.0f} %" for kind in kinds])
        ax.invert_yaxis()
        ax.set_xlim(0, scale * found.length_s)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(f"{unit} from the start")
        idle = f" In {100 * found.idle:.0f} % of it no kernel runs." if found.idle >= 0.005 else ""
        cut = f" {found.left_out} more kernels are not drawn." if found.left_out else ""
        caption = (
            f"{found.what}, from the middle of the recording, in {human_seconds(found.length_s)}. The shares "
            f"are those of "
            f"the time in which such a kernel runs.{idle}{cut}"
        )
        return Figure(drawn(fig), caption[0].upper() + caption[1:], "Where does the step's time go?")


def _rows(inside: Sequence[Slice]) -> Figure:
    shown = _longest(inside)
    zero = inside[0].start_s
    texts = [human_seconds(s.duration_s) for s in shown]
    with small_figure() as (fig, ax):
        fig.set_size_inches(WIDTH, 0.6 + 0.2 * len(shown))
        end = max(s.start_s + s.duration_s - zero for s in inside) * 1e6
        for row, (s, text) in enumerate(zip(shown, texts)):
            at, long = (s.start_s - zero) * 1e6, s.duration_s * 1e6
            ax.barh(row, long, left=at, height=0.7, color=KINDS[s.kind])
            ax.annotate(text, (at + long, row), (3, 0), textcoords="offset points", va="center", fontsize="small")
        ax.set_yticks(range(len(shown)), [_label(s) for s in shown], fontsize="small")
        for tick, s in zip(ax.get_yticklabels(), shown):
            tick.set_fontweight("bold" if s.kind == ATTENTION else "normal")
        ax.invert_yaxis()
        ax.set_xlim(0, end * 1.25)  # room for the last text
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("µs from its start")
        more = len(inside) - len(shown)
        caption = "From one attention launch to the next, in order; attention in bold." + (
            f" The {more} shortest of {len(inside)} kernels are not drawn." if more else ""
        )
        return Figure(drawn(fig), caption, "What runs in one layer?")


def _longest(inside: Sequence[Slice]) -> list[Slice]:
    """The kernels that take most time, in their order."""
    order: list[Any] = sorted(range(len(inside)), key=lambda i: (inside[i].kind != ATTENTION, -inside[i].duration_s))
    return [inside[i] for i in sorted(order[:MOST_ROWS])]


def _label(s: Slice) -> str:
    name = s.name if len(s.name) <= LONGEST_NAME else s.name[: LONGEST_NAME - 1] + "…"
    return f"{name} ({s.role})" if s.role else name
