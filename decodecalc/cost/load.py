"""Which calibration serves a GPU: a file, or what the package ships for it and for its neighbours.

A shipped GPU's own numbers come first: measured ones, then those fitted to public timings. Kernels that neither holds
are extrapolated from the nearest calibrated GPU that has them. Every variant keeps its own provenance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import log2
from typing import TYPE_CHECKING, NamedTuple

from decodecalc.cost.calibration import Calibration, Values, Variants, parse_calibration, read_calibration
from decodecalc.cost.extrapolate import extrapolate, reference_of
from decodecalc.cost.parameters import FITTED, MEASURED, PER_KERNEL, Variant
from decodecalc.cost.variants import BUNDLED
from decodecalc.errors import InputError, check_type

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


class Shipped(NamedTuple):
    """A calibration in `decodecalc/data`, and what can be said of it without reading it."""

    file: str
    """Its file name."""
    gpu: str
    """The table entry of its GPU."""
    provenance: str
    """Measured, or fitted to public timings: the word for all of its numbers."""

    @property
    def reference(self) -> Gpu:
        """Its GPU."""
        from decodecalc.gpus import load_gpu

        return load_gpu(self.gpu)


# The first is measured; the others are what `python -m benchmarks.fit_public` writes.
SHIPPED = (
    Shipped("calibration_h200.json", "h200-sxm", MEASURED),
    Shipped("fitted_a100-sxm.json", "a100-sxm", FITTED),
    Shipped("fitted_l40s.json", "l40s", FITTED),
    Shipped("fitted_rtx-pro-6000-server.json", "rtx-pro-6000-server", FITTED),
    Shipped("fitted_h100-sxm.json", "h100-sxm", FITTED),
    Shipped("fitted_h200-sxm.json", "h200-sxm", FITTED),
    Shipped("fitted_b200-sxm.json", "b200-sxm", FITTED),
    Shipped("fitted_b300-sxm.json", "b300-sxm", FITTED),
    Shipped("fitted_gb200.json", "gb200", FITTED),
    Shipped("fitted_gb300.json", "gb300", FITTED),
)
_DATA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")
OTHER_ARCHITECTURE, OTHER_GENERATION = 1.0, 3.0
"""What another design of the same generation, and another generation, count against a factor of two in bandwidth."""


def load_calibration(spec: str | os.PathLike[str] | None = None, gpu: Gpu | str | None = None) -> Calibration:
    """The calibration for `gpu`: a file when `spec` is a path, else what is shipped for it, the rest extrapolated.

    gpu None takes the file's own GPU (or the measured one's). A file of another GPU than `gpu`, of another schema
    version, or that is damaged raises InputError.
    """
    from decodecalc.gpus import load_gpu

    device = None if gpu is None else load_gpu(gpu)
    if spec is not None:
        loaded = read_calibration(os.fspath(spec))
        if device is not None and not fits(loaded, device):
            raise InputError(
                f"calibration {os.fspath(spec)} was measured on {loaded.gpu['name']} ({loaded.gpu['sm_count']} SMs), "
                f"not on {device.label} ({device.sm_count} SMs): leave --calibration out to extrapolate, or run "
                "`decodecalc calibrate` there"
            )
        return loaded
    return _put_together(SHIPPED[0].reference if device is None else device)


def own_calibration(calibration: Calibration | None, gpu: Gpu) -> Calibration:
    """`calibration`, or the one for `gpu` where None was given. InputError where it is something else."""
    if calibration is None:
        return load_calibration(gpu=gpu)
    check_type("calibration", calibration, Calibration, "decodecalc.load_calibration(path) reads one")
    return calibration


def fits(calibration: Calibration, gpu: Gpu) -> bool:
    """Whether the calibration was taken on this kind of GPU: the same table entry or name, and as many SMs."""
    known = {calibration.gpu.get("table_name"), calibration.gpu["name"]} - {None}
    bandwidth = calibration.gpu.get("hbm_bytes_per_s")
    return _is_same_kind(known, calibration.gpu["sm_count"], bandwidth, gpu)


def _is_same_kind(known: set[str | None], sm_count: int, bandwidth: float | None, gpu: Gpu) -> bool:
    if sm_count != gpu.sm_count or not known & _names(gpu):
        return False
    return bandwidth is None or gpu.hbm_bytes_per_s is None or bandwidth == gpu.hbm_bytes_per_s


def _names(gpu: Gpu) -> set[str | None]:
    return {gpu.table_name, gpu.name, gpu.display_name, *gpu.device_names} - {None}


class _Shelf(Variants):
    """The variants of all shipped calibrations that say something of a GPU, its own first, then the nearest. A kernel
    of one element type and width comes from the first that has it.

    A file is read when a kernel is asked for that it may hold, and a variant is checked and extrapolated when it is
    asked for itself: a table of launches needs a few variants of one file.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        own = [s for s in SHIPPED if _serves(s, gpu)]
        others = [s for s in SHIPPED if s not in own and carries_over(s.provenance, s.reference, gpu)]
        others.sort(key=lambda s: unlikeness(s.reference, gpu))
        self.own, self.order = frozenset(own), (*own, *others)
        self._read: dict[Shipped, Calibration] = {}
        self._sources: dict[str, dict[Variant, tuple[Calibration, Variant]]] = {}
        self._found: dict[Variant, Values] = {}

    def calibration(self, shipped: Shipped) -> Calibration:
        """A shipped calibration as it stands for the GPU: its own, or one extrapolated to it."""
        if shipped not in self._read:
            found = shipped_calibration(shipped.file)
            self._read[shipped] = found if shipped in self.own else extrapolate(found, self._gpu)
        return self._read[shipped]

    def _sources_of(self, kernel: str) -> dict[Variant, tuple[Calibration, Variant]]:
        if kernel in self._sources:
            return self._sources[kernel]
        out: dict[Variant, tuple[Calibration, Variant]] = {}
        for shipped in self.order:
            # Nobody publishes times of the bundled kernel: to plan its launch no fitted file need be read.
            if (kernel == BUNDLED and shipped.provenance == FITTED) or not may_run(kernel, self._gpu):
                continue
            calibration = self.calibration(shipped)
            taken = {_kind(variant) for variant in out}
            for variant in calibration.of_kernel(kernel):
                if _kind(variant) in taken:
                    continue
                out[variant] = calibration, variant
                if calibration.source and variant.layout == "paged":  # fitted to layers of one KV head and of several
                    out[variant._replace(layout="run")] = calibration, variant
        self._sources[kernel] = out
        return out

    def of_kernel(self, kernel: str) -> tuple[Variant, ...]:
        return tuple(self._sources_of(kernel))

    def origin(self, variant: Variant) -> Calibration | None:
        found = self._sources_of(variant.kernel).get(variant)
        return None if found is None else found[0]

    def __getitem__(self, variant: Variant) -> Values:
        if variant not in self._found:
            calibration, source = self._sources_of(variant.kernel)[variant]
            # A kernel may bring along its own values of some parameters of the device.
            device = {name: p for name, p in calibration.parameters.items() if name in PER_KERNEL}
            self._found[variant] = {**device, **calibration.variants[source]}
        return self._found[variant]

    def __contains__(self, variant: object) -> bool:
        return isinstance(variant, Variant) and variant in self._sources_of(variant.kernel)

    def __iter__(self) -> Iterator[Variant]:
        kernels = dict.fromkeys(v.kernel for shipped in self.order for v in self.calibration(shipped).variants)
        return (variant for kernel in kernels for variant in self._sources_of(kernel))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _put_together(gpu: Gpu) -> Calibration:
    """The GPU's own calibrations, and the others extrapolated to it."""
    shelf = _Shelf(gpu)
    first = shelf.calibration(shelf.order[0])
    # What a fitted file does not say of the device itself (launches) is as on the nearest measured GPU.
    measured = next((s for s in shelf.order if s.provenance == MEASURED), shelf.order[0])
    said = {name: p for name, p in first.parameters.items() if p.provenance == first.provenance}
    return replace(first, parameters={**shelf.calibration(measured).parameters, **said}, variants=shelf)


def _serves(shipped: Shipped, gpu: Gpu) -> bool:
    """Whether the shipped calibration is of this kind of GPU."""
    reference = shipped.reference
    return _is_same_kind(_names(reference), reference.sm_count, reference.hbm_bytes_per_s, gpu)


def kernels_of(gpu: Gpu) -> dict[str, str]:
    """Kernels that a prediction on `gpu` may use, each with the word for its parameters: measured, fitted to public
    timings, or extrapolated. Kernels of another vendor's GPUs are left out; without a known bandwidth there are none.
    """
    if gpu.hbm_bytes_per_s is None:
        return {}
    known = _put_together(gpu)
    out: dict[str, str] = {}
    for variant in known.variants:
        out.setdefault(variant.kernel, known.origin(variant).provenance)
    return out


def _kind(variant: Variant) -> tuple[str, str, int, int]:
    return variant.kernel, variant.dtype, variant.head_dim, variant.head_dim_v


def carries_over(provenance: str, reference: Gpu, gpu: Gpu) -> bool:
    """Whether the kernels of a calibration of `reference` say anything about `gpu`: to another vendor only measured
    ones do, among which are the kernels that are compiled from portable source."""
    return provenance == MEASURED or reference.vendor == gpu.vendor


def may_run(kernel: str, gpu: Gpu) -> bool:
    """Whether a calibrated kernel exists on the GPU's vendor at all: beside NVIDIA and AMD only the bundled one."""
    return gpu.vendor in (None, "NVIDIA") or gpu.is_hip or kernel == BUNDLED


def distance(calibration: Calibration, gpu: Gpu) -> float:
    """How unlike the calibration's GPU and this one are to a decode kernel."""
    return unlikeness(reference_of(calibration), gpu)


def unlikeness(base: Gpu, gpu: Gpu) -> float:
    """How unlike two GPUs are to a decode kernel: architecture, bandwidth of an SM, clock."""

    def ratio(a: float | None, b: float | None) -> float:
        return abs(log2(a / b)) if a and b else 1.0

    mine, theirs = (gpu.architecture or "").split(), (base.architecture or "").split()
    far = 0.0 if mine == theirs else OTHER_ARCHITECTURE if mine[:1] == theirs[:1] else OTHER_GENERATION
    per_sm = ((gpu.hbm_bytes_per_s or 0) / gpu.sm_count, (base.hbm_bytes_per_s or 0) / base.sm_count)
    return far + ratio(*per_sm) + ratio(gpu.boost_clock_hz, base.boost_clock_hz)


@cache
def shipped_calibration(name: str) -> Calibration:
    """A calibration of the package's data, by file name. Each variant is checked when it is first asked for: a table of
    launches needs a few of more than a hundred, and a test checks them all."""
    with open(os.path.join(_DATA, name), encoding="utf-8") as file:
        return parse_calibration(json.load(file), f"shipped {name}", lazy=True)
