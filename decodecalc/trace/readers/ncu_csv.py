"""Reads Nsight Compute `ncu --csv`: the details page (one row per metric) and the raw page (one row per kernel).

ncu serialises and replays kernels, so there is no clock: the place of a kernel in time is its ID, and times are those
of a kernel that runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from decodecalc.errors import InputError
from decodecalc.trace.events import EventLog, Trace, TraceDevice, whole
from decodecalc.trace.readers import Progress
from decodecalc.trace.readers.tables import count, extents, number, rows_under_header, seconds_per

_DURATION, _DURATION_RAW = "Duration", "gpu__time_duration.sum"
_REGISTERS, _REGISTERS_RAW = "Registers Per Thread", "launch__registers_per_thread"
_SMS, _SMS_RAW = ("# SMs", "Multiprocessor Count"), "device__attribute_multiprocessor_count"


def read(path: str, log: EventLog, allow_truncated: bool, progress: Progress | None) -> Trace:
    """The trace. Raises InputError when columns that it needs are missing."""
    sms: int | None = None
    capability: tuple[int, int] | None = None
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        header, rows = rows_under_header(path, file, ("Kernel Name",))
        at = {name: i for i, name in enumerate(header)}
        if "Grid Size" not in at and "launch__grid_dim_x" not in at:
            raise InputError(f"{path}: the table has no column Grid Size: record with --section LaunchStats")
        rows = _reported(rows, progress)
        kernels = _details(header, at, rows, log) if "Metric Name" in at else _raw(path, at, rows, log)
        for n, kernel in enumerate(kernels):
            duration = kernel["duration_s"]
            log.add(
                kernel["name"], float(n), float("nan") if duration is None else duration, kernel["grid"],
                kernel["block"], 0, kernel["stream"], 0, kernel["registers"],
            )  # fmt: skip
            sms = kernel["sms"] or sms
            capability = kernel["capability"] or capability
    device = TraceDevice(0, "", sms, None, capability)
    notes = ["Nsight Compute runs kernels one at a time, with caches and clocks under its own control"]
    return Trace(path, "ncu csv", log, (device,), notes=tuple(notes))


def _reported(rows: Iterator[list[str]], progress: Progress | None) -> Iterator[list[str]]:
    for row in rows:
        if progress is not None:
            progress(sum(map(len, row)) + len(row))
        yield row


def _kernel(at: dict[str, int], row: list[str]) -> dict[str, Any]:
    """The part of a row that both pages have."""

    def cell(name: str) -> str:
        return row[at[name]] if name in at else ""

    major, _, minor = cell("CC").partition(".")
    cc = (count(major), count(minor))
    return {
        "id": cell("ID"),
        "name": cell("Kernel Name"),
        "grid": extents(cell("Grid Size")),
        "block": extents(cell("Block Size")),
        "stream": count(cell("Stream")) or 0,
        "capability": None if cc[0] is None or cc[1] is None else (cc[0], cc[1]),
        "duration_s": None,
        "registers": None,
        "sms": None,
    }


def _details(
    header: list[str], at: dict[str, int], rows: Iterator[list[str]], log: EventLog
) -> Iterator[dict[str, Any]]:
    current: dict[str, Any] | None = None
    metric_at, value_at, unit_at = at["Metric Name"], at.get("Metric Value"), at.get("Metric Unit")
    for row in rows:
        if len(row) != len(header) or value_at is None:
            log.malformed += 1
            continue
        if current is None or row[at["ID"]] != current["id"]:
            if current is not None:
                yield current
            current = _kernel(at, row)
        metric, value = row[metric_at], number(row[value_at])
        if metric in (_DURATION, _DURATION_RAW) and value is not None and unit_at is not None:
            unit = seconds_per(row[unit_at])
            current["duration_s"] = None if unit is None else value * unit
        elif metric in (_REGISTERS, _REGISTERS_RAW):
            current["registers"] = count(row[value_at])
        elif metric in (*_SMS, _SMS_RAW):
            current["sms"] = count(row[value_at])
    if current is not None:
        yield current


def _raw(path: str, at: dict[str, int], rows: Iterator[list[str]], log: EventLog) -> Iterator[dict[str, Any]]:
    units = next(rows, [])  # the second line of the page
    unit = seconds_per(units[at[_DURATION_RAW]]) if _DURATION_RAW in at and len(units) == len(at) else None
    for row in rows:
        if len(row) != len(at):
            log.malformed += 1
            continue
        kernel = _kernel(at, row)
        if unit is not None:
            value = number(row[at[_DURATION_RAW]])
            kernel["duration_s"] = None if value is None else value * unit
        if _REGISTERS_RAW in at:
            kernel["registers"] = count(row[at[_REGISTERS_RAW]])
        if _SMS_RAW in at:
            kernel["sms"] = whole(number(row[at[_SMS_RAW]]))
        yield kernel
