"""Log-log roofline: the GPU's roof, the layer's intensity under MHA, GQA, MQA and MLA, predicted and measured
points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.plot.measured import report_rows
from decodecalc.plot.series import Row, parts, planned, word
from decodecalc.plot.style import line_style, plain_log_ticks
from decodecalc.tables.roofline import roofline_table

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

DEFAULT_ENGINES = DEFAULT_ENGINE
TAKES_MEASURED = True
_PANEL = ("model", "tp", "gpu", "kv_dtype", "page_size")
_POINT = ("layer_group", "engine", "version", "batch", "context", "q_len")


def rows(request: Request, said: list[str], measured: str | None = None, **unused: Any) -> list[Row]:
    """Rows of `roofline --compare` with the predicted rate, and measured rows when a verify report is given."""
    from decodecalc.cost import predict

    found = [dict(row) for row in roofline_table(request, compare=True).rows]
    out: list[Row] = []
    for row, (item, who) in zip(found, planned(request, said)):
        seconds = predict(item.plan, item.plan.gpu).total_s
        if not seconds:
            said.append(
                f"not drawn: a prediction for {who['engine']}, whose kernel has no calibration on {item.plan.gpu.name}"
            )
        rate = row["flop"] / seconds if seconds else None
        out.append({**row, **who, "predicted_s": seconds, "predicted_flop_per_s": rate})
    # The layer's other forms are no engine's: what they read does not depend on a launch.
    nobody = {"engine": None, "version": None, "predicted_s": None, "predicted_flop_per_s": None}
    out += [{**row, **nobody} for row in found[len(out) :]]
    return out + (_measured(measured) if measured else [])


def _measured(path: str) -> list[Row]:
    return [
        {
            "engine": str(r.get("engine")),
            "kind": "measured",
            "intensity_flop_per_byte": r["intensity_flop_per_byte"],
            "measured_flop_per_s": r["achieved_flop_per_s"],
        }
        for r in report_rows(path)
        if r.get("achieved_flop_per_s") and r.get("intensity_flop_per_byte")
    ]


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """The roof; each kind of layer on it (what bandwidth allows); predicted (hollow) and measured (crosses) below
    it."""
    gpus = parts(data, _PANEL)
    panels = canvas.panels([label for label, _ in gpus], wide=True, height=canvas.size.height)
    for (ax,), (_, mine) in zip(panels, gpus):
        _draw_gpu(canvas, ax, mine)
    canvas.name_axes(["FLOP per byte of KV read"], ["TFLOP/s"])
    canvas.scenario += "; filled: what the bandwidth allows, hollow: predicted"


def _draw_gpu(canvas: Canvas, ax: Any, mine: list[Row]) -> None:
    theme, first = canvas.theme, mine[0]
    peak, bandwidth = first["peak_flop_per_s"], first["hbm_bytes_per_s"]

    def roof(at: Any) -> Any:
        return np.minimum(np.asarray(at) * bandwidth, peak or np.inf) / 1e12

    x = np.logspace(-1, 3.5, 200)
    ax.plot(x, roof(x), color=theme.ink, label=f"{first['gpu']} roof")
    canvas.powers_of_two(ax)
    ax.set_yscale("log")
    plain_log_ticks(ax.yaxis)
    ridge = first["ridge_flop_per_byte"]
    if ridge:
        ax.axvline(ridge, color=theme.quiet, linestyle=":", linewidth=1)
    crosses = [r for r in mine if r["kind"] == "measured"]
    if crosses:
        ax.plot([r["intensity_flop_per_byte"] for r in crosses], [r["measured_flop_per_s"] / 1e12 for r in crosses],
                marker="x", linestyle="", color=theme.colors[5], label="measured")  # fmt: skip
    layers = [r for r in mine if r["kind"] != "measured"]
    plans = [r for r in layers if not r["layer_group"].startswith("as ")]
    others = [(r["layer_group"], [r]) for r in layers if r["layer_group"].startswith("as ")]
    labels: list[tuple[float, float, str, str]] = []
    for i, (label, same) in enumerate([*_alike(plans), *others]):
        at = same[0]["intensity_flop_per_byte"]
        style = {**line_style(i, theme), "linestyle": "", "markersize": 6}
        ax.plot(at, roof(at), label=label, **style)
        labels.append((at, float(roof(at)), f"{label}: {at:.3g}", style["color"]))
        predicted = [row for row in same if row["predicted_flop_per_s"]]
        rates = [row["predicted_flop_per_s"] / 1e12 for row in predicted]
        if predicted:
            ax.plot([at] * len(rates), rates, fillstyle="none", label=f"{label}, predicted", **style)
        # Those without a prediction count for the names: an engine that alone has one keeps its name.
        for name, (row, *_) in parts(same, _POINT):
            if row["predicted_flop_per_s"]:
                rate = row["predicted_flop_per_s"] / 1e12
                labels.append((at, rate, f"{name}: {rate:.3g}" if name else f"predicted: {rate:.3g}", style["color"]))
    for at, rate, text, color in labels:
        canvas.near(ax, at, rate, text, color)
    if ridge:
        canvas.near(ax, ridge, ax.get_ylim()[0] * 1.5, f"ridge {ridge:.0f}", theme.quiet)


def _alike(plans: list[Row]) -> list[tuple[str, list[Row]]]:
    """Plans by their intensity, which is where they stand on the roof, named by what sets the intensities apart."""
    found: dict[str, list[Row]] = {}
    for row in plans:
        found.setdefault(f"{row['intensity_flop_per_byte']:.3g}", []).append(row)
    return [(_named(same, plans), same) for same in found.values()]


def _named(same: list[Row], plans: list[Row]) -> str:
    differing = [name for name in _POINT if len({r[name] for r in same}) == 1 < len({r[name] for r in plans})]
    return ", ".join(filter(None, (word(same[0], name) for name in differing))) or same[0]["kind"]
