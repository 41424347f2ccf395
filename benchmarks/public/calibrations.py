"""From fits to a calibration file: the curves that a compiled kernel's numbers stand for, cold.

The time model's default is a cold L2, so that a tile's time is that of data which the L2 does not hold, and
`operation_s` and its like are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.public.physics import (
    IO_SHARE,
    LAUNCH_BLOCK_S,
    LAUNCH_GRAPH_S,
    MERGE_ROWS,
    MERGE_SPLITS,
    curves,
    l2_capacity,
    merge_table,
    tile_bytes,
)
from benchmarks.public.table_fit import Kernel, Key, TableFit
from benchmarks.public.tables import PACKAGE, VERSION
from decodecalc.cost.calibration import Calibration, Values
from decodecalc.cost.parameters import EXTRAPOLATED, FITTED, STARTS, Parameter, Value, Variant
from decodecalc.engines.registry import traits_of
from decodecalc.gpus import Gpu

SOURCE = f"{PACKAGE} {VERSION}"
PROTOCOL = (
    "fitted by benchmarks/fit_public.py to the rows of the published tables that are not held out; the tables time "
    "operations, whose own constant was fitted beside and is left out; tile times are those of a cold L2"
)
DIGITS = 5


def calibration_of(gpu: Gpu, fits: Sequence[tuple[TableFit, float]]) -> Calibration:
    """The calibration of one GPU from its tables' fits, each with the error that 90 % of its rows stayed within.

    Where two tables ran the same compiled kernel, the first one's numbers are taken.
    """
    variants: dict[Variant, Values] = {}
    for found, residual in fits:
        for key, kernel in found.kernels.items():
            variants.setdefault(_variant(found, key), _values(found, key, kernel, residual, gpu))
    shared = [found.shared for found, _ in fits]
    inherited = "as on an H200"
    parameters = (
        Parameter("launch_graph_s", LAUNCH_GRAPH_S, EXTRAPOLATED, note=inherited),
        Parameter("launch_stream_s", 8e-6, EXTRAPOLATED, note=inherited),
        Parameter("launch_block_s", LAUNCH_BLOCK_S, EXTRAPOLATED, note=inherited),
        Parameter("dependent_launch_gap_s", LAUNCH_GRAPH_S, EXTRAPOLATED, note=inherited),
        _number("hbm_sustained_bytes_per_s", shared[0]["hbm_bytes_per_s"]),
        _number("l2_bytes_per_s", median(values["l2_bytes_per_s"] for values in shared)),
        _number("l2_capacity_bytes", median(l2_capacity(gpu, values) for values in shared)),
        _number("overlap_exponent", median(values["exponent"] for values in shared)),
        _number("residual_p90", max(residual for _, residual in fits)),
    )
    return Calibration(
        gpu={
            "name": gpu.name,
            "table_name": gpu.table_name,
            "sm_count": gpu.sm_count,
            "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        },
        parameters={p.name: p for p in parameters},
        variants=variants,
        protocol=PROTOCOL,
        source=SOURCE,
        environment={
            "tables": [
                f"{found.table.framework} {found.table.source} {found.dtype}: "
                f"{sum(kernel.rows for kernel in found.kernels.values())} rows"
                for found, _ in fits
            ]
        },
    )


def _variant(found: TableFit, key: Key) -> Variant:
    split, head_dim, head_dim_v, tile, rows = key
    return Variant(
        kernel=traits_of(found.table.policy).time_kernel(found.table.policy, bool(split)),
        dtype=found.dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        tile_keys=tile,
        rows=rows,
        layout="flat" if found.table.page_size == 1 else "paged",
    )


def _values(found: TableFit, key: Key, kernel: Kernel, residual: float, gpu: Gpu) -> Values:
    _, head_dim, head_dim_v, tile, _ = key
    shared, own = found.shared, kernel.values
    size = tile_bytes(head_dim, head_dim_v, tile, found.dtype)
    blocks, latency, start = curves(gpu, kernel.slots_per_sm, own, size, missed=True)
    p, transfer = shared["exponent"], size / shared["hbm_bytes_per_s"]
    tau = tuple((alone**p + (k * transfer) ** p) ** (1 / p) for k, alone in zip(blocks, latency))
    note = f"{found.table.framework} {found.table.source}, {kernel.rows} rows"
    values = (
        Parameter("slots_per_sm", float(kernel.slots_per_sm), FITTED, note=note),
        _number("blocks", blocks),
        _number("tau_s", tau),
        *(_number(name, start) for name in STARTS),
        _number("refill_s", own["refill_s"]),
        _number("t_row_s", own["row_s"]),
        _number("io_share", IO_SHARE),
        _number("merge_rows", MERGE_ROWS),
        _number("merge_splits", MERGE_SPLITS),
        _number("merge_s", merge_table(shared)),
        _number("overlap_exponent", p),
        _number("hbm_sustained_bytes_per_s", shared["hbm_bytes_per_s"]),
        _number("l2_bytes_per_s", shared["l2_bytes_per_s"]),
        _number("residual_p90", residual),
    )
    return {parameter.name: parameter for parameter in values}


def _number(name: str, value: Value) -> Parameter:
    """A fitted parameter, rounded: a file must come out the same on every machine."""
    if isinstance(value, tuple):
        return Parameter(name, tuple(float(f"{x:.{DIGITS}g}") for x in value), FITTED)
    return Parameter(name, float(f"{value:.{DIGITS}g}"), FITTED)
