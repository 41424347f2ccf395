"""What a figure is drawn from: the scenarios of a request as rows, and the rows as lines or panels.

Every row names what it is of (`WHO`). What all rows share is the scenario under a figure's title; what differs is the
label of a line or of a panel. So nothing that was asked for is left out or drawn without its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.analysis.occupancy import occupancy_arrays
from decodecalc.batch import Batch
from decodecalc.errors import GateError, InputError
from decodecalc.launch.arrays import Batches, Launches
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.models import LayerGroup
from decodecalc.scenario import Planned
from decodecalc.tables.text import because
from decodecalc.units import short_count

if TYPE_CHECKING:
    from decodecalc.plot.canvas import Canvas
    from decodecalc.plot.style import Theme
    from decodecalc.request import Request

Row = dict[str, Any]
MOST_LINES = 4  # on one pair of axes; more engines get a panel each
WHO = ("model", "tp", "gpu", "layer_group", "engine", "version", "batch", "context", "q_len", "kv_dtype", "page_size")


class Alike(NamedTuple):
    """The rows that share what they are of."""

    label: str
    """What sets them apart from the other parts."""
    rows: list[Row]


def parts(data: Sequence[Row], names: Sequence[str] = WHO) -> list[Alike]:
    """The rows by the values of `names`, in order, each part labelled with the names whose values differ in `data`."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in data:
        found.setdefault(tuple(row.get(name) for name in names), []).append(row)
    differs = {name for i, name in enumerate(names) if len({key[i] for key in found}) > 1}
    if differs & {"engine", "version"}:
        differs |= {"engine", "version"}
    return [
        Alike(", ".join(word(rows[0], name) for name in names if name in differs and word(rows[0], name)), rows)
        for rows in found.values()
    ]


def scenario(data: Sequence[Row]) -> str:
    """What all rows have in common that have it at all; what goes without saying is left out."""
    words = []
    for name in WHO:
        having = [row for row in data if row.get(name) is not None]
        values = {row[name] for row in having}
        if len(values) == 1 and not (name in ("tp", "q_len") and values == {1}):
            words.append(word(having[0], name))
    return ", ".join(filter(None, words))


def word(row: Row, name: str) -> str:
    """One of WHO as words; the version stands with its engine."""
    value: Any = row.get(name)
    if value is None or name == "version":
        return ""
    if name == "engine":
        return f"{value} {row.get('version') or ''}".rstrip()
    if name == "context":
        shortest = row.get("shortest", value)
        return (
            f"{short_count(value)} keys"
            if shortest == value
            else f"{short_count(shortest)} to {short_count(value)} keys"
        )
    forms = {
        "tp": "TP {}",
        "layer_group": "{} layers",
        "batch": "batch {}",
        "q_len": "{} query tokens",
        "kv_dtype": "KV {}",
        "page_size": "page {}",
    }
    return forms.get(name, "{}").format(value)


def without(*axes: str) -> tuple[str, ...]:
    """WHO, but for what is drawn along an axis or set apart within a panel."""
    return tuple(name for name in WHO if name not in axes)


def of_batch(batch: Batch) -> Row:
    """The part of a row that names its decode step."""
    return {
        "batch": batch.size,
        "context": batch.max_seq_len,
        "shortest": min(batch.seq_lens),
        "q_len": batch.max_q_len,
    }


def planned(request: Request, said: list[str]) -> Iterator[tuple[Planned, Row]]:
    """Every plan of the request and what it is of; an engine that runs none of a step leaves a sentence in `said`."""
    for item in request.scenarios.plans():
        if isinstance(item, Planned):
            who = {"layer_group": item.layer_group.name, "engine": item.plan.engine, "version": item.plan.version}
            yield item, {**who, **of_batch(item.batch)}
        else:
            said.append(f"not drawn: {because(item.engine, item.reason)}")


def was_given(request: Request, name: str) -> bool:
    """Whether the user gave --batch, --context or --engine, or a default stands there."""
    return not any(default.split()[0] == name for default in request.defaults)


@dataclass(frozen=True, slots=True)
class Series:
    """One line: `x` are its batch sizes or contexts, `found` what the policy launches at each of `steps`."""

    group: LayerGroup
    policy: Policy
    version: PolicyVersion
    axis: str
    """`batch` or `context`: what x is."""
    x: list[int]
    given: frozenset[int]
    """Those of x that the user named."""
    fixed: Row
    """What the line's steps have in common."""
    steps: Batches
    found: Launches

    def rows(self, **columns: Any) -> Iterator[Row]:
        """A data row for each x. columns: a number, [N] or [N, 1] array each."""
        who = {"layer_group": self.group.name, "engine": self.policy.name, "version": self.version.name}
        values = [self._per_step(column) for column in columns.values()]
        for x, *here in zip(self.x, *values):
            yield {**who, **self.fixed, self.axis: x, "given": x in self.given, **dict(zip(columns, here))}

    def _per_step(self, value: Any) -> list[Any]:
        array = np.asarray(value)
        array = array[:, 0] if array.ndim == 2 else array
        return np.broadcast_to(array, (len(self.x),)).tolist()

    def split_counts(self, request: Request) -> Row:
        """Columns of the four split counts that are never mixed."""
        covered = occupancy_arrays(self.steps, self.found, request.scenarios.gpu)
        return {
            "splits_requested": self.found.requested,
            "splits_launched": self.found.launched,
            "splits_live": self.found.live,
            "s_star": covered.s_star,
        }


def along(axis: str, request: Request, said: list[str]) -> Iterator[Series]:
    """A line for each layer group, engine and step that the other options give, along the batch sizes or contexts.

    Where the user gave fewer than two of them the line runs over the usual range, through the one that was given.
    """
    batches = request.scenarios.batches
    if any(len({*zip(b.seq_lens, b.q_lens)}) > 1 for b in batches):
        raise InputError(
            f"this figure draws steps of equal requests against the {axis}: give --batch and --context instead of "
            "--seq-lens, or draw segments, waves, latency or gpus"
        )
    other = "context" if axis == "batch" else "batch"
    steps = [{"batch": b.size, "context": b.max_seq_len, "q_len": b.max_q_len} for b in batches]
    given = sorted({step[axis] for step in steps}) if was_given(request, axis) else []
    x = given if len(given) > 1 else sorted({*_USUAL[axis](), *given})
    for fixed in {
        (step[other], step["q_len"]): {other: step[other], "q_len": step["q_len"]} for step in steps
    }.values():
        sizes, contexts = (x, fixed["context"]) if axis == "batch" else (fixed["batch"], x)
        made = Batches.uniform(np.array(sizes), np.array(contexts), fixed["q_len"])
        yield from _run(request, axis, x, frozenset(given), fixed, made, said)


_USUAL: dict[str, Any] = {
    "batch": lambda: [*range(1, 33), *range(34, 133, 2), 136, 160, 192, 256],
    "context": lambda: np.unique(np.round(2 ** np.linspace(6, 17, 89)).astype(np.int64)).tolist(),
}


def _run(
    request: Request, axis: str, x: list[int], given: frozenset[int], fixed: Row, steps: Batches, said: list[str]
) -> Iterator[Series]:
    s = request.scenarios
    said += [f"not drawn: {because(engine, reason)}" for engine, _, reason in s.excluded]
    for group in s.layer_groups:
        for policy, name in s.engines:
            version = policy.version(name)
            options = policy.options_type.from_mapping(policy.name, s.options_of(policy))
            try:
                seen, found = policy.on_layer(group.geometry, steps, s.kv, s.gpu, options, version)
            except GateError as refused:
                said.append(f"not drawn: {because(policy.name, str(refused))}")
                continue
            yield Series(group, policy, version, axis, x, given, fixed, seen, found)


def named_x(ax: Any, rows: Sequence[Row], axis: str, theme: Theme) -> None:
    """A thin line at an x that the user named, where the figure runs over more."""
    given = [row[axis] for row in rows if row["given"]]
    if len(given) < len(rows):
        for x in given:
            ax.axvline(x, color=theme.quiet, linewidth=0.8, zorder=0.5)


def marked(data: Sequence[Row], axis: str) -> str:
    """What `named_x` draws, as words for the end of a scenario."""
    given = [row for row in data if row["given"]]
    return f"; the upright line marks {word(given[0], axis)}" if 0 < len(given) < len(data) else ""


# Name, column, width over a line's, dash, and the theme's colour: widest first, so that equal counts all stay visible.
COUNTS = (
    ("S* (fills the SMs)", "s_star", 0.8, ":", None),
    ("launched", "splits_launched", 3.2, "-", 6),
    ("requested", "splits_requested", 1.4, "--", 1),
    ("live", "splits_live", 0.9, "-", 2),
)


def draw_counts(canvas: Canvas, ax: Any, rows: Sequence[Row], axis: str) -> None:
    """The four split counts of one line, on powers of two."""
    x = [row[axis] for row in rows]
    for name, column, width, dash, color in COUNTS:
        shade = canvas.theme.quiet if color is None else canvas.theme.colors[color]
        ax.plot(
            x, [row[column] for row in rows], color=shade, linestyle=dash, linewidth=width * canvas.size.line,
            marker="o" if len(x) == 1 else "", markersize=3 * width + 2, label=name,
        )  # fmt: skip
    canvas.powers_of_two(ax, "xy")
    named_x(ax, rows, axis, canvas.theme)


def counts_key(ax: Any) -> list[Any]:
    """The lines of a panel of counts, for the key of the figure."""
    named = {line.get_label(): line for line in ax.get_lines()}
    return [named[name] for name, *_ in COUNTS]


def draw_lines(
    canvas: Canvas, data: Sequence[Row], names: Sequence[str], curves: Mapping[str, tuple[str, float]], axis: str
) -> list[tuple[Any, list[list[Row]]]]:
    """Lines over one axis: together with labels at their ends, or a panel each beyond MOST_LINES.

    curves: label -> (column, factor); the first is drawn in full, others thin where they differ from it. Returns each
    pair of axes with the lines on it.
    """
    from matplotlib.lines import Line2D

    from decodecalc.plot.style import line_style

    lines = parts(data, names)
    apart = len(lines) > MOST_LINES
    panels = canvas.panels([line.label for line in lines] if apart else [""])
    thin: dict[str, Any] = {"linewidth": 0.5 * canvas.size.line}
    differing: set[str] = set()
    for i, (label, mine) in enumerate(lines):
        (ax,) = panels[i if apart else 0]
        x = [row[axis] for row in mine]
        style = line_style(0 if apart else i, canvas.theme)
        full: list[float] = []
        for kind, (column, factor) in curves.items():
            y = [factor * row[column] for row in mine]
            name = f"{label}: {kind}".removeprefix(": ")
            if not full:
                full = y
                ax.plot(x, y, label=name, **{**style, "markevery": max(1, len(x) // 10)})
            elif y != full:
                differing.add(kind)
                ax.plot(x, y, color=style["color"], label=name, **thin)
        if not apart and len(lines) > 1:
            canvas.beside(ax, x[-1], full[-1], label, style["color"])
        named_x(ax, mine, axis, canvas.theme)
    if differing:
        ink = canvas.theme.ink
        widths = [{} if k == 0 else thin for k, kind in enumerate(curves) if k == 0 or kind in differing]
        kinds = [kind for k, kind in enumerate(curves) if k == 0 or kind in differing]
        canvas.key([Line2D([], [], color=ink, label=kind, **width) for kind, width in zip(kinds, widths)])
    if apart:
        return [(ax, [line.rows]) for (ax,), line in zip(panels, lines)]
    return [(panels[0][0], [line.rows for line in lines])]
