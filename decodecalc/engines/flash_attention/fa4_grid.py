"""Grids of FlashAttention 4's kernels: what each tile scheduler launches.

Source: flash_attn/cute/tile_scheduler.py of flash-attn-4 4.0.0b36 (the same text in vLLM 0.33.0), get_grid_shape of
SingleTileScheduler, StaticPersistentTileScheduler, SingleTileLPTScheduler, SingleTileVarlenScheduler and
DynamicPersistentVarlenScheduler, and the choice among them in flash_fwd_sm100.py, flash_fwd_sm90.py and
flash_fwd_mla*_sm100.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.launch.arrays import BoolArray

Grid = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridWork:
    """The tiles of a launch. Arrays are [N]."""

    batch: IntArray
    """Requests."""
    heads: IntArray
    """Heads of the grid: KV heads where the group is packed."""
    q_rows: IntArray
    """Rows of the longest request (tokens, times the group where packed)."""
    total_rows: IntArray
    """Rows of all requests."""
    tile_rows: IntArray
    """Rows of a block's tile."""
    splits: IntArray
    """Split extent of the grid."""
    cluster: Any = 1
    """Blocks of a cluster, which share a tile of cluster * tile_rows rows."""


def chosen(conditions: list[tuple[Any, Grid]], otherwise: Grid) -> Grid:
    """The first grid whose condition holds, entry by entry."""
    grid = otherwise
    for condition, candidate in reversed(conditions):
        grid = tuple(np.where(condition, a, b) for a, b in zip(candidate, grid))
    return grid


def single(w: GridWork) -> Grid:
    """SingleTileScheduler: (tiles, heads * splits, requests)."""
    return cdiv(w.q_rows, w.tile_rows * w.cluster) * w.cluster, w.heads * w.splits, w.batch


def longest_first(w: GridWork) -> Grid:
    """SingleTileLPTScheduler: (tiles * heads * requests, splits, 1)."""
    tiles = cdiv(w.q_rows, w.tile_rows * w.cluster) * w.cluster
    return tiles * w.heads * w.batch, w.splits, np.ones_like(w.batch)


def cluster_launch_control(w: GridWork) -> Grid:
    """SingleTileLPTScheduler under cluster launch control: (tiles, heads, requests * splits)."""
    return cdiv(w.q_rows, w.tile_rows * w.cluster) * w.cluster, w.heads, w.batch * w.splits


def static_persistent(w: GridWork, sms: int) -> Grid:
    """StaticPersistentTileScheduler: one block for each SM, or fewer."""
    one = np.ones_like(w.batch)
    tiles = round_up(cdiv(w.q_rows, w.tile_rows), w.cluster) * w.heads * w.batch
    return np.minimum(sms // w.cluster * w.cluster, tiles), one, one


def varlen(w: GridWork) -> Grid:
    """SingleTileVarlenScheduler: the most tiles that packed requests can have, (tiles * heads, splits, 1)."""
    most = (w.total_rows + w.batch * (w.cluster * w.tile_rows - 1)) // w.tile_rows
    return most // w.cluster * w.cluster * w.heads, w.splits, np.ones_like(w.batch)


def dynamic_persistent(w: GridWork, sms: int) -> Grid:
    """DynamicPersistentVarlenScheduler: one block for each SM, or fewer."""
    one = np.ones_like(w.batch)
    most = (w.total_rows + w.batch * (w.tile_rows - 1)) // w.tile_rows
    return np.minimum(sms, most * w.heads * w.splits), one, one


def sm100(
    w: GridWork,
    sms: int,
    *,
    varlen_q: bool,
    ordered: bool,
    clc: BoolArray,
    persistent: BoolArray,
    dynamic: BoolArray,
) -> Grid:
    """FlashAttentionForwardSm100's choice. ordered: causal or local; dynamic: a semaphore counts tiles."""
    if varlen_q:
        at_once = [(dynamic & ~clc, dynamic_persistent(w, sms)), (persistent & ~clc, static_persistent(w, sms))]
        return chosen(at_once, varlen(w))
    rest = [(clc, cluster_launch_control(w))]
    if ordered:
        return chosen(rest, longest_first(w))
    return chosen([*rest, (persistent, static_persistent(w, sms))], single(w))


def plain(w: GridWork, varlen_q: bool, ordered: bool) -> Grid:
    """The choice of the kernels before Blackwell (and of SM120). ordered: longest requests first."""
    return varlen(w) if varlen_q else longest_first(w) if ordered else single(w)
