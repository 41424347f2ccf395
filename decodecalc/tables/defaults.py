"""Which rows are what servers run by themselves: the first question of whoever reads a table of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from decodecalc.tables.table import Column
from decodecalc.units import listed

if TYPE_CHECKING:
    from decodecalc.request import Request

_Row = TypeVar("_Row", bound=Mapping[str, Any])


def mark_defaults(request: Request, rows: Iterable[dict[str, Any]]) -> None:
    """Say in every row which servers run its engine by themselves (`default_of`), and whether --server asked for it
    (`asked`)."""
    from decodecalc.servers.policies import marks

    s = request.scenarios
    found = marks(s.place) if s.place is not None else {}
    first = set(s.first)
    for r in rows:
        own = found.get((r["layer_group"], r["engine"]), [])
        r["default_of"] = [m.title if m.version == r["version"] else f"{m.title} (@{m.version})" for m in own]
        r["asked"] = (r["engine"], r["version"]) in first


def in_order(rows: Sequence[_Row], then: Callable[[_Row], Any] = lambda row: 0) -> list[_Row]:
    """Steps in their order; in each what a server was asked for first, next what servers run by themselves, then by
    `then`."""
    steps = [(r["layer_group"], r["batch"], r["context"], r["q_len"]) for r in rows]
    places = {step: place for place, step in enumerate(dict.fromkeys(steps))}
    ranked = sorted(
        zip(steps, rows),
        key=lambda pair: (places[pair[0]], not pair[1]["asked"], not pair[1]["default_of"], then(pair[1])),
    )
    return [row for _, row in ranked]


def default_columns(rows: Iterable[Mapping[str, Any]]) -> list[Column]:
    """The column that names the servers, where a row has one."""
    if not any(r["default_of"] for r in rows):
        return []
    return [Column("default_of", "default of", lambda v: ", ".join(v), align="left")]


def leading(rows: Sequence[_Row]) -> tuple[str, list[_Row]]:
    """The engine of the first row, with the servers that run it by themselves, and all rows of that engine at that
    version: whom an answer is about."""
    first = rows[0]
    mine = [row for row in rows if (row["engine"], row["version"]) == (first["engine"], first["version"])]
    return first["engine"] + default_clause(first), mine


def default_clause(row: Mapping[str, Any]) -> str:
    """What stands behind the engine's name: which servers run exactly this by themselves; empty for none."""
    servers = [title for title in row["default_of"] if "@" not in title]
    if not servers:
        return ""
    return f" (which {listed(servers)} {'runs' if len(servers) == 1 else 'run'} by default)"
