"""Which calibration serves a GPU: a file, or what the package ships for it and for its neighbours.

A shipped GPU's own numbers come first: measured ones, then those fitted to public timings. Kernels that neither holds
are extrapolated from the nearest calibrated GPU that has them. Every variant keeps its own provenance.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from math import log2
from typing import TYPE_CHECKING

from decodecalc.cost.calibration import Calibration, OnDemand, Values, parse_calibration, read_calibration
from decodecalc.cost.extrapolate import extrapolate, reference_of
from decodecalc.cost.parameters import MEASURED, PER_KERNEL, Variant
from decodecalc.cost.variants import BUNDLED
from decodecalc.errors import InputError, check_type

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

# In decodecalc/data. The first is measured; the others are what `python -m benchmarks.fit_public` writes.
SHIPPED = (
    "calibration_h200.json",
    "fitted_a100-sxm.json",
    "fitted_l40s.json",
    "fitted_rtx-pro-6000-server.json",
    "fitted_h100-sxm.json",
    "fitted_h200-sxm.json",
    "fitted_b200-sxm.json",
    "fitted_b300-sxm.json",
    "fitted_gb200.json",
    "fitted_gb300.json",
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
    return _put_together(load_gpu(shipped_calibration(SHIPPED[0]).gpu["table_name"]) if device is None else device)


def own_calibration(calibration: Calibration | None, gpu: Gpu) -> Calibration:
    """`calibration`, or the one for `gpu` where None was given. InputError where it is something else."""
    if calibration is None:
        return load_calibration(gpu=gpu)
    check_type("calibration", calibration, Calibration, "decodecalc.load_calibration(path) reads one")
    return calibration


def fits(calibration: Calibration, gpu: Gpu) -> bool:
    """Whether the calibration was taken on this kind of GPU: the same table entry or name, and as many SMs."""
    known = {calibration.gpu.get("table_name"), calibration.gpu["name"]} - {None}
    names = {gpu.table_name, gpu.name, gpu.display_name, *gpu.device_names} - {None}
    if calibration.gpu["sm_count"] != gpu.sm_count or not known & names:
        return False
    bandwidth = calibration.gpu.get("hbm_bytes_per_s")
    return bandwidth is None or gpu.hbm_bytes_per_s is None or bandwidth == gpu.hbm_bytes_per_s


@cache
def _put_together(gpu: Gpu) -> Calibration:
    """The GPU's own calibrations, and the others extrapolated to it, nearest first. A kernel of one element type and
    width comes from the first that has it."""
    shipped = [shipped_calibration(name) for name in SHIPPED]
    own = [c for c in shipped if fits(c, gpu)]
    others = sorted((c for c in shipped if c not in own and carries_over(c, gpu)), key=lambda c: distance(c, gpu))
    first, *rest = [*own, *(extrapolate(c, gpu) for c in others)]
    sources: dict[Variant, tuple[Calibration, Variant]] = {}
    for calibration in (first, *rest):
        taken = {_kind(variant) for variant in sources}
        for variant in calibration.variants:
            if _kind(variant) in taken or not may_run(variant.kernel, gpu):
                continue
            sources[variant] = calibration, variant
            if calibration.source and variant.layout == "paged":  # fitted to layers of one KV head and of several
                sources[variant._replace(layout="run")] = calibration, variant
    # What a fitted file does not say of the device itself (launches) is as on the nearest measured GPU.
    measured = next((c for c in (first, *rest) if not c.source), first)
    said = {name: p for name, p in first.parameters.items() if p.provenance == first.provenance}
    return replace(
        first,
        parameters={**measured.parameters, **said},
        variants=OnDemand(sources, lambda _, source: _whole(*source)),
        origins={variant: source[0] for variant, source in sources.items() if source[0] is not first},
    )


def _whole(calibration: Calibration, variant: Variant) -> Values:
    """A variant's parameters with those of its own calibration's device that a kernel may bring along."""
    device = {name: p for name, p in calibration.parameters.items() if name in PER_KERNEL}
    return {**device, **calibration.variants[variant]}


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


def carries_over(calibration: Calibration, gpu: Gpu) -> bool:
    """Whether the calibration's kernels say anything about this GPU: to another vendor only measured ones do, among
    which are the kernels that are compiled from portable source."""
    return calibration.provenance == MEASURED or reference_of(calibration).vendor == gpu.vendor


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
