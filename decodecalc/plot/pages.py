"""The figure of a command's page, drawn from the rows of its table.

A few rows become a bar each, with its value beside it. Many rows that differ in the batch or the context become lines
along it. What does not fit is counted in the caption, so that nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from decodecalc.plot.style import figure_bytes, line_style, log2_ticks, matplotlib_without_display
from decodecalc.safetext import plain
from decodecalc.tables.html import Figure
from decodecalc.tables.table import Table, percent
from decodecalc.units import human_seconds

WIDTH = 4.6
"""Inches. At a phone's width the letters are then still as large as the page's small print."""
MOST_BARS, MOST_LINES, MOST_MARKERS, LEGEND_COLUMNS = 20, 6, 20, 4
FONT = 9
"""Points: the size of the letters."""
BLUE, ORANGE, INK, GREEN, PINK, RED, SKY, GREY = (str(line_style(i)["color"]) for i in range(8))
"""The colours of series, by their looks."""
_LOOKS: dict[str, Any] = {
    "font.size": FONT, "axes.titlesize": FONT, "lines.linewidth": 1.6, "legend.frameon": False, "axes.grid": True,
    "grid.color": "#DDDDDD", "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "svg.fonttype": "none", "svg.hashsalt": "decodecalc",
}  # fmt: skip
Row = Mapping[str, Any]


class BarPart(NamedTuple):
    """One piece of every bar."""

    label: str
    """Its name in the legend."""
    values: Sequence[float]
    """Its length in every bar."""
    color: str
    """Its colour."""
    hollow: bool = False
    """Whether only its outline is drawn, from the beginning of the bar; others are stacked."""


class PageFigure(NamedTuple):
    """What a figure shows of the rows."""

    title: str
    """The question that it answers."""
    caption: str
    """What the marks mean."""
    key: str
    """The key of the value that counts."""
    scale: float
    """What the value is multiplied by for the axis."""
    axis: str
    """The axis' label, with its unit."""
    text: Callable[[Row], str]
    """The value of a row in words, beside its bar."""
    parts: Callable[[Sequence[Row]], list[BarPart]] | None = None
    """What bars are made of; None: the value alone."""
    line: Callable[[Sequence[Row]], tuple[float, str] | None] = lambda rows: None
    """A value that all bars are compared with, and its name."""
    share_axis: str | None = None
    """The label of the axis where lines show the value in per cent; None where they show what the bars show."""


@contextmanager
def small_figure() -> Iterator[tuple[Any, Any]]:
    """A figure whose letters suit a page, and its axes. The page gives it the reader's colours."""
    mpl = matplotlib_without_display()
    from matplotlib.figure import Figure as NewFigure

    with mpl.rc_context(_LOOKS):
        fig = NewFigure(layout="constrained")
        yield fig, fig.subplots()


def drawn(fig: Any) -> bytes:
    """The figure as SVG."""
    return figure_bytes(fig, "svg")


def figures_of(table: Table) -> list[Figure]:
    """The figures of a command's page; none where its rows hold nothing to draw."""
    subject = SUBJECTS.get(table.command)
    every = table.shown_rows()
    if subject is None or not every:
        return []
    if "over_best" in every[0]:
        return [_lines(every, CURVE, "splits")]
    if table.command == "serve":  # a row for every layer group, whose attention is that of the whole step
        every = list({(row["batch"], row["context"]): row for row in every}.values())
    rows = [row for row in every if row.get(subject.key) is not None]
    if not rows:
        return []
    if len(rows) < len(every):
        more = f" {len(every) - len(rows)} of {len(every)} rows have no such value and are not drawn."
        subject = subject._replace(caption=subject.caption + more)
    along = _axis(rows)
    return [_bars(rows, subject) if along is None else _lines(rows, subject, along)]


def _axis(rows: Sequence[Row]) -> str | None:
    """The key along which the rows make lines: the batch or the context, where there are many of it."""
    counts = {key: len({row[key] for row in rows if key in row}) for key in ("batch", "context")}
    longest = max(counts, key=lambda key: counts[key])
    return longest if counts[longest] > 4 or (len(rows) > MOST_BARS and counts[longest] > 2) else None


def _name(row: Row, rows: Sequence[Row], without: Sequence[str] = ()) -> str:
    """What tells the row from the others."""
    words = {
        "engine": "{}", "version": "{}", "kernel": "{} kernel", "layer_group": "{} layers", "batch": "batch {}",
        "context": "{} keys", "q_len": "{} query tokens", "model": "{}", "gpu": "{}", "tp": "TP {}",
        "kv_dtype": "{} cache", "page_size": "pages of {}",
    }  # fmt: skip

    def varies(key: str) -> bool:
        if key in ("version", "kernel"):
            return len({r.get(key) for r in rows if r.get("engine") == row.get("engine")}) > 1
        return len({str(r.get(key)) for r in rows}) > 1

    named = [
        text.format(plain(row[key]))
        for key, text in words.items()
        if row.get(key) is not None and key not in without and varies(key)
    ]
    return ", ".join(named) or plain(row.get("engine") or "this step")


def _bars(rows: Sequence[Row], subject: PageFigure) -> Figure:
    shown = rows[:MOST_BARS]
    parts = subject.parts(shown) if subject.parts else [BarPart("", [r[subject.key] for r in shown], BLUE)]
    named = [part for part in parts if part.label and any(part.values)]
    names, texts = [_name(row, shown) for row in shown], [subject.text(row) for row in shown]
    with small_figure() as (fig, ax):
        legend_lines = -(-len(named) // LEGEND_COLUMNS) if len(named) > 1 else 0
        fig.set_size_inches(WIDTH, 0.65 + 0.26 * len(shown) + 0.2 * legend_lines)
        y = range(len(shown))
        ends = [0.0] * len(shown)
        for part in parts:
            lengths = [subject.scale * value for value in part.values]
            if part.hollow:
                ax.barh(
                    y, lengths, height=0.62, facecolor="none", edgecolor=part.color, linewidth=1.1, label=part.label
                )
                ends = [max(end, length) for end, length in zip(ends, lengths)]
            elif any(lengths):
                stacked = [0.0] * len(shown) if any(p.hollow for p in parts) else ends
                ax.barh(y, lengths, left=stacked, height=0.62, color=part.color, label=part.label)
                ends = [max(end, at + length) for end, at, length in zip(ends, stacked, lengths)]
        most = max(ends) or 1.0
        reference = subject.line(shown)
        if reference is not None:
            value, label = reference
            ax.axvline(subject.scale * value, color=RED, linewidth=1.4, linestyle="--", label=label)
            most = max(most, subject.scale * value)
        ax.set_yticks(y, names)
        ax.invert_yaxis()
        ax.set_xlim(0, most)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(subject.axis)
        if len(named) > 1 or reference is not None:
            fig.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize="small")
        _beside(fig, ax, ends, texts)
        return Figure(drawn(fig), _caption(subject, len(shown), len(rows), "rows"), subject.title)


def _beside(fig: Any, ax: Any, ends: Sequence[float], texts: Sequence[str]) -> None:
    """A text at the end of every bar, and an x axis that is long enough for all of them."""
    ground = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.8}  # where a line passes behind
    labels = [
        ax.annotate(text, (end, row), (4, 0), textcoords="offset points", va="center", fontsize="small", bbox=ground)
        for row, (end, text) in enumerate(zip(ends, texts))
    ]
    for label in labels:
        label.set_in_layout(False)
    fig.draw_without_rendering()
    room, dot = ax.get_window_extent().width, fig.dpi / 72
    taken = [min((label.get_window_extent().width + 10 * dot) / room, 0.9) for label in labels]
    ax.set_xlim(0, max(ax.get_xlim()[1], *(end / (1 - part) for end, part in zip(ends, taken))))


def _lines(rows: Sequence[Row], subject: PageFigure, along: str) -> Figure:
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(_name(row, rows, (along,)), []).append(row)
    shown = list(series.items())[:MOST_LINES]
    scale = subject.scale if subject.share_axis is None else 100.0
    with small_figure() as (fig, ax):
        fig.set_size_inches(WIDTH, 3.2)
        for i, (label, mine) in enumerate(shown):
            style = line_style(i) if len(mine) <= MOST_MARKERS else {**line_style(i), "marker": ""}
            ax.plot([r[along] for r in mine], [scale * r[subject.key] for r in mine], label=label, **style)
        ax.set_xscale("log", base=2)
        log2_ticks(ax.xaxis)
        ax.set_ylim(bottom=0)
        ax.set_xlabel({"batch": "batch (requests)", "context": "keys of every request", "splits": "splits"}[along])
        ax.set_ylabel(subject.share_axis or subject.axis)
        if len(shown) > 1:
            fig.legend(loc="outside lower center", ncols=2, fontsize="small")
        return Figure(drawn(fig), _caption(subject, len(shown), len(series), "lines"), subject.title)


def _caption(subject: PageFigure, shown: int, there: int, what: str) -> str:
    more = f" The figure shows the first {shown} of {there} {what}; the table has all." if there > shown else ""
    return subject.caption + more


def _coverage_parts(rows: Sequence[Row]) -> list[BarPart]:
    return [
        BarPart("launched blocks", [r["launched_blocks"] for r in rows], GREY, hollow=True),
        BarPart("blocks with keys to read", [r["live_blocks"] for r in rows], BLUE),
    ]


def _sms(rows: Sequence[Row]) -> tuple[float, str] | None:
    counts = {r["sm_count"] for r in rows}
    return (float(rows[0]["sm_count"]), f"{rows[0]['sm_count']} SMs") if len(counts) == 1 else None


TERMS = (
    ("launching", ("launch_s", "gap_s"), GREY),
    ("starting blocks", ("fixed_s",), SKY),
    ("bytes", ("stream_s",), BLUE),
    ("waiting for loads", ("latency_s",), ORANGE),
    ("tensor cores", ("compute_s",), GREEN),
    ("waves and tail", ("tail_s",), PINK),
    ("merge", ("merge_s",), RED),
)
"""What the time of a layer is made of, as the figure puts it together: name, terms, colour."""


def _term_parts(rows: Sequence[Row]) -> list[BarPart]:
    return [BarPart(label, [sum(r[key] or 0.0 for key in keys) for r in rows], color) for label, keys, color in TERMS]


def _now_and_then(rows: Sequence[Row]) -> list[BarPart]:
    return [
        BarPart("now", [r["own_kernel_s"] for r in rows], GREY, hollow=True),
        BarPart("with the setting", [r["flag_s"] or 0.0 for r in rows], GREEN),
    ]


def _change(row: Row) -> str:
    now = human_seconds(row["own_kernel_s"])
    return now if row["flag_s"] is None else f"{human_seconds(row['flag_s'])}, now {now}"


def _of_step(row: Row) -> str:
    low, high = row["attention_share_low"], row["attention_share_high"]
    known = low is not None and high is not None
    return f"{100 * low:.0f} to {100 * high:.0f} % attention" if known else human_seconds(row["attention_s"])


def _step_parts(rows: Sequence[Row]) -> list[BarPart]:
    return [
        BarPart("attention", [r["attention_s"] for r in rows], ORANGE),
        BarPart("least rest", [r["rest_floor_s"] or 0.0 for r in rows], BLUE),
    ]


CURVE = PageFigure(
    "How does the time depend on the split count?",
    "Predicted time of one attention layer in the bundled kernel.",
    "total_s", 1e6, "µs per layer", lambda r: human_seconds(r["total_s"]),
)  # fmt: skip
SUBJECTS: dict[str, PageFigure] = {
    "grid": PageFigure(
        "How many SMs get work?",
        "Blocks with keys to read, and the share of the SMs that they cover.",
        "sm_coverage", 1, "blocks", lambda r: f"{r['live_blocks']}: {percent(r['sm_coverage'])}",
        _coverage_parts, _sms, "SMs with work, %",
    ),
    "predict": PageFigure(
        "Where does the time of a layer go?",
        "Predicted time of one attention layer, by what it is spent on; in brackets the interval for 90 % of "
        "measurements.",
        "total_s", 1e6, "µs per layer",
        lambda r: f"{human_seconds(r['total_s'])} ({human_seconds(r['low_s'])} to {human_seconds(r['high_s'])})",
        _term_parts,
    ),
    "choose": PageFigure(
        "What does a layer take, and with the best setting?",
        "Predicted time of the engine's own kernel in one layer; filled where a server's setting makes it faster.",
        "own_kernel_s", 1e6, "µs per layer", _change, _now_and_then,
    ),
    "step": PageFigure(
        "How much of a step is attention?",
        "Attention of all layers, beside the least time of everything else.",
        "attention_s", 1e3, "ms per step", _of_step, _step_parts,
    ),
    "serve": PageFigure(
        "How much of a step is attention?",
        "Attention of all layers, beside the least time of everything else, by the batch.",
        "attention_s", 1e3, "ms per step", _of_step, _step_parts,
    ),
    "kv": PageFigure(
        "How many sequences fit?", "Sequences whose cache fits on the GPU beside the weights, by their length.",
        "sequences", 1, "sequences that fit", lambda r: str(r["sequences"]),
    ),
}  # fmt: skip
"""The figure of every command that has one."""
