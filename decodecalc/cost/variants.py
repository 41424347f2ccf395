"""From a launch to the parameters of the kernel that runs it: exact variant, interpolated, or another's kernel.

An engine's own kernel is predicted where it was calibrated. Where it was not there is no time, unless the caller asks
for the bundled kernel under the engine's rule to stand in. A variant that was not measured takes the parameters of the
nearest one of the same kernel, its latency moved by what a tile computes on; they are marked extrapolated.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2
from typing import TYPE_CHECKING, NamedTuple

from decodecalc.cost.calibration import Calibration, Values
from decodecalc.cost.own_launch import in_warp_groups
from decodecalc.cost.parameters import EXTRAPOLATED, Parameter, Variant
from decodecalc.engines.registry import traits_of
from decodecalc.errors import InputError
from decodecalc.intmath import next_power_of_2
from decodecalc.kvcache import DTYPE_BYTES

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.kvcache import KvCache

BUNDLED = "bundled"
SPLIT, UNSPLIT = "split", "unsplit"  # paths of the bundled kernel
WIDER_INTERPOLATED = 1.5  # an extrapolated variant's interval, against a measured one's
OTHER_KERNEL = 100.0  # a block of warp groups runs another kernel: its times say nothing of the other's
FURTHEST = 4.0  # latency is not moved further than by this ratio


class Resolved(NamedTuple):
    """A variant's parameters. `wanted` is what runs, `used` the nearest measured variant behind the numbers; `slower`:
    the factor of its tiles' latency."""

    wanted: Variant
    used: Variant
    values: Values
    exact: bool
    slower: float = 1.0

    @property
    def note(self) -> str:
        """What had to be assumed; empty when the variant itself was measured."""
        if self.exact:
            return ""
        if self.wanted.kernel != self.used.kernel:
            return f"{self.wanted.kernel} was not calibrated: {self.used.label()} stands in"
        return f"{self.wanted.label()} extrapolated from {self.used.label()}"


def kernel_of(engine: str, is_split: bool) -> str:
    """The kernel that `engine` runs, by the name that a calibration has for it."""
    return traits_of(engine).time_kernel(engine, bool(is_split))


def is_calibrated(engine: str, is_split: bool, calibration: Calibration) -> bool:
    """Whether the calibration holds the kernel that `engine` runs."""
    return bool(calibration.of_kernel(kernel_of(engine, is_split)))


def tile_bytes(variant: Variant) -> float:
    """K and V bytes that one tile of one KV head holds (an MLA latent counts once: its head_dim_v is 0)."""
    return variant.tile_keys * (variant.head_dim + variant.head_dim_v) * DTYPE_BYTES[variant.dtype]


def tile_elements(variant: Variant) -> int:
    """Elements that one tile computes on: widths are padded to powers of two."""
    return variant.tile_keys * (next_power_of_2(variant.head_dim) + next_power_of_2(variant.head_dim_v))


def wanted_variant(
    kernel: str,
    geo: Geometry,
    kv: KvCache,
    tile_keys: int,
    rows: int,
    warps: int = 0,
    stages: int = 0,
    split: bool = True,
    resident: int = 0,
) -> Variant:
    """The variant that a launch of this shape needs. MLA's value is a view of its latent: its width counts 0."""
    layout = "flat" if kv.page_size == 1 else "run" if geo.kv_heads == 1 and kernel != BUNDLED else "paged"
    value = 0 if geo.mla else geo.v_dim
    path = (SPLIT if split else UNSPLIT) if kernel == BUNDLED else ""
    return Variant(
        kernel, kv.dtype, geo.head_dim, value, int(tile_keys), int(rows), warps, stages, layout, path, resident
    )


def on_path(variant: Variant, split: bool) -> Variant:
    """The bundled variant with the same tile for split or unsplit launches."""
    return variant._replace(path=SPLIT if split else UNSPLIT)


@lru_cache(maxsize=4096)
def resolve(calibration: Calibration, wanted: Variant) -> Resolved:
    """Parameters of `wanted`, cached per calibration. InputError when there is no variant to start from."""
    variants = calibration.variants
    if wanted in variants:
        return Resolved(wanted, wanted, variants[wanted], True)
    pool = calibration.of_kernel(wanted.kernel) or calibration.of_kernel(BUNDLED)
    if not pool:
        raise InputError(f"the calibration has no variant of {wanted.kernel} nor of the bundled kernel")
    ranked = sorted(pool, key=lambda v: _distance(v, wanted))
    nearest = ranked[0]
    alike = wanted  # what is not known of the one need not be that of the other
    if wanted.warps == 0:
        alike = alike._replace(warps=nearest.warps, stages=nearest.stages)
    if wanted.resident == 0 or nearest.resident == 0:
        alike = alike._replace(resident=nearest.resident)
    if nearest == alike:
        return Resolved(wanted, nearest, variants[nearest], True)
    # Half of a tile's latency is the way to its first element, half grows with what it computes on.
    ratio = (tile_elements(wanted) / tile_elements(nearest)) ** 0.5
    slower = min(max(ratio, 1 / FURTHEST), FURTHEST)
    values = _marked(variants[nearest], nearest)
    if wanted.resident and nearest.kernel == wanted.kernel:
        slots = values["slots_per_sm"]._replace(value=float(wanted.resident), note="as the kernel is compiled")
        values = {**values, "slots_per_sm": slots}
    return Resolved(wanted, nearest, values, False, slower)


def _marked(values: Values, origin: Variant) -> Values:
    """The values with their origin in place of their provenance."""
    note = f"from {origin.label()}"
    return {name: Parameter(name, p.value, EXTRAPOLATED, p.spread, note) for name, p in values.items()}


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
        + 4.0 * (variant.path != wanted.path)
        + (0.2 * ratio(variant.resident, wanted.resident) if wanted.resident and variant.resident else 0.0)
        + OTHER_KERNEL * (in_warp_groups(variant.warps) != in_warp_groups(wanted.warps))
        + 3.0 * ((variant.head_dim_v == 0) != (wanted.head_dim_v == 0))
        + (0.25 * ratio(variant.warps, wanted.warps) if wanted.warps else 0.0)
        + (0.1 * abs(variant.stages - wanted.stages) if wanted.stages else 0.0)
    )
