"""The decode kernels that TurboMind registers, and which of them serves a group of query heads.

Read from InternLM/lmdeploy@1263d5c (2026-08-21): src/turbomind/kernels/attention/kernel/decoding_sm{70,75,80}_*.cu (the
registrations), registry.cu (`Registry::Find`) and arch.h (`is_arch_compatible`).
"""

from __future__ import annotations

from dataclasses import dataclass

from decodecalc.intmath import cdiv

WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeKernel:
    """One registered decode kernel."""

    arch: int
    """Compute capability whose family it is compiled for: 70, 75 or 80 (8.0 and everything newer)."""
    cta_h: int
    """Query heads of a block (CTA_H)."""
    cta_s: int
    """Keys of a tile (CTA_S)."""
    warp_h: int
    """Query heads of a warp (WARP_H)."""
    warp_s: int
    """Keys of a warp (WARP_S)."""

    @property
    def threads(self) -> int:
        """Threads of a block: one warp for each share of heads and keys."""
        return (self.cta_h // self.warp_h) * (self.cta_s // self.warp_s) * WARP


def kernel_arch(sm: int) -> int | None:
    """The kernel family of a compute capability (90 for 9.0): 70, 75, 80, or None below 7.0."""
    return 80 if sm >= 80 else 75 if sm >= 75 else 70 if sm >= 70 else None


def registered(arch: int, head_dim: int, quant_bits: int) -> tuple[DecodeKernel, ...]:
    """The kernels of one family for a head size and a cache of `quant_bits` bits (0: not quantised); empty for none."""
    shapes: tuple[tuple[int, int, int, int], ...] = ()  # cta_h, cta_s, warp_h, warp_s
    if arch == 70:
        if head_dim in (64, 128, 256):
            tile = 32 if head_dim == 256 else 64
            shapes = tuple((heads, tile, heads, 16) for heads in (1, 2, 3))
        elif head_dim == 576:
            shapes = ((2, 16, 1, 8),)
    elif arch == 75:
        if head_dim in (64, 128):
            shapes = tuple((heads, 64, heads, 16) for heads in (8, 16))
        elif head_dim == 256:
            shapes = tuple((heads, 32, heads, 16) for heads in (1, 16))
        elif head_dim == 576:
            shapes = ((16, 32, 8, 16),)
    elif head_dim in (64, 128, 256):
        # Caches that are not quantised have CUDA-core kernels for one and two heads beside the tensor-core ones.
        heads_of = (8, 16) if quant_bits else (1, 2, 8, 16)
        shapes = tuple((heads, 64, heads, 16) for heads in heads_of)
    elif head_dim == 192 and quant_bits != 4:
        shapes = ((1, 64, 1, 16),)
    elif head_dim == 576:
        shapes = ((8, 64, 8, 16),) if quant_bits else ((16, 32, 8, 16),)
    return tuple(DecodeKernel(arch=arch, cta_h=h, cta_s=s, warp_h=wh, warp_s=ws) for h, s, wh, ws in shapes)


def find(kernels: tuple[DecodeKernel, ...], group: int) -> DecodeKernel | None:
    """The kernel for `group` query heads of a KV head: fewest blocks, then fewest unused rows, unless more rows are
    unused than used (`Registry::Find`). The first registered one wins a tie; None where none is registered."""

    def cost(kernel: DecodeKernel) -> tuple[bool, int, int]:
        blocks = cdiv(group, kernel.cta_h)
        waste = kernel.cta_h * blocks - group
        return waste > group, blocks, waste

    return min(kernels, key=cost, default=None)
