"""Configuration tables of ggml's CUDA FlashAttention kernels on NVIDIA GPUs: threads, key tiles, pipeline stages.

Read from ggml-org/ggml@d99724f (2026-08-21): src/ggml-cuda/fattn-mma-f16.cuh (`ggml_cuda_fattn_mma_get_config_ampere`,
`_turing`, `_volta`, `ggml_cuda_flash_attn_ext_mma_f16_case`), fattn-tile.cuh
(`ggml_cuda_fattn_tile_get_config_nvidia_fp16`, `_nvidia_fp32`) and common.cuh (compute capabilities,
`fast_fp16_available`, `cp_async_available`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PASCAL, PASCAL_DP4A, VOLTA, TURING, AMPERE, ADA, BLACKWELL, DGX_SPARK = 600, 610, 700, 750, 800, 890, 1200, 1210
HALF2 = 4  # bytes of two 16-bit values


@dataclass(frozen=True, slots=True, kw_only=True)
class MmaConfig:
    """One tensor-core kernel's configuration (`fattn_mma_config`)."""

    threads: int
    """Threads of a block."""
    occupancy: int
    """Blocks per SM that the kernel is compiled for."""
    batch_fa: int
    """Keys of a tile."""
    batch_k2: int
    """Pairs of K values along the head that are loaded at once."""
    batch_v2: int
    """Pairs of V values along the head that are loaded at once."""
    batch_combine: int
    """Pairs of values along the head that are combined at once."""
    stages: int
    """Stages of the loading pipeline where the device copies asynchronously."""
    q_in_registers: bool = True
    """Whether queries stay in registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """One CUDA-core kernel's configuration."""

    threads: int
    """Threads of a block."""
    occupancy: int
    """Blocks per SM that the kernel is compiled for."""
    batch_fa: int
    """Keys of a tile."""


def mma_config(head_dim: int, columns: int, cc: int) -> MmaConfig:
    """The configuration of the tensor-core kernel for `columns` query rows of a block on compute capability `cc`."""
    if AMPERE > cc >= TURING and head_dim == 256:
        return MmaConfig(
            threads=128, occupancy=2, batch_fa=64, batch_k2=128, batch_v2=128,
            batch_combine=128 if columns <= 16 else 64, stages=2,
        )  # fmt: skip
    config = _ampere(head_dim, columns)
    if head_dim in (512, 576):
        if cc < TURING:
            return replace(config, batch_combine=64)
        if cc < AMPERE and columns <= 16:
            return replace(config, batch_k2=96, batch_v2=64)
    return config


def _ampere(head_dim: int, columns: int) -> MmaConfig:
    half = head_dim // 2
    if head_dim <= 128:
        return MmaConfig(
            threads=128, occupancy=2, batch_fa=128 if columns == 8 else 64, batch_k2=half, batch_v2=half,
            batch_combine=half, stages=2,
        )  # fmt: skip
    threads, occupancy = {8: (64, 4), 16: (64, 4), 32: (128, 2), 64: (256, 1)}[columns]
    if head_dim in (192, 256):
        values = 64 if head_dim == 192 else 128
        threads, occupancy = (64, 4) if columns <= 16 else (128, 2)
        return MmaConfig(
            threads=threads, occupancy=occupancy, batch_fa=64 if columns == 8 else 32, batch_k2=half, batch_v2=values,
            batch_combine=values, stages=2,
        )  # fmt: skip
    if head_dim == 320:
        keys, values = 128, 128
    elif columns <= 16:
        keys, values = half, 256
    else:
        keys, values = (128 if head_dim == 512 else 160), 128
    return MmaConfig(
        threads=threads, occupancy=occupancy, batch_fa=32, batch_k2=keys, batch_v2=values, batch_combine=128, stages=1,
        q_in_registers=False,
    )  # fmt: skip


def mma_shared_bytes(head_dim: int, ncols1: int, ncols2: int, cc: int) -> int:
    """Dynamic shared memory of the tensor-core kernel: `ggml_cuda_flash_attn_ext_mma_f16_case`."""
    columns = ncols1 * ncols2
    config = mma_config(head_dim, columns, cc)
    stages = config.stages if cc >= AMPERE and ncols2 >= 2 else 0
    columns_of_warp = min(columns, 16 if cc >= TURING else 32)
    one = config.batch_fa * (max(config.batch_k2, config.batch_v2) + 4)
    two = config.batch_fa * (config.batch_k2 + 4 + config.batch_v2 + 4)
    keys = (one if stages <= 1 else two) + ncols1 * (config.batch_fa // 2 + 4)
    queries = columns * (head_dim // 2 + 4)
    combine = config.threads // 32 * columns_of_warp * (config.batch_combine + 4)
    return HALF2 * max(combine, max(queries, keys) if config.q_in_registers else queries + keys)


# Without fast FP16 arithmetic: (head size, columns) -> threads, occupancy, keys; other sizes load 32 keys at a time.
_TILE_FP32 = {
    (64, 2): (128, 3, 64), (64, 4): (128, 3, 32), (64, 8): (128, 3, 32), (64, 16): (128, 3, 64), (64, 32): (256, 2, 64),
    (128, 2): (128, 3, 64), (128, 4): (128, 3, 32), (128, 8): (128, 3, 64), (128, 16): (128, 3, 32),
    (128, 32): (256, 2, 64), (192, 2): (128, 3, 64), (192, 4): (128, 3, 32), (256, 2): (128, 3, 64),
    (256, 4): (128, 3, 32),
}  # fmt: skip


def tile_config(head_dim: int, columns: int, cc: int) -> TileConfig:
    """The configuration of the CUDA-core kernel for `columns` query rows of a block on compute capability `cc`."""
    threads = {2: 64, 4: 128}.get(columns, 256)
    if cc >= PASCAL and cc != PASCAL_DP4A:  # fast_fp16_available
        return TileConfig(threads=threads, occupancy=2, batch_fa=64)
    threads, occupancy, keys = _TILE_FP32.get((head_dim, columns), (threads, 2, 32))
    return TileConfig(threads=threads, occupancy=occupancy, batch_fa=keys)
