"""SM coverage and split counts against batch, as each engine launches it; or coverage against the split count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.occupancy import occupancy, occupancy_arrays
from decodecalc.errors import InputError
from decodecalc.plot.series import (
    Row,
    along,
    counts_key,
    draw_counts,
    draw_lines,
    marked,
    named_x,
    of_batch,
    parts,
    was_given,
    without,
)

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.request import Request

AGAINST = ("batch", "splits")


def rows(request: Request, said: list[str], against: str = "batch", **unused: Any) -> list[Row]:
    """One row for each layer group, engine, context and batch size; or for each layer group, step and split count."""
    if against == "splits":
        return _against_splits(request)
    out: list[Row] = []
    for line in along("batch", request, said):
        covered = occupancy_arrays(line.steps, line.found, request.scenarios.gpu)
        names = ("live_blocks", "working_blocks", "unsplit_blocks", "sm_count", "sm_coverage")
        columns = {name: getattr(covered, name) for name in names}
        for row in line.rows(is_split=line.found.is_split, **columns, **line.split_counts(request)):
            path = line.found.path_names[bool(row.pop("is_split"))]
            unsplit = min(row["unsplit_blocks"] / row["sm_count"], 1.0)
            out.append({**row, "path": path, "unsplit_sm_coverage": unsplit})
    return out


def _against_splits(request: Request) -> list[Row]:
    """The reference rule at every split count: equal slices of whole tiles."""
    from decodecalc.engines.registry import REFERENCE, load_policy

    if was_given(request, "engine"):
        raise InputError(f"--against splits draws the rule of {REFERENCE} at every count: leave --engine out")
    s, policy = request.scenarios, load_policy(REFERENCE)
    out = []
    for group in s.layer_groups:
        for batch in s.batches:
            who = {"layer_group": group.name, "engine": policy.name, "version": policy.version(None).name}
            for splits in (*range(1, 33), *range(36, 257, 4)):
                plan = policy.plan(group.geometry, group.seen_batch(batch), s.kv, s.gpu, {"num_splits": splits})
                found = occupancy(plan)
                out.append(
                    {
                        **who,
                        **of_batch(batch),
                        "splits": splits,
                        "splits_live": max(plan.splits.live),
                        "live_blocks": plan.live_blocks,
                        "sm_count": found.sm_count,
                        "sm_coverage": found.sm_coverage,
                        "s_star": plan.s_star,
                        "given": False,
                    }
                )
    return out


def draw(canvas: Canvas, data: list[Row], against: str = "batch", **unused: Any) -> None:
    """Two panels for each line: coverage in per cent, and below it the split counts that lead there."""
    if against == "splits":
        _draw_splits(canvas, data)
        return
    lines = parts(data, without("batch"))
    panels = canvas.panels([line.label for line in lines], tall=(1, 1), height=canvas.size.height * 1.1)
    for (covers, counts), (_, mine) in zip(panels, lines):
        x = [r["batch"] for r in mine]
        marker: dict[str, Any] = {"marker": "o" if len(x) == 1 else "", "markersize": 6}
        with_splits = [100 * r["sm_coverage"] for r in mine]
        covers.fill_between(x, with_splits, color=canvas.theme.colors[6], alpha=0.35, linewidth=0)
        covers.plot(x, with_splits, color=canvas.theme.colors[0], label="with splits", **marker)
        covers.plot(
            x, [100 * r["unsplit_sm_coverage"] for r in mine], color=canvas.theme.colors[5], linestyle="-.",
            label="without splits", **marker,
        )  # fmt: skip
        covers.set_ylim(0, 104)
        named_x(covers, mine, "batch", canvas.theme)
        draw_counts(canvas, counts, mine, "batch")
    canvas.key([*panels[0][0].get_lines()[:2], *counts_key(panels[0][1])])
    canvas.scenario += marked(data, "batch")
    canvas.name_axes(["", "batch size"], ["SMs with work, %", "splits per request"])


def _draw_splits(canvas: Canvas, data: list[Row]) -> None:
    canvas.question = "How many splits give every SM work?"
    drawn = draw_lines(canvas, data, without("splits"), {"coverage": ("sm_coverage", 100)}, "splits")
    for ax, lines in drawn:
        colors = [line.get_color() for line in ax.get_lines()]
        for line, color in zip(lines, colors):
            s_star = line[0]["s_star"]
            ax.axvline(s_star, color=color, linestyle=":", linewidth=1)
            canvas.near(ax, s_star, 4, f"S* {s_star}", color)
        ax.set_ylim(0, 104)
        canvas.powers_of_two(ax)
    canvas.name_axes(["splits asked for, in equal slices of whole tiles"], ["SMs with work, %"])
