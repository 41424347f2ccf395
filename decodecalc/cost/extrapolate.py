"""Parameters for a GPU without a calibration: those of a calibrated GPU, scaled by physical ratios and marked so.

* memory bandwidth keeps the sustained share of the data sheet's rate;
* the L2's rate scales with SMs x clock, because each SM has its own port, and the usable share of its capacity stays;
* what a block or a launch does by itself (tile latency, start, launch, merge) scales with the SM clock. Memory latency
  in seconds hardly changes between generations, so it is not made faster than the clock says, nor slower than twice;
* curves over the number of running blocks are taken at the same number of blocks per SM. A tile's time is divided into
  latency and its share of the bandwidth, and each part is scaled by its own ratio;
* resident blocks follow from the shared memory of an SM.

Kernels for another architecture may be other kernels: the interval widens threefold there, twofold within one. From
numbers that were fitted to public timings it is at least as wide as GPUs that were left out needed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodecalc.cost.calibration import Calibration, OnDemand, Values
from decodecalc.cost.parameters import EXTRAPOLATED, Parameter, Value, Variant
from decodecalc.cost.rates import latencies
from decodecalc.cost.variants import tile_bytes

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

WIDER_SAME_ARCHITECTURE, WIDER_OTHER_ARCHITECTURE = 2.0, 3.0
# Half width that held 90 % of the rows of GPUs that were left out and predicted from their nearest neighbour
# (reports/public-fit.md): the least one of an interval that is extrapolated from fitted numbers.
LEAST_SAME_ARCHITECTURE, LEAST_OTHER_ARCHITECTURE = 0.16, 0.37
SLOWEST, FASTEST = 2.0, 0.8  # limits of the clock ratio applied to latencies


def extrapolate(base: Calibration, gpu: Gpu) -> Calibration:
    """`base` moved to `gpu`. InputError when the GPU's memory bandwidth is not known."""
    scale = Scale(reference_of(base), gpu, bool(base.source))
    return Calibration(
        gpu={
            "name": gpu.name,
            "table_name": gpu.table_name,
            "sm_count": gpu.sm_count,
            "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        },
        parameters=scale.values(base.parameters),
        variants=OnDemand(base.variants, lambda variant, values: scale.variant(variant, values, base)),
        date=base.date,
        protocol=base.protocol,
        environment=base.environment,
        extrapolated_from=str(base.gpu["name"]),
        source=base.source,
    )


def reference_of(calibration: Calibration) -> Gpu:
    """The GPU that a calibration is of."""
    from decodecalc.gpus import load_gpu

    return load_gpu(calibration.gpu.get("table_name") or calibration.gpu["name"])


class Scale:
    """The ratios from one GPU to another, by parameter."""

    def __init__(self, base: Gpu, gpu: Gpu, fitted: bool = False) -> None:
        self.bandwidth = gpu.need("hbm_bytes_per_s") / base.need("hbm_bytes_per_s")
        clock = (gpu.boost_clock_hz or 0) / (base.boost_clock_hz or 1) or 1.0
        self.latency = min(max(1 / clock, FASTEST), SLOWEST)
        self.l2_rate = gpu.sm_count * clock / base.sm_count
        self.l2_capacity = (gpu.cache_bytes or base.cache_bytes or 1) / (base.cache_bytes or 1)
        self.slots = (gpu.smem_bytes_per_sm or base.smem_bytes_per_sm or 1) / (base.smem_bytes_per_sm or 1)
        same = gpu.architecture is not None and gpu.architecture.split()[0] == (base.architecture or "").split()[0]
        self.sms = gpu.sm_count / base.sm_count
        self.wider = WIDER_SAME_ARCHITECTURE if same else WIDER_OTHER_ARCHITECTURE
        least = LEAST_SAME_ARCHITECTURE if same else LEAST_OTHER_ARCHITECTURE
        self.least_width = least if fitted else 0.0
        self.note = f"from {base.name}"

    def values(self, values: Values) -> dict[str, Parameter]:
        """Every parameter scaled, its provenance `extrapolated`."""
        return {name: self._scaled(p) for name, p in values.items()}

    def variant(self, variant: Variant, values: Values, base: Calibration) -> dict[str, Parameter]:
        """A kernel's parameters scaled: its tile times in two parts."""
        out = self.values(values)
        p = (values.get("overlap_exponent") or base.parameters["overlap_exponent"]).number
        transfer = tile_bytes(variant) / base.parameters["hbm_sustained_bytes_per_s"].number
        latency = latencies(values["blocks"].curve, values["tau_s"].curve, transfer, p, self.latency)
        tau = tuple(
            (alone**p + (k * transfer / self.bandwidth) ** p) ** (1 / p)
            for k, alone in zip(out["blocks"].curve, latency)
        )
        return {**out, "tau_s": out["tau_s"]._replace(value=tau, note=f"{self.note} (SM clock, memory bandwidth)")}

    def _scaled(self, p: Parameter) -> Parameter:
        ratio, how = self._ratio(p.name)
        value: Value = tuple(x * ratio for x in p.value) if isinstance(p.value, tuple) else p.value * ratio
        if p.name in ("residual_p90", "residual_ragged_p90"):
            value = max(p.number * ratio, self.least_width)
        if p.name == "slots_per_sm":
            value = float(max(int(p.number * ratio), 1))
        note = f"{self.note}, x {ratio:.3g} ({how})" if how else self.note
        return Parameter(p.name, value, EXTRAPOLATED, p.spread, note)

    def _ratio(self, name: str) -> tuple[float, str]:
        if name == "hbm_sustained_bytes_per_s":
            return self.bandwidth, "memory bandwidth"
        if name == "l2_bytes_per_s":
            return self.l2_rate, "SMs x clock"
        if name == "l2_capacity_bytes":
            return self.l2_capacity, "cache size"
        if name == "slots_per_sm":
            return min(self.slots, 1.0), "shared memory"
        if name in ("residual_p90", "residual_ragged_p90", "residual_ratio"):
            return self.wider, "not measured there"
        if name == "blocks":
            return self.sms, "SMs"
        if name in (
            "overlap_exponent",
            "io_share",
            "launch_stream_s",
            "merge_rows",
            "merge_splits",
            "stand_in_low",
            "stand_in_high",
        ):
            return 1.0, ""
        return self.latency, "SM clock"
