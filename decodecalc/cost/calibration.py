"""A calibration: the parameters of one GPU, and who measured them, when and how. This module defines its file format.

File format (schema `decodecalc/calibration/3`): `gpu` (identity), `environment` (driver, clocks, library versions),
`date`, `protocol`, `source` (of a fitted one), `parameters` {name: {value, spread, provenance, note}} and `variants`,
a list of objects with the fields of `Variant` and `values` of the same form; the value of a curve is a list. A variant
whose parameters come from whole timed launches has `timed` beside them: the fields of `parameters.TimedSteps`. Units
are those of `parameters.DEVICE` and `.VARIANT`: SI.
"""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from decodecalc.cost.parameters import (
    CURVES,
    DEVICE,
    EXTRAPOLATED,
    FITTED,
    MEASURED,
    OPTIONAL,
    PER_KERNEL,
    PROVENANCES,
    STAGE_CURVES,
    VARIANT,
    Parameter,
    TimedSteps,
    Value,
    Variant,
)
from decodecalc.errors import InputError
from decodecalc.files import read_json, write_whole
from decodecalc.kvcache import DTYPE_BYTES
from decodecalc.values import Shown

SCHEMA = "decodecalc/calibration/3"
MAX_FILE_BYTES = 16 << 20
MOST_SMS = 1 << 16
MOST_WIDTH = 1 << 16  # elements of a key, keys or rows of a tile
LAYOUTS, PATHS = ("paged", "run", "flat"), ("", "split", "unsplit")  # of a Variant
MAX_NOTE = 1000  # characters of a note that are kept
MOST = 1e30  # beyond every time, rate and size; larger ones would overflow in a product
POSITIVE = ("hbm_sustained_bytes_per_s", "l2_bytes_per_s", "l2_capacity_bytes", "overlap_exponent", "slots_per_sm")

Values = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration(Shown):
    """Parameters of one GPU. Two calibrations are equal when they are one object: caches use it as a key."""

    gpu: Mapping[str, Any]
    """Identity of the GPU: `name`, `sm_count` and, where known, `table_name` and `hbm_bytes_per_s`."""
    parameters: Values
    """Device parameters by name (`parameters.DEVICE`)."""
    variants: Mapping[Variant, Values] = field(repr=False)
    """Parameters (`parameters.VARIANT`) of every kernel variant that was measured."""
    date: str = ""
    """Day of the measurement."""
    protocol: str = ""
    """How it was measured."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Driver, clocks and library versions of the run."""
    extrapolated_from: str | None = None
    """Name of the calibrated GPU, where this one was never measured."""
    source: str = ""
    """Name and version of the published timings that it is fitted to; empty where it was measured."""
    timed: Mapping[Variant, TimedSteps] = field(default_factory=dict, repr=False)
    """What the steps ranged over that a variant was timed on, for those whose whole launches were timed."""

    @property
    def label(self) -> str:
        """What it is, in one line."""
        if self.extrapolated_from:
            return f"extrapolated to {self.gpu['name']} from {self.extrapolated_from} ({self.source or self.date})"
        if self.source:
            return f"fitted to public timings of {self.gpu['name']} ({self.source})"
        return f"measured on {self.gpu['name']} ({self.date})"

    @property
    def provenance(self) -> str:
        """The word for all of its own numbers: measured, fitted to public timings, or extrapolated."""
        return EXTRAPOLATED if self.extrapolated_from else FITTED if self.source else MEASURED

    def origin(self, variant: Variant) -> Calibration:
        """The calibration that `variant` comes from: this one, or one that it was put together from."""
        found = self.variants.origin(variant) if isinstance(self.variants, Variants) else None
        return found or self

    def of_kernel(self, kernel: str) -> tuple[Variant, ...]:
        """The variants of one kernel."""
        if isinstance(self.variants, Variants):
            return self.variants.of_kernel(kernel)
        return tuple(v for v in self.variants if v.kernel == kernel)

    def timed_steps(self, variant: Variant) -> TimedSteps | None:
        """What the steps ranged over that a variant was timed on; None where no whole launches were timed."""
        return self.origin(variant).timed.get(variant)

    def label_of(self, kernel: str) -> str:
        """The label of where that kernel's variants come from."""
        return next((self.origin(v).label for v in self.of_kernel(kernel)), self.label)

    def kernels(self) -> tuple[str, ...]:
        """Kernels that have at least one variant here."""
        return tuple(dict.fromkeys(v.kernel for v in self.variants))

    def __str__(self) -> str:
        """Its label."""
        return self.label

    def to_dict(self) -> dict[str, Any]:
        """The file format."""
        return {
            "schema": SCHEMA,
            "gpu": dict(self.gpu),
            "date": self.date,
            "protocol": self.protocol,
            "environment": dict(self.environment),
            **({"extrapolated_from": self.extrapolated_from} if self.extrapolated_from else {}),
            **({"source": self.source} if self.source else {}),
            "parameters": {name: _plain(p) for name, p in self.parameters.items()},
            "variants": [
                {
                    **variant._asdict(),
                    **({"timed": self.timed[variant]._asdict()} if variant in self.timed else {}),
                    "values": {name: _plain(p) for name, p in values.items()},
                }
                for variant, values in self.variants.items()
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole: beside its place, then moved into it. InputError when it cannot be written."""
        write_whole(path, _on_lines(self.to_dict()), f"calibration {os.fspath(path)}")


def _on_lines(data: dict[str, Any]) -> str:
    """JSON with an entry a line, and a curve's numbers all on one."""
    text = json.dumps(data, indent=1)
    return re.sub(r"\[\n\s+([^][{}]*?)\n\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _plain(p: Parameter) -> dict[str, Any]:
    out: dict[str, Any] = {"value": _shown(p.value), "provenance": p.provenance}
    if p.spread:
        out["spread"] = p.spread
    if p.note:
        out["note"] = p.note
    return out


def _shown(value: Value) -> Any:
    """Curves with five digits, which are more than any measurement has; this halves the file."""
    return [float(f"{x:.5g}") for x in value] if isinstance(value, tuple) else value


class Variants(Mapping[Variant, Values]):
    """Variants that can be had by kernel, and that may come from several calibrations."""

    @abstractmethod
    def of_kernel(self, kernel: str) -> tuple[Variant, ...]:
        """The variants of one kernel."""

    def origin(self, variant: Variant) -> Calibration | None:
        """The calibration that a variant comes from; None where it is the calibration that holds these variants."""


class OnDemand(Variants):
    """Each variant's parameters, made from its source when they are first asked for: a prediction needs a few of more
    than a hundred."""

    def __init__(self, sources: Mapping[Variant, Any], make: Callable[[Variant, Any], Values]) -> None:
        self._sources, self._make = sources, make
        self._found: dict[Variant, Values] = {}

    def __getitem__(self, variant: Variant) -> Values:
        if variant not in self._found:
            self._found[variant] = self._make(variant, self._sources[variant])
        return self._found[variant]

    def of_kernel(self, kernel: str) -> tuple[Variant, ...]:
        return tuple(v for v in self._sources if v.kernel == kernel)

    def __contains__(self, variant: object) -> bool:
        return variant in self._sources

    def __iter__(self) -> Iterator[Variant]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def read_calibration(path: str) -> Calibration:
    """A calibration file. InputError says what is wrong with it."""
    where = f"calibration {path!r:.200}"
    data = read_json(path, MAX_FILE_BYTES, where, "a calibration comes from `decodecalc calibrate`")
    return parse_calibration(data, where)


def parse_calibration(data: Any, where: str = "calibration", lazy: bool = False) -> Calibration:
    """A calibration from its file format. InputError names the field that is wrong; lazy: a variant's on first use."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: must hold one object, not {type(data).__name__}")
    schema = data.get("schema")
    if schema != SCHEMA:
        raise InputError(
            f"{where}: schema {schema!r:.60} is not {SCHEMA!r}: run `decodecalc calibrate` of this version"
        )
    gpu = data.get("gpu")
    if not isinstance(gpu, dict) or not isinstance(gpu.get("name"), str) or not isinstance(gpu.get("sm_count"), int):
        raise InputError(f"{where}: gpu needs a name and an sm_count")
    _check_identity(gpu, data, where)
    parameters = _values(data.get("parameters"), {**DEVICE}, f"{where}: parameters")
    missing = [name for name in DEVICE if name not in parameters and name not in OPTIONAL]
    if missing:
        raise InputError(f"{where}: parameters {', '.join(missing)} missing")
    rows = data.get("variants")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{where}: variants must be a list of at least one")
    places = [f"{where}: variants[{i}]" for i in range(len(rows))]
    sources = [(_variant(entry, place), (entry, place)) for entry, place in zip(rows, places)]
    variants: Mapping[Variant, Values] = (
        OnDemand(dict(sources), lambda _, source: _variant_values(*source))
        if lazy
        else {variant: _variant_values(*source) for variant, source in sources}
    )
    environment = data.get("environment")
    return Calibration(
        gpu=gpu,
        parameters=parameters,
        variants=variants,
        timed={
            variant: _timed(entry["timed"], f"{place}.timed") for variant, (entry, place) in sources if "timed" in entry
        },
        date=str(data.get("date", "")),
        protocol=str(data.get("protocol", "")),
        environment=environment if isinstance(environment, dict) else {},
        extrapolated_from=data.get("extrapolated_from"),
        source=str(data.get("source", "")),
    )


def _check_identity(gpu: Mapping[str, Any], data: Mapping[str, Any], where: str) -> None:
    """InputError where a field that says whose calibration it is holds another kind of value."""
    if isinstance(gpu["sm_count"], bool) or not 1 <= gpu["sm_count"] <= MOST_SMS:
        raise InputError(f"{where}: gpu.sm_count must be between 1 and {MOST_SMS}, not {gpu['sm_count']!r:.40}")
    for name, value in (
        ("gpu.table_name", gpu.get("table_name")),
        ("extrapolated_from", data.get("extrapolated_from")),
    ):
        if not (value is None or isinstance(value, str)):
            raise InputError(f"{where}: {name} must be text, not {value!r:.40}")
    bandwidth = gpu.get("hbm_bytes_per_s")
    if not (bandwidth is None or (_is_number(bandwidth) and bandwidth)):
        raise InputError(f"{where}: gpu.hbm_bytes_per_s must be a number above 0, not {bandwidth!r:.40}")


def _variant(entry: Any, where: str) -> Variant:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: must be an object")
    named: dict[str, Any] = {}
    for name, kind in Variant.__annotations__.items():
        if name not in entry:
            if name in Variant._field_defaults:
                continue
            raise InputError(f"{where}: {name} missing")
        value = entry[name]
        text = "str" in str(kind)
        good = isinstance(value, str) if text else type(value) is int and value >= 0
        if not good:
            raise InputError(f"{where}: {name} must be {'text' if text else 'a count'}, not {value!r:.40}")
        named[name] = value
    variant = Variant(**named)
    for name, value, choices in (
        ("dtype", variant.dtype, DTYPE_BYTES), ("layout", variant.layout, LAYOUTS), ("path", variant.path, PATHS),
    ):  # fmt: skip
        if value not in choices:
            valid = ", ".join(choice or "none" for choice in choices)
            raise InputError(f"{where}: {name} {value!r:.40} is not known; valid: {valid}")
    for name in ("head_dim", "head_dim_v", "tile_keys", "rows"):
        least = 0 if name == "head_dim_v" else 1  # 0: the keys' own elements are the values
        if not least <= getattr(variant, name) <= MOST_WIDTH:
            raise InputError(
                f"{where}: {name} must be between {least} and {MOST_WIDTH}, not {getattr(variant, name)!r:.40}"
            )
    return variant


def _timed(entry: Any, where: str) -> TimedSteps:
    """What a variant's timed steps ranged over. InputError names the field that is wrong."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: must be an object")
    lists: dict[str, tuple[int, ...]] = {}
    for name in ("batch", "context", "pages", "q_lens"):
        given = entry.get(name, [1] if name == "q_lens" else None)
        if not isinstance(given, list) or not given or not all(type(n) is int and n > 0 for n in given):
            raise InputError(f"{where}.{name} must be a list of counts, not {given!r:.40}")
        if name in ("batch", "context") and len(given) != 2:
            raise InputError(f"{where}.{name} must hold the least and the most, not {given!r:.40}")
        lists[name] = tuple(given)
    times = entry.get("times", 0)
    if type(times) is not int or times < 0:
        raise InputError(f"{where}.times must be a count, not {times!r:.40}")
    (least, most), (shortest, longest) = lists["batch"], lists["context"]
    windows = bool(entry.get("windows", False))
    return TimedSteps((least, most), (shortest, longest), lists["pages"], times, lists["q_lens"], windows)


def _variant_values(entry: dict[str, Any], where: str) -> Values:
    known = {**VARIANT, **{name: DEVICE[name] for name in PER_KERNEL}}
    values = _values(entry.get("values"), known, f"{where}.values")
    missing = [name for name in VARIANT if name not in values and name not in OPTIONAL]
    if missing:
        raise InputError(f"{where}.values: {', '.join(missing)} missing")
    size = {name: len(values[name].curve) for name in CURVES}
    uneven = [name for name in STAGE_CURVES if size[name] != size["blocks"]]
    if size["merge_s"] != size["merge_rows"] * size["merge_splits"]:
        uneven.append("merge_s")
    if uneven:
        raise InputError(f"{where}.values: {', '.join(uneven)}: not as many values as knots")
    for name in ("blocks", "merge_rows", "merge_splits"):
        knots = values[name].curve
        if any(b <= a for a, b in pairwise(knots)):
            raise InputError(f"{where}.values.{name}: knots must ascend")
    return values


def _values(data: Any, known: Mapping[str, Any], where: str) -> Values:
    if not isinstance(data, dict):
        raise InputError(f"{where} must be an object")
    out: dict[str, Parameter] = {}
    for name, entry in data.items():
        if name not in known:
            raise InputError(f"{where}: unknown parameter {name!r:.60}")
        value = _value(entry.get("value") if isinstance(entry, dict) else None, name, where)
        provenance = entry.get("provenance", "")
        if provenance not in PROVENANCES:
            raise InputError(
                f"{where}.{name}: provenance must be one of {', '.join(PROVENANCES)}, not {provenance!r:.40}"
            )
        spread = entry.get("spread", 0.0)
        if not _is_number(spread):
            raise InputError(f"{where}.{name}: spread must be a number of at least 0, not {spread!r:.40}")
        out[name] = Parameter(name, value, provenance, float(spread), str(entry.get("note", ""))[:MAX_NOTE])
    return out


def _value(value: Any, name: str, where: str) -> Value:
    """A number, or a curve's numbers. InputError for anything else."""
    if name in CURVES:
        if not isinstance(value, list) or not value or not all(map(_is_number, value)):
            raise InputError(f"{where}.{name}: value must be a list of numbers of at least 0, not {value!r:.40}")
        return tuple(float(x) for x in value)
    if not _is_number(value):
        raise InputError(f"{where}.{name}: value must be a number of at least 0, not {value!r:.40}")
    if name in POSITIVE and not value:
        raise InputError(f"{where}.{name}: value must be above 0: times are divided by it")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST
