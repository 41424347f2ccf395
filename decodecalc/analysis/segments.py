"""Every split of every request: its keys, its tiles, and whether it has work.

A split has one of three states. `live`: it has keys to read. `outside window`: it is live, but all of its keys lie
before the window, so the block passes the early exit and writes a neutral partial state. `early exit`: it was launched
or asked for, but has no keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.intmath import cdiv
from decodecalc.launch.plan import LaunchPlan, check_plan
from decodecalc.sizes import check_rows
from decodecalc.values import Shown


@dataclass(frozen=True, slots=True)
class Segment(Shown):
    """One split of one request."""

    request: int
    """Number of the request, from 0."""
    split: int
    """Number of the split, from 0."""
    start: int
    """First key of the split."""
    end: int
    """Key after the last one."""
    keys: int
    """Keys that the split owns."""
    tiles: int
    """Tiles that these keys make."""
    visible_keys: int
    """Keys of the split that a query token can see."""
    state: str
    """`live`, `outside window` or `early exit` (see the module)."""
    pieces: int
    """Separate key ranges of the split: 1, or more where tiles are dealt to the splits in turn; 0 without keys."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def segments(plan: LaunchPlan, request: int | None = None) -> Iterator[Segment]:
    """Splits of one request, or of all, in launch order up to the launched count, early exits included."""
    check_plan(plan)
    chosen = range(plan.batch.size) if request is None else (request,)
    check_rows(
        sum(segment_count(plan, r) for r in chosen), "splits", "choose one --request, fewer keys or smaller batches"
    )
    for r in chosen:
        yield from _of_request(plan, r)


def segment_count(plan: LaunchPlan, r: int) -> int:
    """Segments of request r, before any is made."""
    return max(plan.splits.live[r], plan.splits.launched if plan.is_split else 1, plan.splits.requested[r])


def _of_request(plan: LaunchPlan, r: int) -> Iterator[Segment]:
    length, q_len = plan.batch.seq_lens[r], plan.batch.q_lens[r]
    window = plan.geometry.window
    first_visible = 0 if window is None else max(0, length - q_len - window + 1)
    splits = plan.splits.pieces(r)
    for i, pieces in enumerate(splits):
        keys = sum(end - start for start, end in pieces)
        tiles = sum(cdiv(end - start, plan.tile_keys) for start, end in pieces)
        visible = sum(max(0, end - max(start, first_visible)) for start, end in pieces)
        state = "live" if visible else "outside window"
        yield Segment(r, i, pieces[0][0], pieces[-1][1], keys, tiles, visible, state, len(pieces))
    for i in range(len(splits), max(plan.splits.launched if plan.is_split else 1, plan.splits.requested[r])):
        yield Segment(r, i, length, length, 0, 0, 0, "early exit", 0)
