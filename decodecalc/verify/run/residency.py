"""How many blocks of a kernel an SM holds at a time, from what the kernel needs and what an SM has.

This is NVIDIA's occupancy arithmetic (CUDA C++ Programming Guide, "Multiprocessor Level"; the calculator inside Nsight
Compute). Registers are given to a warp in units of 256 and shared memory to a block in units of 128 bytes. Since
compute capability 8.0 the system keeps 1 KB of shared memory for every block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from decodecalc.intmath import cdiv, round_up

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

REGISTER_UNIT = 256
SHARED_UNIT = 128
RESERVED_SHARED_BYTES = 1024
SM_PARTITIONS = 4  # warp schedulers, each with a quarter of the registers


def resident_blocks(gpu: Gpu, threads: int, registers: int, shared_bytes: int) -> int | None:
    """Blocks that an SM of `gpu` holds; None when the GPU's limits are not known.

    >>> from decodecalc.gpus import load_gpu
    >>> resident_blocks(load_gpu("h200"), 128, 168, 49152)
    3
    """
    limits = (gpu.registers_per_sm, gpu.smem_bytes_per_sm, gpu.max_threads_per_sm)
    if None in limits:
        return None
    all_registers, all_shared, all_threads = (int(limit) for limit in limits if limit is not None)
    warps = cdiv(threads, 32)
    by_threads = all_threads // (warps * 32)
    per_partition = all_registers // SM_PARTITIONS // round_up(max(registers, 1) * 32, REGISTER_UNIT)
    by_registers = per_partition * SM_PARTITIONS // warps
    by_shared = all_shared // (round_up(shared_bytes, SHARED_UNIT) + RESERVED_SHARED_BYTES)
    return max(0, min(by_threads, by_registers, by_shared, gpu.max_blocks_per_sm or by_threads))


def most_at_once(blocks: Iterable[tuple[int, int, int]]) -> int:
    """The most blocks that were on one SM at one time. blocks: (SM, begin, finish), with one clock for all.

    A block that finishes at the instant at which another begins is counted as having made room for it, so coarse clocks
    give a lower bound.

    >>> most_at_once([(0, 1, 5), (0, 5, 9), (1, 1, 9), (1, 2, 3)])
    2
    """
    steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for sm, begin, finish in blocks:
        if finish > begin:
            steps[sm] += [(begin, 1), (finish, -1)]
    most = 0
    for moments in steps.values():
        now = 0
        for _, change in sorted(moments):
            now += change
            most = max(most, now)
    return most
