"""From a launch to the parameters of the kernel that runs it: exact variant, interpolated, or another's kernel.

An engine's own kernel is used where it was measured. Where it was not, the bundled kernel stands in under the engine's
rule, and the prediction says so. A variant that was not measured is interpolated along the bytes of a tile between the
nearest variants of the same kernel, and its parameters are marked extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import log2
from typing import TYPE_CHECKING

from decodecalc.cost.calibration import Calibration, Values
from decodecalc.cost.parameters import EXTRAPOLATED, Parameter, Variant
from decodecalc.errors import InputError
from decodecalc.intmath import next_power_of_2
from decodecalc.kvcache import DTYPE_BYTES
from decodecalc.record import record

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.kvcache import KvCache

BUNDLED = "bundled"
# Engine -> the kernels of its unsplit and split path, as calibrations name them.
ENGINE_KERNELS = {
    "vllm-triton": ("vllm-triton-2d", "vllm-triton-3d"),
    "sglang-triton": ("sglang-triton", "sglang-triton"),
    "flash-attention-3": ("flash-attention-3", "flash-attention-3"),
    "flashinfer": ("flashinfer", "flashinfer"),
    "bundled": (BUNDLED, BUNDLED),
}
WIDER_INTERPOLATED = 1.5  # an interpolated variant's interval, against a measured one's
FURTHEST = 4.0  # interpolation is not carried further than this ratio from the nearest variant


@record
class Resolved:
    """A variant's parameters. `wanted` is what runs, `used` the nearest measured variant behind the numbers."""

    wanted: Variant
    used: Variant
    values: Values
    exact: bool

    @property
    def note(self) -> str:
        """What had to be assumed; empty when the variant itself was measured."""
        if self.exact:
            return ""
        if self.wanted.kernel != self.used.kernel:
            return f"{self.wanted.kernel} was not calibrated: {self.used.label()} stands in"
        return f"{self.wanted.label()} interpolated from {self.used.label()}"


def kernel_of(engine: str, is_split: bool, calibration: Calibration) -> str:
    """The kernel that `engine` runs, or the bundled one where the engine's own was not measured."""
    name = ENGINE_KERNELS.get(engine, (engine, engine))[bool(is_split)]
    return name if name in calibration.kernels() else BUNDLED


def tile_bytes(variant: Variant) -> float:
    """K and V bytes that one tile of one KV head holds (an MLA latent counts once: its head_dim_v is 0)."""
    return variant.tile_keys * (variant.head_dim + variant.head_dim_v) * DTYPE_BYTES[variant.dtype]


def wanted_variant(
    kernel: str, geo: Geometry, kv: KvCache, tile_keys: int, rows: int, warps: int = 0, stages: int = 0
) -> Variant:
    """The variant that a launch of this shape needs.

    Widths are those that the bundled kernel computes with: powers of two (80 costs a tile what 128 does; bytes are
    counted apart). MLA's value is a view of its latent: its width counts 0.
    """
    layout = "flat" if kv.page_size == 1 else "run" if geo.kv_heads == 1 else "paged"
    key, value = geo.head_dim, 0 if geo.mla else geo.v_dim
    if kernel == BUNDLED and not geo.mla:
        key, value = next_power_of_2(key), next_power_of_2(value)
    return Variant(kernel, kv.dtype, key, value, int(tile_keys), int(rows), warps, stages, layout)


@lru_cache(maxsize=4096)
def resolve(calibration: Calibration, wanted: Variant) -> Resolved:
    """Parameters of `wanted`, cached per calibration. InputError when there is no variant to start from."""
    variants = calibration.variants
    if wanted in variants:
        return Resolved(wanted, wanted, variants[wanted], True)
    pool = [v for v in variants if v.kernel == wanted.kernel] or [v for v in variants if v.kernel == BUNDLED]
    if not pool:
        raise InputError(f"the calibration has no variant of {wanted.kernel} nor of the bundled kernel")
    ranked = sorted(pool, key=lambda v: _distance(v, wanted))
    nearest = ranked[0]
    if wanted.warps == 0 and nearest == wanted._replace(warps=nearest.warps, stages=nearest.stages):
        return Resolved(wanted, nearest, variants[nearest], True)
    return Resolved(wanted, nearest, _interpolated(variants, ranked, wanted), False)


def _distance(variant: Variant, wanted: Variant) -> float:
    """How unlike two variants are. Doubling the tile counts most: it sets the latency that a loop hides."""

    def ratio(a: float, b: float) -> float:
        return abs(log2(max(a, 1) / max(b, 1)))

    return (
        3.0 * (variant.dtype != wanted.dtype) * (1 + (DTYPE_BYTES[variant.dtype] != DTYPE_BYTES[wanted.dtype]))
        + 2.0 * ratio(variant.tile_keys, wanted.tile_keys)
        + 1.0 * ratio(variant.rows, wanted.rows)
        + 1.5 * ratio(variant.head_dim + variant.head_dim_v, wanted.head_dim + wanted.head_dim_v)
        + 0.5 * (variant.layout != wanted.layout)
        + (0.25 * ratio(variant.warps, wanted.warps) if wanted.warps else 0.0)
        + (0.1 * abs(variant.stages - wanted.stages) if wanted.stages else 0.0)
    )


def _interpolated(variants: Mapping[Variant, Values], ranked: list[Variant], wanted: Variant) -> Values:
    """The nearest variant's parameters with its tile times moved along the tile's bytes.

    The slope comes from the nearest variant that differs in nothing but the tile's bytes' cause (head width), so
    that warps, stages and rows do not leak into it; without one, tile times scale with the square root of the bytes
    (half latency, half transfer).
    """
    nearest = ranked[0]
    size, here = tile_bytes(wanted), tile_bytes(nearest)
    same = [
        v
        for v in ranked[1:]
        if v[5:] == nearest[5:]
        and v.dtype == nearest.dtype
        and v.tile_keys == nearest.tile_keys
        and tile_bytes(v) != here
    ]
    out = {}
    for name, p in variants[nearest].items():
        value = p.value
        if name.startswith("tau") and size != here and value > 0:
            if same:
                other, there = variants[same[0]][name].value, tile_bytes(same[0])
                value += (other - value) * (size - here) / (there - here)
            else:
                value *= (size / here) ** 0.5
            value = min(max(value, p.value / FURTHEST), p.value * FURTHEST)
        out[name] = Parameter(name, value, EXTRAPOLATED, p.spread, f"from {nearest.label()}")
    return out
