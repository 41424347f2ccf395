"""Block widths as plain arithmetic: what the launcher, the cost model and the tests share."""

from __future__ import annotations

from typing import Any

# Beyond the first number of output elements a merge is limited by bytes (wide blocks); up to the second it is limited
# by latency (narrow blocks).
MANY_MERGED = 400_000
FEW_MERGED = 32_768
MOST_MERGED = 512  # states a step
# The block of `mla_stage1_kernel` (mla_hopper.py): two warp groups compute, one loads, and two tiles are in flight.
MLA_HOPPER: dict[str, Any] = {"kernel": "mla_stage1", "tile_keys": 64, "rows": 64, "warps": 12, "stages": 2}
SMALL_ROWS = 16  # query rows up to which `stage1_kernel` is as fast


MOST_DIMS = 256  # elements of a row that one block of `states.py` takes
MOST_GRID_ROWS = 65535  # grid axes y and z


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def key_blocks(head_dim: int) -> tuple[int, int]:
    """Widths in which a key is read: its largest power of two, and the rest (0, or padded to a power of two >= 16).

    >>> key_blocks(128), key_blocks(96), key_blocks(576)
    ((128, 0), (64, 32), (512, 64))
    """
    first = 1 << (head_dim.bit_length() - 1)
    rest = head_dim - first
    return first, max(16, next_power_of_2(rest)) if rest else 0


def rows_by_eights(rows: int, q_rows: int) -> int:
    """Rows of a block, of `rows`, for which code is compiled. Where one block takes all `q_rows` query rows (query
    tokens x heads of a group), only the multiple of eight that holds them is used, because a tensor core works in steps
    of eight rows. Groups of 1 to 8 heads therefore share one kernel.

    >>> rows_by_eights(16, 4), rows_by_eights(16, 12), rows_by_eights(64, 71)
    (8, 16, 64)
    """
    return min(rows, 8 * cdiv(q_rows, 8))


def list_grid(length: int) -> tuple[int, int]:
    """Grid axes y and z that hold a list of this length: few more blocks than entries.

    >>> list_grid(70), list_grid(70_000)
    ((70, 1), (35000, 2))
    """
    z = cdiv(length, MOST_GRID_ROWS)
    return cdiv(length, z), z


def default_rows(q_len: int, group: int, v_dim: int) -> int:
    """Query rows per block: the packed rows, but at least 16 (for tensor cores) and at most 64, or what fp32
    accumulators allow: 64 rows × 512 elements take 128 registers of each of 256 threads."""
    limit = max(16, min(64, 32768 // next_power_of_2(v_dim)))
    return min(limit, max(16, next_power_of_2(q_len * group)))


def merge_shape(num_splits: int, rows: int, v_dim: int) -> dict[str, Any]:
    """Merge fields of a LaunchConfig for `rows` output rows (tokens · query heads).

    A step takes all states of a row, up to 512, because a step waits for its loads before those of the next begin,
    which takes half a microsecond each. There are many small blocks with 16 to 64 elements per thread, so that each
    waits for little.
    """
    width = max(16, next_power_of_2(v_dim))
    many = rows * v_dim > MANY_MERGED
    if num_splits <= 2 and many:
        return {"merge_rows": 4, "merge_splits": 2, "merge_dims": min(256, width), "merge_warps": 1}
    if num_splits <= 4 and not many:
        splits = 2 if num_splits <= 2 else 4
        return {"merge_rows": 1, "merge_splits": splits, "merge_dims": min(512 // splits, width), "merge_warps": 1}
    if num_splits <= 8:
        return {"merge_rows": 4, "merge_splits": 8, "merge_dims": min(64 if many else 32, width), "merge_warps": 1}
    if num_splits <= 16:
        return {"merge_rows": 4, "merge_splits": 16, "merge_dims": min(64, width), "merge_warps": 2}
    splits = min(next_power_of_2(num_splits), MOST_MERGED)
    few = rows * v_dim <= FEW_MERGED
    dims = 64 if splits == 32 and not few else 16 if splits == MOST_MERGED else 32
    warps = max(splits * dims // 2048, 1)
    return {"merge_rows": 1, "merge_splits": splits, "merge_dims": min(dims, width), "merge_warps": warps}
