"""Reads Nsight Systems SQLite exports (`nsys export -t sqlite`) row by row and read-only.

Tables (Nsight Systems user guide, "SQLite schema reference"): CUPTI_ACTIVITY_KIND_KERNEL, with times in nanoseconds and
names as ids into StringIds, and TARGET_INFO_GPU. Columns were added and removed over versions, so only those that exist
are queried.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any
from urllib.parse import quote

from decodecalc.errors import InputError
from decodecalc.trace.events import Annotation, EventLog, Trace, TraceDevice, whole
from decodecalc.trace.readers import Progress

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NEEDED = ("start", "end")
# Each column, with the value to use where an older export does not have it.
_OPTIONAL = (
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "deviceId", "streamId", "correlationId",
    "registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId", "graphId",
)  # fmt: skip
_NAME_COLUMNS = ("demangledName", "shortName", "mangledName")
_MAX_ANNOTATIONS = 100_000


def read(path: str, log: EventLog, allow_truncated: bool, progress: Progress | None) -> Trace:
    """The trace. Raises InputError when the file is damaged or is another database."""
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            return _read(path, connection, log, allow_truncated, progress)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise InputError(f"{path}: the SQLite file cannot be read: {error}") from None


def _read(
    path: str,
    connection: sqlite3.Connection,
    log: EventLog,
    allow_truncated: bool,
    progress: Progress | None,
) -> Trace:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if _KERNELS not in tables:
        raise InputError(
            f"{path} is an SQLite file without {_KERNELS}: not an Nsight Systems export, or one of a session that "
            f"recorded no CUDA kernels (nsys profile -t cuda)"
        )
    notes: list[str] = []
    try:
        _kernels(path, connection, log, "StringIds" in tables, os.path.getsize(path), progress)
    except sqlite3.DatabaseError as error:
        if not allow_truncated:
            raise InputError(
                f"{path}: the SQLite file is damaged after {log.kernels} kernels: {error} (--allow-truncated audits "
                f"what comes before)"
            ) from None
        notes.append(f"{path}: the SQLite file is damaged after {log.kernels} kernels; what comes before is audited")
    notes += _whole_graphs(path, connection, tables)
    return Trace(
        path, "nsys sqlite", log, _devices(connection, tables), None, _annotations(connection, tables), tuple(notes)
    )


def _whole_graphs(path: str, connection: sqlite3.Connection, tables: set[str]) -> list[str]:
    """A note for a session that traced CUDA graphs as units (the default) and therefore has none of their kernels."""
    if _GRAPHS not in tables:
        return []
    launches = connection.execute(f"SELECT count(*) FROM {_GRAPHS}").fetchone()[0]
    if not launches:
        return []
    return [
        f"{path}: {launches} CUDA-graph launches are recorded as a whole, without their kernels: profile with "
        f"--cuda-graph-trace=node to see them"
    ]


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _kernels(
    path: str, connection: sqlite3.Connection, log: EventLog, has_strings: bool, size: int, progress: Progress | None
) -> None:
    present = _columns(connection, _KERNELS)
    missing = [column for column in _NEEDED if column not in present]
    names = [column for column in _NAME_COLUMNS if column in present]
    if missing or not names:
        raise InputError(f"{path}: table {_KERNELS} has no column {', '.join(missing) or 'with kernel names'}")
    fields = [c if c in present else "NULL" for c in (*_NEEDED, names[0], *_OPTIONAL)]
    strings: dict[Any, str] = {}
    lookup = connection.cursor()
    total = connection.execute(f"SELECT count(*) FROM {_KERNELS}").fetchone()[0] if progress else 0
    for n, row in enumerate(connection.execute(f"SELECT {', '.join(fields)} FROM {_KERNELS}"), 1):
        start, end, key = row[:3]
        if key not in strings:
            if len(strings) > 1 << 16:
                strings.clear()
            strings[key] = _name(lookup, key, has_strings)
        try:
            _add(log, strings[key], start * 1e-9, (end - start) * 1e-9, row[3:])
        except (TypeError, ValueError, OverflowError):
            log.malformed += 1
        if progress is not None and n % 10_000 == 0:
            progress(size * 10_000 // max(total, 1))


def _name(lookup: sqlite3.Cursor, key: Any, has_strings: bool) -> str:
    if isinstance(key, str):  # some exports hold the name itself
        return key
    found = lookup.execute("SELECT value FROM StringIds WHERE id = ?", (key,)).fetchone() if has_strings else None
    return str(found[0]) if found else f"kernel {key}"


def _add(log: EventLog, name: str, start_s: float, duration_s: float, row: tuple[Any, ...]) -> None:
    gx, gy, gz, bx, by, bz, device, stream, correlation, registers, static, dynamic, node, graph = row
    log.add(
        name,
        start_s,
        duration_s,
        None if gx is None else (gx, gy or 1, gz or 1),
        None if bx is None else (bx, by or 1, bz or 1),
        whole(device) or 0,
        whole(stream) or 0,
        whole(correlation) or 0,
        registers,
        None if static is None and dynamic is None else (whole(static) or 0) + (whole(dynamic) or 0),
        bool(node) or bool(graph),
    )


def _devices(connection: sqlite3.Connection, tables: set[str]) -> tuple[TraceDevice, ...]:
    """Devices by TARGET_INFO_GPU. Its id is the export's own, in the order of CUDA devices, so devices are numbered by
    cuDevice where that exists."""
    if "TARGET_INFO_GPU" not in tables:
        return ()
    present = _columns(connection, "TARGET_INFO_GPU")
    wanted = ("name", "smCount", "totalMemory", "computeMajor", "computeMinor", "cuDevice", "id")
    fields = [column if column in present else "NULL" for column in wanted]
    out = []
    for n, row in enumerate(connection.execute(f"SELECT {', '.join(fields)} FROM TARGET_INFO_GPU LIMIT 64")):
        name, sms, memory, major, minor, cuda, _ = row
        index, major, minor = whole(cuda), whole(major), whole(minor)
        out.append(
            TraceDevice(
                index=n if index is None else index,
                name=str(name or "")[:200],
                sm_count=whole(sms) or None,
                memory_bytes=whole(memory) or None,
                compute_capability=None if major is None or minor is None else (major, minor),
            )
        )
    return tuple(out)


def _annotations(connection: sqlite3.Connection, tables: set[str]) -> tuple[Annotation, ...]:
    """NVTX ranges, which engines put around a step."""
    if "NVTX_EVENTS" not in tables:
        return ()
    present = _columns(connection, "NVTX_EVENTS")
    if not {"start", "end", "text"} <= present:
        return ()
    query = (
        f"SELECT start, end, text FROM NVTX_EVENTS WHERE text IS NOT NULL AND end IS NOT NULL LIMIT {_MAX_ANNOTATIONS}"
    )
    return tuple(
        Annotation(str(text)[:1000], start * 1e-9, (end - start) * 1e-9)
        for start, end, text in connection.execute(query)
        if isinstance(start, int) and isinstance(end, int)
    )
