"""Bytes that one layer of one decode step moves: keys and values, partial states, queries, output, block table.

Three counts of the same keys are kept apart: `kv_read_bytes` (each visible key once: the useful bytes), `kv_tile_bytes`
(what stage 1 asks for: whole tiles of the window's edge) and `kv_requested_bytes` (the same for every block that walks
them: an engine that does not share a KV head over its query heads asks once per query head; most of those repeats
hit L2). Partial states likewise: `live` moves, `allocated` is what the buffers hold (an upper bound, not traffic).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.kvcache import KvCache
from decodecalc.launch import LaunchPlan

PARTIAL_BYTES = 4  # every engine keeps partial states in fp32


@dataclass(frozen=True)
class Traffic:
    """All in bytes for one layer of one step on one rank; `_share` is a ratio to `kv_read_bytes`.

    partial_state_bytes: one partial state of one (token, query head, split). merge_worthwhile: the partial traffic
    is at most `WORTHWHILE_SHARE` of the KV bytes.
    """

    kv_read_bytes: int
    kv_requested_bytes: int
    kv_reads_per_key: float
    partial_state_bytes: int
    partial_states_live: int
    partial_written_bytes: int
    partial_read_bytes: int
    partial_allocated_bytes: int
    partial_traffic_bytes: int
    partial_share: float
    partial_allocated_share: float
    query_bytes: int
    output_bytes: int
    merge_worthwhile: bool

    @property
    def total_bytes(self) -> int:
        """Useful KV, partial states both ways, queries and output."""
        return self.kv_read_bytes + self.partial_traffic_bytes + self.query_bytes + self.output_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the total."""
        return {**asdict(self), "total_bytes": self.total_bytes}


# Above this share of the KV bytes, splitting moves so much state that fewer splits deserve a look. A convention of this
# tool, not a measurement: at 512 keys of Llama-3-8B the allocated states reach a quarter of the KV, at 128 keys half.
WORTHWHILE_SHARE = 0.25


def visible_keys(length: int, q_len: int, window: int | None) -> int:
    """Keys of one request that at least one of its query tokens can see."""
    if q_len == 0:
        return 0
    return length if window is None else min(length, window + q_len - 1)


def traffic(plan: LaunchPlan) -> Traffic:
    """Bytes moved by this plan. Element sizes come from the plan's cache and query types; output is as wide as Q."""
    geo, kv, batch = plan.geometry, plan.kv, plan.batch
    per_key = kv.bytes_per_key(geo)
    requests = list(zip(batch.seq_lens, batch.q_lens))
    useful = sum(visible_keys(n, q, geo.window) for n, q in requests) * per_key
    asked = sum(k * b for k, b in zip(plan.keys_read, plan.blocks_per_split)) * per_key / geo.kv_heads
    state = plan.state_values * PARTIAL_BYTES
    live = sum(s * q for s, q in zip(plan.splits.live, batch.q_lens)) * geo.q_heads if plan.is_split else 0
    allocated = state * batch.query_tokens * geo.q_heads * plan.splits.launched if plan.is_split else 0
    written = live * state
    return Traffic(
        kv_read_bytes=round(useful),
        kv_requested_bytes=round(asked),
        kv_reads_per_key=asked / useful if useful else 0.0,
        partial_state_bytes=state,
        partial_states_live=live,
        partial_written_bytes=written,
        partial_read_bytes=written,
        partial_allocated_bytes=allocated,
        partial_traffic_bytes=2 * written,
        partial_share=2 * written / useful if useful else 0.0,
        partial_allocated_share=2 * allocated / useful if useful else 0.0,
        query_bytes=round(batch.query_tokens * geo.q_heads * geo.head_dim * kv.query_element_bytes),
        output_bytes=batch.query_tokens * geo.q_heads * geo.v_dim * output_bytes_per_element(kv),
        merge_worthwhile=not useful or 2 * written / useful <= WORTHWHILE_SHARE,
    )


def output_bytes_per_element(kv: KvCache) -> int:
    """Attention output is 16-bit unless the model runs in fp32 (an 8-bit query is only a quantised copy)."""
    return 4 if kv.query_dtype == "fp32" else 2
