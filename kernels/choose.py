"""Chooses the launch of `decode_attention` when it is given no config, by a registered function.

The kernels know nothing about time. A package that does registers a function from a `Problem` to a `LaunchConfig`
(`decodecalc.cost.bundled` does so when it is imported); the last one registered is used. With a config of their own the
kernels need no such function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decodecalc_kernels.config import LaunchConfig


@dataclass(frozen=True)
class Problem:
    """One call of `decode_attention` in plain numbers."""

    q_heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    """Elements of a value."""
    mla: bool
    """The value is the first `v_dim` elements of the key."""
    seq_lens: tuple[int, ...]
    """Keys of each request."""
    q_lens: tuple[int, ...]
    """Query tokens of each request."""
    kv_dtype: str
    """Element type of the cache: bf16, fp16, fp32 or fp8."""
    query_dtype: str
    """Element type of the queries."""
    page_size: int
    """Keys of a page; 1 for a flat list of slots."""
    window: int | None
    """Keys that a query token sees; None for all."""
    warp_groups: bool
    """Whether `mla_stage1_kernel` can run it as far as tensors, device and Triton are concerned."""
    device_index: int | None
    """Number of the CUDA device; None for a CPU under Triton's interpreter."""


Chooser = Callable[[Problem], LaunchConfig]
_registered: list[Chooser] = []


def register_chooser(chooser: Chooser) -> None:
    """Uses `chooser` from now on."""
    _registered[:] = [chooser]


def choose(problem: Problem) -> LaunchConfig:
    """The launch that the registered function chooses. Raises ValueError when there is none."""
    if not _registered:
        raise ValueError(
            "decode_attention: no config was given and nothing chooses one: pass config=, or import "
            "decodecalc.cost.bundled, which registers the time model's choice"
        )
    return _registered[-1](problem)
