"""A launch for a shape, in closed form: no autotuning, a handful of measured constants (NOTES.md has the sweeps).

The measured picture on an H200 (132 SMs, keys of 512 bytes):

* little to read: one tile per block, since nothing hides a block's fixed cost;
* more: two blocks an SM of half tiles, three stages deep;
* much: as many blocks as an SM holds, and a number of them that fills whole waves of those slots. Unsplit where the
  requests alone do that.
"""

from __future__ import annotations

from math import log2
from typing import Any

from decodecalc_kernels.blocks import cdiv, default_rows, merge_shape, next_power_of_2
from decodecalc_kernels.config import LaunchConfig

# Bytes of keys and values per tile: 64 keys of 128 + 128 bf16 elements. Larger tiles hold fewer blocks per SM.
TILE_BYTES = 32768
# Up to this many tiles per SM, one tile a block; up to MANY_TILES two blocks an SM; beyond, all slots.
FEW_TILES = 2
MANY_TILES = 16
MAX_SPLITS = 1024  # two steps of a merge
# Resident blocks per SM of the two kernels for much to read, on 227 KiB of shared memory and 64 Ki registers:
SLOTS_DEEP = 3  # three stages of 32 KiB, two warps: 72 KiB of shared memory
SLOTS_SHALLOW = 4  # two stages, four warps: 104 registers of 128 threads; also FP8, whose tiles are half as large
SLOTS_WIDE = 2  # wider keys
WIDE_KEY_BYTES = 512
# Share of the slots that must be filled for an unsplit launch, and by how much more a longer grid must fill them.
GOOD_FILL = 0.9
BETTER_FILL = 0.01


def wave_fill(blocks: int, slots: int) -> float:
    """Share of the slots of all whole waves that `blocks` equal blocks occupy."""
    return blocks / (cdiv(blocks, slots) * slots)


def filling_splits(blocks: int, slots: int) -> int:
    """The smallest split count that fills whole waves of slots about as well as any of the next few does."""
    best, best_fill = 1, wave_fill(blocks, slots)
    for count in range(2, slots // blocks + 5):
        fill = wave_fill(blocks * count, slots)
        if fill > best_fill + BETTER_FILL:
            best, best_fill = count, fill
    return best


def invariant_config(
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    split_keys: int = 512,
    v_dim: int | None = None,
    mla: bool = False,
    q_len: int = 1,
    kv_bytes_per_element: int = 2,
    window: int | None = None,
) -> LaunchConfig:
    """A LaunchConfig under which a request's bits never depend on the batch: a fixed split size, and tile, rows, warps
    and merge from the layer alone. (`default_config` chooses all of them by what else is in the batch.)

    `max_seq_len`: the longest request that will ever come (it only sizes the grid, and does not change bits).
    `split_keys`: keys per split, rounded up to whole tiles; smaller fills the GPU at small batches, larger merges less.
    """
    v_dim = head_dim if v_dim is None else v_dim
    key_bytes = (head_dim if mla else head_dim + v_dim) * kv_bytes_per_element
    rows = default_rows(q_len, q_heads // kv_heads, v_dim)
    tile = max(16, min(64, 1 << round(log2(TILE_BYTES / key_bytes)), 4096 // rows))
    size = cdiv(split_keys, tile) * tile
    shape: dict[str, Any] = {"tile_keys": tile, "rows": rows, "warps": 4, "stages": 2}
    if window is not None:
        shape["window_partition"] = "window"
    # The merge takes its states in steps of the same number whatever the longest request: LaunchConfig's own default.
    return LaunchConfig.fixed_size(size, max_seq_len, **shape)


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
    key_bytes = (head_dim if mla else head_dim + v_dim) * kv_bytes_per_element
    reach = max_seq_len if window is None else min(max_seq_len, window + q_len - 1)
    keys = min(requests * reach, total_keys or requests * reach)
    tiles_per_sm = keys * kv_heads * key_bytes / TILE_BYTES / sm_count
    fp8, wide_key = kv_bytes_per_element == 1, key_bytes > WIDE_KEY_BYTES

    rows = default_rows(q_len, group, v_dim)
    heavy = rows > 16 and next_power_of_2(v_dim) >= 512  # arithmetic, not bytes: MLA's many heads of one latent
    if heavy and tiles_per_sm <= MANY_TILES:
        rows, heavy = 16, False  # more blocks; the key is read once per 16 rows, mostly from L2
    blocks = requests * kv_heads * cdiv(q_len * group, rows)  # unsplit
    two_per_sm = max(1, 2 * sm_count // blocks)

    tile = max(16, min(128, 1 << round(log2(TILE_BYTES / key_bytes))))
    if fp8:
        tile = min(tile, 64)  # converted in registers: larger tiles spill
    tile = max(16, min(tile, 4096 // rows))  # scores and running sums are rows · tile registers
    if heavy:
        tile = 1 << round(log2(2 * TILE_BYTES / key_bytes))
        warps, stages, wanted = 8, 2, two_per_sm
    elif tiles_per_sm <= FEW_TILES:
        warps, stages, wanted = 4, 2, min(two_per_sm, cdiv(reach, tile))
    elif tiles_per_sm <= MANY_TILES:
        warps, stages, wanted = 4, 3, two_per_sm
        if not fp8 and not wide_key:
            tile = max(16, tile // 2)
    elif wave_fill(blocks, SLOTS_SHALLOW * sm_count) >= GOOD_FILL:
        warps, stages, wanted = 4, 2, 1
    else:
        # Fewer warps with more independent work each; wide values need the registers of four.
        warps, stages = (2 if v_dim <= 128 else 4), 3
        slots = SLOTS_SHALLOW if fp8 else SLOTS_WIDE if wide_key else SLOTS_DEEP
        wanted = filling_splits(blocks, slots * sm_count)
    if fp8 and not heavy:
        warps, stages = (2 if v_dim <= 128 else 4), 3  # conversions cost instructions; two warps repeat fewer
    shape: dict[str, Any] = {"tile_keys": tile, "rows": rows, "warps": warps, "stages": stages}
    if window is not None:
        shape["window_partition"] = "window"
    num_splits = max(1, min(num_splits or wanted, cdiv(reach, tile), MAX_SPLITS))
    split_keys = cdiv(cdiv(reach, num_splits), tile) * tile
    num_splits = cdiv(reach, split_keys)
    if num_splits == 1:
        return LaunchConfig(**shape)
    return LaunchConfig.fixed_size(
        split_keys, reach, **shape, **merge_shape(num_splits, requests * q_len * q_heads, v_dim)
    )
