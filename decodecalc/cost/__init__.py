"""The time model, which turns a LaunchPlan into seconds: calibrations, predictions, the choice of a split count.

Names load on first use, so that `s_opt` alone does not import the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_HOME = {
    "Calibration": "calibration",
    "load_calibration": "load",
    "Parameter": "parameters",
    "Variant": "parameters",
    "Prediction": "prediction",
    "predict": "prediction",
    "predict_arrays": "prediction",
    "predict_policy": "prediction",
    "Choice": "choice",
    "choose": "choice",
    "TokenTime": "token",
    "token_time": "token",
    "Tuning": "tuning",
    "s_opt": "tuning",
    "tune": "tuning",
}
__all__ = [
    "Calibration",
    "Choice",
    "Parameter",
    "Prediction",
    "TokenTime",
    "Tuning",
    "Variant",
    "choose",
    "load_calibration",
    "predict",
    "predict_arrays",
    "predict_policy",
    "s_opt",
    "token_time",
    "tune",
]

if TYPE_CHECKING:
    from decodecalc.cost.calibration import Calibration
    from decodecalc.cost.choice import Choice, choose
    from decodecalc.cost.load import load_calibration
    from decodecalc.cost.parameters import Parameter, Variant
    from decodecalc.cost.prediction import Prediction, predict, predict_arrays, predict_policy
    from decodecalc.cost.token import TokenTime, token_time
    from decodecalc.cost.tuning import Tuning, s_opt, tune


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
