"""Figures of a verification report, as SVG bytes. Drawn from the report's rows alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from decodecalc.plot.canvas import Canvas, Look, canvas
from decodecalc.plot.series import MOST_LINES
from decodecalc.plot.style import figure_bytes, line_style, plain_log_ticks
from decodecalc.verify.report.bars import P90_BAR

if TYPE_CHECKING:
    from decodecalc.verify.report.files import Report

MOST_CURVES = 6
Drawing = Callable[[Canvas, Sequence[Any]], str | None]


def figures(report: Report) -> dict[str, tuple[bytes, str]]:
    """Name -> (SVG, caption); only the figures that this report has data for."""
    drawings: dict[str, Drawing] = {"time": _times, "errors": _errors, "splits": _splits}
    drawn: dict[str, tuple[bytes, str]] = {}
    for name, draw in drawings.items():
        with canvas(Look("screen")) as made:
            caption = draw(made, report.rows)
        if caption is not None:
            drawn[name] = _svg(made.fig), caption
    return drawn


def _timed(rows: Sequence[Any]) -> list[Any]:
    return [r for r in rows if r["claim"] == 10 and r.get("total_s") and r.get("predicted_total_s")]


def _svg(fig: Any) -> bytes:
    # Text as outlines: the reader's machine may lack the font that the layout was made for.
    return figure_bytes(fig, "svg", outlines=True)


def _times(canvas: Canvas, rows: Sequence[Any]) -> str | None:
    timed = _timed(rows)
    if not timed:
        return None
    theme = canvas.theme
    canvas.question = "Does the predicted time of one layer hold?"
    canvas.scenario = f"each point is a case; in the band the prediction is within {P90_BAR:.0%} of the measurement"
    engines = list(dict.fromkeys(r["engine"] for r in timed))
    apart = len(engines) > MOST_LINES
    panels = canvas.panels([f"{engine}'s rule" for engine in engines] if apart else [""])
    low = min(min(r["total_s"], r["predicted_total_s"]) for r in timed) * 1e6 / 1.3
    high = max(max(r["total_s"], r["predicted_total_s"]) for r in timed) * 1e6 * 1.3
    for (ax,) in panels:
        ax.fill_between(
            [low, high], [low * (1 - P90_BAR), high * (1 - P90_BAR)], [low * (1 + P90_BAR), high * (1 + P90_BAR)],
            color=theme.idle, linewidth=0,
        )  # fmt: skip
        ax.plot([low, high], [low, high], color=theme.quiet, linewidth=1)
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        plain_log_ticks(ax.xaxis, few=apart)
        plain_log_ticks(ax.yaxis, few=apart)
    for i, engine in enumerate(engines):
        (ax,) = panels[i if apart else 0]
        own = [(r["total_s"] * 1e6, r["predicted_total_s"] * 1e6) for r in timed if r["engine"] == engine]
        style = {**line_style(0 if apart else i, theme), "linestyle": "", "markersize": 5}
        ax.plot(*zip(*own), label=f"{engine}'s rule", **style)
        if not apart:
            canvas.beside(ax, *max(own), engine, style["color"])
    canvas.name_axes(["measured, µs per layer"], ["predicted, µs per layer"])
    return "Predicted against measured time of one layer, one point per case; grey: 18 % either way."


def _errors(canvas: Canvas, rows: Sequence[Any]) -> str | None:
    timed = _timed(rows)
    if len(timed) < 3:
        return None
    canvas.question = "How far off is the predicted time?"
    ((ax,),) = canvas.panels([""])
    series = (
        ("decodecalc", "predicted_total_s"),
        ("overhead + bytes / bandwidth", "overhead_plus_bytes_s"),
        ("roofline", "roofline_s"),
    )
    for i, (label, key) in enumerate(series):
        found = sorted(100 * abs(r[key] - r["total_s"]) / r["total_s"] for r in timed if r.get(key))
        if found:
            style = {**line_style(i, canvas.theme), "marker": ""}
            ax.step(found, [100 * (n + 1) / len(found) for n in range(len(found))], where="post", label=label, **style)
    ax.set(xlim=(0, 100), ylim=(0, 100))
    canvas.key(ax.get_lines())
    canvas.name_axes(["error of the predicted time, %"], ["cases at or below it, %"])
    return "Share of cases whose predicted time is off by at most so much: the model and two baselines."


def _splits(canvas: Canvas, rows: Sequence[Any]) -> str | None:
    swept: dict[str, Any] = {}
    for r in rows:
        if r["claim"] == 11 and r.get("split_times_s"):
            swept.setdefault(r["scenario"], r)
    # Those where the count matters most.
    chosen = sorted(swept.values(), key=lambda r: -_range_of(r))[:MOST_CURVES]
    if not chosen:
        return None
    canvas.question = "Is S_opt the fastest split count?"
    panels = canvas.panels([_words(r["scenario"]) for r in chosen])
    colors = canvas.theme.colors
    for (ax,), r in zip(panels, chosen):
        best = min(t for _, t in r["split_times_s"])
        at = {s: t / best for s, t in r["split_times_s"]}
        ax.plot(list(at), list(at.values()), label="measured", color=colors[0], marker=".", markersize=5)
        for label, s, marker, color in (("S_opt", r["s_opt"], "o", colors[5]), ("S*", r["s_star"], "s", colors[1])):
            ax.plot(s, at[s], marker=marker, color=color, markersize=10, fillstyle="none", linestyle="", label=label)
        ax.set_yscale("log")
        plain_log_ticks(ax.yaxis)
        canvas.powers_of_two(ax)
    canvas.key(panels[0][0].get_lines())
    canvas.name_axes(["splits S"], ["time over the best"])
    return "Measured time against the split count; circles: S_opt of the model, squares: S*."


def _words(scenario: str) -> str:
    """A scenario's name where lines can break."""
    return scenario.removesuffix("/bf16/p16").replace("/", ", ")


def _range_of(row: Any) -> float:
    times = [t for _, t in row["split_times_s"]]
    return float(max(times) / min(times))
