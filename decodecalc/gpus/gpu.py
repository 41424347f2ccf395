"""The `Gpu` value object: what the planning and the roofline need to know about one device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.gpus.fields import FIELDS, check_field
from decodecalc.values import Shown


class Peak(NamedTuple):
    """The matrix peak that applies to maths on one dtype."""

    flop_per_s: float | None
    """Dense rate in FLOP per second; None when it is not known."""
    dtype: str
    """The dtype whose peak it is."""
    reason: str
    """Why it is the peak of this dtype."""


# The field of each dtype's peak, and the dtype in which the maths runs when the device has no such mode. A cache format
# without a matrix mode of its own is dequantised to bf16 in registers, as the kernels of the engines do.
_PEAK_FIELD = {
    "fp32": "fp32_flop_per_s",
    "bf16": "tensor_bf16_flop_per_s",
    "fp16": "tensor_fp16_flop_per_s",
    "fp8": "tensor_fp8_flop_per_s",
    "int8": "tensor_int8_op_per_s",
    "nvfp4": "tensor_fp4_flop_per_s",
    "mxfp4": "tensor_fp4_flop_per_s",
    "int4": None,
}
_FALLBACK = {"bf16": ("fp16",), "fp16": ("bf16",), "fp32": ()}
_DEQUANTISED = ("bf16", "fp16")
_MODE = {"nvfp4": "fp4", "mxfp4": "fp4"}


@dataclass(frozen=True, slots=True)
class Gpu(Shown):
    """One GPU as a kernel launch sees it. Values are in SI units; None means unknown or nonexistent.

    On AMD devices an SM is a compute unit and a warp is a wavefront.

    >>> Gpu(name="mine", sm_count=100, hbm_bytes_per_s=2e12).sm_count
    100
    """

    name: str
    """Short name."""
    sm_count: int
    """Streaming multiprocessors (compute units on AMD)."""
    hbm_bytes_per_s: float | None = None
    """Peak bandwidth of the device memory, in bytes per second."""
    display_name: str | None = None
    """Name for people, as a vendor writes it."""
    vendor: str | None = None
    """`NVIDIA`, `AMD` or `Intel`."""
    architecture: str | None = None
    """Architecture and chip."""
    compute_capability: tuple[int, int] | None = None
    """CUDA compute capability: (major, minor)."""
    gfx: str | None = None
    """Name of the AMD instruction set, such as `gfx942`."""
    warp_size: int | None = None
    """Threads of a warp."""
    memory_bytes: int | None = None
    """Device memory as it is marketed, 1 GB as 1e9 bytes."""
    memory_usable_bytes: int | None = None
    """Device memory as the driver reports it, in bytes; often more than the marketed size, whose GB may be GiB."""
    l2_bytes: int | None = None
    """L2 cache as the driver reports it, in bytes. On AMD parts with several dies it is that of one die: see
    `l2_total_bytes`."""
    l2_partitions: int | None = None
    """Partitions of the L2 cache; on AMD the dies that have an L2 of their own."""
    last_level_cache_bytes: int | None = None
    """Cache between the L2 and the memory, in bytes, where there is one."""
    smem_bytes_per_sm: int | None = None
    """Shared memory of an SM, in bytes."""
    max_smem_bytes_per_block: int | None = None
    """Shared memory that one block may ask for, in bytes."""
    registers_per_sm: int | None = None
    """32-bit registers of an SM."""
    max_threads_per_sm: int | None = None
    """Threads that can be resident on an SM."""
    max_blocks_per_sm: int | None = None
    """Blocks that can be resident on an SM."""
    boost_clock_hz: float | None = None
    """Highest SM clock, in Hz."""
    tensor_reference_clock_hz: float | None = None
    """Clock at which the matrix peaks are stated, in Hz."""
    tensor_fp16_flop_per_s: float | None = None
    """Dense FP16 matrix peak with FP32 accumulation, in FLOP per second."""
    tensor_bf16_flop_per_s: float | None = None
    """Dense BF16 matrix peak with FP32 accumulation, in FLOP per second."""
    tensor_fp8_flop_per_s: float | None = None
    """Dense FP8 matrix peak with FP32 accumulation, in FLOP per second."""
    tensor_int8_op_per_s: float | None = None
    """Dense INT8 matrix peak, in operations per second."""
    tensor_fp4_flop_per_s: float | None = None
    """Dense FP4 matrix peak, in FLOP per second."""
    fp32_flop_per_s: float | None = None
    """FP32 vector peak, in FLOP per second."""
    tdp_w: float | None = None
    """Power limit of the board, in watts."""
    interconnect_bytes_per_s_per_direction: float | None = None
    """Bandwidth of the GPU-to-GPU link in one direction, in bytes per second."""
    device_names: tuple[str, ...] = ()
    """Names that the driver reports for this GPU."""
    absent_tensor_modes: tuple[str, ...] = ()
    """Those of fp16, bf16, fp8, int8 and fp4 for which the device has no matrix instructions."""
    table_name: str | None = None
    """Entry of the bundled table that the values come from; None where they come from elsewhere."""
    origin: str = "given"
    """Where this object was made: the table, a file, the live device, or `given`."""
    warnings: tuple[str, ...] = ()
    """Where the live device differs from the table."""

    def __post_init__(self) -> None:
        where = f"GPU {self.name[:60]!r}" if isinstance(self.name, str) else "GPU"
        for name, spec in FIELDS.items():
            value = getattr(self, name)
            if value is None and spec.kind == "names":
                object.__setattr__(self, name, ())
            elif value is not None or name in ("name", "sm_count"):
                object.__setattr__(self, name, check_field(name, value, where))
        block, sm = self.max_smem_bytes_per_block, self.smem_bytes_per_sm
        if block is not None and sm is not None and block > sm:
            raise InputError(f"{where}: max_smem_bytes_per_block ({block}) exceeds smem_bytes_per_sm ({sm})")
        if self.vendor not in (None, "AMD") and self.gfx is not None:
            raise InputError(f"{where}: a device of {self.vendor} has no gfx name; leave gfx ({self.gfx:.20}) out")
        if self.vendor not in (None, "NVIDIA") and self.compute_capability is not None:
            raise InputError(f"{where}: a device of {self.vendor} has no compute capability; leave it out")

    @property
    def label(self) -> str:
        """The name to print."""
        return self.display_name or self.name

    @property
    def is_hip(self) -> bool:
        """Whether it is an AMD device, which is driven through HIP."""
        return self.vendor == "AMD" or self.gfx is not None

    @property
    def sm(self) -> int | None:
        """Compute capability as NVIDIA's tools write it: 90 for 9.0, 103 for 10.3; None elsewhere."""
        return self.compute_capability[0] * 10 + self.compute_capability[1] if self.compute_capability else None

    @property
    def half_type(self) -> str:
        """The 16-bit type that models run in: bf16, or fp16 on NVIDIA devices before Ampere, which have no BF16
        arithmetic. Servers take it there by themselves and refuse bf16 (vLLM 0.33, platforms/cuda.py,
        check_if_supports_dtype; SGLang 0.5.23, model_executor/model_runner.py)."""
        return "fp16" if self.sm is not None and self.sm < 80 else "bf16"

    def is_sm(self, code: int) -> bool:
        """Whether the device has exactly this compute capability: `is_sm(100)` is true on B200 (10.0), not on B300
        (10.3)."""
        return self.sm == code

    def is_sm_family(self, code: int) -> bool:
        """Whether the device has this major compute capability: `is_sm_family(100)` is true on B200 and B300."""
        return self.sm is not None and self.sm // 10 == code // 10

    @property
    def capacity_bytes(self) -> int | None:
        """Memory for capacity checks: what the driver reports, otherwise the marketed size."""
        return self.memory_bytes if self.memory_usable_bytes is None else self.memory_usable_bytes

    @property
    def l2_total_bytes(self) -> int | None:
        """L2 of the whole device. On AMD this is the sum over the dies, whose private L2s each hold a copy of shared
        data."""
        if self.l2_bytes is None or not self.is_hip:
            return self.l2_bytes
        return None if self.l2_partitions is None else self.l2_bytes * self.l2_partitions

    @property
    def cache_bytes(self) -> int | None:
        """Size of the largest cache between the SMs and memory. A measurement must exceed it to read from memory."""
        known = [size for size in (self.l2_total_bytes, self.last_level_cache_bytes) if size is not None]
        return max(known) if known else None

    def need(self, field: str) -> float:
        """The value of a numeric field; InputError that says how to supply it when it is not known."""
        value = getattr(self, _known_field(field))
        if value is None:
            raise InputError(
                f"{field} of GPU {self.label!r} is not known: give it in a GPU file "
                f'({{"base": "{self.table_name or "h100-sxm"}", "name": "…", "{field}": …}})'
            )
        return value

    def peak_flop_per_s(self, dtype: str = "bf16") -> Peak:
        """Dense peak for maths on `dtype` operands: the rate, the dtype whose peak it is, and the reason.

        >>> Gpu("v", 80, tensor_fp16_flop_per_s=125e12, absent_tensor_modes=("bf16",)).peak_flop_per_s("bf16").dtype
        'fp16'
        """
        if dtype not in _PEAK_FIELD:
            raise UnknownNameError("dtype", str(dtype), _PEAK_FIELD)
        own = _PEAK_FIELD[dtype]
        if own is not None and getattr(self, own) is not None:
            return Peak(getattr(self, own), dtype, f"{dtype} peak of {self.label}")
        lacks = own is None or _MODE.get(dtype, dtype) in self.absent_tensor_modes
        why = f"{self.label} has no {dtype} matrix mode" if lacks else f"no {dtype} peak of {self.label} is known"
        for other in _FALLBACK.get(dtype, _DEQUANTISED):
            rate = getattr(self, _PEAK_FIELD[other] or "")
            if rate is not None:
                how = f"{other} peak" if dtype in _FALLBACK else f"maths in {other} after dequantisation"
                return Peak(rate, other, f"{why}: {how}")
        return Peak(None, dtype, why)

    def ridge_flop_per_byte(self, dtype: str = "bf16") -> float | None:
        """Arithmetic intensity at the ridge of the roofline; None when one of its two sides is not known.

        >>> from decodecalc.gpus import load_gpu
        >>> round(load_gpu("h100-sxm").ridge_flop_per_byte("bf16"))
        295
        """
        peak = self.peak_flop_per_s(dtype).flop_per_s
        return None if peak is None or self.hbm_bytes_per_s is None else peak / self.hbm_bytes_per_s

    def with_(self, **changes: Any) -> Gpu:
        """A copy with some fields changed, checked like any other."""
        for name in changes:
            _known_field(name)
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; tuples become lists."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _known_field(name: str) -> str:
    if name not in Gpu.__dataclass_fields__:
        raise UnknownNameError("GPU field", name, Gpu.__dataclass_fields__)
    return name
