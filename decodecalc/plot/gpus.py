"""The same workload over GPUs: predicted time of one token's attention, with its interval, and the roofline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodecalc.errors import InputError
from decodecalc.plot.style import COLORS

if TYPE_CHECKING:
    from decodecalc.cost import Prediction
    from decodecalc.request import Request

TITLE = "the same workload over GPUs"
DEFAULT_ENGINES = "bundled"
SEVERAL_GPUS = True  # --gpu takes a comma list here; one GPU, or none, draws the usual ones
GPUS = ("a100-80gb", "l40s", "h100-sxm", "h200-sxm", "b200", "mi300x")


def rows(request: Request, gpus: tuple[str, ...] = (), **_: Any) -> list[dict[str, Any]]:
    """One row per (GPU, engine): sums over the layer groups, weighted by their layers, of the first batch."""
    from decodecalc.cost import load_calibration, predict
    from decodecalc.cost.token import TokenTime
    from decodecalc.gpus import load_gpu
    from decodecalc.scenario import Planned

    out: list[dict[str, Any]] = []
    for name in gpus if len(gpus) > 1 else GPUS:
        gpu = load_gpu(name)
        known = load_calibration(gpu=gpu)
        layers: dict[tuple[str, str], list[tuple[int, Prediction]]] = {}
        for item in replace(request.scenarios, gpu=gpu, batches=request.scenarios.batches[:1]).plans():
            if not isinstance(item, Planned):
                continue
            try:
                p = predict(item.plan, gpu, known)
            except InputError:
                continue
            layers.setdefault((item.plan.engine, item.plan.version), []).append((item.layer_group.layers, p))
        for (engine, version), predictions in layers.items():
            time = TokenTime(layers=tuple(predictions))
            if time.total_s is None:  # the engine's own kernel was not calibrated: there is no bar to draw
                continue
            out.append(
                {
                    "gpu": gpu.name,
                    "engine": engine,
                    "version": version,
                    "token_s": time.total_s,
                    "low_s": time.low_s,
                    "high_s": time.high_s,
                    "roofline_s": time.roofline_s or 0.0,
                    "extrapolated": known.extrapolated_from is not None,
                }
            )
    return out


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """Bars with 90 % intervals; the roofline as a tick; hatched where parameters are extrapolated."""
    engines = list(dict.fromkeys((r["engine"], r["version"]) for r in data))
    gpus = list(dict.fromkeys(r["gpu"] for r in data))
    height = 0.8 / len(engines)
    for i, (engine, version) in enumerate(engines):
        for r in (r for r in data if (r["engine"], r["version"]) == (engine, version)):
            y = gpus.index(r["gpu"]) + (i - (len(engines) - 1) / 2) * height
            t = r["token_s"] * 1e6
            spread = [[t - r["low_s"] * 1e6], [r["high_s"] * 1e6 - t]]
            hatch = "///" if r["extrapolated"] else ""
            ax.barh(y, t, height=height * 0.9, color=COLORS[i % len(COLORS)], alpha=0.8, hatch=hatch, edgecolor="white",
                    xerr=spread, error_kw={"elinewidth": 1, "capsize": 2})  # fmt: skip
            ax.plot([r["roofline_s"] * 1e6] * 2, [y - height * 0.45, y + height * 0.45], color="#000000", linewidth=2)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=COLORS[i % len(COLORS)], label=f"{e} {v}") for i, (e, v) in enumerate(engines)]
    handles += [Patch(facecolor="#BBBBBB", edgecolor="white", hatch="///", label="extrapolated from another GPU"),
                Line2D([], [], color="#000000", linewidth=2, label="roofline")]  # fmt: skip
    ax.legend(handles=handles, fontsize="small")
    ax.set_yticks(range(len(gpus)), gpus)
    ax.invert_yaxis()
    ax.set_xlabel("µs of attention per token (all layers)")
    b = request.scenarios.batches[0]
    name = request.layers.label + (f" TP {request.layers.tp}" if request.layers.tp > 1 else "")
    ax.set_title(f"{name}; batch {b.size}, {b.max_seq_len} keys, KV {request.scenarios.kv.dtype}")
