"""How the keys of every request are divided over the ranks of decode context parallelism.

Every rank of a group holds a share of the keys of each request, with all its KV heads. It gathers the query heads of
its peers, attends its own keys with all of them, and the partial states are merged over the interconnect.

Runs of `interleave` keys are dealt to the ranks in turn; all servers that were read deal alike (`servers.context` names
the sources).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.errors import InputError, UnknownNameError

MOST_RANKS = 1 << 10
# How the partial states are merged: an all-gather of the log-sum-exps and a reduce-scatter of the outputs, or one
# all-to-all of both. The words are those of the servers' own flag.
AG_RS, A2A = "ag_rs", "a2a"
EXCHANGES = (AG_RS, A2A)


@dataclass(frozen=True, slots=True)
class KeyShare:
    """How keys are dealt to the ranks of one group, and how their partial states are merged.

    >>> KeyShare(4).all_ranks(10), KeyShare(2, interleave=4).all_ranks(10)
    ((3, 3, 2, 2), (6, 4))
    """

    ranks: int
    """Ranks that hold one request's keys together; at least 2."""
    interleave: int = 1
    """Keys of a run: so many neighbouring keys lie on one rank before the next rank takes its turn."""
    exchange: str = AG_RS
    """How partial states are merged: one of `EXCHANGES`."""
    replicated: bool = False
    """Whether every rank computes the queries of the whole group by itself, so that none are gathered."""

    def __post_init__(self) -> None:
        for name, low, high in (("ranks", 2, MOST_RANKS), ("interleave", 1, 1 << 24)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InputError(f"context-parallel {name} must be a whole number from {low} to {high}, not {value!r}")
        if self.exchange not in EXCHANGES:
            raise UnknownNameError("exchange of context parallelism", str(self.exchange), EXCHANGES)

    def local(self, keys: Any, rank: Any = 0) -> Any:
        """Keys of a request of `keys` keys that lie on `rank`; ints or arrays. Rank 0 never has fewer than another.

        >>> KeyShare(8).local(4096), KeyShare(8).local(4097)
        (512, 513)
        """
        whole = keys // self.interleave // self.ranks * self.interleave
        rest = keys - whole * self.ranks - rank * self.interleave
        rest = rest * (rest > 0)
        return whole + rest - (rest > self.interleave) * (rest - self.interleave)

    def all_ranks(self, keys: int) -> tuple[int, ...]:
        """Keys of a request of `keys` keys on every rank, rank 0 first."""
        return tuple(self.local(keys, rank) for rank in range(self.ranks))

    def owner(self, key: Any) -> Any:
        """The rank that holds the key at position `key`; ints or arrays."""
        return key // self.interleave % self.ranks

    def place(self, key: Any) -> Any:
        """Which of its rank's keys the key at position `key` is; ints or arrays."""
        return key // (self.interleave * self.ranks) * self.interleave + key % self.interleave

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
