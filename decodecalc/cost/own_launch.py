"""What the bundled kernel launches: its rows, grid and partial states, for its own splits or another engine's.

Grid (KV heads x row blocks, requests, splits). A row block is as many query rows (tokens x heads of a group) as one
block takes. Source: kernels/launch.py and kernels/blocks.py of this repository.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.intmath import IntArray, cdiv, distinct
from decodecalc.launch.arrays import Batches, BoolArray, KernelArray, Launches, visible_start

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry

STATE_SCALARS = 2  # running max and running sum beside each output vector in the bundled kernel's partial states


def row_block(geo: Geometry, q_len: int) -> int:
    """Query rows of a block of the bundled kernel (its own rule)."""
    from decodecalc_kernels.blocks import default_rows

    return int(default_rows(max(q_len, 1), geo.group, geo.v_dim))


def row_blocks_of(geo: Geometry, batches: Batches) -> IntArray:
    """`row_block` of every step [N]: of its request with most query tokens."""
    lens = distinct(batches.max_q_len) or [1]
    rows = np.array([row_block(geo, q_len) for q_len in lens], dtype=np.int64)
    return rows[np.searchsorted(lens, batches.max_q_len)]


def used_rows(geo: Geometry, q_len: int) -> int:
    """Query rows that a block of the bundled kernel computes on: the `rows` of its variants."""
    from decodecalc_kernels.blocks import rows_by_eights

    return int(rows_by_eights(row_block(geo, q_len), max(q_len, 1) * geo.group))


def equal_splits(
    geo: Geometry, batches: Batches, split_keys: IntArray, tile_keys: Any, rows: Any, determinism: str = ""
) -> Launches:
    """The kernel's own rule: splits of `split_keys` keys [N], from the first visible key of every request on.

    tile_keys and rows are numbers or [N]. The merge's grid is left empty: time does not depend on it.
    """
    first = visible_start(batches, geo.window)
    keys, size = batches.seq_lens - first, split_keys[:, None]
    launched = np.maximum(cdiv(batches.largest(keys), split_keys), 1)
    live = np.where(has_work(batches), cdiv(keys, size), 0)
    return _launches(
        geo, batches, tile_keys, rows, launched, live, determinism=determinism, working=None, split_keys=size,
        first_key=first, keys_read=keys,
    )  # fmt: skip


def under_rule(found: Launches, geo: Geometry, batches: Batches, tile_keys: Any, rows: Any) -> Launches:
    """Another engine's splits, each walked by this kernel's blocks: its tile, rows, sharing of KV heads and states."""
    live = np.broadcast_to(np.asarray(found.live), batches.seq_lens.shape)
    most = batches.largest(live)
    launched = most if found.shared_slots else np.maximum(found.launched, most)
    return _launches(
        geo, batches, tile_keys, rows, np.where(found.is_split, np.maximum(launched, 1), 1), live,
        determinism=found.determinism, working=found.working, split_keys=found.split_keys, first_key=found.first_key,
        keys_read=found.keys_read, key_ranges=found.key_ranges, interleave_keys=found.interleave_keys,
    )  # fmt: skip


def has_work(batches: Batches) -> BoolArray:
    """Which requests have keys and query tokens [N, R]."""
    return (batches.seq_lens > 0) & (batches.q_lens > 0)


def _launches(
    geo: Geometry, batches: Batches, tile_keys: Any, rows: Any, launched: IntArray, live: IntArray, **cut: Any
) -> Launches:  # fmt: skip
    of_request = rows[:, None] if isinstance(rows, np.ndarray) and rows.ndim else rows
    row_blocks = cdiv(batches.q_lens * geo.group, of_request)
    columns = geo.kv_heads * row_blocks
    grid = (geo.kv_heads * batches.largest(row_blocks), batches.batch, launched)
    return Launches(
        is_split=launched > 1,
        kernels=(
            KernelArray(
                name="stage1_kernel", role="stage1", grid=grid, threads=None, live_blocks=batches.total(columns * live),
                tile_keys=tile_keys,
            ),
            KernelArray(
                name="merge_kernel", role="merge", grid=(), threads=None, live_blocks=None, when=launched > 1
            ),
        ),
        requested=launched[:, None],
        launched=launched,
        live=live,
        blocks_per_split=columns,
        unsplit_blocks=batches.total(columns * has_work(batches)),
        tile_keys=tile_keys,
        block_rows=rows,
        live_rows=np.minimum(batches.max_q_len * geo.group, rows),
        state_values=geo.v_dim + STATE_SCALARS,
        scratch_bytes=0,
        **cut,
    )  # fmt: skip
