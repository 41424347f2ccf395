"""SGLang's lean decode kernel: a persistent grid on AMD GPUs that distributes the KV tiles evenly (sglang 0.5.19 on).

One launch has about as many blocks as there are compute units. The tiles of all requests, placed one after another,
form a row. There is a row per KV head and block of 16 query heads, and each thread block takes a contiguous run of the
tiles of these rows. A request that is cut by the end of a run is finished inside the kernel by the block that holds its
first tile, so there is no merge kernel.

Source: `kernels/ops/attention/decode_attention.py` (`lean_decode_seqlen_gate`, `lean_capture_policy`,
`_should_use_lean_decode`, `_lean_decode_launch_params`, `_lean_attention_decode_kernel`) and
`TritonAttnBackend.forward_decode` of sglang 0.5.19 to 0.5.23.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv
from decodecalc.launch.arrays import Batches, BoolArray, at, row
from decodecalc.launch.plan import KeyRange

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

BLOCK_M = 16  # _LEAN_BLOCK_M, query heads of a row
XCDS = 8
MLA_BATCH, MLA_FLOOR, CAPTURE_BATCH, FLOOR = 8, 4096, 16, 4096


def supported(geo: Geometry) -> bool:
    """Whether the kernel implements this layer: no logit cap, no sinks, keys that fit its tiles (_lean_head_dim_ok)."""
    fits = geo.head_dim in (288, 576) or (geo.head_dim <= 128 and geo.v_dim <= 128)
    return fits and not geo.sinks and not geo.softcap


def eager_gate(geo: Geometry, batch: IntArray, total_keys: IntArray) -> tuple[BoolArray, Any]:
    """(taken, least average length) [N] outside CUDA graphs: lean_decode_seqlen_gate."""
    if geo.head_dim != geo.v_dim:
        return (batch >= MLA_BATCH) & (total_keys >= MLA_FLOOR * batch), MLA_FLOOR
    tiles = cdiv(geo.q_heads, min(BLOCK_M, geo.group))
    base, relax = (16384, 2) if tiles >= 16 else (65536, 2) if tiles >= 4 else (131072, 4)
    least = np.maximum(FLOOR, base // np.maximum(1, batch // relax))
    return total_keys >= least * batch, least


def capture_gate(geo: Geometry, batch: Any) -> tuple[BoolArray, int | None]:
    """(taken, least batch or None for never) for a captured graph of `batch` requests: lean_capture_policy."""
    if geo.head_dim != geo.v_dim:
        return np.asarray(batch) >= MLA_BATCH, MLA_BATCH
    if cdiv(geo.q_heads, min(BLOCK_M, geo.group)) < 4:
        return np.zeros(np.shape(batch), dtype=bool), None
    return np.asarray(batch) >= CAPTURE_BATCH, CAPTURE_BATCH


def tile_keys(geo: Geometry) -> int:
    """Keys of one tile: _lean_decode_block_n on AMD."""
    return 16 if geo.head_dim > 256 else 128


class LeanLaunch(NamedTuple):
    """The persistent launch of every step.

    programs: blocks of the grid. rows: (KV head, head block) rows. tile_keys: keys of a tile. live_programs [N]: blocks
    with tiles. parts [N, R]: runs that the tiles of a class's first request fall into, in the first row (later rows are
    cut elsewhere). most_parts [N]: the kernel's own bound on them (its `num_splits`).
    run_tiles [N]: tiles of a full run; the first `full_runs` [N] blocks have that many, the others one less.
    """

    programs: int
    rows: int
    tile_keys: int
    run_tiles: IntArray
    full_runs: IntArray
    live_programs: IntArray
    first_tile: IntArray
    parts: IntArray
    most_parts: IntArray

    def ranges(self, n: int, first_key: Any, keys: Any, counts: IntArray, branches: int) -> list[list[KeyRange]]:
        """Key ranges of each request's parts in the first row of step n, equal requests one after another: each of
        them is cut in other places."""
        r = self.parts.shape[1]
        out = []
        columns = (row(first_key, n, r), row(keys, n, r), row(self.first_tile, n, r), counts[n].tolist())
        for first, length, tile0, count in zip(*columns):
            tiles = cdiv(length, self.tile_keys)
            for start in range(tile0, tile0 + count * tiles * branches, max(tiles * branches, 1)):
                cuts = self._cuts(n, start, start + tiles)
                edges = [first + min((c - start) * self.tile_keys, length) for c in cuts]
                out.append(list(itertools.pairwise(edges)))
        return out

    def _cuts(self, n: int, start: int, end: int) -> list[int]:
        """Tiles at which the blocks' runs of step n cut those from `start` to `end`, both included."""
        run, full = at(self.run_tiles, n), at(self.full_runs, n)
        cuts, tile = [start], start
        while tile < end:
            block = int(_run_of(np.int64(tile), np.int64(run), np.int64(full)))
            tile = min(end, (block + 1) * run if block < full else full * run + (block + 1 - full) * (run - 1))
            cuts.append(tile)
        return cuts


def _run_of(tile: Any, run: Any, full: Any) -> Any:
    """The block whose run holds a tile. The first `full` blocks have `run` tiles each, the others one less."""
    return np.where(tile < full * run, tile // run, full + (tile - full * run) // np.maximum(run - 1, 1))


def lean_launch(geo: Geometry, gpu: Gpu, batches: Batches, keys: IntArray, branches: int, padding: Any) -> LeanLaunch:
    """Grid and schedule. keys [N, R] per row, `branches` rows of each request; `padding` [N]: tiles of padding rows."""
    head_blocks = cdiv(geo.group, BLOCK_M)
    rows = geo.kv_heads * head_blocks
    xcds = XCDS if geo.kv_heads % XCDS == 0 and head_blocks == 1 else 1
    programs = max(gpu.sm_count // xcds, 1) * xcds
    tile = tile_keys(geo)
    tiles = cdiv(keys, tile)
    per_row = batches.total(tiles) * branches + padding
    total = per_row * (rows // xcds)
    run = np.maximum(cdiv(total, programs // xcds), 1)
    full = total - (run - 1) * (programs // xcds)
    of_class = tiles * batches.counts * branches
    first_tile = np.cumsum(of_class, axis=1) - of_class
    r, f = run[:, None], full[:, None]
    parts = _run_of(first_tile + tiles - 1, r, f) - _run_of(first_tile, r, f) + 1
    return LeanLaunch(
        programs=programs,
        rows=rows,
        tile_keys=tile,
        run_tiles=run,
        full_runs=full,
        live_programs=np.minimum(total, programs // xcds) * xcds,
        first_tile=first_tile,
        parts=parts,
        most_parts=1 + cdiv(per_row, np.maximum(run - 1, 1)),
    )
