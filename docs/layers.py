"""The layers of the package: which module may import which. The architecture page draws them, a test holds the code
to them (tests/core/test_layers.py).

`python docs/layers.py FILE.png` draws the figure.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Layer(NamedTuple):
    """Modules and packages that may import one another and everything in the layers before them."""

    names: tuple[str, ...]
    """Names below `decodecalc`; `engines/*/trace` is that file of every engine folder."""
    holds: str
    """What is in it."""


# From the ground up.
LAYERS = (
    Layer(
        (
            "_version",
            "errors",
            "units",
            "intmath",
            "values",
            "safetext",
            "files",
            "csvtext",
            "keyshare",
            "geometry",
            "batch",
            "prefix",
            "kvcache",
            "sizes",
        ),
        "value objects: a layer's shape, a decode step, a cache",
    ),
    Layer(("models", "gpus"), "what a model and a GPU are, and the data that says so"),
    Layer(("launch",), "what a launch is: policy, plan, arrays, options, traits"),
    Layer(("engines",), "one folder for each engine: what it launches"),
    Layer(("servers",), "which backend a server of a version chooses"),
    Layer(("sanity", "scenario", "workload", "request"), "what a user's words resolve to"),
    Layer(("analysis",), "coverage, traffic, roofline, paging, segments"),
    Layer(("cost",), "the time model, and the choice of a split count"),
    Layer(("serving",), "the whole answer to a serve command"),
    Layer(("sweeps",), "millions of scenarios as arrays"),
    Layer(("drift", "engines/*/sources"), "installed sources against the policies"),
    Layer(("trace", "engines/*/trace"), "profiler traces against the policies"),
    Layer(("verify", "engines/*/run"), "claims checked on a GPU"),
    Layer(("calibrate", "engines/*/fit"), "the time model's parameters, measured"),
    Layer(("tables",), "rows and columns, as text, csv, json, HTML"),
    Layer(("plot",), "figures"),
    Layer(("cli", "__main__"), "commands"),
)
# Layers that are mechanism only: no engine and no server is named in them. (`models` cites servers as sources.)
NAMELESS = (
    *LAYERS[0].names, "launch", "scenario", "workload", "request", "analysis", "cost", "serving", "sweeps", "drift",
    "trace", "verify", "calibrate", "tables", "plot", "cli",
)  # fmt: skip


def draw() -> bytes:
    """The layers as a picture (PNG), ground at the bottom; layers that name engines are filled."""
    from matplotlib.patches import FancyBboxPatch

    from decodecalc.plot.canvas import Look, canvas
    from decodecalc.plot.style import figure_bytes

    with canvas(Look("slide")) as made:
        made.question = "What may import what?"
        made.scenario = (
            "a layer imports from its own and those below it; engines and servers are named in the filled ones"
        )
        ((ax,),) = made.panels([""], height=7.2)
        colors = made.theme.colors
        for i, layer in enumerate(LAYERS):
            mechanism = layer.names[0] not in ("engines", "servers")
            shade = "#FFFFFF" if mechanism else colors[6]
            box = FancyBboxPatch(
                (0.05, i + 0.08), 3.9, 0.84, boxstyle="round,pad=0,rounding_size=0.1", facecolor=shade,
                edgecolor=colors[0], alpha=1 if mechanism else 0.45,
            )  # fmt: skip
            ax.add_patch(box)
            ax.text(2, i + 0.5, _label(layer), ha="center", va="center", fontsize=10, family="monospace")
            ax.text(4.15, i + 0.5, layer.holds, ha="left", va="center", fontsize=10)
        ax.annotate(
            "imports", (-0.25, 0.3), xytext=(-0.25, len(LAYERS) - 0.3), ha="center", va="bottom",
            arrowprops={"arrowstyle": "-|>", "color": colors[0], "linewidth": 1.5},
        )  # fmt: skip
        ax.set_xlim(-0.6, 8.6)
        ax.set_ylim(-0.1, len(LAYERS) + 0.3)
        ax.set_axis_off()
    return figure_bytes(made.fig, "png")


def _label(layer: Layer) -> str:
    if layer.names[0] == "_version":
        return "geometry batch kvcache units …"
    return "  ".join(name for name in layer.names if name != "__main__")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    Path(sys.argv[1]).write_bytes(draw())
