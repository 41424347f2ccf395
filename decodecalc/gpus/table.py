"""The bundled table: names, aliases, values, and where each value comes from.

`data/gpus.json` holds the values and is read at the first look-up. `data/gpus_provenance.json` (source, confidence,
note and disagreeing values of each field) is read only when somebody asks for it.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any, NamedTuple

from decodecalc.errors import UnknownNameError
from decodecalc.gpus.fields import FIELDS
from decodecalc.gpus.gpu import Gpu

_DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")
_VENDOR_WORDS = r"^(nvidia|amd|intel|geforce|instinct|tesla)[\s_-]+"


class Alternative(NamedTuple):
    """A value that another source gives for the same field."""

    value: Any
    source: str
    confidence: str
    note: str


class FieldInfo(NamedTuple):
    """One field of a GPU with its provenance.

    `confidence` is `datasheet`, `driver query seen`, `secondary`, `derived` or `unknown` (no value, or one that
    nobody has verified) for the table, and `given` for what a user's file or the live device supplied.
    """

    field: str
    value: Any
    unit: str
    source: str
    confidence: str
    note: str
    alternatives: tuple[Alternative, ...]


def _read(name: str) -> Any:
    import json

    with open(os.path.join(_DATA, name), encoding="utf-8") as file:
        return json.load(file)


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return _read("gpus.json")["gpus"]


def name_key(text: str) -> str:
    """The form in which names are compared: lower case, letters and digits only.

    >>> name_key("RTX 4090"), name_key("rtx-4090")
    ('rtx4090', 'rtx4090')
    """
    return re.sub(r"[^a-z0-9]", "", text.lower())


@cache
def _index() -> dict[str, str]:
    """Every accepted spelling's key: short name, aliases, display name and driver names."""
    index: dict[str, str] = {}
    for name, entry in _entries().items():
        for text in (name, *entry["aliases"], entry["display_name"], *entry.get("device_names", ())):
            index.setdefault(name_key(text), name)
    return index


def gpu_names() -> tuple[str, ...]:
    """Short names of the table's GPUs, in its order (by vendor and generation)."""
    return tuple(_entries())


def gpu_aliases(name: str) -> tuple[str, ...]:
    """Other names that load the same entry. Bare family names mean the part that most people run: `a100` is the 80 GB
    SXM; `h100`, `h200` and `b200` are the SXM parts; `gh200` and `h20` have 96 GB; `rtx-pro-6000` is the Server
    Edition; `orin` is the AGX with 64 GB.

    >>> "h100" in gpu_aliases("h100-sxm")
    True
    """
    return tuple(_entries()[find_name(name)]["aliases"])


def is_name(text: str) -> bool:
    """Whether `find_name` would find it."""
    return _look_up(text) is not None


def _look_up(text: str) -> str | None:
    if len(text) > 200:
        return None
    without = re.sub(_VENDOR_WORDS, "", text, flags=re.IGNORECASE)  # "NVIDIA H100", then "AMD Instinct MI300X"
    for candidate in (text, without, re.sub(_VENDOR_WORDS, "", without, flags=re.IGNORECASE)):
        found = _index().get(name_key(candidate))
        if found:
            return found
    return None


def find_name(text: str) -> str:
    """The short name for any accepted spelling; UnknownNameError with the nearest names otherwise."""
    found = _look_up(text)
    if found:
        return found
    known = [*_entries(), *(alias for entry in _entries().values() for alias in entry["aliases"])]
    hint = "a GPU file must end in .json or .toml; `decodecalc gpus` lists the table"
    raise UnknownNameError("GPU", text, known, hint=hint)


@cache
def table_gpu(name: str) -> Gpu:
    """The table's entry of that short name."""
    values = {field: value for field, value in _entries()[name].items() if field != "aliases"}
    return Gpu(name=name, table_name=name, origin="table", **values)


def table_fields(name: str) -> dict[str, FieldInfo]:
    """Provenance of every field of a table entry, in the order of the fields."""
    gpu, sources, entry = table_gpu(name), _provenance()["sources"], _provenance()["gpus"][name]

    def joined(ids: list[int]) -> str:
        return " | ".join(sources[i] for i in ids)

    out = {}
    for field, spec in FIELDS.items():
        if field not in entry:
            continue
        record = entry[field]
        others = tuple(Alternative(a["v"], joined(a["s"]), a["c"], a.get("n", "")) for a in record.get("a", ()))
        info = FieldInfo(
            field, getattr(gpu, field), spec.unit, joined(record["s"]), record["c"], record.get("n", ""), others
        )
        out[field] = info
    return out


@cache
def _provenance() -> dict[str, Any]:
    return _read("gpus_provenance.json")
