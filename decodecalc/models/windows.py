"""Says to which layers a sliding window applies, and how many keys it lets a query see.

The number is the configuration's own. In the masks of transformers (`masking_utils.sliding_window_overlay`) a window of
W lets a query see W keys, its own included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from decodecalc.errors import ModelConfigError
from decodecalc.models.fields import MAX_LAYERS, Fields, class_defaults, type_data, whole
from decodecalc.models.layer_types import FULL, FULL_UNLESS_LISTED, SLIDING, LayerPlan

# Classes with `max_window_layers`: the first layers stay full.
_MAX_WINDOW_LAYERS = "max_window_layers"


class WindowPlan(NamedTuple):
    """`plan` with the windowed layers marked SLIDING, and one window (or None) per layer."""

    plan: LayerPlan
    windows: tuple[int | None, ...]
    notes: tuple[str, ...] = ()


def plan_windows(fields: Fields, plan: LayerPlan) -> WindowPlan:
    """Applies the configuration's sliding window to the layers of `plan`."""
    per_layer = fields.raw("sliding_window")
    if isinstance(per_layer, (list, tuple)):
        return _listed(plan, list(per_layer))
    window = _window(fields)
    inactive = fields.flag("use_sliding_window") is False
    if SLIDING in plan.kinds:
        if window is not None and not inactive and not fields.is_stated("window"):
            fields.value("window")  # records the class default as a warning
        return _patterned(plan, window, inactive)
    if window is None:
        return _unwindowed(plan)
    if inactive:
        return _unwindowed(plan, _stated(fields, f"sliding_window {window} is inactive (use_sliding_window false)"))
    if fields.words("layer_types") is not None or fields.model_type in FULL_UNLESS_LISTED:
        return _unwindowed(plan, _stated(fields, f"sliding_window {window} is used by no layer"))
    if class_defaults(fields.model_type) and fields.model_type not in type_data()["windowed"]:
        return _unwindowed(plan, f"sliding_window {window} is ignored: {fields.model_type} has no window")
    positions = fields.count("max_position", quiet=True)
    if positions is not None and window >= positions:
        return _unwindowed(plan, f"sliding_window {window} is not below max positions: it never hides a key")
    if not fields.is_stated("window"):
        fields.value("window")  # records the class default as a warning
    return _uniform(fields, plan, window)


def _window(fields: Fields) -> int | None:
    """The window in keys. Null, false, zero and -1 all occur in configurations and mean that there is none."""
    if fields.model_type == "gpt_neo":
        return fields.count("window_size", quiet=True)
    if fields.model_type == "modernbert-decoder":
        both_sides = fields.count("local_attention", quiet=True)
        return None if both_sides is None else max(1, both_sides // 2)
    value: Any = fields.value("window", quiet=True)
    if value is None or value is False or (isinstance(value, int) and value in (0, -1)):
        return None
    return whole("sliding_window", value)


def _stated(fields: Fields, note: str) -> str | None:
    return note if fields.is_stated("window") else None


def _unwindowed(plan: LayerPlan, note: str | None = None) -> WindowPlan:
    return WindowPlan(plan, (None,) * len(plan.kinds), (note,) if note else ())


def _listed(plan: LayerPlan, values: list[Any]) -> WindowPlan:
    """One window per layer; null, zero and -1 are full attention."""
    if len(values) < len(plan.kinds):
        raise ModelConfigError(f"sliding_window has {len(values)} entries for {len(plan.kinds)} layers")
    windows = tuple(
        None if value in (None, 0, -1) or kind not in (FULL, SLIDING) else whole("sliding_window", value)
        for kind, value in zip(plan.kinds, values, strict=False)
    )
    kinds = tuple(
        kind if kind not in (FULL, SLIDING) else FULL if window is None else SLIDING
        for kind, window in zip(plan.kinds, windows, strict=True)
    )
    return WindowPlan(plan._replace(kinds=kinds), windows)


def _patterned(plan: LayerPlan, window: int | None, inactive: bool) -> WindowPlan:
    if window is None and not inactive:
        raise ModelConfigError("some layers are sliding but sliding_window is missing: cannot tell how far they see")
    if inactive:
        kinds = tuple(FULL if kind == SLIDING else kind for kind in plan.kinds)
        note = f"sliding_window {window} is inactive (use_sliding_window false)"
        return _unwindowed(plan._replace(kinds=kinds), note if window else None)
    return WindowPlan(plan, tuple(window if kind == SLIDING else None for kind in plan.kinds))


def _uniform(fields: Fields, plan: LayerPlan, window: int) -> WindowPlan:
    """Applies a window without a pattern to every attention layer, from `max_window_layers` on where that exists."""
    layers = len(plan.kinds)
    if fields.model_type == "qwen2_moe":
        until = fields.count(_MAX_WINDOW_LAYERS, low=0, high=MAX_LAYERS, quiet=True) or 0
        bound = [i % 2 == 0 and i < until for i in range(layers)]
    elif fields.value(_MAX_WINDOW_LAYERS, quiet=True) is not None and fields.model_type != "qwen3_moe":
        first = fields.count(_MAX_WINDOW_LAYERS, low=0, high=MAX_LAYERS, quiet=True) or 0
        bound = [i >= first for i in range(layers)]
    else:
        bound = [True] * layers
    kinds = tuple(SLIDING if kind == FULL and here else kind for kind, here in zip(plan.kinds, bound, strict=True))
    words = tuple(
        "sliding_attention" if kind == SLIDING else word for kind, word in zip(kinds, plan.words, strict=True)
    )
    windows = tuple(window if kind == SLIDING else None for kind in kinds)
    note = () if SLIDING in kinds else (f"sliding_window {window} applies to no layer (max_window_layers)",)
    return WindowPlan(plan._replace(kinds=kinds, words=words), windows, note)
