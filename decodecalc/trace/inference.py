"""What the extents of a launch say about the layer and the batch. Each engine folder knows how its grids are laid out.

Grids that depend on the lengths bound the longest request. A grid replayed from a CUDA graph is that of capture time
and says nothing about lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from decodecalc.trace.events import Dim3
from decodecalc.trace.pairing import LaunchGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """What a launch says by itself. A field is None where it says nothing."""

    q_heads: int | None = None
    """Query heads of the layer on this rank."""
    kv_heads: int | None = None
    """KV heads of the layer on this rank."""
    group: int | None = None
    """Query heads that share a KV head."""
    head_dim: int | None = None
    """Width of a key."""
    batch: int | None = None
    """Requests, padding rows of a graph included."""
    query_tokens: int | None = None
    """Query tokens of all requests."""
    splits_launched: int | None = None
    """Splits in the grid."""
    context_range: tuple[int, int] | None = None
    """The least and the most keys that the longest request can have."""
    mla: bool | None = None
    """Whether one latent per key is both key and value."""
    how: str = ""
    """Which extent gave which value."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, only those that are known."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v not in (None, "")}


InferenceRule = Callable[[LaunchGroup, "int | None"], Inferred]
"""How an engine reads a launch that has a grid. The second argument gives the query heads of the layer, where they are
known."""


def infer(group: LaunchGroup, rule: InferenceRule | None, q_heads: int | None = None) -> Inferred:
    """What the grids of this group say if the engine of `rule` launched it. q_heads: query heads of the layer, where
    known."""
    if rule is None or group.stage1.grid is None:
        facts = group.kind.facts
        how = "template arguments" if facts.head_dim else ""
        return Inferred(head_dim=facts.head_dim, group=facts.group, how=how)
    found = rule(group, q_heads)
    if not group.graph or found.context_range is None:
        return found
    return replace(found, context_range=None, how=found.how + "; a graph replay says nothing about lengths")


def grids(group: LaunchGroup) -> tuple[Dim3, Dim3 | None]:
    """The grids of stage 1, which must have one, and of the merge."""
    assert group.stage1.grid is not None
    return group.stage1.grid, None if group.merge is None else group.merge.grid
