"""SM coverage against batch, unsplit and as each engine launches it, or against the split count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.occupancy import occupancy, occupancy_arrays
from decodecalc.plot.series import along_batches, labelled
from decodecalc.plot.style import line_style, log2_ticks

if TYPE_CHECKING:
    from decodecalc.request import Request

TITLE = "SM coverage against batch (or, with --against splits, against S)"
AGAINST = ("batch", "splits")


def rows(request: Request, against: str = "batch", **_: Any) -> list[dict[str, Any]]:
    """One row per (layer group, engine or unsplit, x)."""
    return _against_splits(request) if against == "splits" else _against_batch(request)


def _against_batch(request: Request) -> list[dict[str, Any]]:
    s = request.scenarios
    out: list[dict[str, Any]] = []
    for line in along_batches(request):
        covered = occupancy_arrays(line.steps, line.found, s.gpu)
        names = ("live_blocks", "unsplit_blocks", "sm_coverage")
        columns = [line.per_step(getattr(covered, name)) for name in names]
        for batch, split, *values in zip(line.x, line.per_step(line.found.is_split), *columns):
            path = line.found.path_names[bool(split)]
            row = line.row(batch=batch, context=s.batches[0].max_seq_len, path=path, **dict(zip(names, values)))
            out.append({**row, "unsplit_sm_coverage": min(row["unsplit_blocks"] / s.gpu.sm_count, 1.0)})
    return out


def _against_splits(request: Request) -> list[dict[str, Any]]:
    """The reference rule at every split count: equal slices of whole tiles."""
    from decodecalc.engines.registry import REFERENCE, load_policy

    s, policy = request.scenarios, load_policy(REFERENCE)
    out = []
    for group in s.layer_groups:
        for batch in s.batches:
            for splits in (*range(1, 33), *range(36, 257, 4)):
                plan = policy.plan(group.geometry, batch, s.kv, s.gpu, {"num_splits": splits})
                out.append(
                    {
                        "layer_group": group.name,
                        "engine": policy.name,
                        "batch": batch.size,
                        "context": batch.max_seq_len,
                        "splits": splits,
                        "splits_live": max(plan.splits.live),
                        "live_blocks": plan.live_blocks,
                        "sm_coverage": occupancy(plan).sm_coverage,
                        "s_star": plan.s_star,
                    }
                )
    return out


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, against: str = "batch", **_: Any) -> None:
    """Coverage in per cent; S* marked where the x axis is S."""
    if against == "splits":
        _draw_splits(ax, data)
    else:
        _draw_batch(ax, data)
    s = request.scenarios
    ax.set_ylabel(f"SMs with work (of {s.gpu.sm_count}), %")
    ax.set_ylim(0, 104)
    ax.set_title(f"{request.heading[0]}")
    ax.legend(loc="lower right")


def _draw_batch(ax: Any, data: list[dict[str, Any]]) -> None:
    drawn: set[tuple[int, str]] = set()
    for i, label, mine in labelled(data):
        unsplit = (mine[0]["tp"], mine[0]["layer_group"])
        if unsplit not in drawn:
            drawn.add(unsplit)
            x, y = [r["batch"] for r in mine], [100 * r["unsplit_sm_coverage"] for r in mine]
            ax.plot(x, y, color=line_style(i)["color"], linewidth=5, alpha=0.3, label=f"{label}: unsplit")
        style = {**line_style(i), "markersize": 3, "markevery": 4}
        ax.plot([r["batch"] for r in mine], [100 * r["sm_coverage"] for r in mine], label=label, **style)
    ax.set_xscale("log", base=2)
    log2_ticks(ax.xaxis)
    ax.set_xlabel(f"batch (requests of {data[0]['context']} keys)" if data else "batch")


def _draw_splits(ax: Any, data: list[dict[str, Any]]) -> None:
    series = list(dict.fromkeys((r["layer_group"], r["batch"], r["context"]) for r in data))
    for i, (group, batch, context) in enumerate(series):
        mine = [r for r in data if (r["layer_group"], r["batch"], r["context"]) == (group, batch, context)]
        style = {**line_style(i), "markersize": 3}
        label = f"{group} layers, batch {batch}, {context} keys (S* = {mine[0]['s_star']})"
        ax.plot([r["splits"] for r in mine], [100 * r["sm_coverage"] for r in mine], label=label, **style)
        ax.axvline(mine[0]["s_star"], color=style["color"], linestyle=":", linewidth=1)
    ax.set_xscale("log", base=2)
    log2_ticks(ax.xaxis)
    ax.set_xlabel("requested splits S (equal slices of whole tiles)")
