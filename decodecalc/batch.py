"""The work of one decode step: how many keys and query tokens each request has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from decodecalc.errors import InputError
from decodecalc.geometry import Geometry, check_count
from decodecalc.values import Shown

MAX_REQUESTS = 1 << 20
MAX_KEYS = 1 << 32


@dataclass(frozen=True, slots=True)
class Batch(Shown):
    """One decode step: the keys and the query tokens of every request.

    >>> Batch.uniform(batch=2, context=2560).seq_lens
    (2560, 2560)
    >>> Batch([128, 8192]).max_seq_len
    8192
    """

    seq_lens: tuple[int, ...]
    """Keys of each request [R], the new tokens included. For a sparse layer's kernel: gathered cache entries of
    each request."""
    q_lens: tuple[int, ...]
    """Query tokens of each request [R]; 1 each unless tokens are drafted. The constructor takes one number for
    all as well."""
    contexts: tuple[int, ...] | None
    """Keys of each request's sequence [R] where `seq_lens` counts gathered entries, or one rank's share of the keys
    (`seen_by` makes such a batch); else None."""

    def __init__(
        self, seq_lens: Iterable[int], q_lens: int | Sequence[int] = 1, contexts: Iterable[int] | None = None
    ) -> None:
        try:
            lens = tuple(check_count("seq_lens", n, low=0, high=MAX_KEYS) for n in seq_lens)
        except TypeError:
            raise InputError(f"seq_lens must be a list of key counts, not {seq_lens!r:.60}") from None
        if not 1 <= len(lens) <= MAX_REQUESTS:
            raise InputError(f"a batch needs 1 to {MAX_REQUESTS} requests, not {len(lens)}")
        if isinstance(q_lens, Sequence):
            qs = tuple(check_count("q_lens", q, low=0) for q in q_lens)
        else:
            qs = (check_count("q_lens", q_lens),) * len(lens)
        if len(qs) != len(lens):
            raise InputError(f"q_lens has {len(qs)} entries for {len(lens)} requests: give one number or one each")
        object.__setattr__(self, "seq_lens", lens)
        object.__setattr__(self, "q_lens", qs)
        object.__setattr__(self, "contexts", None if contexts is None else tuple(contexts))

    def seen_by(self, geometry: Geometry, rank: int = 0) -> Batch:
        """The batch as the kernel of this layer sees it. For a sparse layer every request has a list of gathered
        entries, and under context parallelism the keys of this rank (rank 0 has the most).

        >>> from decodecalc.geometry import Gather
        >>> Batch([5000]).seen_by(Geometry(16, 1, 576, 512, mla=True, gather=Gather(topk=2048))).seq_lens
        (2048,)
        """
        gather, share = geometry.gather, geometry.share
        if self.contexts is not None:
            return self
        if share is not None:
            return Batch([share.local(n, rank) for n in self.seq_lens], self.q_lens, self.seq_lens)
        return self if gather is None else Batch([gather.keys(n) for n in self.seq_lens], self.q_lens, self.seq_lens)

    @classmethod
    def uniform(cls, batch: int = 1, context: int = 2560, q_len: int = 1) -> Batch:
        """`batch` requests of `context` keys and `q_len` query tokens each."""
        count = check_count("batch", batch, high=MAX_REQUESTS)
        return cls((check_count("context", context, high=MAX_KEYS),) * count, q_len)

    @property
    def size(self) -> int:
        """Requests in the batch."""
        return len(self.seq_lens)

    @property
    def max_seq_len(self) -> int:
        """Keys of the longest request."""
        return max(self.seq_lens)

    @property
    def max_q_len(self) -> int:
        """Most query tokens of any request."""
        return max(self.q_lens)

    @property
    def query_tokens(self) -> int:
        """Query tokens over all requests."""
        return sum(self.q_lens)

    @property
    def total_keys(self) -> int:
        """Keys over all requests."""
        return sum(self.seq_lens)

    @property
    def is_uniform(self) -> bool:
        """Whether all requests have equally many keys and query tokens."""
        return len(set(self.seq_lens)) == 1 and len(set(self.q_lens)) == 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        out = {"seq_lens": list(self.seq_lens), "q_lens": list(self.q_lens)}
        return out if self.contexts is None else {**out, "contexts": list(self.contexts)}
