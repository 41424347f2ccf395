"""FlashInfer's decode, XQA and MLA kernels as `calibrate --engine` times and fits them."""

from __future__ import annotations

from decodecalc.calibrate.own.family import MLA, MOST_ROWS, CompiledFamily, Mode, TimedEngine
from decodecalc.calibrate.own.physics import COMMON
from decodecalc.kvcache import KvCache

# The rows of a block are the group's query heads on CUDA cores, and 16 or more on tensor cores. A group of 16 on CUDA
# cores is fitted with the tensor cores' kernels.
TENSOR_ROWS = 16

SUBJECTS = (
    TimedEngine(
        engine="flashinfer",
        families=(
            CompiledFamily(
                name="FlashInfer on tensor cores",
                kernels=("flashinfer",),
                slots={(2, 64): 2, (2, 128): 2, (2, 256): 2},
                rows=(TENSOR_ROWS, MOST_ROWS),
            ),
            CompiledFamily(
                name="FlashInfer on CUDA cores",
                kernels=("flashinfer",),
                slots={(2, 64): 6, (2, 128): 6, (2, 256): 3},
                rows=(1, TENSOR_ROWS - 1),
            ),
        ),
        caches=(KvCache("bf16", 16), KvCache("bf16", 64), KvCache("bf16", 1)),
        modes=(
            Mode(name="tensor cores", options={"path": "tensor_cores"}),
            Mode(name="CUDA cores", options={"path": "cuda_cores"}),
        ),
    ),
    TimedEngine(
        engine="flashinfer-xqa",
        families=(
            CompiledFamily(
                name="XQA of FlashInfer",
                kernels=("flashinfer-xqa",),
                slots={(2, 64): 1, (2, 128): 1, (2, 256): 1},
                searched=False,
            ),
        ),
        caches=(KvCache("bf16", 16), KvCache("bf16", 64), KvCache("bf16", 128)),
    ),
    TimedEngine(
        engine="flashinfer-mla",
        families=(
            CompiledFamily(
                name="FlashInfer MLA",
                kernels=("flashinfer-mla",),
                slots={(2, 576): 1},
                searched=False,
                mla=True,
                numbers={**COMMON, "start_s": (6e-6, 1e-6, 20e-6, 0.3)},
            ),
        ),
        layers=MLA,
        caches=(KvCache("bf16", 64), KvCache("bf16", 1)),
    ),
)
