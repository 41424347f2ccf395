"""Reads Nsight Systems `nsys stats -r cuda_gpu_trace --format csv`, which has one row per kernel, copy and fill."""

from __future__ import annotations

from decodecalc.errors import InputError
from decodecalc.trace.events import EventLog, Trace, TraceDevice
from decodecalc.trace.readers import Progress
from decodecalc.trace.readers.tables import count, number, rows_under_header, seconds_per

_NEEDED = ("Start", "Duration", "Name")
_COLUMNS = ("GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ")


def read(path: str, log: EventLog, allow_truncated: bool, progress: Progress | None) -> Trace:
    """The trace. Raises InputError when columns that it needs are missing."""
    devices: dict[str, int] = {}
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        header, rows = rows_under_header(path, file, ("Start", "Duration", "GrdX", "Name"))
        at = {name.split(" (")[0]: i for i, name in enumerate(header)}
        missing = [name for name in (*_NEEDED, *_COLUMNS) if name not in at]
        if missing:
            raise InputError(f"{path}: the table has no column {', '.join(missing)}")
        start_s, duration_s = (_unit(path, header[at[name]]) for name in ("Start", "Duration"))
        for row in rows:
            if progress is not None:
                progress(sum(map(len, row)) + len(row))
            if len(row) != len(header):
                log.malformed += 1
                continue
            grid = [count(row[at[name]]) for name in _COLUMNS]
            start, duration = number(row[at["Start"]]), number(row[at["Duration"]])
            if grid[0] is None:  # copies and fills have no grid
                continue
            if start is None or duration is None:
                log.malformed += 1
                continue
            device = row[at["Device"]] if "Device" in at else ""
            log.add(
                row[at["Name"]],
                start * start_s,
                duration * duration_s,
                grid[:3],
                grid[3:],
                devices.setdefault(device, len(devices)),
                (count(row[at["Strm"]]) or 0) if "Strm" in at else 0,
                (count(row[at["CorrId"]]) or 0) if "CorrId" in at else 0,
                count(row[at["Reg/Trd"]]) if "Reg/Trd" in at else None,
            )
    # "NVIDIA H200 (0)": name and CUDA index.
    found = tuple(TraceDevice(index, name.rsplit(" (", 1)[0][:200]) for name, index in devices.items())
    return Trace(path, "nsys csv", log, found)


def _unit(path: str, heading: str) -> float:
    _, _, unit = heading.partition(" (")
    seconds = seconds_per(unit) if unit else None
    if seconds is None:
        raise InputError(f"{path}: column {heading[:40]!r} does not say its unit of time, for example 'Start (ns)'")
    return seconds
