"""What a row of a report must be before anything is computed from it: report files come from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from decodecalc.safetext import plain
from decodecalc.verify.claims.claim import BY_NUMBER, VERDICTS

NEEDED = ("case", "claim", "verdict", "scenario", "engine", "quantities")
_WORDS = ("case", "verdict", "scenario", "engine")
_NUMBERS = ("observed", "predicted", "spread", "kv_read_bytes")
_OFFERED = ("total_s", "predicted_total_s", "difference", "relative_difference")
_DEFAULTS: dict[str, Any] = {
    "reason": "", "how": "", "claim_name": "", "quantity": None, "predicted": None, "observed": None,
    "difference": None, "relative_difference": None, "unit": "", "spread": None, "kv_read_bytes": 0,
}  # fmt: skip
_TIME = 10  # the claim whose numbers are averaged


def row_fault(row: Any) -> str:
    """What is wrong with a row; empty where nothing is."""
    if not isinstance(row, dict):
        return "not an object"
    missing = [name for name in NEEDED if name not in row]
    if missing:
        return f"{', '.join(missing)} missing"
    for name in _WORDS:
        if not isinstance(row[name], str):
            return f"{name} must be text, not {row[name]!r:.40}"
    if type(row["claim"]) is not int or row["claim"] not in BY_NUMBER:
        return f"claim must be a number from 1 to {len(BY_NUMBER)}, not {row['claim']!r:.40}"
    if row["verdict"] not in VERDICTS:
        return f"verdict {row['verdict']!r:.40} is not one of {', '.join(VERDICTS)}"
    quantities = row["quantities"]
    if not isinstance(quantities, list) or not all(_is_quantity(q) for q in quantities):
        return "quantities must be objects with name, predicted and observed"
    for name in _OFFERED:
        if not (row.get(name) is None or _is_number(row[name])):
            return f"{name} must be a number, not {row[name]!r:.40}"
    if row["claim"] != _TIME:
        return ""
    for name in _NUMBERS:
        if not (row.get(name) is None or _is_number(row[name])):
            return f"{name} must be a number, not {row[name]!r:.40}"
    for q in quantities:
        if not (q["predicted"] is None or (_is_number(q["predicted"]) and _is_number(q["observed"]) and q["observed"])):
            return f"{q['name']!r:.40} must be a predicted and an observed number of seconds"
    return ""


def complete(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row that `row_fault` has nothing against, with the fields that tables read filled in."""
    whole = {**_DEFAULTS, **{name: value for name, value in row.items() if value is not None or name in _DEFAULTS}}
    whole["quantities"] = [{"unit": "", **quantity} for quantity in row["quantities"]]
    whole["claim_name"] = whole["claim_name"] or BY_NUMBER[row["claim"]].name
    return {**row, **whole}


def shown(value: Any) -> Any:
    """The value with every text in it safe to show: no terminal escapes, direction marks or half characters."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(key): shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value


def _is_quantity(q: Any) -> bool:
    return isinstance(q, dict) and isinstance(q.get("name"), str) and "predicted" in q and "observed" in q


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
