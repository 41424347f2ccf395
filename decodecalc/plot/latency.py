"""Predicted time against the split count, with S*, S_opt and every engine's choice; measured points when given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.engines.registry import SERVED_HERE
from decodecalc.plot.measured import split_times
from decodecalc.plot.series import Row, of_batch, parts, without
from decodecalc.plot.style import plain_log_ticks, text_inches
from decodecalc.tables.text import because

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

DEFAULT_ENGINES = SERVED_HERE
TAKES_MEASURED = True
_STEP = without("engine", "version")


def rows(request: Request, said: list[str], measured: str | None = None, **unused: Any) -> list[Row]:
    """Rows of three kinds for each layer group and step: curve, engine (its choice on our kernel), measured."""
    from decodecalc.cost import choose

    s = request.scenarios
    out: list[Row] = []
    said += [f"not drawn: {because(engine, reason)}" for engine, _, reason in s.excluded]
    for group in s.layer_groups:
        for given in s.batches:
            batch = group.seen_batch(given)
            found = choose(group.geometry, batch, kv=s.kv, gpu=s.gpu, engines=s.engines, options=s.options)
            step = {"layer_group": group.name, **of_batch(given)}
            marks = {"s_star": found.s_star, "s_opt": found.s_opt, "s_opt_s": found.total_s, "s_star_s": found.s_star_s}
            out += [{**step, "kind": "curve", "splits": p.splits, "time_s": p.total_s, **marks} for p in found.curve]
            for r in found.regrets:
                if r.splits is None or r.rule_s is None:
                    said.append(f"not drawn: {because(r.engine, r.refused or 'it has no predicted time')}")
                    continue
                who = {"engine": r.engine, "version": r.version, "regret": r.regret}
                out.append({**step, "kind": "engine", **who, "splits": r.splits, "time_s": r.rule_s})
            points = split_times(measured, group.geometry, batch) if measured else []
            if measured and not points:
                said.append(f"not drawn: {measured} has no split counts timed for {group.name} layers, batch "
                            f"{given.size}, {given.max_seq_len} keys")  # fmt: skip
            out += [{**step, "kind": "measured", "splits": n, "time_s": t} for n, t in points]
    return out


def draw(canvas: Canvas, data: list[Row], **unused: Any) -> None:
    """The curve, and below it a line for every engine with a point at its count and what its rule loses."""
    steps = parts(data, _STEP)
    most = max(len(_engines(rows)) for _, rows in steps)
    above, line = canvas.size.height * 0.75, canvas.size.font / 72 * 1.45
    panels = canvas.panels(
        [label for label, _ in steps], wide=True, tall=(above, max(0.5, most * line)), share="",
        height=above + most * line + 0.35,
    )  # fmt: skip
    for (ax, strip), (label, mine) in zip(panels, steps):
        canvas.name_panel(ax, f"{label}\n{_draw_curve(canvas, ax, mine)}".strip())
        _draw_engines(canvas, strip, _engines(mine))
        canvas.powers_of_two(strip)
    canvas.key([line for line in panels[0][0].get_lines() if not str(line.get_label()).startswith("_")])
    canvas.name_axes(["", "splits of the longest request"], ["µs per layer", ""])
    canvas.scenario += (
        "; predicted on the bundled kernel, so that only the counts differ; an engine's number is its time over the "
        "best"
    )


def _engines(rows: list[Row]) -> list[Row]:
    return sorted((r for r in rows if r["kind"] == "engine"), key=lambda r: (r["regret"], r["engine"], r["version"]))


def _draw_curve(canvas: Canvas, ax: Any, mine: list[Row]) -> str:
    """The curve with its marks; returns them in words."""
    colors, quiet = canvas.theme.colors, canvas.theme.quiet
    curve = [r for r in mine if r["kind"] == "curve"]
    ax.plot([r["splits"] for r in curve], [r["time_s"] * 1e6 for r in curve], color=colors[0],
            marker="o" if len(curve) == 1 else "", label="predicted")  # fmt: skip
    points = [r for r in mine if r["kind"] == "measured"]
    if points:
        ax.plot([r["splits"] for r in points], [r["time_s"] * 1e6 for r in points], "x", color=canvas.theme.ink,
                linestyle="", label="measured")  # fmt: skip
    engines = _engines(mine)
    ax.plot([r["splits"] for r in engines], [r["time_s"] * 1e6 for r in engines], "o", color=colors[1],
            linestyle="", markersize=4, label="engines' counts")  # fmt: skip
    first = curve[0]
    best = first["s_opt_s"] * 1e6
    ax.axvline(first["s_star"], color=quiet, linestyle=":", linewidth=1.2, label="S* (fills the SMs)")
    ax.plot(
        first["s_opt"],
        best,
        "*",
        color=colors[5],
        markersize=1.3 * canvas.size.font,
        label="S_opt (fastest)",
        linestyle="",
    )
    ax.set_yscale("log")
    plain_log_ticks(ax.yaxis)
    return f"S_opt {first['s_opt']}: {best:.3g} µs; S* {first['s_star']}: {first['s_star_s'] * 1e6:.3g} µs"


def _draw_engines(canvas: Canvas, strip: Any, engines: list[Row]) -> None:
    strip.plot([r["splits"] for r in engines], range(len(engines)), "o", color=canvas.theme.colors[1], markersize=5,
               label="engines' counts")  # fmt: skip
    for y, r in enumerate(engines):
        strip.annotate(f"{r['regret']:.2f}×", (1.01, y), xycoords=("axes fraction", "data"), va="center")
    strip.set_yticks(range(len(engines)), _names(canvas, engines))
    strip.set_ylim(len(engines) - 0.4, -0.6)


def _names(canvas: Canvas, engines: list[Row]) -> list[str]:
    """Engines with their versions; without where all of that does not fit and the name alone tells them apart."""
    names, full = [r["engine"] for r in engines], [f"{r['engine']} {r['version']}" for r in engines]
    wide = max((text_inches(name, canvas.size.font) for name in full), default=0.0) > 0.35 * canvas.panel_inches
    return [name if wide and names.count(name) == 1 else both for name, both in zip(names, full)]
