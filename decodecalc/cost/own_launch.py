"""What the bundled kernel launches: its rows, grid and partial states, for its own splits or another engine's.

Grid (KV heads x row blocks, requests, splits), or where requests differ in length (KV heads x row blocks, live splits
of all requests): kernels/split_list.py. A row block is as many query rows (tokens x heads of a group) as one
block takes. Source: kernels/launch.py and kernels/blocks.py of this repository.

There are two stage-1 kernels. `stage1_kernel` takes everything. `mla_stage1_kernel` computes latent attention with many
query heads on the warp groups of a Hopper GPU (kernels/mla_hopper.py); its block has one shape, and its number of warps
(12, which no other has) tells it apart wherever a launch is only numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.cost.cuts import alike
from decodecalc.intmath import IntArray, cdiv, distinct
from decodecalc.launch.arrays import Batches, BoolArray, KernelArray, Launches, visible_start

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

MLA_WIDTHS = (576, 512)  # of the latent and of the value in it that `mla_stage1_kernel` is written for
MLA_KERNEL = "mla_stage1_kernel"
WARP_GROUP_CAPABILITY = (9, 0)
WARP_GROUP_DTYPES = ("bf16", "fp16")
STATE_SCALARS = 2  # running max and running sum beside each output vector in the bundled kernel's partial states


def in_warp_groups(warps: Any) -> Any:
    """Whether blocks of this many warps are those of `mla_stage1_kernel`: a bool, or bool [N] of an array."""
    from decodecalc_kernels.blocks import MLA_HOPPER

    return warps == MLA_HOPPER["warps"]


def takes_warp_groups(geo: Geometry, kv: KvCache, gpu: Gpu, q_len: int) -> bool:
    """Whether the bundled launcher runs `mla_stage1_kernel` for this layer: a latent of 576 elements on a GPU of
    compute capability 9.0, in FP8, or in 16 bits with more query rows than a small block takes (up to 16 rows
    `stage1_kernel` is as fast; with FP8 it takes three to six times as long)."""
    from decodecalc_kernels.blocks import SMALL_ROWS

    return (
        gpu.compute_capability == WARP_GROUP_CAPABILITY
        and geo.mla
        and (geo.head_dim, geo.v_dim) == MLA_WIDTHS
        and geo.kv_heads == 1
        and geo.window is None
        and kv.query_dtype in WARP_GROUP_DTYPES
        and (kv.dtype == "fp8" or (kv.dtype == kv.query_dtype and max(q_len, 1) * geo.group > SMALL_ROWS))
    )


def row_block(geo: Geometry, q_len: int, warps: int = 0) -> int:
    """Query rows of a block of the bundled kernel (its own rule). warps: of its block, where they are known."""
    from decodecalc_kernels.blocks import MLA_HOPPER, default_rows

    if in_warp_groups(warps):
        return int(MLA_HOPPER["rows"])
    return int(default_rows(max(q_len, 1), geo.group, geo.v_dim))


def row_blocks_of(geo: Geometry, batches: Batches, warps: Any = 0) -> IntArray:
    """`row_block` of every step [N]: of its request with most query tokens. warps: a number or [N]."""
    lens = distinct(batches.max_q_len) or [1]
    rows = np.array([row_block(geo, q_len) for q_len in lens], dtype=np.int64)
    plain = rows[np.searchsorted(lens, batches.max_q_len)]
    return np.where(in_warp_groups(warps), row_block(geo, 1, _group_warps()), plain)


def _group_warps() -> int:
    from decodecalc_kernels.blocks import MLA_HOPPER

    return int(MLA_HOPPER["warps"])


def used_rows(geo: Geometry, q_len: int, warps: int = 0) -> int:
    """Query rows that a block of the bundled kernel computes on: the `rows` of its variants."""
    from decodecalc_kernels.blocks import rows_by_eights

    rows = row_block(geo, q_len, warps)
    return rows if in_warp_groups(warps) else int(rows_by_eights(rows, max(q_len, 1) * geo.group))


def equal_splits(
    geo: Geometry, batches: Batches, split_keys: IntArray, tile_keys: Any, rows: Any, determinism: str = "",
    warps: Any = 0,
) -> Launches:  # fmt: skip
    """The kernel's own rule: splits of `split_keys` keys [N], from the first visible key of every request on.

    tile_keys, rows and warps are numbers or [N]. The merge's grid is left empty: time does not depend on it.
    """
    first = visible_start(batches, geo.window)
    keys, size = batches.seq_lens - first, split_keys[:, None]
    launched = np.maximum(cdiv(batches.largest(keys), split_keys), 1)
    live = np.where(has_work(batches), cdiv(keys, size), 0)
    listed = (launched > 1) & ~alike(batches) & ~np.asarray(in_warp_groups(warps))
    return _launches(
        geo, batches, tile_keys, rows, launched, live, determinism=determinism, working=None, split_keys=size,
        first_key=first, keys_read=keys, warps=warps, listed=listed,
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


def list_entries(batches: Batches, live: IntArray) -> IntArray:
    """Entries of the list of live splits of each step [N]: a request without keys has one too."""
    return batches.total(np.maximum(live, 1))


def _grid_rows(batches: Batches, launched: IntArray, live: IntArray, listed: Any) -> tuple[Any, Any]:
    """Grid axes y and z [N]."""
    if not np.any(listed):
        return batches.batch, launched
    from decodecalc_kernels.blocks import MOST_GRID_ROWS

    entries = list_entries(batches, live)
    z = cdiv(entries, MOST_GRID_ROWS)
    return np.where(listed, cdiv(entries, z), batches.batch), np.where(listed, z, launched)


def has_work(batches: Batches) -> BoolArray:
    """Which requests have keys and query tokens [N, R]."""
    return (batches.seq_lens > 0) & (batches.q_lens > 0)


def _launches(
    geo: Geometry, batches: Batches, tile_keys: Any, rows: Any, launched: IntArray, live: IntArray, warps: Any = 0,
    **cut: Any,
) -> Launches:  # fmt: skip
    of_request = rows[:, None] if isinstance(rows, np.ndarray) and rows.ndim else rows
    row_blocks = cdiv(batches.q_lens * geo.group, of_request)
    columns = geo.kv_heads * row_blocks
    grid = (geo.kv_heads * batches.largest(row_blocks), *_grid_rows(batches, launched, live, cut.get("listed", False)))
    grouped = np.broadcast_to(np.asarray(in_warp_groups(warps)), launched.shape)
    stage1 = KernelArray(
        name="stage1_kernel", role="stage1", grid=grid, threads=None, live_blocks=batches.total(columns * live),
        tile_keys=tile_keys, when=~grouped,
    )  # fmt: skip
    latent = stage1._replace(name=MLA_KERNEL, threads=32 * _group_warps(), when=grouped)
    return Launches(
        is_split=launched > 1,
        kernels=(
            *((stage1,) if not grouped.all() or not grouped.size else ()),
            *((latent,) if grouped.any() else ()),
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
