"""How many blocks of a kernel an SM holds at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodecalc.intmath import cdiv, round_up

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

SMEM_RESERVED_BYTES = 1024  # what CUDA itself takes of shared memory for each block from compute capability 8.0 on
REGISTER_UNIT = 256  # registers are handed out to warps in units of 256 (CUDA occupancy, all capabilities since 3.0)


def blocks_per_sm(threads: int, smem_bytes: int, registers: int, gpu: Gpu) -> int:
    """Blocks that fit one SM at once (what the CUDA occupancy query answers); unknown GPU limits do not bind."""
    warps = cdiv(threads, 32)
    limits = [gpu.max_blocks_per_sm or 32]
    if gpu.max_threads_per_sm is not None:
        limits.append(gpu.max_threads_per_sm // (warps * 32))
    if gpu.smem_bytes_per_sm is not None:
        reserved = 0 if gpu.compute_capability is not None and gpu.compute_capability[0] < 8 else SMEM_RESERVED_BYTES
        if smem_bytes + reserved:  # a block without shared memory is not bound by it
            limits.append(gpu.smem_bytes_per_sm // (smem_bytes + reserved))
    if gpu.registers_per_sm is not None:
        limits.append(gpu.registers_per_sm // (warps * round_up(32 * registers, REGISTER_UNIT)))
    return max(min(limits), 1)
