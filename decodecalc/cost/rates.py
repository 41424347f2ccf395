"""The plain numbers that the time model computes with: one kernel variant on one GPU, cold or warm, graph or stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from decodecalc.cost.calibration import Calibration
from decodecalc.cost.parameters import DEVICE, OPTIONAL, PER_KERNEL, Parameter
from decodecalc.cost.variants import WIDER_INTERPOLATED, Resolved
from decodecalc.errors import InputError
from decodecalc.record import record

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

L2_MODES = ("cold", "warm")
LAUNCH_MODES = ("graph", "stream")


@record
class Rates:
    """Seconds, bytes per second and counts; names as in `parameters`. half_width: of the interval, relative."""

    sm_count: int
    slots: int
    launch_s: float
    launch_block_s: float
    gap_s: float
    hbm_bytes_per_s: float
    l2_bytes_per_s: float
    l2_capacity_bytes: float
    peak_flop_per_s: float
    exponent: float
    fixed_s: float
    crowd_s: float
    refill_s: float
    row_s: float
    tau_s: float
    tau_loaded_s: float
    tau_sm_s: float
    in_flight: int
    merge_fixed_s: float
    merge_per_split_s: float
    warm: bool
    half_width: float


def make_rates(
    calibration: Calibration, gpu: Gpu, found: Resolved, *, l2: str = "cold", launch: str = "graph", dtype: str = "bf16"
) -> tuple[Rates, Mapping[str, Parameter]]:
    """Rates for a resolved variant, and the parameters behind them by name."""
    if l2 not in L2_MODES:
        raise InputError(f"l2 must be one of {', '.join(L2_MODES)}, not {l2!r:.40}")
    if launch not in LAUNCH_MODES:
        raise InputError(f"launch must be one of {', '.join(LAUNCH_MODES)}, not {launch!r:.40}")
    used: dict[str, Parameter] = {}
    for name in DEVICE:
        own = found.values.get(name) if name in PER_KERNEL else None
        p = own or calibration.parameters.get(name)
        if p is not None:
            used[name] = p
    used.update((name, p) for name, p in found.values.items() if name not in PER_KERNEL)

    def value(name: str, default: float = 0.0) -> float:
        p = used.get(name)
        return default if p is None and name in OPTIONAL else used[name].value

    slots_per_sm = max(int(value("slots_per_sm")), 1)
    stream = launch == "stream"
    if stream and "launch_stream_s" not in used:
        raise InputError("this calibration has no launch_stream_s: predictions for eager launches need it")
    peak = gpu.peak_flop_per_s(dtype).flop_per_s
    rates = Rates(
        sm_count=gpu.sm_count,
        slots=gpu.sm_count * slots_per_sm,
        launch_s=value("launch_stream_s" if stream else "launch_graph_s"),
        launch_block_s=value("launch_block_s"),
        gap_s=max(value("dependent_launch_gap_s"), value("launch_stream_s") if stream else 0.0),
        hbm_bytes_per_s=value("hbm_sustained_bytes_per_s"),
        l2_bytes_per_s=value("l2_bytes_per_s"),
        l2_capacity_bytes=value("l2_capacity_bytes"),
        peak_flop_per_s=peak or float("inf"),
        exponent=max(value("overlap_exponent"), 1.0),
        fixed_s=value("t_fixed_s"),
        crowd_s=value("t_crowd_s"),
        refill_s=value("refill_s"),
        row_s=value("t_row_s"),
        tau_s=value("tau_unloaded_s"),
        tau_loaded_s=max(value("tau_loaded_s"), value("tau_unloaded_s")),
        tau_sm_s=value("tau_busy_s"),
        in_flight=max(found.wanted.stages - 1, 1),
        merge_fixed_s=value("merge_fixed_s"),
        merge_per_split_s=value("merge_per_split_s"),
        warm=l2 == "warm",
        half_width=value("residual_p90") * (1.0 if found.exact else WIDER_INTERPOLATED),
    )
    unused = ("launch_graph_s",) if stream else ("launch_stream_s",)
    return rates, {name: p for name, p in used.items() if name not in unused}
