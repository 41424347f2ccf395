"""decodecalc: what a decode-attention launch looks like on a GPU, how long it takes, and proof of both.

Every public name is listed in `__all__`. Names are loaded on first use, so that `import decodecalc` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from decodecalc._version import __version__

if TYPE_CHECKING:
    from decodecalc.analysis.occupancy import Occupancy, occupancy
    from decodecalc.analysis.paging import Paging, paging
    from decodecalc.analysis.roofline import Roofline, roofline
    from decodecalc.analysis.segments import Segment, segments
    from decodecalc.analysis.traffic import Traffic, traffic
    from decodecalc.batch import Batch
    from decodecalc.cli.ask import table
    from decodecalc.cost.calibration import Calibration
    from decodecalc.cost.choice import Choice, choose
    from decodecalc.cost.load import load_calibration
    from decodecalc.cost.prediction import Prediction, predict
    from decodecalc.cost.step import Step, StepFloor, step
    from decodecalc.cost.token import TokenTime, token_time
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
    from decodecalc.geometry import Gather, Geometry, Indexer
    from decodecalc.gpus import Gpu, detect_gpu, gpu_names, load_gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.plan import Gate, KernelLaunch, LaunchPlan, Splits
    from decodecalc.models import LayerGroup, Model, RankModel, load_model, zoo_names
    from decodecalc.plot.drawing import Drawn, figure
    from decodecalc.sweeps.axes import Axes
    from decodecalc.sweeps.run import sweep
    from decodecalc.tables.table import Table
    from decodecalc.trace.audit import Audit
    from decodecalc.trace.words import audit
    from decodecalc.verify.report.files import Report, read_report

# The module of every public name. A test holds this table, `__all__` and the imports above together.
_HOME = {
    "Audit": "decodecalc.trace.audit",
    "Axes": "decodecalc.sweeps.axes",
    "Batch": "decodecalc.batch",
    "Calibration": "decodecalc.cost.calibration",
    "Choice": "decodecalc.cost.choice",
    "DecodecalcError": "decodecalc.errors",
    "Drawn": "decodecalc.plot.drawing",
    "Gate": "decodecalc.launch.plan",
    "GateError": "decodecalc.errors",
    "Gather": "decodecalc.geometry",
    "Geometry": "decodecalc.geometry",
    "Gpu": "decodecalc.gpus",
    "Indexer": "decodecalc.geometry",
    "InputError": "decodecalc.errors",
    "KernelLaunch": "decodecalc.launch.plan",
    "KvCache": "decodecalc.kvcache",
    "LaunchPlan": "decodecalc.launch.plan",
    "LayerGroup": "decodecalc.models",
    "MissingDependencyError": "decodecalc.errors",
    "Model": "decodecalc.models",
    "ModelConfigError": "decodecalc.errors",
    "Occupancy": "decodecalc.analysis.occupancy",
    "Paging": "decodecalc.analysis.paging",
    "Prediction": "decodecalc.cost.prediction",
    "RankModel": "decodecalc.models",
    "Report": "decodecalc.verify.report.files",
    "Roofline": "decodecalc.analysis.roofline",
    "Segment": "decodecalc.analysis.segments",
    "ShardingError": "decodecalc.errors",
    "Splits": "decodecalc.launch.plan",
    "Step": "decodecalc.cost.step",
    "StepFloor": "decodecalc.cost.step",
    "Table": "decodecalc.tables.table",
    "TokenTime": "decodecalc.cost.token",
    "Traffic": "decodecalc.analysis.traffic",
    "UnknownNameError": "decodecalc.errors",
    "audit": "decodecalc.trace.words",
    "choose": "decodecalc.cost.choice",
    "detect_gpu": "decodecalc.gpus",
    "engine_names": "decodecalc.engines",
    "figure": "decodecalc.plot.drawing",
    "gpu_names": "decodecalc.gpus",
    "load_calibration": "decodecalc.cost.load",
    "load_gpu": "decodecalc.gpus",
    "load_model": "decodecalc.models",
    "occupancy": "decodecalc.analysis.occupancy",
    "paging": "decodecalc.analysis.paging",
    "plan": "decodecalc.engines",
    "predict": "decodecalc.cost.prediction",
    "read_report": "decodecalc.verify.report.files",
    "roofline": "decodecalc.analysis.roofline",
    "segments": "decodecalc.analysis.segments",
    "step": "decodecalc.cost.step",
    "sweep": "decodecalc.sweeps.run",
    "table": "decodecalc.cli.ask",
    "token_time": "decodecalc.cost.token",
    "traffic": "decodecalc.analysis.traffic",
    "zoo_names": "decodecalc.models",
}

__all__ = [
    "Audit",
    "Axes",
    "Batch",
    "Calibration",
    "Choice",
    "DecodecalcError",
    "Drawn",
    "Gate",
    "GateError",
    "Gather",
    "Geometry",
    "Gpu",
    "Indexer",
    "InputError",
    "KernelLaunch",
    "KvCache",
    "LaunchPlan",
    "LayerGroup",
    "MissingDependencyError",
    "Model",
    "ModelConfigError",
    "Occupancy",
    "Paging",
    "Prediction",
    "RankModel",
    "Report",
    "Roofline",
    "Segment",
    "ShardingError",
    "Splits",
    "Step",
    "StepFloor",
    "Table",
    "TokenTime",
    "Traffic",
    "UnknownNameError",
    "__version__",
    "audit",
    "choose",
    "detect_gpu",
    "engine_names",
    "figure",
    "gpu_names",
    "load_calibration",
    "load_gpu",
    "load_model",
    "occupancy",
    "paging",
    "plan",
    "predict",
    "read_report",
    "roofline",
    "segments",
    "step",
    "sweep",
    "table",
    "token_time",
    "traffic",
    "zoo_names",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'decodecalc' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
