"""The fields of a GPU: unit, plausible range and meaning. Validation, documentation and display all use this table."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from decodecalc.errors import InputError


class FieldSpec(NamedTuple):
    """`kind` is text, names, capability, count (whole), bytes (whole) or real; the range is inclusive."""

    name: str
    unit: str
    kind: str
    doc: str
    low: float = 0
    high: float = 0


# A range catches units that people copy from data sheets (GB/s, TFLOP/s, MHz, GB): its lower end is above any number
# that such a unit would give, and below the value of any GPU that runs attention.
_RATE = (1e9, 1e15)
_FLOPS = (1e10, 1e18)
_SIZE = (1 << 16, 1 << 50)

FIELDS: dict[str, FieldSpec] = {
    spec.name: spec
    for spec in (
        FieldSpec("name", "", "text", "short name"),
        FieldSpec("display_name", "", "text", "name for people"),
        FieldSpec("vendor", "", "text", "NVIDIA, AMD or Intel"),
        FieldSpec("architecture", "", "text", "architecture and chip"),
        FieldSpec("compute_capability", "", "capability", "CUDA compute capability (major, minor)"),
        FieldSpec("gfx", "", "text", "AMD ISA name, such as gfx942"),
        FieldSpec("device_names", "", "names", "names that the driver reports for this GPU"),
        FieldSpec("sm_count", "SMs", "count", "streaming multiprocessors (AMD: compute units)", 1, 1 << 16),
        FieldSpec("warp_size", "threads", "count", "threads of a warp (AMD: wavefront)", 1, 1024),
        FieldSpec("memory_bytes", "B", "bytes", "marketed memory, GB x 1e9", 1e8, 1e15),
        FieldSpec("memory_usable_bytes", "B", "bytes", "memory as the driver reports it", 1e8, 1e15),
        FieldSpec("hbm_bytes_per_s", "B/s", "real", "peak device-memory bandwidth", *_RATE),
        FieldSpec("l2_bytes", "B", "bytes", "L2 as the driver reports it (AMD: that of one die, XCD)", *_SIZE),
        FieldSpec("l2_partitions", "", "count", "L2 partitions (AMD: dies with a private L2)", 1, 1024),
        FieldSpec("last_level_cache_bytes", "B", "bytes", "memory-side cache beyond L2", *_SIZE),
        FieldSpec("smem_bytes_per_sm", "B", "bytes", "shared memory of an SM", 8192, 1 << 26),
        FieldSpec("max_smem_bytes_per_block", "B", "bytes", "shared memory a block may opt in to", 8192, 1 << 26),
        FieldSpec("registers_per_sm", "32-bit registers", "count", "register file of an SM", 1024, 1 << 24),
        FieldSpec("max_threads_per_sm", "threads", "count", "resident threads of an SM", 32, 1 << 16),
        FieldSpec("max_blocks_per_sm", "blocks", "count", "resident blocks of an SM", 1, 4096),
        FieldSpec("boost_clock_hz", "Hz", "real", "highest SM clock", 1e8, 2e10),
        FieldSpec("tensor_reference_clock_hz", "Hz", "real", "clock behind the tensor peaks", 1e8, 2e10),
        FieldSpec("tensor_fp16_flop_per_s", "FLOP/s", "real", "dense FP16 matrix peak, FP32 accumulate", *_FLOPS),
        FieldSpec("tensor_bf16_flop_per_s", "FLOP/s", "real", "dense BF16 matrix peak, FP32 accumulate", *_FLOPS),
        FieldSpec("tensor_fp8_flop_per_s", "FLOP/s", "real", "dense FP8 matrix peak, FP32 accumulate", *_FLOPS),
        FieldSpec("tensor_int8_op_per_s", "OP/s", "real", "dense INT8 matrix peak", *_FLOPS),
        FieldSpec("tensor_fp4_flop_per_s", "FLOP/s", "real", "dense FP4 matrix peak", *_FLOPS),
        FieldSpec("fp32_flop_per_s", "FLOP/s", "real", "FP32 vector peak", *_FLOPS),
        FieldSpec("tdp_w", "W", "real", "board power limit", 1, 1e5),
        FieldSpec("interconnect_bytes_per_s_per_direction", "B/s", "real", "GPU-to-GPU link, one way", *_RATE),
        FieldSpec("absent_tensor_modes", "", "names", "dtypes of fp16 bf16 fp8 int8 fp4 with no matrix mode"),
    )
}

# What to write instead of the figure that a data sheet prints.
_REMEDY = {
    "B/s": "the unit is bytes per second: 3350 GB/s is 3.35e12",
    "FLOP/s": "the unit is FLOP per second, dense: 989 TFLOP/s is 9.89e14",
    "OP/s": "the unit is operations per second, dense: 1979 TOP/s is 1.979e15",
    "Hz": "the unit is Hz: 1980 MHz is 1.98e9",
    "B": "the unit is bytes: 80 GB is 80e9, 50 MiB is 52428800",
    "W": "the unit is watts",
}


def check_field(name: str, value: Any, where: str = "GPU") -> Any:
    """`value` in its canonical type (str, int, float or tuple); InputError names the field, the range and the unit."""
    spec = FIELDS[name]
    if spec.kind == "text":
        if not _is_text(value):
            raise InputError(f"{where}: {name} must be 1 to 200 printable characters, not {shown(value)}")
        return _vendor(value, where) if name == "vendor" else value
    if spec.kind == "names":
        if not isinstance(value, (list, tuple)) or not all(map(_is_text, value)):
            raise InputError(f"{where}: {name} must be a list of texts, not {shown(value)}")
        return tuple(value)
    if spec.kind == "capability":
        return _capability(value, where)
    number = _number(spec, value, where)
    if not spec.low <= number <= spec.high:
        remedy = f"; {_REMEDY[spec.unit]}" if spec.unit in _REMEDY else ""
        raise InputError(
            f"{where}: {name} is {shown(number)}, outside {spec.low:g} to {spec.high:g} {spec.unit}".rstrip() + remedy
        )
    return number


VENDORS = ("NVIDIA", "AMD", "Intel")


def _vendor(value: str, where: str) -> str:
    """The vendor as the rules spell it: which kernels a device can run depends on it."""
    for vendor in VENDORS:
        if value.strip().lower() == vendor.lower():
            return vendor
    raise InputError(f"{where}: vendor must be one of {', '.join(VENDORS)}, not {shown(value)}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= 200 and value.isprintable()


def shown(value: Any) -> str:
    """A bad value as a message shows it: short, and safe for values that cannot be printed (huge integers, deep
    nesting)."""
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):
        return f"that {type(value).__name__}"


def _number(spec: FieldSpec, value: Any, where: str) -> int | float:
    """The value as an int for whole kinds (bytes may be written as 80e9), and as a finite float for the others."""
    if not isinstance(value, bool):
        if hasattr(value, "__index__"):
            whole = int(value)
            if spec.kind != "real":
                return whole
            return float(whole) if abs(whole) < 1 << 1000 else math.inf
        if isinstance(value, float) and math.isfinite(value):
            if spec.kind == "real":
                return float(value)
            if spec.kind == "bytes" and value == int(value):
                return int(value)
    wanted = {"count": "a whole number", "bytes": "a whole number of bytes"}.get(spec.kind, "a finite number")
    raise InputError(f"{where}: {spec.name} must be {wanted}, not {shown(value)}")


def _capability(value: Any, where: str) -> tuple[int, int]:
    """(major, minor) from a pair or from text such as "9.0"."""
    parts: Any = value.split(".") if isinstance(value, str) else value
    if isinstance(value, str) and all(p.isascii() and p.isdigit() and len(p) <= 3 for p in parts):
        parts = [int(p) for p in parts]
    if (
        isinstance(parts, (list, tuple))
        and len(parts) == 2
        and all(hasattr(p, "__index__") and not isinstance(p, bool) and 0 <= p < 1000 for p in parts)
    ):
        return int(parts[0]), int(parts[1])
    raise InputError(f'{where}: compute_capability must be a pair such as [9, 0] or "9.0", not {shown(value)}')
