"""The plain numbers that the time model computes with: one kernel variant on one GPU, cold or warm, graph or stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from decodecalc.cost.calibration import Calibration
from decodecalc.cost.parameters import DEVICE, OPTIONAL, PER_KERNEL, STARTS, Parameter
from decodecalc.cost.variants import WIDER_INTERPOLATED, Resolved, tile_bytes
from decodecalc.errors import InputError

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

L2_MODES = ("cold", "warm")
LAUNCH_MODES = ("graph", "stream")


# Latency is never less than this share of a tile's time: where a kernel streams faster than the plain read-only stream.
LEAST_LATENCY = 0.02


class Rates(NamedTuple):
    """Seconds, bytes per second and counts; names as in `parameters`. half_width: of the interval, relative;
    half_width_ragged: of steps whose requests differ in length.

    latency_s: what a tile takes apart from its share of the bandwidth, at each of `blocks`; starts_s: a start at each
    of `blocks`, for each of START_TILES. merge_s: a merge, for every one of merge_rows all of
    merge_splits.
    """

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
    refill_s: float
    row_s: float
    blocks: tuple[float, ...]
    latency_s: tuple[float, ...]
    starts_s: tuple[tuple[float, ...], ...]
    merge_rows: tuple[float, ...]
    merge_splits: tuple[float, ...]
    merge_s: tuple[float, ...]
    warm: bool
    half_width: float
    half_width_ragged: float
    merge_walk_s: float = 0.0
    idle_block_s: float = 0.0
    scheduler_s: float = 0.0
    copy_s: float = 0.0
    io_share: float = 0.0
    start_shared: float = 0.0


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
        return default if p is None and name in OPTIONAL else used[name].number

    slots_per_sm = max(int(value("slots_per_sm")), 1)
    wider = 1.0 if found.exact else WIDER_INTERPOLATED
    stream = launch == "stream"
    if stream and "launch_stream_s" not in used:
        raise InputError("this calibration has no launch_stream_s: predictions for eager launches need it")
    peak = gpu.peak_flop_per_s(dtype).flop_per_s
    blocks = used["blocks"].curve
    exponent, bandwidth = max(value("overlap_exponent"), 1.0), value("hbm_sustained_bytes_per_s")
    rates = Rates(
        sm_count=gpu.sm_count,
        slots=gpu.sm_count * slots_per_sm,
        launch_s=value("launch_stream_s" if stream else "launch_graph_s"),
        launch_block_s=value("launch_block_s"),
        gap_s=max(value("dependent_launch_gap_s"), value("launch_stream_s") if stream else 0.0),
        hbm_bytes_per_s=bandwidth,
        l2_bytes_per_s=value("l2_bytes_per_s"),
        l2_capacity_bytes=value("l2_capacity_bytes"),
        peak_flop_per_s=peak or float("inf"),
        exponent=exponent,
        refill_s=value("refill_s"),
        row_s=value("t_row_s"),
        blocks=blocks,
        latency_s=latencies(blocks, used["tau_s"].curve, tile_bytes(found.used) / bandwidth, exponent, found.slower),
        starts_s=tuple(used[name].curve for name in STARTS),
        merge_rows=used["merge_rows"].curve,
        merge_splits=used["merge_splits"].curve,
        merge_s=used["merge_s"].curve,
        merge_walk_s=value("merge_walk_s"),
        idle_block_s=value("idle_block_s"),
        scheduler_s=value("scheduler_s"),
        copy_s=value("copy_s"),
        io_share=value("io_share"),
        start_shared=value("start_shared"),
        warm=l2 == "warm",
        half_width=value("residual_p90") * wider,
        half_width_ragged=value("residual_ragged_p90", value("residual_p90")) * wider,
    )
    unused = ("launch_graph_s",) if stream else ("launch_stream_s",)
    return rates, {name: p for name, p in used.items() if name not in unused}


def latencies(
    blocks: tuple[float, ...], tau_s: tuple[float, ...], transfer_s: float, exponent: float, slower: float = 1.0
) -> tuple[float, ...]:
    """What of each tile time is not its share of the bandwidth: the other member of the smooth maximum.

    transfer_s: one tile's bytes at the whole device's rate. slower: factor for another kernel's latency.
    """
    return tuple(
        slower * max(tau**exponent - (k * transfer_s) ** exponent, (LEAST_LATENCY * tau) ** exponent) ** (1 / exponent)
        for k, tau in zip(blocks, tau_s)
    )
