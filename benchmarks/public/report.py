"""The report of the fits: Markdown tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.public.tables import NOT_FITTED, PACKAGE, VERSION

MEAN, P90, INSIDE, LEFT_OUT, SIGNS = 0.07, 0.15, (0.85, 0.95), 0.12, 0.90
FEW_ROWS = 2000
Row = Mapping[str, Any]


def write_report(report: Mapping[str, Any], folder: Path) -> None:
    """public-fit.md and public-fit.svg."""
    (folder / "public-fit.md").write_text(markdown(report), encoding="utf-8")
    figure(report, folder / "public-fit.svg")


def missed(row: Row) -> str:
    """Which bars a table of at least FEW_ROWS rows missed; `few rows` for a smaller one."""
    found = [
        name
        for name, bad in (
            ("mean", row["mean"] > MEAN),
            ("p90", row["p90"] > P90),
            ("interval", not INSIDE[0] <= row["inside"] <= INSIDE[1]),
        )
        if bad
    ]
    return ", ".join(found) + (" (few rows)" if found and row["rows"] < FEW_ROWS else "")


def markdown(report: Mapping[str, Any]) -> str:
    """The report's text."""
    held = report["held_out"]
    big = [row for row in held if row["rows"] >= FEW_ROWS]
    good = [row for row in big if not missed(row)]
    tested = np.array([row["tested"] for row in held])
    mean = float((np.array([row["mean"] for row in held]) * tested).sum() / tested.sum())
    lines = [
        "# Calibrations fitted to public timings",
        "",
        f"Source: the decode-attention tables of `{PACKAGE}` {VERSION} (NVIDIA, Apache-2.0), full attention. Made "
        "again by",
        "",
        "```",
        "python -m benchmarks.fit_public",
        "```",
        "",
        f"{sum(row['rows'] for row in held)} rows were planned by the engines' own policies, {tested.sum()} of them "
        f"held out before any fit: whole families of KV heads and head width, and whole contexts. Over all held-out "
        f"rows the mean absolute error of the published operation is **{percent(mean)}**. {len(good)} of {len(big)} "
        f"tables above {FEW_ROWS} rows keep all three bars: mean {percent(MEAN)}, 90th percentile {percent(P90)}, and "
        f"{percent(INSIDE[0])} to {percent(INSIDE[1])} of the rows inside the interval.",
        "",
        "## Rows held out",
        "",
        *grid(
            ("GPU", "kernel", "KV", "rows", "held out", "mean", "p90", "inside", "constant", "missed"),
            [
                (
                    row["gpu"], row["kernel"], row["dtype"], row["rows"], row["tested"], percent(row["mean"]),
                    percent(row["p90"]), percent(row["inside"]), f"{1e6 * row['operation_s']:.1f} µs", missed(row),
                )
                for row in held
            ],
            "lllrrrrrrl",
        ),
        "",
        "`constant` is the part of the published operation that is no attention kernel: it was fitted for the table "
        "and is left out of every prediction.",
        "",
        "## GPUs left out",
        "",
        "Every table predicted from the nearest other GPU that has it, with nothing of this GPU fitted:",
        "",
        *grid(
            ("GPU", "rows", "mean", "p90", "missed"),
            [
                (
                    name, row["tested"], percent(row["mean"]), percent(row["p90"]),
                    "mean" if row["mean"] > LEFT_OUT else "",
                )
                for name, row in by_gpu(report["left_out"]).items()
            ],
            "lrrrl",
        ),
        "",
        *grid(
            ("GPU", "kernel", "KV", "from", "rows", "mean", "p90", "bias"),
            [
                (
                    row["gpu"], row["kernel"], row["dtype"], row["from"], row["tested"], percent(row["mean"]),
                    percent(row["p90"]), f"{100 * row['bias']:+.1f} %",
                )
                for row in report["left_out"]
            ],
            "llllrrrr",
        ),
        "",
        "## FP8 against bf16",
        "",
        "Rows that a framework timed with both caches, and how often the faster of the two is predicted; `matters` are "
        "the rows where the two differ by more than 5 %:",
        "",
        *grid(
            ("GPU", "framework", "matched", "right", "matters", "right there"),
            [
                (
                    row["gpu"], row["framework"], row["matched"], percent(row["right"]), row["matters"],
                    percent(row["right_where_it_matters"]),
                )
                for row in report["fp8_signs"]
            ],
            "llrrrr",
        ),
        "",
        "## Layers with a window",
        "",
        "Rows of the same tables with a sliding window, to which nothing was fitted: the numbers are those of full "
        "attention.",
        "",
        *grid(
            ("GPU", "kernel", "KV", "rows", "mean", "p90", "bias"),
            [
                (
                    row["gpu"], row["kernel"], row["dtype"], row["tested"], percent(row["mean"]), percent(row["p90"]),
                    f"{100 * row['bias']:+.1f} %",
                )
                for row in report["windowed"]
            ],
            "lllrrrr",
        ),
        "",
        "## Not fitted",
        "",
        *grid(
            ("GPU", "kernel", "KV", "rows", "why"),
            [(row["gpu"], row["kernel"], row["dtype"], row["rows"], row["why"]) for row in report["not_fitted"]],
            "lllrl",
        ),
        "",
        "Tables of the package that no kernel is fitted to:",
        "",
        *grid(("table", "GPUs", "why"), NOT_FITTED, "lll"),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def accuracy_table(report: Mapping[str, Any]) -> list[str]:
    """The mean error of held-out rows by kernel (rows) and GPU (columns): bf16 / FP8 cache; what misses a bar is
    marked."""
    held = [row for row in report["held_out"] if row["rows"] >= FEW_ROWS]
    gpus = list(dict.fromkeys(row["gpu"] for row in held))
    lines = []
    for kernel in dict.fromkeys(row["kernel"] for row in held):
        framework, policy = kernel.split(" ")[0], kernel.split(", ")[1]
        framework += ", MLA" if " MLA, " in kernel else ""
        cells = []
        for gpu in gpus:
            mine = {row["dtype"]: row for row in held if row["kernel"] == kernel and row["gpu"] == gpu}
            shown = [
                f"{100 * mine[dtype]['mean']:.1f}" + ("*" if missed(mine[dtype]) else "") if dtype in mine else "-"
                for dtype in ("bf16", "fp8")
            ]
            cells.append(" / ".join(shown) if mine else "")
        lines.append((f"{policy} ({framework})", *cells))
    out = by_gpu(report["left_out"])
    lines.append(("GPU left out", *(f"{100 * out[gpu]['mean']:.1f}" if gpu in out else "" for gpu in gpus)))
    return grid(("kernel", *gpus), lines, "l" + "r" * len(gpus))


def by_gpu(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean over rows of each GPU's tables, and the worst of their 90th percentiles."""
    out: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["gpu"] for row in rows):
        mine = [row for row in rows if row["gpu"] == name]
        tested = sum(row["tested"] for row in mine)
        mean = sum(row["mean"] * row["tested"] for row in mine) / tested
        out[name] = {"tested": tested, "mean": mean, "p90": max(row["p90"] for row in mine)}
    return out


def percent(x: float) -> str:
    """A share for people."""
    return f"{100 * x:.1f} %"


def grid(header: Sequence[str], rows: Sequence[Sequence[Any]], sides: str) -> list[str]:
    """A Markdown table."""
    rule = "".join("---:|" if side == "r" else "---|" for side in sides)
    return ["| " + " | ".join(header) + " |", "|" + rule, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


def figure(report: Mapping[str, Any], path: Path) -> None:
    """Held-out mean error of every GPU, a panel for each kernel and a point for each table."""
    from decodecalc.plot.canvas import Look, canvas
    from decodecalc.plot.style import figure_bytes

    held = [row for row in report["held_out"] if row["rows"] >= FEW_ROWS]
    gpus = list(dict.fromkeys(row["gpu"] for row in held))
    kernels = list(dict.fromkeys(row["kernel"].split(", ")[1] for row in held))
    left = by_gpu(report["left_out"])
    tables = {kernel: [row for row in held if row["kernel"].endswith(", " + kernel)] for kernel in kernels}
    with canvas(Look("screen")) as made:
        made.question = "How far off are predictions of rows that no fit saw?"
        made.scenario = (
            "the mean absolute error of every table, against the bar (dashed); last, of GPUs of which no row was fitted"
        )
        panels = made.panels([*kernels, "GPU left out"], height=0.35 + 0.22 * len(gpus))
        for (ax,), kernel in zip(panels, kernels):
            ax.plot(*_points(tables[kernel], gpus), "o", color=made.theme.colors[0], markersize=4)
        rows = [{"gpu": name, **row} for name, row in left.items() if name in gpus]
        panels[-1][0].plot(*_points(rows, gpus), "D", color=made.theme.colors[5], markersize=4)
        for (ax,) in panels:
            ax.axvline(100 * MEAN, color=made.theme.quiet, linewidth=0.8, linestyle="--")
            ax.set_yticks(range(len(gpus)), gpus)
            ax.set_ylim(len(gpus) - 0.4, -0.6)
        panels[0][0].set_xlim(0, None)
        made.name_axes(["mean error, %"], [""])
    path.write_bytes(figure_bytes(made.fig, "svg", outlines=True))


def _points(rows: Sequence[Mapping[str, Any]], gpus: Sequence[str]) -> tuple[list[float], list[int]]:
    return [100 * row["mean"] for row in rows], [gpus.index(row["gpu"]) for row in rows]
