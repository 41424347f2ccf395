"""What one attention layer looks like to one rank."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.errors import InputError
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


@dataclass(frozen=True, slots=True)
class Geometry(Shown):
    """One attention layer on one rank.

    `head_dim` is the width of a key, `head_dim_v` of a value (they differ for MLA and a few others). With
    `mla` the cache holds one latent of `head_dim` elements per key, and the value is a view of its first
    `head_dim_v`: the latent is read once. `window` counts the keys a query may see, itself included; None is
    full attention. `sinks` adds one learned logit per query head to the softmax's sum.

    >>> Geometry(q_heads=32, kv_heads=8, head_dim=128).group
    4
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int | None = None
    window: int | None = None
    sinks: bool = False
    mla: bool = False
    softcap: float | None = None

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the derived `group` and `kind`."""
        return {**asdict(self), "group": self.group, "kind": self.kind}
