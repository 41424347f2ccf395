"""What an engine folder says about calibrating its kernels: the interface between `engines/<folder>/fit.py` and
calibrate.

A folder that has a `fit.py` fills `SUBJECTS`, a tuple of `TimedEngine`: which kernels are fitted together, and which
layers, caches and settings are timed for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from decodecalc.calibrate.own.physics import COMMON
from decodecalc.cost.parameters import Variant
from decodecalc.engines.registry import folder_modules
from decodecalc.errors import InputError
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache

MOST_ROWS = 1 << 20
Range = tuple[float, float, float, float | None]

# Layers of models that people serve, on one rank or several: groups of 1 to 16 query heads, the widths 64, 128 and 256.
GQA = tuple(
    Geometry(q_heads, kv_heads, head_dim)
    for q_heads, kv_heads, head_dim in (
        (32, 8, 128), (8, 1, 128), (64, 8, 64), (16, 8, 256), (28, 4, 128), (16, 1, 128), (32, 32, 128), (8, 1, 64),
        (64, 4, 128), (4, 1, 256), (16, 2, 128), (20, 20, 64), (14, 2, 64), (5, 1, 128),
    )
)  # fmt: skip
MLA = tuple(Geometry(q_heads, 1, 576, head_dim_v=512, mla=True) for q_heads in (16, 128, 32, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFamily:
    """Kernels compiled from one source, so that their numbers lie near each other: they are fitted together."""

    name: str
    """For people."""
    kernels: tuple[str, ...]
    """Their names in a calibration."""
    slots: Mapping[tuple[int, ...], int]
    """Blocks of an SM, by (bytes of an element, width of K); or by (…, rows of a block, 1 with one KV head)."""
    searched: bool = True
    """Whether the slots of a variant that `slots` has no entry for, and on GPUs of another compute capability than
    `slots_of_capability`, are searched for; otherwise a block fills its SM by design."""
    slots_of_capability: tuple[int, int] = (9, 0)
    """The compute capability that `slots` was found on."""
    by_layout: bool = False
    """Whether a layer of one KV head runs another compiled kernel (Triton compiles in an argument that is 1)."""
    numbers: Mapping[str, Range] = field(default_factory=lambda: dict(COMMON))
    """The numbers that are fitted: `physics.COMMON`, and more."""
    mla: bool = False
    """Whether the layers are of MLA."""
    rows: tuple[int, int] = (1, MOST_ROWS)
    """Query rows of a block, least and most: where an engine has one source for few rows and another for many."""

    def holds(self, variant: Variant) -> bool:
        """Whether the family holds this kernel."""
        alike = variant.kernel in self.kernels and (variant.head_dim_v == 0) == self.mla
        return alike and self.rows[0] <= variant.rows <= self.rows[1]

    def key(self, variant: Variant) -> Variant:
        """The kernel that `variant` is compiled to."""
        return variant if self.by_layout else variant._replace(layout="paged")

    def slots_of(self, variant: Variant) -> int | None:
        """Blocks of this kernel that an SM holds: registers and shared memory set it; the timings show its edges. None
        where nobody knows."""
        if variant.resident:
            return variant.resident
        size = 1 if variant.dtype == "fp8" else 2
        exact = (size, variant.head_dim, variant.rows, int(variant.layout == "run"))
        return self.slots.get(exact) or self.slots.get((size, variant.head_dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way in which an engine is called, and the values of its split setting then."""

    name: str = ""
    """For files of times: settings of one step are compared within a mode."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that make it; with these alone the engine follows its own rule."""
    settings: tuple[Mapping[str, Any], ...] = ()
    """Further options, one at a time: of these some are timed on every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEngine:
    """One engine's kernels as they are timed and fitted."""

    engine: str
    """The engine's name in the registry."""
    families: tuple[CompiledFamily, ...]
    """The kernels."""
    layers: tuple[Geometry, ...] = GQA
    """Layers that are timed."""
    caches: tuple[KvCache, ...] = (KvCache("bf16", 16),)
    """Caches that are timed; the first one most."""
    q_lens: tuple[int, ...] = (1,)
    """Query tokens of a request that are timed; the first one most."""
    modes: tuple[Mode, ...] = (Mode(),)
    """Ways in which the engine is called; every step is timed in each."""


def all_subjects() -> dict[str, TimedEngine]:
    """The subjects of every engine folder that has a `fit.py`, by the engine's name."""
    return {subject.engine: subject for module in folder_modules("fit") for subject in module.SUBJECTS}


def subject_of(engine: str) -> TimedEngine:
    """What is timed of one engine. InputError names those that there are."""
    known = all_subjects()
    if engine not in known:
        raise InputError(f"{engine[:60]!r} is no engine whose kernel can be calibrated; those are {', '.join(known)}")
    return known[engine]
