"""What the cache of a model takes: bytes a token on one rank, and how many tokens and sequences fit.

Counted: keys and values of every layer that stores its own (layers that read an earlier layer's cache store none),
windows at the keys that they keep, index keys of sparse layers, recurrent states once a sequence. Pages are counted as
full ones. A server that puts layers with and without a window into groups of equal pages loses some memory to padding,
which is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import INDEX_BYTES, index_key_bytes, sparse_counts
from decodecalc.batch import Batch
from decodecalc.errors import InputError
from decodecalc.geometry import check_count
from decodecalc.intmath import cdiv, round_up
from decodecalc.keyshare import KeyShare
from decodecalc.kvcache import DTYPE_BYTES, KvCache
from decodecalc.models import LayerGroup, Model
from decodecalc.units import human_bytes
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCache(Shown):
    """The cache of one layer group on one rank."""

    layer_group: str
    """The group's name."""
    layers: int
    """Layers of the group."""
    stored_layers: int
    """Layers that keep keys of their own."""
    kv_heads: int
    """KV heads of this rank."""
    key_bytes: float
    """Bytes that one token takes in one layer, index keys included."""
    window: int | None
    """Tokens that are kept at most; None for all."""
    compress: int | None
    """Tokens behind one entry that is kept for the whole sequence; None where each token is kept."""
    copies: int
    """Ranks that hold the same KV heads."""

    @property
    def token_bytes(self) -> float:
        """Bytes that one more token takes while the window is not full, over all layers."""
        return self.stored_layers * self.key_bytes

    def sequence_bytes(self, context: int, page_size: int = 1) -> float:
        """Bytes of a sequence of `context` tokens, in whole pages."""
        kept = context if self.window is None or self.compress else min(context, self.window)
        tokens = round_up(kept, page_size)
        if self.compress:
            tokens = cdiv(context, self.compress) + min(context, self.window or 0)
        return self.stored_layers * tokens * self.key_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        names = ("layer_group", "layers", "stored_layers", "kv_heads", "key_bytes", "window", "compress", "copies")
        return {**{name: getattr(self, name) for name in names}, "token_bytes": self.token_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize(Shown):
    """The cache of a model on one rank."""

    groups: tuple[GroupCache, ...]
    """Every layer group."""
    state_bytes: int
    """Recurrent states of one sequence, over all layers."""
    page_size: int
    """Tokens of a page."""
    share: KeyShare | None = None
    """How one sequence's tokens are divided over ranks; None where each rank holds all of them."""
    stages: int = 1
    """Pipeline stages that the layers are divided over, as evenly as they come."""

    @property
    def context_ranks(self) -> int:
        """Ranks that one sequence's tokens are divided over."""
        return 1 if self.share is None else self.share.ranks

    @property
    def token_bytes(self) -> float:
        """Bytes that one more token takes on this rank where no window is full yet."""
        return sum(group.token_bytes for group in self.groups) / self.context_ranks / self.stages

    @property
    def growing_token_bytes(self) -> float:
        """Bytes that one more token takes in a long sequence, whose windows are full."""
        growing = (g.token_bytes / (g.compress or 1) for g in self.groups if g.window is None or g.compress)
        return sum(growing) / self.context_ranks / self.stages

    @property
    def keeps_every_token(self) -> bool:
        """Whether all layers keep every token, so that the cache is so many tokens whatever the sequences."""
        return not self.state_bytes and all(g.window is None and g.compress is None for g in self.groups)

    def sequence_bytes(self, context: int) -> float:
        """Bytes of one sequence of `context` tokens, its states included, on the rank that holds most of it."""
        own = context if self.share is None else self.share.local(context)
        keys = sum(group.sequence_bytes(own, self.page_size) for group in self.groups)
        return (keys + self.state_bytes) / self.stages

    def sequences(self, available_bytes: float, context: int) -> int:
        """Sequences of `context` tokens that fit."""
        check_count("context", context)
        each = self.sequence_bytes(context)
        return int(available_bytes // each) if each else 0

    def tokens(self, available_bytes: float) -> int:
        """Tokens that fit in whole pages of a cache whose layers all keep every token, as servers print them."""
        page = self.token_bytes * self.page_size
        return int(available_bytes // page) * self.page_size if page else 0

    def longest(self, available_bytes: float, sequences: int, most: int = 1 << 24) -> int:
        """The longest context at which `sequences` of them fit; 0 where not even one token does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_bytes(middle) * sequences <= available_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the groups nested."""
        return {
            "groups": [group.to_dict() for group in self.groups],
            "token_bytes": self.token_bytes,
            "growing_token_bytes": self.growing_token_bytes,
            "state_bytes": self.state_bytes,
            "page_size": self.page_size,
            "context_ranks": self.context_ranks,
            "stages": self.stages,
        }


def cache_size(model: Model, kv: KvCache, *, tp: int = 1, dcp: int | KeyShare = 1, pp: int = 1) -> CacheSize:
    """The cache of one rank of `tp`.

    dcp: ranks that one sequence's tokens are divided over, each of which holds all its KV heads; a `KeyShare` also says
    in which runs. pp: pipeline stages.
    ShardingError for a degree that does not fit, InputError for more stages than layers.
    """
    if pp > model.total_layers:
        raise InputError(f"{pp} pipeline stages are more than the {model.total_layers} layers of {model.name}")
    whole, rank = model.shard(1), model.shard(tp)
    groups = tuple(
        _group(group, full, kv, tp, model.shared_layers) for group, full in zip(rank.layer_groups, whole.layer_groups)
    )
    states = 0 if model.states is None else model.states.bytes_per_sequence(tp)
    share = dcp if isinstance(dcp, KeyShare) else KeyShare(dcp) if dcp > 1 else None
    return CacheSize(groups=groups, state_bytes=states, page_size=kv.page_size, share=share, stages=pp)


def read_bytes(model: Model, kv: KvCache, context: int, *, tp: int = 1, dcp: int = 1, pp: int = 1) -> float:
    """Bytes of the cache that one decode step reads for one sequence of `context` tokens, over all layers of one rank:
    what the query token sees, each key once, with the index keys and the list of a sparse layer."""
    total = 0.0
    for group in model.shard(tp).layer_groups:
        geo = group.geometry
        seen = group.seen_batch(Batch.uniform(1, cdiv(context, dcp))).max_seq_len
        entries, index_entries, indices = sparse_counts(geo, seen, 1)
        index = index_entries * index_key_bytes(geo) + indices * INDEX_BYTES
        total += group.layers * (entries * kv.bytes_per_key(geo) + index)
    return total / pp


def _group(group: LayerGroup, full: LayerGroup, kv: KvCache, tp: int, shared: frozenset[int]) -> GroupCache:
    geo = group.geometry
    index = geo.gather.indexer if geo.gather is not None else None
    extra = 0.0
    if index is not None:
        one = index.head_dim * DTYPE_BYTES.get(index.dtype, 1.0) + index.scale_bytes
        extra = index.key_heads * one / index.keys_per_entry
    whole_heads = 1 if geo.mla else full.geometry.kv_heads
    gather = geo.gather
    return GroupCache(
        layer_group=group.name,
        layers=group.layers,
        stored_layers=group.layers - sum(index in shared for index in group.layer_indices),
        kv_heads=geo.kv_heads,
        key_bytes=kv.bytes_per_key(geo) + extra,
        window=geo.window if gather is None else gather.window,
        compress=None if gather is None else gather.compress,
        copies=max(tp * geo.kv_heads // whole_heads, 1),
    )


def over_capacity(
    model: Model, kv: KvCache, gpu: Gpu, batches: Iterable[Batch], tp: int = 1, dcp: int | KeyShare = 1
) -> str | None:
    """A sentence on the first step whose cache alone is larger than the GPU's memory; None where all fit, or where the
    memory is not known."""
    if gpu.capacity_bytes is None:
        return None
    size = cache_size(model, kv, tp=tp, dcp=dcp)
    for batch in batches:
        stored = sum(size.sequence_bytes(n) for n in batch.seq_lens if n)
        if stored > gpu.capacity_bytes:
            return (
                f"batch {batch.size} at {batch.max_seq_len} keys stores {human_bytes(stored)} of KV on each rank, more "
                f"than the {human_bytes(gpu.capacity_bytes)} of {gpu.name}: the step cannot run"
            )
    return None
