"""The precompiled generation kernels: which exist, what a loop iteration loads, their names, threads and shared memory.

The kernels are closed; a header lists their metadata. It is regular, so that the list is written here as rules, each of
which holds for all 4040 dense and sparse generation kernels of 16-bit output without skip-softmax.
Read from flashinfer-cubin 0.6.13: fmha/trtllm-gen/include/flashInferMetaInfo.h (sTllmGenFmhaKernelMetaInfos).

Kernel types: swaps-AB has keys as the rows of the matrix product and query tiles of 8, 16 or 32 rows; keeps-AB has
queries as the rows, 64 or 128 of them. Arguments named in capitals of the source are arrays [N] or numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, round_up
from decodecalc.kvcache import KvCache

DISABLED, GMEM, GMEM_SEPARATE, CGA = range(4)  # MultiCtasKvMode
MODE_NAMES = ("disabled", "gmem_reduction", "gmem_reduction_separate_kernel", "cga_smem_reduction")
_MODE_PARTS = ("", "MultiCtasKv", "MultiCtasKvGmemSep", "MultiCtasKvCga")
_DTYPE_PARTS = {"bf16": "Bfloat16", "fp16": "Fp16", "fp8": "E4m3"}
TILE_KV = 128
HEAD_DIMS = ((64, 64), (128, 128), (256, 256), (512, 512))  # (key, value) sizes of grouped-query kernels
MLA_DIMS = ((576, 512), (320, 256))
DYNAMIC_PAGE = 128  # kernels from this page size on take any power of two


@dataclass(frozen=True, slots=True)
class CubinFamily:
    """The properties that all kernels which may serve a layer share."""

    qk: int
    """Elements of a key."""
    vo: int
    """Elements of a value."""
    mla: bool
    """One latent per key that is both key and value."""
    sparse: bool
    """Keys come as a list of single tokens (sparse MLA)."""
    q_dtype: str
    """Element type of queries."""
    kv_dtype: str
    """Element type of keys and values."""
    o_dtype: str
    """Element type of the output."""
    page_size: int
    """Keys of a page."""

    @classmethod
    def of(cls, geo: Geometry, kv: KvCache, sparse: bool, o_dtype: str) -> CubinFamily:
        """The family of a layer."""
        return cls(
            qk=geo.head_dim, vo=geo.v_dim, mla=geo.mla, sparse=sparse, q_dtype=kv.query_dtype, kv_dtype=kv.dtype,
            o_dtype=o_dtype, page_size=kv.page_size,
        )  # fmt: skip

    @property
    def mixed(self) -> bool:
        """16-bit queries on an 8-bit cache."""
        return self.q_dtype != self.kv_dtype

    @property
    def groups_tokens(self) -> bool:
        """Query tokens and heads may share a tile."""
        return not self.mla and not self.mixed

    def step_kv(self, keeps: Any) -> Any:
        """Keys of one loop iteration (mStepKv)."""
        if self.sparse or self.mixed:
            return np.where(keeps, TILE_KV, TILE_KV)
        return np.where(keeps, 2 * TILE_KV if self.vo <= 128 else TILE_KV, 2 * TILE_KV)

    def threads(self, keeps: bool) -> int:
        """Threads of a block (mThreadsPerCTA)."""
        return 384 if keeps and self.vo > 128 and not self.sparse else 512

    def listed(self, tile_q: Any, keeps: Any, mode: Any, width: Any, groups: Any) -> Any:
        """Whether the list of 0.6.13 has the kernel: tile, type, reduction, value elements a block, grouped tokens."""
        small = np.isin(tile_q, (8, 16) if self.mixed else (8, 16, 32)) & ~keeps
        tiles = (64,) if self.mla and self.vo == 512 else (64, 128)
        large = np.isin(tile_q, tiles) & keeps & (not self.mixed)
        wide = self.vo == 512
        modes = np.where(
            keeps,
            (mode == DISABLED) | (mode == GMEM_SEPARATE if wide else mode != GMEM_SEPARATE),
            mode != GMEM_SEPARATE,
        )
        modes &= ~((mode == CGA) & (np.asarray(tile_q) == 32) & (width == 512))
        if self.mla:
            widths = np.isin(width, (128, 256, 512)) if wide else width == self.vo
        else:
            widths = width == np.where(keeps & wide, 256, self.vo)
        return (small | large) & modes & widths & (np.asarray(groups) == self.groups_tokens)

    def shared_memory(self, tile_q: Any, keeps: Any, mode: Any, persistent: Any, width: Any, pair: Any) -> Any:
        """Dynamic shared memory of a block in bytes (mSharedMemBytes).

        It holds query tiles, stages of keys and values, probabilities and barriers; a persistent kernel adds an output
        tile, and reduction in a cluster a buffer for the other blocks' states.
        """
        return np.where(
            keeps,
            self._keeps_memory(tile_q, mode, persistent, width, pair),
            self._swaps_memory(tile_q, mode, persistent, width),
        )

    @property
    def _stage(self) -> int:
        """Bytes of 128 keys, at most 128 elements each, with their barriers."""
        return TILE_KV * min(self.vo, 128) * self._bytes + 16

    @property
    def _bytes(self) -> int:
        return 1 if self.q_dtype == "fp8" else 2

    @property
    def _row(self) -> int:
        """Bytes of one query row: a multiple of 128 beyond that."""
        size = self.qk * self._bytes
        return size if size <= 128 else round_up(size, 128)

    def _swaps_memory(self, tile_q: Any, mode: Any, persistent: Any, width: Any) -> Any:
        rows = np.asarray(tile_q)
        gathered = self.sparse or self.mixed
        single = gathered and self._bytes == 2
        query = rows * self._row
        # Two query tiles, unless they would take 64 KiB: then one, and one pair of barriers less.
        query = query if single else np.where(2 * query >= 1 << 16, query - 16, 2 * query)
        scores = rows * (64 + TILE_KV * 2 * self._bytes - (16 if gathered else 0))
        if self.mixed:
            base = 107_696 if self.vo == 64 else 132_192
        else:
            count = {16_400: 9, 32_784: 4, 8_208: 18}[self._stage]
            base = 1056 + count * self._stage + ((5344 if self._bytes == 2 else 5360) if self.sparse else 0)
        size = base + query + scores
        output = 1 if self.o_dtype == "fp8" else 2
        size = size + np.where(persistent, 176 + rows * min(self.vo, 128) * output, 0)
        cluster = (1 << 15) + 8 + (1 << 17) // np.asarray(width)
        short = (self._bytes == 1) & (rows == 32) & (self.qk > 256)  # one stage fewer
        return size + np.where(mode == CGA, cluster - np.where(short, 16_400, 0), 0)

    def _keeps_memory(self, tile_q: Any, mode: Any, persistent: Any, width: Any, pair: Any) -> Any:
        rows, eight = np.asarray(tile_q), self._bytes == 1
        query = rows * self._row
        small = self.vo <= 128
        if self.sparse:
            double = eight
        else:
            double = eight and not small
        query = query * (2 if double else 1)
        base = {8_208: 148_784, 16_400: 148_640, 32_784: 132_176 if small else 132_160}[self._stage]
        size = base + query
        if self.vo == 512 and not self.mla:  # fewer stages beside 128 rows of queries
            size = size - np.where(rows == 128, 65_600 if eight else 65_568, 0)
        if eight and self.mla:  # the query row is padded, which costs a stage
            size = size - np.where(np.asarray(width) == 128, 16_400, 16_464)
        size = size + np.where(pair, 1576 if eight else 17_976, 0)
        if eight:
            size = size - np.where(pair, 8240, 0)
        if self.sparse:
            size = size + (5360 if small else 5376)
        again = 192 + rows * self.vo * self._bytes if small and not self.sparse else 176
        extra = np.select([mode == GMEM, mode == GMEM_SEPARATE, mode == CGA], [16, 16, 32], 0)
        return size + np.where(persistent, again, extra)

    def name(
        self, tile_q: int, keeps: bool, mode: int, persistent: bool, width: int, pair: bool, groups: bool, sliding: bool
    ) -> str:
        """The kernel's name (mFuncName)."""
        query, cache = _DTYPE_PARTS[self.q_dtype], _DTYPE_PARTS[self.kv_dtype]
        types = f"Qkv{query}" if query == cache else f"Q{query}Kv{cache}"
        heads = f"H{self.qk}" if self.qk == self.vo else f"HQk{self.qk}HV{self.vo}"
        part = f"HVPerCta{width}" if width != self.vo else ""
        mask = "SlidingOrChunkedCausal" if sliding else "Causal" if groups and not self.mla else "Dense"
        page = "Paged" if self.page_size >= DYNAMIC_PAGE else f"P{self.page_size}"
        return (
            f"fmhaSm100fKernel_{types}O{_DTYPE_PARTS[self.o_dtype]}{heads}{part}PagedKv{mask}"
            f"{'StaticTokenSparseP1' if self.sparse else page}{_MODE_PARTS[mode]}VarSeqQ{tile_q}Kv{TILE_KV}"
            f"{'Persistent' if persistent else 'Static'}{'2Cta' if pair else ''}"
            f"{'Keeps' if keeps else 'Swaps'}AbForGen"
        )


def reduction_grid(
    family: CubinFamily, group: int, q_heads: int, sms: int, tile_q: Any, width: Any, pair: Any, ctas_q: Any, batch: Any
) -> tuple[Any, Any, Any]:
    """Grid of the separate reduction kernel of 512 threads (fmhaReduction.cu: runFmhaReduction)."""
    wide = width * np.where(pair, 2, 1)
    slices = wide * 2 * tile_q // (512 * 16)
    heads = q_heads // np.minimum(group, tile_q)
    y = heads * (family.vo // wide)
    most = 2 * sms // np.maximum(ctas_q * y * batch, 1)
    return ctas_q * np.minimum(most, slices), y, batch


def chunk_keys(keys: Any, splits: Any, step: Any) -> Any:
    """Keys of a split, in whole loop iterations, as the host's cost model counts them."""
    return cdiv(cdiv(keys, step), np.maximum(splits, 1)) * step
