"""A launch for a shape, in closed form: no autotuning, a handful of measured constants (NOTES.md has the sweeps).

The measured picture on an H200 (132 SMs, keys of 512 bytes): a few requests with little to read want one tile per
block, since a block's fixed cost hides nothing; from there on two blocks an SM of small deep-pipelined tiles; and when
each SM has many tiles, four blocks an SM of large tiles, which then stream without gaps. Unsplit as soon as the
requests alone give that.
"""

from __future__ import annotations

from typing import Any

from decodecalc_kernels.config import LaunchConfig, cdiv, default_rows, next_power_of_2

# Bytes of keys and values per tile: 64 keys of 128 + 128 bf16 elements. Larger tiles hold fewer blocks per SM.
TILE_BYTES = 32768
# Up to this many tiles per SM, one tile a block; up to MANY_TILES two blocks an SM; beyond, four.
FEW_TILES = 2
MANY_TILES = 16
MAX_SPLITS = 1024  # a merge block reads 512 states a step


def merge_shape(num_splits: int, rows: int, v_dim: int) -> dict[str, Any]:
    """Merge fields of a LaunchConfig for `rows` output rows (tokens · query heads).

    Few rows: many small blocks, each with all splits of a row at once and 32 elements a thread. Many rows with few
    splits: four rows a block.
    """
    splits = max(2, min(512, next_power_of_2(num_splits)))
    if rows >= 512 and splits <= 16:
        dims = min(128, max(16, next_power_of_2(v_dim)))
        return {"merge_rows": 4, "merge_splits": splits, "merge_dims": dims, "merge_warps": 4}
    dims = 32 if splits <= 128 else 16
    return {"merge_splits": splits, "merge_dims": dims, "merge_warps": max(1, min(8, splits * dims // 1024))}


def stage1_shape(key_bytes: int, kv_bytes_per_element: int, tiles_per_sm: float) -> dict[str, Any]:
    """Tile, warps and stages for keys of `key_bytes` (K and V) when an SM has `tiles_per_sm` large tiles to read."""
    tile = TILE_BYTES // key_bytes
    tile = max(16, min(64, 1 << max(tile, 1).bit_length() - 1))
    if kv_bytes_per_element == 1:
        # Conversions cost instructions: fewer warps with more independent work each, another tile in flight.
        return {"tile_keys": tile, "warps": 2, "stages": 3}
    if FEW_TILES < tiles_per_sm <= MANY_TILES:
        return {"tile_keys": max(16, tile // 2), "warps": 4, "stages": 3}
    return {"tile_keys": tile, "warps": 4, "stages": 2}


def default_config(
    *,
    requests: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    sm_count: int,
    v_dim: int | None = None,
    mla: bool = False,
    q_len: int = 1,
    kv_bytes_per_element: int = 2,
    window: int | None = None,
    total_keys: int | None = None,
    num_splits: int | None = None,
) -> LaunchConfig:
    """A LaunchConfig for `requests` requests of up to `max_seq_len` keys on a GPU of `sm_count` SMs.

    `total_keys`: keys of all requests together (default: all as long as the longest). `num_splits` overrides the
    choice of S (the cost model's door) up to rounding to whole tiles; everything else follows from the shape. The
    split length is a fixed number of keys, so that nothing on the device has to be divided before the first load; a
    graph replayed for requests longer than `max_seq_len` needs a new config.
    """
    v_dim = head_dim if v_dim is None else v_dim
    group = q_heads // kv_heads
    rows = default_rows(q_len, group, v_dim)
    blocks = requests * kv_heads * cdiv(q_len * group, rows)  # unsplit
    key_bytes = (head_dim if mla else head_dim + v_dim) * kv_bytes_per_element
    reach = max_seq_len if window is None else min(max_seq_len, window + q_len - 1)
    keys = min(requests * reach, total_keys or requests * reach)
    tiles_per_sm = keys * kv_heads * key_bytes / TILE_BYTES / sm_count
    shape = stage1_shape(key_bytes, kv_bytes_per_element, tiles_per_sm)
    shape["rows"] = rows
    if window is not None:
        shape["window_partition"] = "window"
    tile = shape["tile_keys"]
    if num_splits is None:
        if tiles_per_sm <= FEW_TILES:
            num_splits = cdiv(reach, tile)
        else:
            per_sm = 2 if tiles_per_sm <= MANY_TILES else 4
            num_splits = max(1, min(per_sm * sm_count // blocks, cdiv(reach, tile)))
    split_keys = cdiv(cdiv(reach, min(num_splits, MAX_SPLITS)), tile) * tile
    num_splits = cdiv(reach, split_keys)
    if num_splits == 1:
        return LaunchConfig(**shape)
    return LaunchConfig.fixed_size(
        split_keys, reach, **shape, **merge_shape(num_splits, requests * q_len * q_heads, v_dim)
    )
