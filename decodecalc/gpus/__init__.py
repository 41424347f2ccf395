"""What a GPU is: the bundled table, users' GPU files, and the live device."""

from decodecalc.gpus.detect import DeviceProperties, detect_gpu, gpu_from_device, match_device
from decodecalc.gpus.gpu import Gpu, Peak
from decodecalc.gpus.load import gpu_fields, load_gpu
from decodecalc.gpus.table import Alternative, FieldInfo, gpu_aliases, gpu_names

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
