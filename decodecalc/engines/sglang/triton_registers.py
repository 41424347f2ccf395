"""Blocks of SGLang's Triton decode kernels that an SM holds at once: registers decide.

Triton compiles the group of a layer, and a stride that is 1 (one KV head), into the kernel, and the registers of a
thread follow them: an SM holds six blocks of a group of 4, and five of a group of 8.

Registers by ptxas for compute capability 9.0: Triton 3.6.0 on
sglang/srt/layers/attention/triton_ops/decode_attention.py of SGLang 0.5.10, 16-bit caches, neither sinks nor a soft cap
(`python -m benchmarks.compiled_registers sglang-triton`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodecalc.intmath import next_power_of_2
from decodecalc.kvcache import DTYPE_BYTES
from decodecalc.launch.resident import blocks_per_sm

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

# (padded width, one KV head) -> registers for groups of 1 (a kernel of its own) to 16.
REGISTERS = {
    (64, False): (64, 64, 64, 64, 64, 64, 64, 64, 71, 71, 71, 71, 71, 71, 71, 64),
    (64, True): (64, 64, 64, 64, 64, 64, 64, 64, 68, 68, 68, 68, 68, 68, 68, 64),
    (128, False): (93, 80, 80, 80, 79, 79, 79, 88, 88, 88, 88, 79, 88, 88, 88, 87),
    (128, True): (93, 88, 88, 80, 88, 88, 88, 90, 88, 88, 88, 80, 90, 90, 90, 72),
    (256, False): (128, 111, 112, 114, 112, 114, 112, 110, 118, 110, 146, 112, 148, 110, 146, 109),
    (256, True): (128, 111, 108, 110, 109, 111, 107, 110, 96, 109, 144, 110, 142, 109, 144, 109),
}
THREADS = 128


def resident_blocks(geo: Geometry, kv: KvCache, gpu: Gpu) -> int:
    """Blocks of a step that an SM holds; 0 for groups, widths, types and GPUs that were not compiled for."""
    found = REGISTERS.get((next_power_of_2(geo.head_dim), geo.kv_heads == 1))
    if gpu.is_hip or geo.mla or found is None or geo.group > len(found) or DTYPE_BYTES[kv.dtype] != 2:
        return 0
    return blocks_per_sm(THREADS, 0, found[geo.group - 1], gpu)
