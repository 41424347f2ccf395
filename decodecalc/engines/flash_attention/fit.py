"""FlashAttention 2 and 3 as `calibrate --engine` times and fits them."""

from __future__ import annotations

from decodecalc.calibrate.own.family import CompiledFamily, Mode, TimedEngine
from decodecalc.calibrate.own.physics import COMMON, COPIES, SCHEDULED, WALKS
from decodecalc.kvcache import KvCache

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
BOUNDS = (4, 8, 16, 64, 128)  # of the splits under CUDA graphs; vLLM's own is 32
ONE_BLOCK: dict[tuple[int, ...], int] = {(size, width): 1 for size in (1, 2) for width in (64, 128, 256)}

SUBJECTS = (
    TimedEngine(
        engine="flash-attention-2",
        families=(
            CompiledFamily(
                name="FlashAttention-2",
                kernels=("flash-attention-2",),
                slots={(2, 64): 2, (2, 128): 2, (2, 256): 2},
                numbers={**COMMON, **COPIES, "start_s": (6e-6, 1e-6, 20e-6, 0.3)},
            ),
        ),
        caches=(KvCache("bf16", 16), KvCache("bf16", 64)),
    ),
    TimedEngine(
        engine="flash-attention-3",
        families=(
            CompiledFamily(
                name="FlashAttention-3",
                kernels=("flash-attention-3",),
                slots=ONE_BLOCK,
                searched=False,
                numbers={**COMMON, **WALKS, **SCHEDULED, "start_s": (6e-6, 1e-6, 20e-6, 0.3)},
            ),
        ),
        caches=(
            KvCache("bf16", 16), KvCache("fp8", 16), KvCache("bf16", 64), KvCache("bf16", 128), KvCache("bf16", 256),
            KvCache("fp8", 64),
        ),
        modes=(
            Mode(settings=tuple({"num_splits_arg": count} for count in COUNTS)),
            Mode(
                name="graph",
                options={"cuda_graph": True},
                settings=tuple({"max_num_splits_for_cuda_graph": count} for count in BOUNDS),
            ),
        ),
    ),
)  # fmt: skip
