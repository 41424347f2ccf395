"""Rows and columns of `gpus`."""

from __future__ import annotations

from decodecalc.cost.load import kernels_of
from decodecalc.cost.parameters import EXTRAPOLATED, FITTED, MEASURED
from decodecalc.gpus import gpu_fields, gpu_names, load_gpu
from decodecalc.tables.table import Column, Table, cell
from decodecalc.units import human_bytes, human_rate, listed


def gpus_table() -> Table:
    """One row per GPU of the table."""
    rows = []
    for name in gpu_names():
        gpu = load_gpu(name)
        kernels = kernels_of(gpu)
        rows.append(
            {
                **gpu.to_dict(),
                "ridge_bf16_flop_per_byte": gpu.ridge_flop_per_byte("bf16"),
                "kernels_measured": [kernel for kernel, word in kernels.items() if word == MEASURED],
                "kernels_fitted": [kernel for kernel, word in kernels.items() if word == FITTED],
                "kernels_extrapolated": [kernel for kernel, word in kernels.items() if word == EXTRAPOLATED],
            }
        )

    def tera(value: float) -> str:
        return f"{value / 1e12:.4g}"

    def count(value: list[str]) -> str:
        return str(len(value))

    columns = [
        Column("name", "name", align="left", rank=0),
        Column("architecture", "architecture", align="left", rank=2),
        Column("sm_count", "SMs", rank=0),
        Column("memory_bytes", "memory", human_bytes, rank=0),
        Column("hbm_bytes_per_s", "bandwidth", human_rate, rank=0),
        Column("l2_bytes", "L2", human_bytes),
        Column("tensor_bf16_flop_per_s", "bf16 TFLOP/s", tera),
        Column("tensor_fp8_flop_per_s", "fp8 TFLOP/s", tera),
        Column("ridge_bf16_flop_per_byte", "ridge FLOP/B", lambda v: f"{v:.0f}", rank=2),
        Column("kernels_measured", "kernels measured", count, rank=3),
        Column("kernels_fitted", "kernels fitted", count, rank=3),
        Column("kernels_extrapolated", "kernels extrapolated", count, rank=3),
    ]
    measured = [row["name"] for row in rows if row["kernels_measured"]]
    answer = f"{len(rows)} GPUs are known; kernels were timed on {listed(measured)}." if measured else ""
    notes = [
        "`decodecalc gpus NAME` shows every field of one GPU with its source. A JSON or TOML file describes any other.",
        "Peaks are for dense matrices with FP32 accumulation.",
    ]
    return Table("gpus", {}, rows, columns, notes=notes, answer=answer)


def fields_table(name: str) -> Table:
    """One row per field of one GPU."""
    rows = [
        {
            "field": info.field,
            "value": list(info.value) if isinstance(info.value, tuple) else info.value,
            "unit": info.unit,
            "confidence": info.confidence,
            "source": info.source,
            "note": info.note,
            "alternatives": [
                {"value": list(a.value) if isinstance(a.value, tuple) else a.value, "source": a.source}
                for a in info.alternatives
            ],
        }
        for info in gpu_fields(name)
    ]
    rows += [
        {
            "field": f"kernel {kernel}",
            "value": word,
            "unit": "",
            "confidence": word,
            "source": "time parameters",
            "note": "",
            "alternatives": [],
        }
        for kernel, word in kernels_of(load_gpu(name)).items()
    ]

    def shown(value: object) -> str:
        """A pair of numbers is a compute capability, 9.0, as a GPU's file may write it."""
        pair = isinstance(value, list) and all(isinstance(part, int) for part in value)
        return ".".join(map(str, value)) if isinstance(value, list) and pair else cell(value)

    def others(value: object) -> str:
        return "; ".join(f"{cell(a['value'])} ({a['source']})" for a in value) if isinstance(value, list) else ""

    columns = [
        Column("field", "field", align="left", rank=0),
        Column("value", "value", shown, align="left", rank=0),
        Column("unit", "unit", align="left"),
        Column("confidence", "confidence", align="left"),
        Column("source", "source", align="left", rank=0),
        Column("alternatives", "other sources say", others, align="left"),
        Column("note", "note", align="left"),
    ]
    gpu = load_gpu(name)
    parts = [f"{gpu.sm_count} SMs"]
    if gpu.memory_bytes is not None:
        parts.append(f"{human_bytes(gpu.memory_bytes)} of memory")
    if gpu.hbm_bytes_per_s is not None:
        parts.append(f"{human_rate(gpu.hbm_bytes_per_s)} of bandwidth")
    if gpu.l2_bytes is not None:
        parts.append(f"{human_bytes(gpu.l2_bytes)} of L2")
    return Table("gpus", {"gpu": name}, rows, columns, answer=f"{gpu.label} has {listed(parts)}.")
