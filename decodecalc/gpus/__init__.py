"""GPUs: the bundled table, GPU files of users, and the live device (which is read only when it is asked for)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.gpus.gpu import Gpu, Peak
from decodecalc.gpus.load import gpu_fields, load_gpu
from decodecalc.gpus.table import Alternative, FieldInfo, gpu_aliases, gpu_names

if TYPE_CHECKING:
    from decodecalc.gpus.detect import DeviceProperties, detect_gpu, gpu_from_device, match_device

__all__ = [
    "Alternative",
    "DeviceProperties",
    "FieldInfo",
    "Gpu",
    "Peak",
    "detect_gpu",
    "gpu_aliases",
    "gpu_fields",
    "gpu_from_device",
    "gpu_names",
    "load_gpu",
    "match_device",
]


def __getattr__(name: str) -> Any:
    if name in ("DeviceProperties", "detect_gpu", "gpu_from_device", "match_device"):
        from decodecalc.gpus import detect

        return getattr(detect, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
