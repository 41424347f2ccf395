"""The same workload over GPUs: predicted time of one token's attention, with its interval, and the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodecalc.errors import InputError
from decodecalc.plot.series import MOST_LINES, Row, parts, planned, without, word

if TYPE_CHECKING:
    from decodecalc.cost import Prediction
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

DEFAULT_ENGINES = "bundled"
DEFAULT_GPUS = ("a100-80gb", "l40s", "h100-sxm", "h200-sxm", "b200", "mi300x")
FILLS = (0, 1, 3, 4)  # colours on which the interval and the roofline show
_STEP, _ENGINE = without("layer_group", "gpu", "engine", "version"), ("engine", "version")


def rows(request: Request, said: list[str], **unused: Any) -> list[Row]:
    """One row for each engine and step: sums over the layer groups, weighted by their layers."""
    from decodecalc.cost import load_calibration, predict
    from decodecalc.cost.parameters import EXTRAPOLATED
    from decodecalc.cost.token import TokenTime

    gpu = request.scenarios.gpu
    known = load_calibration(gpu=gpu)
    layers: dict[tuple[Any, ...], list[tuple[int, Prediction]]] = {}
    steps: dict[tuple[Any, ...], Row] = {}
    for item, who in planned(request, said):
        who.pop("layer_group")
        try:
            p = predict(item.plan, gpu, known)
        except InputError as refused:
            said.append(f"not drawn: {item.plan.engine} on {gpu.name}: {refused}")
            continue
        key = tuple(who.values())
        steps[key] = who
        layers.setdefault(key, []).append((item.layer_group.layers, p))
    out: list[Row] = []
    for key, predictions in layers.items():
        time = TokenTime(layers=tuple(predictions))
        if time.total_s is None:
            said.append(f"not drawn: {steps[key]['engine']} on {gpu.name}: its own kernel was not calibrated there")
            continue
        out.append(
            {
                **steps[key],
                "token_s": time.total_s,
                "low_s": time.low_s,
                "high_s": time.high_s,
                "roofline_s": time.roofline_s or 0.0,
                "extrapolated": any(p.numbers == EXTRAPOLATED for _, p in predictions),
                "numbers": ", ".join(dict.fromkeys(p.numbers for _, p in predictions)),
            }
        )
    return out


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """Bars with 90 % intervals; the roofline as a tick; hatched where parameters are extrapolated."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    engines = [label for label, _ in parts(data, _ENGINE)]
    # Few engines: a lane for each GPU, with a bar for each engine. Many: a panel for each GPU, a lane for each engine.
    bars = len(engines) if len(engines) <= MOST_LINES else 1
    panel, lane, bar = (_STEP, ("gpu",), _ENGINE) if bars > 1 or len(engines) == 1 else ((*_STEP, "gpu"), _ENGINE, ())
    panels = parts(data, panel)
    lanes = [_called(rows[0], lane) for _, rows in parts(data, lane)]
    theme, thick = canvas.theme, 0.8 / bars
    made = canvas.panels(
        [label for label, _ in panels], wide=True, height=0.6 + len(lanes) * max(0.3, 0.16 * bars), share="x"
    )
    for (ax,), (_, mine) in zip(made, panels):
        for i, (_, own) in enumerate(parts(mine, bar)):
            for r in own:
                y = lanes.index(_called(r, lane)) + (i - (bars - 1) / 2) * thick
                t = r["token_s"] * 1e6
                spread = [[t - r["low_s"] * 1e6], [r["high_s"] * 1e6 - t]]
                hatch = "///" if r["extrapolated"] else ""
                ax.barh(y, t, height=thick * 0.9, color=theme.colors[FILLS[i]], hatch=hatch, edgecolor=theme.paper,
                        xerr=spread, error_kw={"elinewidth": 1, "capsize": 2, "ecolor": theme.ink})  # fmt: skip
                ax.plot([r["roofline_s"] * 1e6] * 2, [y - thick * 0.45, y + thick * 0.45], color=theme.ink, linewidth=2)
        ax.set_yticks(range(len(lanes)), lanes)
        ax.set_ylim(len(lanes) - 0.4, -0.6)
        ax.grid(axis="y", visible=False)
    handles: list[Any] = [Line2D([], [], color=theme.ink, linewidth=2, label="roofline")]
    if any(r["extrapolated"] for r in data):
        handles.append(Patch(facecolor=theme.idle, edgecolor=theme.quiet, hatch="///", label="extrapolated"))
    if bars > 1:
        handles = [Patch(color=theme.colors[FILLS[i]], label=name) for i, name in enumerate(engines)] + handles
    canvas.key(handles)
    canvas.name_axes(["µs of attention per token, all layers"], [""])


def _called(row: Row, lane: Sequence[str]) -> str:
    return ", ".join(filter(None, (word(row, name) for name in lane)))
