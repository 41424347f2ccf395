"""vLLM's Triton kernels as `calibrate --engine` times and fits them."""

from __future__ import annotations

from decodecalc.calibrate.own.family import MLA, CompiledFamily, TimedEngine
from decodecalc.calibrate.own.physics import COMMON, IDLE
from decodecalc.kvcache import KvCache

SUBJECTS = (
    TimedEngine(
        engine="vllm-triton",
        families=(
            CompiledFamily(
                name="vLLM Triton",
                kernels=("vllm-triton-3d", "vllm-triton-2d"),
                slots={(2, 64): 16, (2, 128): 8, (2, 256): 4, (1, 64): 12, (1, 128): 6, (1, 256): 3},
                numbers={**COMMON, **IDLE},
            ),
        ),
        caches=(
            KvCache("bf16", 16), KvCache("fp8", 16), KvCache("bf16", 64), KvCache("bf16", 128), KvCache("bf16", 256),
            KvCache("fp8", 64),
        ),
    ),
    TimedEngine(
        engine="vllm-triton-mla",
        families=(
            CompiledFamily(
                name="vLLM Triton MLA",
                kernels=("vllm-triton-mla",),
                slots={(2, 576): 2},
                mla=True,
                numbers={
                    **COMMON, **IDLE, "tile_s": (3e-6, 1e-6, 2e-5, 0.5), "sm_tile_s": (1e-6, 1e-7, 5e-6, 0.5),
                },
            ),
        ),
        layers=MLA,
        caches=(KvCache("bf16", 64), KvCache("bf16", 16), KvCache("bf16", 128)),
    ),
)  # fmt: skip
