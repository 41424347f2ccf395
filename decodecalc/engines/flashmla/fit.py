"""FlashMLA's dense decode as `calibrate --engine` times and fits it."""

from __future__ import annotations

from decodecalc.calibrate.own.family import MLA, CompiledFamily, TimedEngine
from decodecalc.calibrate.own.physics import COMMON
from decodecalc.kvcache import KvCache

SUBJECTS = (
    TimedEngine(
        engine="flashmla",
        families=(
            CompiledFamily(
                name="FlashMLA",
                kernels=("flashmla",),
                slots={(2, 576): 1},
                searched=False,
                mla=True,
                numbers={**COMMON, "start_s": (6e-6, 1e-6, 20e-6, 0.3), "merge_state_s": (2e-7, 1e-9, 1e-6, 0.3)},
            ),
        ),
        layers=MLA,
        caches=(KvCache("bf16", 64),),
    ),
)
