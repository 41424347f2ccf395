"""A workload: the decode steps that a server runs, and how often each comes; its file format.

The file holds a JSON list of objects. `batch` and `context` (and `q_len`, 1 unless given) say a step of equal requests,
`seq_lens` one of unequal ones; `weight` says how often the step comes against the others (1 unless given).
"""

from __future__ import annotations

import json
import os
from typing import Any

from decodecalc.batch import Batch
from decodecalc.errors import InputError
from decodecalc.files import read_bounded

MAX_FILE_BYTES, MAX_STEPS = 16 << 20, 1000
EXAMPLE = '[{"batch": 8, "context": 4096, "weight": 3}, {"seq_lens": [512, 9000]}]'


def read_workload(path: str | os.PathLike[str]) -> list[tuple[Batch, float]]:
    """The steps of a workload file with their weights. InputError says what is wrong with it."""
    where = f"workload {os.fspath(path)!r:.200}"
    try:
        data = json.loads(read_bounded(path, MAX_FILE_BYTES, where))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({str(error)[:80]}); for example {EXAMPLE}") from None
    if not isinstance(data, list) or not data:
        raise InputError(f"{where} must hold a list of at least one step, for example {EXAMPLE}")
    if len(data) > MAX_STEPS:
        raise InputError(f"{where} has {len(data)} steps, but at most {MAX_STEPS} are allowed")
    return [_step(entry, f"{where}: step {i}") for i, entry in enumerate(data)]


def _step(entry: Any, where: str) -> tuple[Batch, float]:
    if not isinstance(entry, dict):
        raise InputError(f"{where} must be an object, for example {EXAMPLE}")
    unknown = sorted(set(entry) - {"batch", "context", "q_len", "seq_lens", "weight"})
    if unknown:
        raise InputError(
            f"{where} has the unknown field {unknown[0]!r:.40}; the known fields are batch, context, q_len, seq_lens "
            f"and weight"
        )
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise InputError(f"{where}: weight must be a number above 0, not {weight!r:.40}")
    q_len = _count(entry.get("q_len", 1), "q_len", where)
    if "seq_lens" in entry:
        lens = entry["seq_lens"]
        if "batch" in entry or "context" in entry:
            raise InputError(f"{where}: seq_lens describes a whole batch and cannot be combined with batch or context")
        if not isinstance(lens, list) or not lens:
            raise InputError(f"{where}: seq_lens must be a list of at least one length")
        return Batch([_count(n, "a length", where) for n in lens], q_len), float(weight)
    missing = [name for name in ("batch", "context") if name not in entry]
    if missing:
        raise InputError(f"{where}: {missing[0]} is missing (or give seq_lens)")
    batch, context = (_count(entry[name], name, where) for name in ("batch", "context"))
    return Batch.uniform(batch, context, q_len), float(weight)


def _count(value: Any, name: str, where: str) -> int:
    if type(value) is not int or value < 1:
        raise InputError(f"{where}: {name} must be a whole number of at least 1, not {value!r:.40}")
    return value
