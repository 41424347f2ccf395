"""What one attention layer looks like to one rank."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from decodecalc.errors import InputError
from decodecalc.keyshare import KeyShare
from decodecalc.values import Shown

MAX_HEADS = 1 << 16
MAX_HEAD_DIM = 1 << 14


def check_count(name: str, value: Any, low: int = 1, high: int = 1 << 40) -> int:
    """`value` as an int between low and high; InputError says which field was wrong and what is valid."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{name} must be a whole number, not {value!r:.60}")
    value = int(value)
    if not low <= value <= high:
        raise InputError(f"{name} must be between {low} and {high}, not {value}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Shown):
    """What scores the keys of a sparse layer: its query heads score one cached key vector of every entry (or a few)."""

    heads: int
    """Query heads of the indexer."""
    head_dim: int
    """Width of an index key."""
    key_heads: int = 1
    """Index keys that an entry has; the query heads share them."""
    keys_per_entry: int = 1
    """Keys of the sequence behind one index entry, where they are pooled or compressed."""
    dtype: str = "fp8"
    """Element type of an index key."""
    scale_bytes: int = 4
    """Bytes of the scales that are stored beside one index key."""

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "key_heads", "keys_per_entry"):
            object.__setattr__(self, name, check_count(f"indexer {name}", getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(Shown):
    """Which cache entries a query token of a sparse layer reads: the entries of a list, and the keys just before the
    token.

    The list holds the entries that an indexer selects, or every entry where there is no indexer. Entries are keys, or
    rows of a compressed copy of the keys. Methods take ints or NumPy integer arrays and return the same.

    >>> Gather(topk=2048).keys(100_000)
    2048
    >>> Gather(topk=512, compress=4, window=128).keys(1_048_576)
    640
    """

    topk: int | None = None
    """Most entries that are selected, in keys or compressed entries; None where every entry is read."""
    compress: int | None = None
    """Keys behind one entry of the compressed copy that the list refers to; None where the list refers to keys."""
    window: int | None = None
    """Nearest keys that are read in addition to the list, the query's own included."""
    block: int = 1
    """Entries that are selected together."""
    tail: bool = False
    """Whether the last, incomplete block is read in addition to the selected ones."""
    per_kv_head: bool = False
    """Whether every KV head has a list of its own; otherwise one list serves all heads."""
    indexer: Indexer | None = None
    """What selects the entries; None where every entry is read or where the list is that of another layer."""

    def __post_init__(self) -> None:
        for name in ("topk", "compress", "window", "block"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_count(f"gather {name}", value))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the indexer nested."""
        return asdict(self)

    def candidates(self, context: Any) -> Any:
        """Entries from which the list is selected."""
        return context // self.compress if self.compress else context

    def listed(self, context: Any) -> Any:
        """Entries of the list that refer to a key."""
        entries = self.candidates(context)
        if self.topk is None:
            return entries
        most = self.topk + entries % self.block if self.tail else self.topk
        return entries - (entries > most) * (entries - most)

    def near(self, context: Any) -> Any:
        """Keys that are read in addition to the list."""
        if self.window is None:
            return context * 0
        return context - (context > self.window) * (context - self.window)

    def keys(self, context: Any) -> Any:
        """Cache entries that one query token reads: those of the list and the nearest keys."""
        return self.listed(context) + self.near(context)

    def indices(self, context: Any, kv_heads: int = 1) -> Any:
        """Indices that name these entries: one for each block of every list, and one for each of the nearest keys."""
        lists = kv_heads if self.per_kv_head else 1
        return -(-self.listed(context) // self.block) * lists + self.near(context)

    def index_entries(self, context: Any) -> Any:
        """Index keys that the indexer reads for one request, over all its key heads; 0 without an indexer."""
        if self.indexer is None:
            return context * 0
        return context // self.indexer.keys_per_entry * self.indexer.key_heads


@dataclass(frozen=True, slots=True)
class Geometry(Shown):
    """One attention layer as one rank sees it.

    >>> Geometry(q_heads=32, kv_heads=8, head_dim=128).group
    4
    """

    q_heads: int
    """Query heads of this rank."""
    kv_heads: int
    """KV heads of this rank; it divides `q_heads`."""
    head_dim: int
    """Elements of a key. With MLA this is the width of the latent that the cache holds for a key."""
    head_dim_v: int | None = None
    """Elements of a value; None stands for `head_dim`. With MLA the value is a view of the first `head_dim_v`
    elements of the latent, which is read once."""
    window: int | None = None
    """Keys that a query may see, its own included; None stands for full attention."""
    sinks: bool = False
    """Whether each query head adds one learned logit to the sum of the softmax."""
    mla: bool = False
    """Whether the layer is multi-head latent attention: the cache holds one latent per key, which serves as key
    and value."""
    softcap: float | None = None
    """Soft cap c of the scores, which become c * tanh(score / c); None where they are not capped."""
    gather: Gather | None = None
    """For a sparse layer: the list of cache entries that a query reads, and the keys near it. None where every
    key is read."""
    share: KeyShare | None = None
    """For context parallelism: how the keys of a request are divided over ranks. `q_heads` then counts the heads that
    the rank has gathered. None where every rank holds all keys of its KV heads."""

    def __post_init__(self) -> None:
        for name, high in (("q_heads", MAX_HEADS), ("kv_heads", MAX_HEADS), ("head_dim", MAX_HEAD_DIM)):
            object.__setattr__(self, name, check_count(name, getattr(self, name), high=high))
        dv = self.head_dim if self.head_dim_v is None else self.head_dim_v
        object.__setattr__(self, "head_dim_v", check_count("head_dim_v", dv, high=MAX_HEAD_DIM))
        if self.window is not None:
            object.__setattr__(self, "window", check_count("window", self.window))
        if self.q_heads % self.kv_heads:
            raise InputError(
                f"q_heads ({self.q_heads}) must be a multiple of kv_heads ({self.kv_heads}): every KV head serves "
                f"the same number of query heads"
            )
        if self.gather is not None and self.window is not None:
            raise InputError("a sparse layer has no window: give the nearest keys as the window of `gather`")
        if self.share is not None and (self.window is not None or self.gather is not None):
            raise InputError(
                "context parallelism divides layers that read every key: not those with a window, nor sparse ones"
            )
        if self.share is not None and self.group % self.share.ranks:
            raise InputError(
                f"every one of the {self.share.ranks} ranks brings equally many of the {self.group} query heads of a "
                "KV head"
            )
        if self.mla and self.head_dim_v > self.head_dim:  # type: ignore[operator]
            raise InputError("an MLA value is a view of its latent: head_dim_v cannot exceed head_dim")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q_heads // self.kv_heads

    @property
    def v_dim(self) -> int:
        """Width of a value (`head_dim_v`, never None)."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def kind(self) -> str:
        """MLA, MQA (one KV head for many), MHA (one each) or GQA."""
        if self.mla:
            return "MLA"
        if self.group == 1:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def kv_elements_per_key(self) -> int:
        """Cache elements that one key of one layer takes over all KV heads of this rank."""
        return self.kv_heads * (self.head_dim if self.mla else self.head_dim + self.v_dim)

    def as_dense(self) -> Geometry:
        """The same layer, planned as if every key were read."""
        return replace(self, gather=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the derived `group` and `kind`."""
        return {**asdict(self), "group": self.group, "kind": self.kind}
