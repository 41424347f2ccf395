"""Blocks of vLLM's unified Triton kernel that an SM holds at once: registers decide.

Triton compiles the group of a layer into the kernel, and the registers of a thread follow it: with an FP8 cache of
width 128 an SM holds three blocks of a group of 1, 5 or 7, and four of a group of 4 or 8.

Registers by ptxas for compute capability 9.0: Triton 3.6.0 on vllm/v1/attention/ops/triton_unified_attention.py of vLLM
0.33.0, pages of 16 keys, neither window nor sinks (`python -m benchmarks.compiled_registers vllm-triton`). Larger pages
change the count of blocks for the unsplit kernel of a 16-bit cache only, by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.intmath import next_power_of_2
from decodecalc.kvcache import DTYPE_BYTES
from decodecalc.launch.resident import blocks_per_sm

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

# (bytes of a cache element, padded width, split) -> registers for groups of 1 to 16.
REGISTERS = {
    (2, 64, False): (78, 79, 70, 79, 70, 70, 70, 59, 68, 70, 70, 70, 70, 70, 70, 59),
    (2, 64, True): (75, 77, 78, 76, 76, 76, 76, 64, 69, 70, 70, 70, 70, 70, 70, 64),
    (2, 128, False): (113, 112, 112, 112, 112, 112, 112, 90, 80, 92, 92, 92, 92, 92, 92, 79),
    (2, 128, True): (96, 94, 112, 88, 92, 92, 92, 88, 106, 108, 92, 80, 106, 106, 92, 72),
    (2, 256, False): (154, 154, 155, 154, 154, 154, 154, 151, 154, 153, 153, 154, 154, 154, 154, 149),
    (2, 256, True): (146, 148, 156, 140, 152, 120, 148, 128, 120, 116, 146, 140, 146, 112, 144, 108),
    (1, 64, False): (92, 92, 92, 92, 92, 92, 92, 89, 90, 92, 92, 92, 92, 92, 92, 89),
    (1, 64, True): (114, 116, 116, 116, 118, 118, 118, 90, 95, 116, 116, 116, 116, 116, 116, 96),
    (1, 128, False): (142, 142, 142, 142, 142, 142, 142, 128, 140, 134, 134, 134, 134, 134, 134, 128),
    (1, 128, True): (142, 148, 166, 128, 164, 140, 164, 124, 135, 137, 162, 126, 138, 138, 138, 124),
    (1, 256, False): (224, 224, 226, 214, 224, 222, 222, 212, 218, 220, 220, 216, 218, 218, 216, 212),
    (1, 256, True): (196, 182, 194, 202, 194, 192, 192, 168, 192, 190, 190, 168, 190, 168, 188, 168),
}
# Where one KV head (strides that are 1) makes another count of blocks: (…, group) -> registers.
ONE_KV_HEAD = {(2, 64, False, 1): 71, (2, 64, True, 2): 72, (2, 64, True, 8): 56, (2, 128, False, 8): 78}
# Shared memory of a block by the same key: (2, 256, False) has the most, and five blocks of it fit on an SM.
SHARED_BYTES = 42_240


def resident_blocks(geo: Geometry, kv: KvCache, gpu: Gpu, is_split: Any, threads: int) -> Any:
    """Blocks of a step that an SM holds [N]; 0 for groups, widths and types that were not compiled."""
    size, width = DTYPE_BYTES[kv.dtype], next_power_of_2(geo.head_dim)
    if (size, width, True) not in REGISTERS or geo.group > len(REGISTERS[2, 64, True]):
        return np.zeros_like(np.asarray(is_split), dtype=np.int64)

    def blocks(split: bool) -> int:
        registers = REGISTERS[int(size), width, split][geo.group - 1]
        if geo.kv_heads == 1:
            registers = ONE_KV_HEAD.get((int(size), width, split, geo.group), registers)
        return blocks_per_sm(threads, SHARED_BYTES if (size, width, split) == (2, 256, False) else 0, registers, gpu)

    return np.where(is_split, blocks(True), blocks(False))
