"""decodecalc: what a decode-attention launch looks like on a GPU, how long it takes, and proof of both.

Names are loaded on first use, so that `import decodecalc` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc._version import __version__

_HOME = {
    "Batch": "decodecalc.batch",
    "Calibration": "decodecalc.cost",
    "Choice": "decodecalc.cost",
    "DecodecalcError": "decodecalc.errors",
    "GateError": "decodecalc.errors",
    "Geometry": "decodecalc.geometry",
    "Gpu": "decodecalc.gpus",
    "InputError": "decodecalc.errors",
    "KvCache": "decodecalc.kvcache",
    "LaunchPlan": "decodecalc.launch.plan",
    "MissingDependencyError": "decodecalc.errors",
    "Model": "decodecalc.models",
    "ModelConfigError": "decodecalc.errors",
    "Prediction": "decodecalc.cost",
    "ShardingError": "decodecalc.errors",
    "UnknownNameError": "decodecalc.errors",
    "choose": "decodecalc.cost",
    "detect_gpu": "decodecalc.gpus",
    "engine_names": "decodecalc.engines",
    "gpu_names": "decodecalc.gpus",
    "load_calibration": "decodecalc.cost",
    "load_gpu": "decodecalc.gpus",
    "load_model": "decodecalc.models",
    "occupancy": "decodecalc.analysis.occupancy",
    "paging": "decodecalc.analysis.paging",
    "plan": "decodecalc.engines",
    "predict": "decodecalc.cost",
    "roofline": "decodecalc.analysis.roofline",
    "segments": "decodecalc.analysis.segments",
    "sweep": "decodecalc.sweeps",
    "traffic": "decodecalc.analysis.traffic",
    "zoo_names": "decodecalc.models",
}

__all__ = ["__version__", *sorted(_HOME)]

if TYPE_CHECKING:
    from decodecalc.analysis.occupancy import occupancy
    from decodecalc.analysis.paging import paging
    from decodecalc.analysis.roofline import roofline
    from decodecalc.analysis.segments import segments
    from decodecalc.analysis.traffic import traffic
    from decodecalc.batch import Batch
    from decodecalc.engines import engine_names, plan
    from decodecalc.errors import (
        DecodecalcError,
        GateError,
        InputError,
        MissingDependencyError,
        ModelConfigError,
        ShardingError,
        UnknownNameError,
    )
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu, detect_gpu, gpu_names, load_gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.plan import LaunchPlan
    from decodecalc.models import Model, load_model, zoo_names


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'decodecalc' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
