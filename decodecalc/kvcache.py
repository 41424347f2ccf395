"""How keys and values are stored: element type and paging."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.errors import UnknownNameError
from decodecalc.geometry import Geometry, check_count
from decodecalc.values import Shown

# Bytes of one cache element. Block-scaled formats include their scales: NVFP4 has one FP8 scale for 16 elements
# (NVIDIA, "Introducing NVFP4"), MXFP4 one E8M0 scale for 32 (OCP Microscaling Formats 1.0, table 1).
DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8-e4m3": "fp8", "fp8-e5m2": "fp8", "float8_e4m3fn": "fp8",
    "fp4": "nvfp4",
}  # fmt: skip


def dtype_name(name: str) -> str:
    """The canonical name of a cache or query element type."""
    key = str(name).lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in DTYPE_BYTES:
        raise UnknownNameError("dtype", str(name), DTYPE_BYTES)
    return key


@dataclass(frozen=True, slots=True)
class KvCache(Shown):
    """How the paged KV cache is laid out, and the element type of the query that reads it."""

    dtype: str = "bf16"
    """Element type of keys and values: a key of `DTYPE_BYTES`, or an alias such as `fp8_e4m3`."""
    page_size: int = 16
    """Keys of a page as the kernel sees it. 1 stands for a flat list with an index for every token."""
    allocator_page_size: int | None = None
    """Keys of a page that the engine's allocator hands out, a multiple of `page_size`; None stands for the same."""
    query_dtype: str = "bf16"
    """Element type of the query. On some paths an engine quantises the query to FP8 when the cache is FP8."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        object.__setattr__(self, "query_dtype", dtype_name(self.query_dtype))
        check_count("page_size", self.page_size, high=1 << 24)
        if self.allocator_page_size is not None:
            check_count("allocator_page_size", self.allocator_page_size, high=1 << 24)

    @property
    def element_bytes(self) -> float:
        """Bytes of one cache element, scales of block-scaled formats included."""
        return DTYPE_BYTES[self.dtype]

    @property
    def query_element_bytes(self) -> float:
        """Bytes of one query element."""
        return DTYPE_BYTES[self.query_dtype]

    def bytes_per_key(self, geo: Geometry) -> float:
        """Cache bytes that one key of one layer takes on this rank."""
        return geo.kv_elements_per_key * self.element_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
