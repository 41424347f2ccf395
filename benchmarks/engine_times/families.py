"""Families of kernels: compiled from one source, so that their numbers lie near each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.engine_times.physics import COMMON, IDLE, WALKS
from decodecalc.cost.parameters import Variant

Range = tuple[float, float, float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Kernels that are fitted together."""

    name: str
    """For the report."""
    kernels: tuple[str, ...]
    """Their names in a calibration."""
    slots: Mapping[tuple[int, ...], int]
    """Blocks of an SM, by (bytes of an element, width of K); or by (…, rows of a block, 1 with one KV head)."""
    times: tuple[str, ...] = ()
    """The names of its times begin so; empty: every time that one of the kernels has."""
    by_layout: bool = False
    """Whether a layer of one KV head runs another compiled kernel (Triton compiles in an argument that is 1)."""
    numbers: Mapping[str, Range] = field(default_factory=lambda: dict(COMMON))
    """The numbers that are fitted: `physics.COMMON`, and more."""
    mla: bool = False
    """Whether the layers are of MLA."""

    def holds(self, variant: Variant) -> bool:
        """Whether the family holds this kernel."""
        return variant.kernel in self.kernels and (variant.head_dim_v == 0) == self.mla

    def key(self, variant: Variant) -> Variant:
        """The kernel that `variant` is compiled to."""
        return variant if self.by_layout else variant._replace(layout="paged")

    def slots_of(self, variant: Variant) -> int:
        """Blocks of this kernel that an SM holds: registers and shared memory set it; the timings show its edges."""
        size = 1 if variant.dtype == "fp8" else 2
        exact = (size, variant.head_dim, variant.rows, int(variant.layout == "run"))
        return self.slots.get(exact) or self.slots[size, variant.head_dim]


# The slots of a kernel are the count from 1 to 16 that its times fit best. Where launches of more blocks than fit at
# once were timed, the neighbouring counts were worse by a quarter or more.
FAMILIES = (
    Family(
        name="FlashAttention-3",
        kernels=("flash-attention-3",),
        slots={(size, width): 1 for size in (1, 2) for width in (64, 128, 256)},
        numbers={**COMMON, **WALKS, "start_s": (6e-6, 1e-6, 20e-6, 0.3)},
    ),
    Family(
        name="vLLM Triton",
        kernels=("vllm-triton-3d", "vllm-triton-2d"),
        slots={(2, 64): 16, (2, 128): 8, (2, 256): 4, (1, 64): 12, (1, 128): 6, (1, 256): 3},
        numbers={**COMMON, **IDLE},
    ),
    Family(
        name="SGLang Triton",
        kernels=("sglang-triton",),
        slots={(2, 128): 6, (2, 128, 16, 1): 5, (2, 64): 8, (2, 256): 4, (2, 128, 1, 0): 10, (2, 64, 1, 0): 7},
        by_layout=True,
        numbers={**COMMON, **WALKS, **IDLE},
    ),
    Family(
        name="SGLang Triton MLA",
        kernels=("sglang-triton",),
        slots={(2, 576): 2},
        mla=True,
        numbers={**COMMON, **WALKS, **IDLE, "tile_s": (4e-6, 1e-6, 2e-5, 0.5), "sm_tile_s": (1e-6, 1e-7, 5e-6, 0.5)},
    ),
    Family(
        name="vLLM Triton MLA",
        kernels=("vllm-triton-mla",),
        slots={(2, 576): 2},
        mla=True,
        numbers={**COMMON, **IDLE, "tile_s": (3e-6, 1e-6, 2e-5, 0.5), "sm_tile_s": (1e-6, 1e-7, 5e-6, 0.5)},
    ),
    Family(
        name="FlashMLA",
        kernels=("flashmla",),
        slots={(2, 576): 1},
        mla=True,
        numbers={**COMMON, "start_s": (6e-6, 1e-6, 20e-6, 0.3), "merge_state_s": (2e-7, 1e-9, 1e-6, 0.3)},
    ),
    Family(
        name="FlashInfer",
        kernels=("flashinfer",),
        slots={
            (2, 64): 2, (2, 128): 2, (2, 256): 2,
            (2, 128, 1, 0): 6, (2, 128, 1, 1): 6, (2, 128, 4, 0): 6, (2, 128, 4, 1): 6, (2, 128, 8, 0): 6,
            (2, 128, 8, 1): 6,
        },
    ),
    Family(name="XQA of FlashInfer", kernels=("flashinfer-xqa",), slots={(2, 64): 1, (2, 128): 1}),
)  # fmt: skip
