"""Log-log roofline: the GPU's roof, the layer's intensity under MHA, GQA, MQA and MLA, predicted and measured
points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.plot.measured import report_rows
from decodecalc.plot.style import COLORS, MARKERS
from decodecalc.tables.roofline import roofline_table

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "roofs, and where decode attention stands under them"
DEFAULT_ENGINES = DEFAULT_ENGINE


def rows(request: Request, measured: str | None = None, **_: Any) -> list[dict[str, Any]]:
    """Rows of `roofline --compare` with the predicted rate, and measured rows when a verify report is given."""
    out = [dict(row) for row in roofline_table(request, compare=True).rows]
    predicted = _predicted_s(request)
    for row in out:
        seconds = predicted.get((row["engine"], row["layer_group"], row["batch"], row["context"]))
        row["predicted_s"] = seconds
        row["predicted_flop_per_s"] = row["flop"] / seconds if seconds else None
    return out + (_measured(measured) if measured else [])


def _predicted_s(request: Request) -> dict[tuple[str, str, int, int], float | None]:
    from decodecalc.cost import predict
    from decodecalc.scenario import Planned

    plans = (p for p in request.scenarios.plans() if isinstance(p, Planned))
    return {
        (p.plan.engine, p.layer_group.name, p.batch.size, p.batch.max_seq_len): predict(p.plan, p.plan.gpu).total_s
        for p in plans
    }


def _measured(path: str) -> list[dict[str, Any]]:
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


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """The roof; each kind of layer on it (what bandwidth allows); predicted (hollow) and measured (crosses) below
    it."""
    gpu = request.scenarios.gpu
    first = data[0]
    peak, bandwidth = first["peak_flop_per_s"], first["hbm_bytes_per_s"]
    x = np.logspace(-0.5, 3.5, 200)
    ax.plot(x, np.minimum(x * bandwidth, peak or np.inf) / 1e12, color="#000000", label=f"{gpu.name} roof")
    if first["ridge_flop_per_byte"]:
        ax.axvline(first["ridge_flop_per_byte"], color="#8A8A8A", linestyle=":", linewidth=1)
        ridge = first["ridge_flop_per_byte"]
        top = (ridge, (peak or 1e12) * 0.5e-12)
        ax.annotate(f"ridge {ridge:.0f}", top, rotation=90, ha="right", va="top", fontsize="small")
    layers = [r for r in data if r["kind"] != "measured"]
    for i, row in enumerate(layers):
        at = row["intensity_flop_per_byte"]
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        name = row["layer_group"] if row["layer_group"].startswith("as ") else f"{row['kind']} ({row['engine']})"
        ax.plot(
            at,
            min(at * bandwidth, peak or np.inf) / 1e12,
            marker=marker,
            color=color,
            linestyle="",
            label=f"{name}: {at:.3g} FLOP/B",
        )
        if row.get("predicted_flop_per_s"):
            ax.plot(at, row["predicted_flop_per_s"] / 1e12, marker=marker, color=color, linestyle="", fillstyle="none")
            ax.annotate("predicted", (at, row["predicted_flop_per_s"] / 1e12), fontsize="small",
                        xytext=(8, -4), textcoords="offset points")  # fmt: skip
    crosses = [r for r in data if r["kind"] == "measured"]
    if crosses:
        ax.plot([r["intensity_flop_per_byte"] for r in crosses], [r["measured_flop_per_s"] / 1e12 for r in crosses],
                marker="x", linestyle="", color=COLORS[5], label="measured")  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("arithmetic intensity, FLOP per byte of KV read")
    ax.set_ylabel("TFLOP/s")
    ax.set_title(request.heading[0])
    ax.legend(fontsize="small", loc="lower right")
