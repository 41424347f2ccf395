"""Runs a sweep chunk by chunk, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from decodecalc.errors import InputError, check_type
from decodecalc.intmath import IntArray
from decodecalc.launch.arrays import Batches
from decodecalc.models import LayerGroup
from decodecalc.sweeps.axes import Axes, Family, families, shard_range, steps
from decodecalc.sweeps.columns import COLUMNS, Chunk
from decodecalc.sweeps.where import Filter

# Rows of one chunk: a few dozen int64 columns of this length stay inside a core's L2 cache.
CHUNK_ROWS = 1 << 14


def sweep(
    axes: Axes,
    *,
    where: str | None = None,
    shard: Sequence[int] | None = None,
    start: int = 0,
    chunk_rows: int = CHUNK_ROWS,
    on_note: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, Chunk]]:
    """Yields chunks of the product, each with the number of the scenario after its last one.

    where: keeps only rows for which this expression over column names holds. shard: (i, n), with i from 1. start: the
    scenario number at which to continue. on_note: is called with what was left out (models that do not shard, engines
    that refuse). Raises InputError for axes, a shard or an expression that cannot be used.
    """
    check_type("axes", axes, Axes, "decodecalc.Axes(...) makes them")
    note = on_note or (lambda _text: None)
    found, skipped = families(axes)
    for text in skipped:
        note(text)
    condition = Filter(where, COLUMNS) if where else None
    per_family = axes.steps_per_family
    first, last = shard_range(per_family * len(found), shard)
    position = max(first, start)
    while position < last:
        family = found[position // per_family]
        inside = position % per_family
        stop = min(inside + chunk_rows, per_family, inside + last - position)
        chunk = _chunk(axes, family, inside, stop, note)
        position += stop - inside
        if chunk is None:
            continue
        if condition is not None:
            mask = condition.mask(chunk.full)
            chunk.keep = np.broadcast_to(np.asarray(mask), (chunk.size,))
        yield position, chunk


def scenario_range(axes: Axes, shard: Sequence[int] | None = None) -> tuple[int, int]:
    """The number of the first scenario of the product (or the shard), and the number after its last. Refused scenarios
    count."""
    return shard_range(axes.steps_per_family * len(families(axes)[0]), shard)


def _chunk(axes: Axes, family: Family, first: int, last: int, note: Callable[[str], None]) -> Chunk | None:
    batch, context, q_len = steps(axes, first, last)
    group = family.layer_group
    seen = _seen(group, context) if group.chunk is not None else context
    batches = Batches.uniform(batch, seen, q_len)
    try:
        batches, launches = family.policy.on_layer(
            group.geometry, batches, family.kv, family.gpu, family.options, family.version
        )
    except InputError as refused:
        note(f"{family.policy.name} does not run {family.model} TP {family.tp} {group.name} layers: {refused}")
        return None
    chunk = Chunk(family, last - first, batches, launches)
    chunk._cache.update(batch=batch, context=context, q_len=q_len)
    return chunk


def _seen(group: LayerGroup, context: IntArray) -> IntArray:
    values, inverse = np.unique(context, return_inverse=True)
    return np.array([group.keys_read(int(v)) for v in values], dtype=np.int64)[inverse]
