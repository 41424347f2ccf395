"""Reads a profiler's export: finds which format a file has, and calls the reader for it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from decodecalc.errors import InputError
from decodecalc.files import open_input
from decodecalc.trace.events import EventLog, Trace

Progress = Callable[[int], None]

_CHECKED_BYTES = 1 << 16
KNOWN = (
    "torch profiler / Kineto JSON (.json, .json.gz), Nsight Systems SQLite (nsys export -t sqlite), Nsight Systems "
    "cuda_gpu_trace CSV, Nsight Compute CSV (ncu --csv)"
)


def read_trace(
    path: str,
    wanted: Callable[[str], bool],
    *,
    allow_truncated: bool = False,
    progress: Progress | None = None,
    log: EventLog | None = None,
) -> Trace:
    """The trace at `path`. Its format is recognised by its content, not by its name.

    wanted: whether a kernel of this name is to be kept. allow_truncated: use what comes before the cut of a file that
    ends too early. progress: called with the number of bytes read since the last call. log: what
    takes the kernels, where it is to keep others than those that are wanted. Raises InputError, which says
    what the file is if it is no trace, or where it is cut.
    """
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder: name the trace files in it (several ranks are several files)")
    try:
        with open_input(path, f"trace {path}") as file:
            head = file.read(_CHECKED_BYTES)
    except OSError as error:
        raise InputError(f"cannot read trace {path}: {error.strerror or error}") from None
    module = importlib.import_module(f"decodecalc.trace.readers.{_reader_of(path, head)}")
    trace: Trace = module.read(path, EventLog(wanted) if log is None else log, allow_truncated, progress)
    return trace


def _reader_of(path: str, head: bytes) -> str:
    """The module that reads a file that begins with these bytes."""
    if not head:
        raise InputError(f"{path} is empty")
    if head.startswith(b"SQLite format 3\0"):
        return "nsys_sqlite"
    if head.startswith(b"\x1f\x8b"):
        return "kineto"
    if head.startswith((b"PK\x03\x04", b"\x28\xb5\x2f\xfd")):
        raise InputError(f"{path} is a zip or zstd archive: unpack it first (only .gz is read as it is)")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith((b"{", b"[")):
        return "kineto"
    text = head.decode("utf-8", "replace")
    if "Kernel Name" in text and ("Grid Size" in text or "Metric Name" in text):
        return "ncu_csv"
    if "GrdX" in text and "Name" in text:
        return "nsys_csv"
    if b"NSYS" in head[:64] or path.endswith((".nsys-rep", ".qdrep")):
        raise InputError(f"{path} is an Nsight Systems report: export it first (nsys export -t sqlite {path})")
    if path.endswith((".ncu-rep", ".ncu-report")):
        raise InputError(f"{path} is an Nsight Compute report: export it first (ncu -i {path} --csv)")
    raise InputError(f"{path} is not a trace that can be read; readable: {KNOWN}")
