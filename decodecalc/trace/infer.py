"""What a launch's extents say about the layer and the batch, engine by engine.

Grids that depend on the lengths bound the longest request; a grid replayed from a CUDA graph is the one of capture time
and says nothing about lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.intmath import next_power_of_2
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.pairing import LaunchGroup

MIN_ROWS = 16  # BLOCK_M of vLLM's unified attention
TRITON_HEADS = 16  # BLOCK_H of Triton decode attention
PARTITION_KEYS, ROCM_PARTITION_KEYS = 512, 256
SPLIT_KEYS_MLA = 512  # vLLM's Triton MLA: one split for every 512 keys, rounded up to a power of two


@dataclass(frozen=True)
class Inferred:
    """None where the launch does not say.

    batch counts padding rows of a graph as well. context_range: least and most keys that the longest request can have.
    how: which extent said what.
    """

    q_heads: int | None = None
    kv_heads: int | None = None
    group: int | None = None
    head_dim: int | None = None
    batch: int | None = None
    query_tokens: int | None = None
    splits_launched: int | None = None
    context_range: tuple[int, int] | None = None
    mla: bool | None = None
    how: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, only those that are known."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v not in (None, "")}


def infer(group: LaunchGroup, engine: str, q_heads: int | None = None) -> Inferred:
    """What the grids of this group say if `engine` launched it. q_heads: query heads of the layer, where known."""
    rule = _RULES.get(engine)
    if rule is None or group.stage1.grid is None:
        facts = group.kind.facts
        return Inferred(head_dim=facts.head_dim, group=facts.group, how="template arguments" if facts.head_dim else "")
    found = rule(group, q_heads)
    if not group.graph or found.context_range is None:
        return found
    return Inferred(**{**asdict(found), "context_range": None, "how": found.how + "; lengths unknown: graph replay"})


def _grids(group: LaunchGroup) -> tuple[tuple[int, int, int], tuple[int, int, int] | None]:
    assert group.stage1.grid is not None
    return group.stage1.grid, None if group.merge is None else group.merge.grid


def _query_blocks_batch(blocks: int, block_q: int) -> int | None:
    """Requests of one query token whose launch has this many blocks: blocks = B // BLOCK_Q + B."""
    batch = blocks * block_q // (block_q + 1)
    for b in (batch, batch + 1):
        if b >= 1 and b // block_q + b == blocks:
            return b
    return None


def _vllm_triton(group: LaunchGroup, q_heads: int | None) -> Inferred:
    (blocks, kv_heads, splits), merge = _grids(group)
    tokens = None
    if merge is not None:
        tokens, q_heads = merge[0], merge[1]
    if q_heads is None or q_heads % kv_heads:
        return Inferred(kv_heads=kv_heads, splits_launched=splits, how="grid (query blocks, KV heads, segments)")
    ratio = q_heads // kv_heads
    rows = MIN_ROWS if ratio <= MIN_ROWS else next_power_of_2(ratio)
    block_q = int(rows) // ratio
    if tokens is not None:
        batch = blocks - tokens // block_q
        how = "grid (query blocks, KV heads, segments), merge (tokens, query heads), B = blocks - tokens // BLOCK_Q"
        return Inferred(
            q_heads, kv_heads, ratio, None, batch if 1 <= batch <= tokens else None, tokens, splits, how=how
        )
    one_each = _query_blocks_batch(blocks, block_q)
    how = "grid (query blocks, KV heads); B if every request has one query token"
    return Inferred(q_heads, kv_heads, ratio, None, one_each, one_each, splits, how=how)


def _aiter(group: LaunchGroup, q_heads: int | None) -> Inferred:
    (x, y, z), merge = _grids(group)
    if function_name(group.stage1.name).endswith("_2d"):
        return Inferred(q_heads=q_heads, kv_heads=x, splits_launched=1, how="2D grid (KV heads, query blocks)")
    tokens, heads = (None, q_heads) if merge is None else (merge[0], merge[1])
    how = "3D grid (query blocks, KV heads, segments), merge (tokens, query heads)"
    ratio = heads // y if heads and heads % y == 0 else None
    return Inferred(heads, y, ratio, None, None, tokens, z, how=how)


def _sglang(group: LaunchGroup, q_heads: int | None) -> Inferred:
    (batch, blocks, splits), merge = _grids(group)
    if merge is not None:
        q_heads = merge[1]
    how = "grid (requests, head blocks, splits), merge (requests, query heads)"
    kv_heads = None
    if "grouped" not in function_name(group.stage1.name):
        kv_heads = q_heads = blocks
    elif q_heads is not None and q_heads % blocks == 0 and q_heads // blocks < TRITON_HEADS:
        kv_heads = blocks
    elif q_heads is not None and q_heads % blocks == 0:
        how += "; KV heads unknown: blocks of 16 query heads fit any group of 16 or more"
    ratio = None if kv_heads is None or q_heads is None else q_heads // kv_heads
    return Inferred(q_heads, kv_heads, ratio, None, batch, batch, splits, how=how)


def _triton_mla(group: LaunchGroup, q_heads: int | None) -> Inferred:
    (rows, _, splits), merge = _grids(group)
    heads = merge[1] if merge is not None else q_heads
    low = 1 if splits == 1 else (splits // 2 + 1) * SPLIT_KEYS_MLA
    bound = (low, (splits + 1) * SPLIT_KEYS_MLA - 1) if splits & (splits - 1) == 0 else None
    how = "grid (query tokens, blocks of 16 heads, splits): splits = next power of two of L // 512"
    return Inferred(heads, 1, heads, 576, rows, rows, splits, bound, True, how)


def _flash_attention_2(group: LaunchGroup, q_heads: int | None) -> Inferred:
    (_, y, z), _ = _grids(group)
    facts = group.kind.facts
    split = facts.split if facts.split is not None else group.merge is not None
    if split:
        how = "grid (row tiles, splits, requests x heads)"
        return Inferred(q_heads=q_heads, head_dim=facts.head_dim, splits_launched=y, how=how)
    how = "grid (row tiles, requests, heads)"
    return Inferred(q_heads=q_heads, head_dim=facts.head_dim, batch=y, splits_launched=1, how=how + f": {z} heads")


def _flash_attention_3(group: LaunchGroup, q_heads: int | None) -> Inferred:
    _, merge = _grids(group)
    batch = merge[2] if merge is not None and merge[2] > 1 else None
    how = "persistent grid: one block per SM, neither heads nor splits in it"
    return Inferred(q_heads=q_heads, head_dim=group.kind.facts.head_dim, batch=batch, how=how)


def _flashinfer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    (rows, y, z), _ = _grids(group)
    facts = group.kind.facts
    tensor_cores = "Prefill" in function_name(group.stage1.name)
    kv_heads = z if tensor_cores else y
    heads = kv_heads * facts.group if facts.group else q_heads
    batch = rows if group.merge is None and not group.graph else None
    how = "grid (chunks or requests, KV heads)"
    return Inferred(heads, kv_heads, facts.group, facts.head_dim, batch, splits_launched=None, how=how)


def _flashmla(group: LaunchGroup, q_heads: int | None) -> Inferred:
    (_, kv_heads, parts), merge = _grids(group)
    how = "grid (row tiles, KV heads, SM parts), combine (requests x query tokens, 1, blocks of 8 heads)"
    tokens = None if merge is None else merge[0]
    return Inferred(q_heads, kv_heads, None, 576, tokens, tokens, parts, mla=True, how=how)


def _paged(group: LaunchGroup, _: int | None) -> Inferred:
    (heads, batch, partitions), _merge = _grids(group)
    size = group.kind.facts.partition_keys or PARTITION_KEYS
    bound = ((partitions - 1) * size + 1, partitions * size) if group.merge is not None else None
    how = f"grid (query heads, requests, partitions of {size} keys)"
    return Inferred(heads, None, None, group.kind.facts.head_dim, batch, batch, partitions, bound, how=how)


def _rocm(group: LaunchGroup, _: int | None) -> Inferred:
    (batch, partitions, kv_heads), merge = _grids(group)
    facts = group.kind.facts
    heads = merge[0] if merge is not None else kv_heads * facts.group if facts.group else None
    bound = ((partitions - 1) * ROCM_PARTITION_KEYS + 1, partitions * ROCM_PARTITION_KEYS)
    how = f"grid (requests, partitions of {ROCM_PARTITION_KEYS} keys, KV heads), group from the template"
    return Inferred(heads, kv_heads, facts.group, facts.head_dim, batch, batch, partitions, bound, how=how)


_RULES: dict[str, Callable[[LaunchGroup, int | None], Inferred]] = {
    "vllm-triton": _vllm_triton,
    "aiter-unified": _aiter,
    "sglang-triton": _sglang,
    "vllm-triton-mla": _triton_mla,
    "flash-attention-2": _flash_attention_2,
    "flash-attention-3": _flash_attention_3,
    "flashinfer": _flashinfer,
    "flashmla": _flashmla,
    "paged-attention-v1": _paged,
    "paged-attention-v2": _paged,
    "rocm-paged": _rocm,
}
