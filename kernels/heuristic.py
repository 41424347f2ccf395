"""A launch for a shape: enough splits to fill the GPU, no more than the merge is worth."""

from __future__ import annotations

from decodecalc_kernels.config import LaunchConfig, cdiv, default_rows


def default_config(
    *,
    requests: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    sm_count: int,
    v_dim: int | None = None,
    q_len: int = 1,
    kv_bytes_per_element: int = 2,
    num_splits: int | None = None,
) -> LaunchConfig:
    """A LaunchConfig for `requests` requests of up to `max_seq_len` keys on a GPU of `sm_count` SMs.

    `num_splits` overrides the choice of S (the cost model's door); everything else follows from the shape.
    """
    v_dim = head_dim if v_dim is None else v_dim
    rows = default_rows(q_len, q_heads // kv_heads, v_dim)
    tile = 64 if max(head_dim, v_dim) <= 128 else 32
    blocks = requests * kv_heads * cdiv(q_len * (q_heads // kv_heads), rows)
    if num_splits is None:
        num_splits = max(1, min(cdiv(2 * sm_count, blocks), cdiv(max_seq_len, tile)))
    split_keys = cdiv(cdiv(max_seq_len, num_splits), tile) * tile
    num_splits = cdiv(max_seq_len, split_keys)
    if num_splits == 1:
        return LaunchConfig(tile_keys=tile, rows=rows)
    return LaunchConfig.fixed_size(split_keys, max_seq_len, tile_keys=tile, rows=rows)
