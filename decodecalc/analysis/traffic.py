"""Bytes that one layer of one decode step moves: keys and values, partial states, queries and output.

The same keys are counted in two ways. `kv_read_bytes` counts each visible key once: these are the useful bytes.
`kv_requested_bytes` is what stage 1 asks for: whole tiles at the edge of a window, once for every block that walks
them. An engine that does not share a KV head over its query heads asks once per query head; most of those repeated
reads hit L2.

Partial states are also counted in two ways: live states are moved, while allocated bytes are what the buffers hold (an
upper bound, not traffic).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from decodecalc.geometry import Geometry
from decodecalc.kvcache import DTYPE_BYTES, KvCache
from decodecalc.launch.arrays import Batches, Launches
from decodecalc.launch.plan import LaunchPlan, check_plan
from decodecalc.values import Shown

INDEX_BYTES = 4  # an index of a gathered list: int32
PARTIAL_BYTES = 4  # one of `state_values`: fp32; policies count 16-bit partial outputs as half a value


@dataclass(frozen=True, slots=True)
class Traffic(Shown):
    """Bytes that one layer of one step moves on one rank.

    Fields are numbers from `traffic` and [N] arrays from `traffic_arrays`: the same formulas serve both.
    """

    kv_read_bytes: Any
    """Useful bytes: keys and values that a query token sees, each counted once. The query tokens of a sparse
    layer have lists of their own, whose keys count as different."""
    kv_requested_bytes: Any
    """Bytes that stage 1 asks for: whole tiles at the edge of a window, once for every block that walks them."""
    kv_reads_per_key: Any
    """`kv_requested_bytes` over `kv_read_bytes`."""
    partial_state_bytes: int
    """Bytes of the partial state of one (token, query head, split)."""
    partial_states_live: Any
    """Partial states that are written."""
    partial_written_bytes: Any
    """Bytes of partial states that stage 1 writes."""
    partial_read_bytes: Any
    """Bytes of partial states that the merge reads."""
    partial_allocated_bytes: Any
    """Bytes that the buffers for partial states hold: an upper bound, not traffic."""
    partial_traffic_bytes: Any
    """Partial states written and read, in bytes."""
    partial_share: Any
    """`partial_traffic_bytes` over `kv_read_bytes`."""
    partial_allocated_share: Any
    """Twice `partial_allocated_bytes` over `kv_read_bytes`."""
    query_bytes: Any
    """Bytes of the queries."""
    output_bytes: Any
    """Bytes of the output."""
    merge_worthwhile: Any
    """Whether `partial_share` is at most `WORTHWHILE_SHARE`."""
    indexer_read_bytes: Any = 0
    """Bytes of the index keys that a sparse layer's indexer scores: those of the whole sequence, once for a
    request. Its queries and scores are not counted."""
    index_list_bytes: Any = 0
    """Bytes of the list that the indexer leaves, int32 indices that are read once."""

    @property
    def cache_read_bytes(self) -> Any:
        """Bytes that a layer reads from its caches: keys and values, and for a sparse layer the index keys and the
        list."""
        return self.kv_read_bytes + self.indexer_read_bytes + self.index_list_bytes

    @property
    def total_bytes(self) -> Any:
        """All bytes: useful KV, index keys and list of a sparse layer, partial states written and read, queries and
        output."""
        return self.cache_read_bytes + self.partial_traffic_bytes + self.query_bytes + self.output_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the sums."""
        return {**asdict(self), "cache_read_bytes": self.cache_read_bytes, "total_bytes": self.total_bytes}


# Above this share of the KV bytes, splitting moves enough state that fewer splits deserve a look. It is a convention of
# this tool, not a measurement: at 512 keys of Llama-3-8B the allocated states reach a quarter of the KV, at 128 keys
# half.
WORTHWHILE_SHARE = 0.25


def visible_keys(length: Any, q_len: Any, window: int | None) -> Any:
    """Keys of a request that at least one of its query tokens can see; numbers or arrays."""
    if isinstance(length, np.ndarray):
        seen = length if window is None else np.minimum(length, window + q_len - 1)
        return np.where(q_len > 0, seen, 0)
    if q_len == 0:
        return 0
    return length if window is None else min(length, window + q_len - 1)


def sparse_counts(geo: Geometry, context: Any, q_len: Any) -> tuple[Any, Any, Any]:
    """(useful cache entries, index keys, indices) of a request with `context` keys; numbers or arrays.

    Each query token has a list of its own; together the lists name at most the entries that exist. The nearest keys are
    shared.
    """
    gather = geo.gather
    if gather is None:
        useful = visible_keys(context, q_len, geo.window)
        return useful, useful * 0, useful * 0
    asks = (q_len > 0) * 1
    there, listed = gather.candidates(context), gather.listed(context) * q_len
    near = gather.near(context)
    if gather.window is not None:
        near = near + (context - near > q_len - 1) * (q_len - 1) + (context - near <= q_len - 1) * (context - near)
    useful = (listed - (listed > there) * (listed - there) + near) * asks
    return useful, gather.index_entries(context) * asks, gather.indices(context, geo.kv_heads) * q_len


def traffic(plan: LaunchPlan) -> Traffic:
    """Bytes that this plan moves. Element sizes come from the plan's cache and query types; the output has 16 bits, or
    32 with fp32 queries."""
    check_plan(plan)
    geo, batch = plan.geometry, plan.batch
    live = sum(s * q for s, q in zip(plan.partial_splits, batch.q_lens))
    per_request = batch.query_tokens * geo.q_heads * plan.splits.launched if plan.is_split else 0
    contexts = batch.seq_lens if geo.gather is None else batch.contexts or batch.seq_lens
    sparse = [sparse_counts(geo, n, q) for n, q in zip(contexts, batch.q_lens)]
    return _traffic(
        geo,
        plan.kv,
        useful_keys=sum(useful for useful, _, _ in sparse),
        index_entries=sum(entries for _, entries, _ in sparse),
        indices=sum(count for _, _, count in sparse),
        asked_keys=sum(k * b for k, b in zip(plan.keys_read, plan.blocks_per_split)),
        value_apart=plan.loads_value_apart,
        tokens=batch.query_tokens,
        live_states=live * geo.q_heads,
        allocated_bytes=plan.scratch_bytes if plan.shared_slots else per_request * plan.state_values * PARTIAL_BYTES,
        state_values=plan.state_values,
    )


def traffic_arrays(geo: Geometry, kv: KvCache, batches: Batches, found: Launches) -> Traffic:
    """Bytes for every step of a whole-array launch: each field is an [N] array (or a number where all steps agree)."""
    read = batches.seq_lens if found.keys_read is None else found.keys_read
    per_request = found.is_split * batches.query_tokens * geo.q_heads * found.launched
    contexts = batches.seq_lens if batches.contexts is None or geo.gather is None else batches.contexts
    useful, entries, indices = sparse_counts(geo, contexts, batches.q_lens)
    return _traffic(
        geo,
        kv,
        useful_keys=batches.total(useful),
        index_entries=0 if geo.gather is None else batches.total(entries),
        indices=0 if geo.gather is None else batches.total(indices),
        asked_keys=batches.total(read * found.blocks_per_split),
        value_apart=found.loads_value_apart,
        tokens=batches.query_tokens,
        live_states=batches.total(found.partials() * batches.q_lens) * geo.q_heads,
        allocated_bytes=found.scratch_bytes if found.shared_slots else per_request * found.state_values * PARTIAL_BYTES,
        state_values=found.state_values,
    )


def _traffic(
    geo: Geometry,
    kv: KvCache,
    *,
    useful_keys: Any,
    index_entries: Any,
    indices: Any,
    asked_keys: Any,
    value_apart: bool,
    tokens: Any,
    live_states: Any,
    allocated_bytes: Any,
    state_values: int,
) -> Traffic:
    """The formulas, on numbers or on arrays. `asked_keys` counts a key once for every block that walks it; value_apart:
    the value part of a latent is loaded once more."""
    per_key = kv.bytes_per_key(geo)
    loads = (geo.head_dim + geo.v_dim) / geo.head_dim if value_apart else 1
    useful, asked = useful_keys * per_key, asked_keys * (per_key / geo.kv_heads * loads)
    state = state_values * PARTIAL_BYTES
    written, allocated = live_states * state, allocated_bytes
    moved_share = ratio(2 * written, useful)
    return Traffic(
        kv_read_bytes=whole(useful),
        kv_requested_bytes=whole(asked),
        kv_reads_per_key=ratio(asked, useful),
        partial_state_bytes=state,
        partial_states_live=live_states,
        partial_written_bytes=written,
        partial_read_bytes=written,
        partial_allocated_bytes=allocated,
        partial_traffic_bytes=2 * written,
        partial_share=moved_share,
        partial_allocated_share=ratio(2 * allocated, useful),
        query_bytes=whole(tokens * geo.q_heads * geo.head_dim * kv.query_element_bytes),
        output_bytes=tokens * geo.q_heads * geo.v_dim * output_bytes_per_element(kv),
        merge_worthwhile=moved_share <= WORTHWHILE_SHARE,
        indexer_read_bytes=whole(index_entries * index_key_bytes(geo)),
        index_list_bytes=indices * INDEX_BYTES,
    )


def index_key_bytes(geo: Geometry) -> float:
    """Bytes of one index key of a sparse layer; 0 for other layers."""
    indexer = None if geo.gather is None else geo.gather.indexer
    return 0.0 if indexer is None else indexer.head_dim * DTYPE_BYTES[indexer.dtype] + indexer.scale_bytes


def ratio(a: Any, b: Any) -> Any:
    """a / b, or 0 where b is 0; numbers or arrays."""
    if isinstance(b, np.ndarray):
        return np.divide(a, b, out=np.zeros(b.shape), where=b != 0)
    return a / b if b else 0.0


def whole(value: Any) -> Any:
    """A byte count as an int (block-scaled formats have fractional bytes per element); numbers or arrays."""
    return np.rint(value).astype(np.int64) if isinstance(value, np.ndarray) else round(value)


def output_bytes_per_element(kv: KvCache) -> int:
    """Attention output is 16-bit unless the model runs in fp32 (an 8-bit query is only a quantised copy)."""
    return 4 if kv.query_dtype == "fp32" else 2
