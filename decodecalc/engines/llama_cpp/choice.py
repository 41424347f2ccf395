"""Which of ggml's three CUDA FlashAttention kernels runs, and how many query rows its blocks hold.

vec holds one or two tokens of one query head, tile (CUDA cores) and mma (tensor cores) pack tokens (`ncols1`) and query
heads of one KV head (`ncols2`) into a block.

Read from ggml-org/ggml@d99724f (2026-08-21): src/ggml-cuda/fattn.cu (`ggml_cuda_get_best_fattn_kernel`,
`ggml_cuda_flash_attn_ext_mma_f16`, `..._switch_ncols1`, `..._switch_ncols2`) and fattn-tile.cuh
(`launch_fattn_tile_switch_ncols1`, `..._ncols2`), a CUDA build without GGML_CUDA_FA_ALL_QUANTS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodecalc.engines.llama_cpp.tables import ADA, BLACKWELL, DGX_SPARK, TURING, VOLTA
from decodecalc.errors import GateError
from decodecalc.intmath import IntArray
from decodecalc.launch.arrays import BoolArray

VEC, TILE, MMA = "vec", "tile", "mma"
KQ_STRIDE = 256  # FATTN_KQ_STRIDE: the padding of the cache
VALUE_DIMS = {
    40: 40,
    64: 64,
    72: 72,
    80: 80,
    96: 96,
    112: 112,
    128: 128,
    192: 128,
    256: 256,
    320: 256,
    512: 512,
    576: 512,
}
NEED_GROUP = {192: 8, 320: 32, 512: 1, 576: 1}  # head sizes that run packed only, and what the group must divide by
VEC_DIMS = (64, 128, 256)
QUANTISED = ("int8", "int4")
LONG_KEYS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class FattnProblem:
    """The facts that decide the choice, as numbers for the whole array or as [N] arrays."""

    cc: int
    """Compute capability as ggml writes it: 890 for 8.9."""
    head_dim: int
    """Width of a key."""
    v_dim: int
    """Width of a value."""
    group: int
    """Query heads of a KV head."""
    quantised: bool
    """Whether the cache holds quantised values (q8_0, q4_0)."""
    mask: bool
    """Whether the operator has a mask."""
    alibi: bool
    """Whether max_bias is not 0."""
    keys: IntArray
    """Cells of the cache that the kernel sees (n_kv) [N]."""
    tokens: IntArray
    """Query tokens of a stream [N]."""
    streams: IntArray
    """Streams of the cache [N]."""

    @property
    def packs(self) -> BoolArray:
        """Whether query heads of a KV head may be packed into a block (`use_gqa_opt`) [N]."""
        return (self.keys % KQ_STRIDE == 0) & self.mask & (not self.alibi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The kernel of every step and the query rows of its blocks."""

    kernel: Any
    """`vec`, `tile` or `mma` [N]."""
    ncols1: IntArray
    """Tokens of a block [N]."""
    ncols2: IntArray
    """Query heads of a block [N]."""


def best_kernel(p: FattnProblem) -> Columns:
    """The kernel and its columns. Raises GateError where ggml has none (the operator then leaves FlashAttention)."""
    packs = p.packs & (p.group >= 2)
    if p.v_dim != VALUE_DIMS.get(p.head_dim):
        raise GateError(f"llama-cpp has no kernel for head sizes {p.head_dim}/{p.v_dim}", "head_dim")
    if p.head_dim in NEED_GROUP:
        if p.group % NEED_GROUP[p.head_dim] or p.group < 2:
            raise GateError(
                f"llama-cpp: head size {p.head_dim} needs a group of several heads divisible by "
                f"{NEED_GROUP[p.head_dim]}, not {p.group}",
                "group",
            )
        if not packs.all():
            raise GateError(
                f"llama-cpp: head size {p.head_dim} needs a mask and a cache padded to {KQ_STRIDE} cells, "
                f"without ALiBi",
                "gqa_path",
            )
    vec_can = (p.keys % KQ_STRIDE == 0) & (p.head_dim in VEC_DIMS)
    one = p.tokens == 1
    tensor_cores = p.head_dim not in (40, 72)
    if p.cc >= TURING and tensor_cores:
        if p.quantised:
            vec = p.tokens <= 2 if p.cc >= ADA else one
        elif p.cc >= ADA:
            vec = one & (p.streams == 1) & ~((p.group > 4) & (p.keys >= LONG_KEYS))
        else:
            vec = np.zeros_like(one)
        vec = vec_can & (vec | (one & ~packs))
        tile = np.zeros_like(vec)
    elif p.cc >= VOLTA and p.cc < TURING and tensor_cores:
        rows = p.tokens * _packed_heads(p)
        vec = vec_can & (rows <= 2)
        tile = ~vec & (rows <= 16)
    else:
        vec = vec_can & ((p.tokens <= 2) if p.quantised else one & ~packs)
        tile = ~vec
    mma = ~vec & ~tile
    mma_heads, mma_tokens = _mma_columns(p, mma)
    tile_heads, tile_tokens = _tile_columns(p, tile)
    return Columns(
        kernel=np.where(vec, VEC, np.where(tile, TILE, MMA)),
        ncols1=np.where(vec, np.where(one, 1, 2), np.where(tile, tile_tokens, mma_tokens)),
        ncols2=np.where(vec, 1, np.where(tile, tile_heads, mma_heads)),
    )


def _packed_heads(p: FattnProblem) -> int:
    """gqa_ratio_eff: the largest power of two that divides the group, up to what a block packs."""
    most = 32 if p.head_dim == 320 else 16 if p.head_dim in (576, 192) else 8
    heads = 1
    while p.group % (2 * heads) == 0 and heads < most:
        heads *= 2
    return heads


def _mma_columns(p: FattnProblem, used: BoolArray) -> tuple[IntArray, IntArray]:
    """(ncols2, ncols1) of the tensor-core kernel [N]; GateError where `used` meets a shape that is not compiled."""
    group, volta = p.group, p.cc < TURING
    if p.head_dim == 320:
        heads: Any = np.full_like(p.tokens, 32)
    elif p.head_dim == 192:
        heads = np.full_like(p.tokens, 16 if group % 16 == 0 else 8)
    elif p.head_dim == 576:
        heads = _glm_heads(p) if group == 20 else np.full_like(p.tokens, 16 if group % 16 == 0 else 4)
    elif volta:
        most = next((n for n in (8, 4, 2) if group % n == 0 and (n > 2 or p.head_dim <= 256)), 1)
        heads = np.where(p.packs, most, 1)
    else:
        heads = np.where(p.packs, 8 if group > 4 else 4 if group > 2 else 2 if group > 1 else 1, 1)
    if p.head_dim > 256 and (used & (heads == 1)).any():
        raise GateError(f"llama-cpp: no tensor-core kernel packs a group of {group} at head size {p.head_dim}", "group")
    rows = np.where((p.tokens <= 32 // heads) | (p.cc == TURING), 32, 64)
    rows = np.where((heads <= 16) & (p.tokens <= 16 // heads), 16, rows)
    rows = np.where((heads <= 8) & (not volta) & (p.tokens <= 8 // heads), 8, rows)
    return heads, rows // heads


def _glm_heads(p: FattnProblem) -> IntArray:
    """ncols2 for 20 heads of one latent (GLM 4.7 Flash), which has rules of its own."""
    few = p.tokens <= 4
    if p.cc >= DGX_SPARK:
        return np.where(p.tokens <= 8, 16, 4)
    if p.cc >= BLACKWELL:
        return np.where(few & (p.keys >= 65536), 16, 4)
    if p.cc >= ADA:
        return np.where(few, 16, 4)
    if p.cc >= TURING:
        return np.where(few, np.where(p.keys <= 16384, 16, 32), 4)
    return np.full_like(p.tokens, 4)


def _tile_columns(p: FattnProblem, used: BoolArray) -> tuple[IntArray, IntArray]:
    """(ncols2, ncols1) of the CUDA-core kernel [N]; GateError where `used` meets a shape that is not compiled."""
    limited = p.group <= 4 and p.v_dim <= 256  # packing did not pay there on Pascal and older
    packs = p.packs & ((p.tokens <= 16) | (not limited))
    choices = {320: (16,), 576: (16, 4), 192: (16, 8)}.get(p.head_dim, (8, 4, 2))
    most = next((n for n in choices if p.group % n == 0), 1)
    heads = np.where(packs, most, 1)
    if p.head_dim in (192, 320, 512, 576) and (used & (heads == 1)).any():
        raise GateError(f"llama-cpp: no CUDA-core kernel packs a group of {p.group} at head size {p.head_dim}", "group")
    rows: Any = 2
    for columns in (4, 8, 16, 32):
        if columns == 32 and p.head_dim > 256:
            break
        rows = np.where((heads <= columns) & (p.tokens > columns // 2 // heads), columns, rows)
    return heads, np.maximum(rows // heads, 1)
