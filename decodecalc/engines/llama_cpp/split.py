"""How ggml cuts the cache: parallel blocks (vec and tile), and stream-k (mma), which walks output tiles and keys.

All functions work on [N] arrays. Read from ggml-org/ggml@d99724f (2026-08-21): src/ggml-cuda/fattn-common.cuh
(`launch_fattn`, `flash_attn_stream_k_fixup_uniform`, `..._general`) and fattn-mma-f16.cuh (`flash_attn_ext_f16`: which
key tiles a block of the stream walks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.intmath import IntArray, cdiv
from decodecalc.launch.arrays import BoolArray

GOOD_PERCENT = 95  # parallel blocks: more waves are not tried once the last one is this full
WHOLE_TILES_PERCENT = 75  # stream-k: before Ada, whole tiles stay whole from this share of a wave on
MAX_LOSS_PERCENT = 5  # stream-k: what rounding down to whole shares of a tile may cost


def parallel_blocks(tiles: IntArray, most: IntArray, occupancy: IntArray, wave: IntArray) -> IntArray:
    """Blocks that share the keys of an output tile, from the occupancy up to `most`.

    The launcher tries one count after the other and keeps the first that fills its waves best, in whole percent. Within
    a wave more blocks fill it better, so that one look at each wave is enough.
    """
    start = np.minimum(occupancy, most)
    best, best_percent, best_wave = start, np.zeros_like(start), np.zeros_like(start)
    count = start
    while True:
        waves = cdiv(tiles * count, wave)
        going = (count <= most) & ~((best_percent >= GOOD_PERCENT) & (waves > best_wave))
        if not going.any():
            return best
        last = np.minimum(waves * wave // tiles, most)
        percent = 100 * tiles * last // (waves * wave)
        first = np.maximum(cdiv(percent * waves * wave, 100 * tiles), count)
        better = going & (percent > best_percent)
        best = np.where(better, first, best)
        best_wave = np.where(better, waves, best_wave)
        best_percent = np.where(better, percent, best_percent)
        count = np.where(going, last + 1, most + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamK:
    """A one-dimensional grid whose blocks walk all key tiles of all output tiles, one after another."""

    blocks: IntArray
    """Blocks of the grid."""
    tiles: IntArray
    """Output tiles."""
    key_tiles: IntArray
    """Key tiles of an output tile."""
    uniform: BoolArray
    """Every output tile has the same number of blocks, more than one."""
    general: BoolArray
    """Blocks begin and end anywhere in an output tile."""

    @property
    def most(self) -> IntArray:
        """The most blocks that one output tile can fall into."""
        general = np.minimum(cdiv(self.blocks, self.tiles) + 1, self.key_tiles)
        return np.where(self.uniform, self.blocks // self.tiles, np.where(self.general, general, 1))

    def block_of(self, position: Any) -> Any:
        """The block that walks key tile `position`, counted over all output tiles; broadcasts to [N, R]."""
        work, blocks = self.tiles * self.key_tiles, self.blocks
        if np.ndim(position) == 2:
            work, blocks = work[:, None], blocks[:, None]
        return ((position + 1) * blocks - 1) // work

    def _aligned(self) -> tuple[IntArray, IntArray]:
        """(d, n): d * n output tiles begin with a block of their own, tile 0 among them.

        Block i begins at floor(i * work / blocks). Output tile t begins with block ceil(t * blocks / tiles) where the
        remainder r = -t * blocks mod tiles obeys r * key_tiles < blocks. r takes every multiple of the greatest common
        divisor d equally often, d times, and n of these multiples are small enough.
        """
        common = np.gcd(self.blocks, self.tiles)
        return common, np.minimum(cdiv(self.blocks, common * self.key_tiles), self.tiles // common)

    def seams(self) -> IntArray:
        """Blocks that begin inside an output tile."""
        common, multiples = self._aligned()
        return self.blocks - common * multiples

    def cut_tiles(self) -> IntArray:
        """Output tiles that fall into several blocks."""
        common, multiples = self._aligned()
        spare = np.maximum((self.blocks - self.tiles) // common, 0)
        many = self.tiles - common * np.maximum(multiples - spare, 0)
        # With no more blocks than tiles, no tile holds two seams.
        return np.where(self.general | self.uniform, np.where(self.blocks <= self.tiles, self.seams(), many), 0)

    def states(self) -> IntArray:
        """Partial states of an output tile, their mean rounded up: a cut tile has one more than it has seams."""
        return np.where(self.general | self.uniform, cdiv(self.cut_tiles() + self.seams(), self.tiles), 0)


def stream_k(tiles: IntArray, key_tiles: IntArray, wave: IntArray, always: bool) -> StreamK:
    """The grid of the tensor-core kernel. `always`: stream-k even where whole tiles fill their waves (Ada and on)."""
    waves = cdiv(tiles, wave)
    streams = always | (100 * tiles // (wave * waves) < WHOLE_TILES_PERCENT)
    raw = np.minimum(wave, key_tiles * tiles)
    rounded = raw // tiles * tiles
    loss = np.where(rounded > 0, 100 * (raw - rounded) // raw, 100)
    blocks = np.where(streams, np.where(loss <= MAX_LOSS_PERCENT, rounded, raw), tiles)
    uniform = (blocks % tiles == 0) & (blocks > tiles)
    return StreamK(
        blocks=blocks,
        tiles=tiles,
        key_tiles=key_tiles,
        uniform=uniform,
        general=~uniform & (tiles % blocks != 0),
    )
