"""SGLang's Triton decode kernels as `calibrate --engine` times and fits them."""

from __future__ import annotations

from decodecalc.calibrate.own.family import GQA, MLA, CompiledFamily, Mode, TimedEngine
from decodecalc.calibrate.own.physics import COMMON, IDLE, WALKS
from decodecalc.kvcache import KvCache

SUBJECTS = (
    TimedEngine(
        engine="sglang-triton",
        families=(
            CompiledFamily(
                name="SGLang Triton",
                kernels=("sglang-triton",),
                slots={(2, 128): 6, (2, 128, 16, 1): 5, (2, 64): 8, (2, 256): 4, (2, 128, 1, 0): 10, (2, 64, 1, 0): 7},
                by_layout=True,
                numbers={**COMMON, **WALKS, **IDLE},
            ),
            CompiledFamily(
                name="SGLang Triton MLA",
                kernels=("sglang-triton",),
                slots={(2, 576): 2},
                mla=True,
                numbers={
                    **COMMON, **WALKS, **IDLE, "tile_s": (4e-6, 1e-6, 2e-5, 0.5), "sm_tile_s": (1e-6, 1e-7, 5e-6, 0.5),
                },
            ),
        ),
        layers=(*GQA, *MLA),
        caches=(KvCache("bf16", 16), KvCache("bf16", 1), KvCache("bf16", 64)),
        modes=(Mode(settings=tuple({"max_kv_splits_arg": cap} for cap in (16, 32, 64, 128))),),
    ),
)  # fmt: skip
