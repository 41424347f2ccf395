"""Figures of a verification report, as SVG bytes. Drawn from the report's rows alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from decodecalc.plot.style import (
    COLORS,
    MARKERS,
    figure,
    figure_bytes,
    line_style,
    matplotlib_without_display,
    plain_log_ticks,
)
from decodecalc.verify.report.bars import P90_BAR

if TYPE_CHECKING:
    from decodecalc.verify.report.files import Report

MOST_CURVES = 6
SIZE = (6.4, 4.2)  # inches: at a phone's width the letters are still as large as the page's small print


def figures(report: Report) -> dict[str, tuple[bytes, str]]:
    """Name -> (SVG, caption); only the figures that this report has data for."""
    drawn: dict[str, tuple[bytes, str]] = {}
    makers: dict[str, Callable[[Sequence[Any]], tuple[bytes, str] | None]] = {
        "time": _times,
        "errors": _errors,
        "splits": _splits,
    }
    for name, make in makers.items():
        made = make(report.rows)
        if made is not None:
            drawn[name] = made
    return drawn


def _timed(rows: Sequence[Any]) -> list[Any]:
    return [r for r in rows if r["claim"] == 10 and r.get("total_s") and r.get("predicted_total_s")]


def _svg(fig: Any) -> bytes:
    mpl = matplotlib_without_display()

    # Text as outlines: the reader's machine may lack the font that the layout was made for.
    with mpl.rc_context({"svg.fonttype": "path"}):
        return figure_bytes(fig, "svg")


def _times(rows: Sequence[Any]) -> tuple[bytes, str] | None:
    timed = _timed(rows)
    if not timed:
        return None
    with figure("slide") as (fig, ax):
        fig.set_size_inches(*SIZE)
        engines = list(dict.fromkeys(r["engine"] for r in timed))
        low = min(min(r["total_s"], r["predicted_total_s"]) for r in timed) * 1e6 / 1.3
        high = max(max(r["total_s"], r["predicted_total_s"]) for r in timed) * 1e6 * 1.3
        ax.fill_between(
            [low, high], [low * (1 - P90_BAR), high * (1 - P90_BAR)], [low * (1 + P90_BAR), high * (1 + P90_BAR)],
            color="#DDDDDD", linewidth=0, label=f"within {P90_BAR:.0%}",
        )  # fmt: skip
        ax.plot([low, high], [low, high], color="#8A8A8A", linewidth=1)
        for i, engine in enumerate(engines):
            own = [r for r in timed if r["engine"] == engine]
            ax.plot(
                [r["total_s"] * 1e6 for r in own], [r["predicted_total_s"] * 1e6 for r in own], linestyle="",
                marker=MARKERS[i % len(MARKERS)], color=COLORS[i % len(COLORS)], markersize=5, label=f"{engine}'s rule",
            )  # fmt: skip
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="measured, µs per layer",
               ylabel="predicted, µs per layer", title="Time of one layer: predicted against measured")  # fmt: skip
        plain_log_ticks(ax.xaxis)
        plain_log_ticks(ax.yaxis)
        ax.legend(loc="upper left")
        return _svg(fig), "Predicted against measured time of one layer, one point per case; grey: 18 % either way."


def _errors(rows: Sequence[Any]) -> tuple[bytes, str] | None:
    timed = _timed(rows)
    if len(timed) < 3:
        return None
    series = (
        ("decodecalc", "predicted_total_s"),
        ("overhead + bytes / bandwidth", "overhead_plus_bytes_s"),
        ("roofline", "roofline_s"),
    )
    with figure("slide") as (fig, ax):
        fig.set_size_inches(*SIZE)
        for i, (label, key) in enumerate(series):
            found = sorted(100 * abs(r[key] - r["total_s"]) / r["total_s"] for r in timed if r.get(key))
            if found:
                style = {**line_style(i), "marker": ""}
                ax.step(
                    found, [100 * (n + 1) / len(found) for n in range(len(found))], where="post", label=label, **style
                )
        ax.set(xlabel="error of the predicted time, %", ylabel="cases at or below it, %", xlim=(0, 100), ylim=(0, 100),
               title="How far off the time model and the two baselines are")  # fmt: skip
        ax.legend(loc="best")
        return _svg(fig), "Share of cases whose predicted time is off by at most so much: the model and two baselines."


def _splits(rows: Sequence[Any]) -> tuple[bytes, str] | None:
    swept: dict[str, Any] = {}
    for r in rows:
        if r["claim"] == 11 and r.get("split_times_s"):
            swept.setdefault(r["scenario"], r)
    # Those where the count matters most.
    chosen = sorted(swept.values(), key=lambda r: -_range_of(r))[:MOST_CURVES]
    if not chosen:
        return None
    with figure("slide") as (fig, ax):
        fig.set_size_inches(*SIZE)
        for i, r in enumerate(chosen):
            best = min(t for _, t in r["split_times_s"])
            splits, times = [s for s, _ in r["split_times_s"]], [t / best for _, t in r["split_times_s"]]
            ax.plot(splits, times, label=r["scenario"].removesuffix("/bf16/p16"), **line_style(i))
            at = dict(zip(splits, times))
            color = COLORS[i % len(COLORS)]
            ax.plot(r["s_opt"], at[r["s_opt"]], marker="o", markersize=11, fillstyle="none", color=color)
            ax.plot(r["s_star"], at[r["s_star"]], marker="s", markersize=11, fillstyle="none", color=color)
        ax.set(xscale="log", yscale="log", xlabel="splits S", ylabel="time over the best",
               title="Measured time against S; circle: S_opt, square: S*")  # fmt: skip
        plain_log_ticks(ax.xaxis)
        plain_log_ticks(ax.yaxis)
        ax.legend(fontsize="small")
        return _svg(fig), "Measured time against the split count; circles: S_opt of the model, squares: S*."


def _range_of(row: Any) -> float:
    times = [t for _, t in row["split_times_s"]]
    return float(max(times) / min(times))
