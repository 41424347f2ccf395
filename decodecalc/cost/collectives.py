"""How long collectives between GPUs take: a table of measured times, and a small model beyond it.

    t(bytes, R) = T(bytes) + hop x (R - R0), with the bytes' part moved to another link

* T is what was measured for R0 ranks, over the bytes that one rank receives: straight lines between the measured points
  (each at least as high as those before it), the first point below the first, and the last line beyond the last.
* hop is what a further rank adds to the least time: a ring passes through it. It was not measured, and it is an
  assumption: `HOP_S`.
* On a slower link every byte takes longer by the ratio of the rates, at the slope of the last line. On a faster one
  what T has above its least value shrinks by that ratio. The rate of a rank does not depend on the number of ranks:
  NCCL's ring reaches 365 to 370 GB/s on 2 to 8 H100s (NVIDIA/nccl issue 1455).

What lies on the measured number of ranks and link is `measured`, all else `extrapolated`. Ranks that do not share one
NVLink domain are outside the model.

File format (schema `decodecalc/collectives/1`): `gpu` (identity and link), `date`, `protocol`, `source`, and `rows` of
`kind`, `ranks`, `buffer_bytes` and `seconds`; further keys of a row are notes. `decodecalc calibrate --collectives`
writes one. The package holds its own in `data/collectives_*.json`, and takes the one that covers the GPU and the ranks,
or else the nearest (`shipped_collectives`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.analysis.exchange import COLLECTIVES, Exchange, exchange_arrays
from decodecalc.cost.parameters import EXTRAPOLATED, MEASURED
from decodecalc.errors import InputError
from decodecalc.files import read_json, write_whole

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

SCHEMA = "decodecalc/collectives/1"
MAX_FILE_BYTES = 4 << 20
MOST_ROWS = 10_000
_DATA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")

HOP_S = 0.7e-6  # a further rank of a ring: an assumption, about one flag and one small store over NVLink
# A small kernel between two collectives, which cannot overlap with either: an assumption, near the 2.4 us that a plain
# kernel over 0.26 MB takes on an H200 (kernels/NOTES.md).
SIDE_KERNEL_S = 2e-6
# Half widths of the interval, as factors: the measured times are whole microseconds of one machine; the others rest on
# HOP_S and on another link's rate.
MEASURED_FACTOR, EXTRAPOLATED_FACTOR = 1.15, 1.6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTimes:
    """Measured times of collectives. Two are equal when they are one object."""

    gpu: Mapping[str, Any]
    """The GPU: `name`, `table_name` and `link_bytes_per_s` (one direction)."""
    ranks: int
    """Ranks that were measured."""
    points: Mapping[str, tuple[tuple[float, float], ...]] = field(repr=False)
    """By kind: (bytes that one rank receives, seconds), ascending in bytes."""
    date: str = ""
    """Day of the measurement; empty where it was not kept."""
    protocol: str = ""
    """How it was measured."""
    source: str = ""
    """Where the numbers come from."""

    def covers(self, gpu: Gpu, ranks: int) -> bool:
        """Whether times for so many of these GPUs are measured ones."""
        return ranks == self.ranks and gpu.table_name == self.gpu.get("table_name")

    def seconds(self, kind: str, received_bytes: Any, ranks: int, link_bytes_per_s: float) -> Any:
        """Time of one collective in which a rank receives so many bytes; a number or an array."""
        points = self.points[kind]
        known, times = np.array([p[0] for p in points]), np.maximum.accumulate([p[1] for p in points])
        x = np.asarray(received_bytes, dtype=float)
        slope = (times[-1] - times[-2]) / (known[-1] - known[-2]) if len(points) > 1 else 0.0
        found = np.interp(x, known, times) + np.maximum(x - known[-1], 0.0) * slope
        slower = float(self.gpu["link_bytes_per_s"]) / link_bytes_per_s
        if slower > 1:
            found = found + x * slope * (slower - 1)
        else:
            found = times[0] + (found - times[0]) * slower
        total = found + HOP_S * max(ranks - self.ranks, 0)
        return total if np.ndim(received_bytes) else float(total)

    def label(self, gpu: Gpu, ranks: int) -> str:
        """What the times for so many of these GPUs are, in one line."""
        base = f"{self.ranks} x {self.gpu['name']}"
        if self.covers(gpu, ranks):
            return f"{MEASURED} on {base}" + (f" ({self.date})" if self.date else "")
        return f"{EXTRAPOLATED} to {ranks} x {gpu.name} from {base}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTime:
    """Time of one layer's exchange."""

    collectives_s: Any
    """The collectives, one after another."""
    kernels_s: Any
    """The kernels around them."""
    provenance: str
    """`measured` or `extrapolated`: of the collectives."""
    label: str
    """Where the times come from."""

    @property
    def total_s(self) -> Any:
        """Both."""
        return self.collectives_s + self.kernels_s

    @property
    def factor(self) -> float:
        """How far the interval reaches, as a factor either way."""
        return MEASURED_FACTOR if self.provenance == MEASURED else EXTRAPOLATED_FACTOR


def exchange_time(
    found: Exchange, gpu: Gpu, l2_bytes_per_s: float, times: CollectiveTimes | None = None
) -> ExchangeTime:
    """What an exchange takes on `gpu`: numbers or arrays, as its bytes are.

    l2_bytes_per_s: the rate at which the kernels around the collectives move their bytes, which the L2 holds. times
    None takes the shipped ones. InputError where the GPU's link is not known.
    """
    known = times or shipped_collectives(gpu, found.ranks)
    link = gpu.need("interconnect_bytes_per_s_per_direction")
    collectives: Any = 0.0
    for collective in found.collectives:
        collectives = collectives + known.seconds(collective.kind, collective.received_bytes, found.ranks, link)
    kernels: Any = 0.0
    for kernel in found.kernels:
        kernels = kernels + np.where(kernel.when, SIDE_KERNEL_S + kernel.moved_bytes / l2_bytes_per_s, 0.0)
    return ExchangeTime(
        collectives_s=collectives,
        kernels_s=kernels if np.ndim(kernels) else float(kernels),
        provenance=MEASURED if known.covers(gpu, found.ranks) else EXTRAPOLATED,
        label=known.label(gpu, found.ranks),
    )


def layer_exchange_s(geo: Geometry, kv: KvCache, gpu: Gpu, tokens: int, l2_bytes_per_s: float) -> float:
    """What the ranks' exchange adds to one layer of `tokens` query tokens; 0 where keys are not divided."""
    found = exchange_arrays(geo, kv, tokens)
    return 0.0 if found is None else float(exchange_time(found, gpu, l2_bytes_per_s).total_s)


def shipped_collectives(gpu: Gpu | None = None, ranks: int = 2) -> CollectiveTimes:
    """The package's times for so many of these GPUs: those of this GPU before another's, and of these those for the
    nearest number of ranks."""
    name = None if gpu is None else gpu.table_name
    return min(_shipped(), key=lambda known: (known.gpu.get("table_name") != name, abs(known.ranks - ranks)))


@cache
def _shipped() -> tuple[CollectiveTimes, ...]:
    found = []
    for name in sorted(os.listdir(_DATA)):
        if name.startswith("collectives_"):
            with open(os.path.join(_DATA, name), encoding="utf-8") as file:
                found.append(parse_collectives(json.load(file), f"shipped {name}"))
    return tuple(found)


def load_collectives(path: str | os.PathLike[str]) -> CollectiveTimes:
    """The times in a file. InputError for another schema, or for a damaged file."""
    what = f"collectives {os.fspath(path)}"
    return parse_collectives(read_json(path, MAX_FILE_BYTES, what), what)


def parse_collectives(data: Any, what: str) -> CollectiveTimes:
    """Times from a file's content. InputError says what is wrong with it."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(f"{what}: not a file of collective times (schema {SCHEMA})")
    gpu, rows = data.get("gpu"), data.get("rows")
    if not isinstance(gpu, dict) or not isinstance(gpu.get("name"), str) or not _positive(gpu.get("link_bytes_per_s")):
        raise InputError(f"{what}: `gpu` needs a name and link_bytes_per_s")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_ROWS:
        raise InputError(f"{what}: `rows` must be a list of 1 to {MOST_ROWS} measurements")
    ranks = {row.get("ranks") if isinstance(row, dict) else None for row in rows}
    if len(ranks) != 1 or not isinstance(only := ranks.pop(), int) or isinstance(only, bool) or only < 2:
        raise InputError(f"{what}: all rows must be of one number of ranks, at least 2")
    points: dict[str, dict[float, list[float]]] = {kind: {} for kind in COLLECTIVES}
    for row in rows:
        kind, size, seconds = row.get("kind"), row.get("buffer_bytes"), row.get("seconds")
        if kind not in points:
            raise InputError(f"{what}: kind {kind!r:.40} is none of {', '.join(COLLECTIVES)}")
        if not _positive(size) or not _positive(seconds) or seconds > 1:
            raise InputError(f"{what}: buffer_bytes and seconds of a row must be positive numbers, and seconds below 1")
        points[kind].setdefault(size * (only - 1) / only, []).append(float(seconds))
    missing = [kind for kind, found in points.items() if not found]
    if missing:
        raise InputError(f"{what}: no time of {', '.join(missing)}")
    means = {
        kind: tuple((size, sum(times) / len(times)) for size, times in sorted(found.items()))
        for kind, found in points.items()
    }
    text = {name: str(data.get(name, ""))[:1000] for name in ("date", "protocol", "source")}
    return CollectiveTimes(gpu=gpu, ranks=only, points=means, **text)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e30


def save_collectives(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Write a file of the format above, whole or not at all."""
    parse_collectives(dict(data), "the measured collectives")
    head = {name: value for name, value in data.items() if name != "rows"}
    lines = ",\n".join("  " + json.dumps(row) for row in data["rows"])
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n"
    write_whole(path, text, f"collectives {os.fspath(path)}")
