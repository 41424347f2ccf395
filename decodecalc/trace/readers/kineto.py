"""Chrome traces of the torch profiler (Kineto): `.json` and `.json.gz`, streamed event by event.

Kineto (pytorch/kineto, libkineto/src/output_json.cpp) writes one object whose `traceEvents` hold complete events
(`ph` X) with `ts` and `dur` in microseconds; kernels have category `kernel` and launch facts in `args`. A bare list of
events is a Chrome trace as well.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from decodecalc.errors import InputError
from decodecalc.trace.events import MAX_DURATION_S, MAX_SHAPES, Annotation, EventLog, Trace, TraceDevice, whole
from decodecalc.trace.readers import Progress

MAX_TEXT_BYTES, MAX_PART_BYTES = 8 << 20, 1 << 20
MAX_DEEPER = 500  # levels that one part of a trace may open and leave open; a profile has half a dozen in all
_SLICE_BYTES, _MOST_ESCAPED = 1 << 11, 200
_BUFFER_BYTES = 1 << 14  # larger buffers make yajl slower: its events are handed over in lists that outgrow the cache
_KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})  # lower case since torch 1.13
_RUNTIME_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "Runtime", "runtime"})
_ANNOTATION_CATEGORIES = frozenset({"user_annotation", "gpu_user_annotation"})
_GRAPH_LAUNCHES = frozenset({"cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch", "cudaGraphLaunch_ptsz"})
_SMALL_FILE_BYTES = 32 << 20
_HEADER_TOKENS = 200_000  # metadata beyond this is skipped: it stands before the events and is small
_MAX_ANNOTATIONS, _MAX_ANNOTATION_NAME = 100_000, 1000


class _Source(io.RawIOBase):
    """A file that reports how far it has been read."""

    def __init__(self, path: str, progress: Progress | None) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
        self._progress = progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._file.readinto(buffer) or 0
        if self._progress is not None:
            self._progress(n)
        return n

    def close(self) -> None:
        self._file.close()
        super().close()


def _last_quote(data: bytes) -> int:
    """Where the last quotation mark is that no backslash stands before; -1 without one among the last few."""
    at = len(data)
    for _ in range(_MOST_ESCAPED):
        at = data.rfind(b'"', 0, at)
        if at <= 0 or data[at - 1 : at] != b"\\":
            return at
    return -1


class _Remembering:
    """A stream that knows how what was read last ends."""

    def __init__(self, file: Any) -> None:
        self._file, self._last = file, b""
        self._open = 0

    def read(self, size: int = -1) -> bytes:
        # The parser looks through an unfinished text again with every part: larger parts keep that linear.
        data: bytes = self._file.read(max(size, min(self._open, MAX_PART_BYTES)) if size > 0 else size)
        self._last = data or self._last
        closed = _last_quote(data)
        self._open = len(data) - closed - 1 if closed >= 0 else self._open + len(data)
        if self._open > MAX_TEXT_BYTES:
            raise InputError(
                f"the trace holds one text or list of more than {MAX_TEXT_BYTES >> 20} MiB, which no profile does"
            )
        deeper = 0
        for at in range(0, len(data), _SLICE_BYTES):
            part = data[at : at + _SLICE_BYTES]
            deeper += part.count(b"[") + part.count(b"{") - part.count(b"]") - part.count(b"}")
            if deeper > MAX_DEEPER:
                raise InputError("the trace nests too deeply, which no profile does")
            deeper = max(deeper, 0)
        return data

    def ends_open(self) -> bool:
        """Whether the stream has ended without a proper end."""
        try:
            return not self._file.read(1) and self._last.rstrip()[-1:] not in (b"}", b"]")
        except (OSError, EOFError, zlib.error):
            return False


def _open(path: str, progress: Progress | None = None) -> Any:
    raw = io.BufferedReader(_Source(path, progress), 1 << 18)
    if raw.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw, mode="rb"), 1 << 18)
    if raw.peek(3)[:3] == b"\xef\xbb\xbf":
        raw.read(3)
    return raw


def read(path: str, log: EventLog, allow_truncated: bool, progress: Progress | None) -> Trace:
    """The trace. Raises InputError when it is cut off, is not JSON, or is JSON without events."""
    import ijson

    errors = (ijson.JSONError, EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError)
    notes: list[str] = []
    annotations: list[Annotation] = []
    seen = [0]
    with _open(path) as file:
        head = _Remembering(file)
        try:
            prefix, header = _header(ijson, head)
        except errors as error:
            raise InputError(f"{path}: {_describe(error, _is_cut(error, head), 0)}") from None
    if prefix is None:
        raise InputError(f"{path} is JSON, but not a trace: it has no traceEvents")
    with _open(path, progress) as file:
        body = _Remembering(file)
        try:
            _fill(log, ijson.items(body, prefix, use_float=True, buf_size=_BUFFER_BYTES), annotations, seen)
        except errors as error:
            cut = _is_cut(error, body)
            what = _describe(error, cut, seen[0])
            if not allow_truncated or not cut:
                hint = " (--allow-truncated audits what comes before)" if cut else ""
                raise InputError(f"{path}: {what}{hint}") from None
            notes.append(f"{path}: {what}; what comes before is audited")
    if "deviceProperties" not in header and not notes and os.path.getsize(path) <= _SMALL_FILE_BYTES:
        # A rewritten trace may have its metadata after the events. Only a small file is worth a second reading for
        # that.
        with _open(path) as file:
            header["deviceProperties"] = list(
                itertools.islice(ijson.items(_Remembering(file), "deviceProperties.item"), 64)
            )
    return Trace(path, "kineto", log, _devices(header), _rank(header), tuple(annotations), tuple(notes))


def _fill(log: EventLog, items: Iterator[Any], annotations: list[Annotation], seen: list[int]) -> None:
    """Adds the events to the log. Most of them are kernels, so the branches for unwanted and for repeated launches do
    as little as possible."""
    verdict_of, n, kernels, total_s = log.verdicts.get, 0, 0, 0.0
    repeat, learn = _repeats(log)
    try:
        for event in items:
            n += 1
            try:
                category = event.get("cat")
                if category in _KERNEL_CATEGORIES:
                    duration_s = event["dur"] * 1e-6
                    usual = 0.0 <= duration_s < MAX_DURATION_S
                    if usual and (verdict_of(event["name"]) is False or repeat(event, duration_s)):
                        kernels += 1
                        total_s += duration_s
                    else:
                        kept = len(log)
                        _add_kernel(log, event, duration_s)
                        if len(log) > kept:
                            learn(event)
                elif category in _RUNTIME_CATEGORIES:
                    if event["name"] in _GRAPH_LAUNCHES:
                        log.mark_graph(int(event["args"]["correlation"]))
                elif category in _ANNOTATION_CATEGORIES and len(annotations) < _MAX_ANNOTATIONS:
                    name = str(event["name"])[:_MAX_ANNOTATION_NAME]
                    annotations.append(Annotation(name, event["ts"] * 1e-6, event["dur"] * 1e-6))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                log.malformed += 1
    finally:
        seen[0] = n
        log.kernels += kernels
        log.kernel_s += total_s


def _repeats(log: EventLog) -> tuple[Callable[[dict[str, Any], float], bool], Callable[[dict[str, Any]], None]]:
    """A faster `log.add` for the launches that make up most of a trace: complete ones, not replayed, that equal an
    earlier one except for their times. Returns (repeat, learn). `repeat` returns False and does nothing where it does
    not apply, and leaves counting to the caller. `learn` takes the event that was added last."""
    seen: dict[tuple[Any, ...], tuple[int, int]] = {}
    known = seen.get
    start, duration, correlation = log.start.append, log.duration.append, log.correlation.append
    shape, lane = log.shape.append, log.lane.append

    def key(event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, ...]:
        gx, gy, gz = args["grid"]
        bx, by, bz = args["block"]
        launch = (event["name"], gx, gy, gz, bx, by, bz, args["device"], args["stream"])
        return (*launch, args.get("registers per thread"), args.get("shared memory"))

    def repeat(event: dict[str, Any], duration_s: float) -> bool:
        try:
            args = event["args"]
            found = known(key(event, args))
            if found is None or _is_replay(args):
                return False
            number, start_s = args["correlation"] & 0xFFFFFFFF, event["ts"] * 1e-6
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        start(start_s)
        duration(duration_s)
        shape(found[0])
        lane(found[1])
        correlation(number)
        return True

    def learn(event: dict[str, Any]) -> None:
        if len(seen) < MAX_SHAPES:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                seen[key(event, event["args"])] = (log.shape[-1], log.lane[-1])

    return repeat, learn


def _add_kernel(log: EventLog, event: dict[str, Any], duration_s: float) -> None:
    args = event.get("args")
    if not isinstance(args, dict):
        args = {}
    stream = args.get("stream", event.get("tid"))
    device = args.get("device", event.get("pid"))
    correlation = args.get("correlation")
    log.add(
        event["name"],
        event["ts"] * 1e-6,
        duration_s,
        args.get("grid"),
        args.get("block"),
        device if type(device) is int else 0,
        stream if type(stream) is int else 0,
        correlation if type(correlation) is int else 0,
        args.get("registers per thread"),
        args.get("shared memory"),
        _is_replay(args),
    )


def _is_replay(args: dict[str, Any]) -> bool:
    """Whether the kernel was replayed from a graph: newer Kineto names the graph node, and 0 means none."""
    return bool(args.get("graph node id") or args.get("graph id"))


def _header(ijson: Any, file: Any) -> tuple[str | None, dict[str, Any]]:
    """Where the events are (an ijson prefix; None when there are none), and the metadata before them."""
    from ijson.common import ObjectBuilder

    header: dict[str, Any] = {}
    builder, top = None, ""
    for n, (prefix, event, value) in enumerate(ijson.parse(file, use_float=True)):
        if n == 0 and event == "start_array":
            return "item", header
        if prefix == "traceEvents" and event == "start_array":
            return "traceEvents.item", header
        if prefix == "" and event == "map_key":
            if builder is not None:
                header[top] = builder.value
            keep = value in ("deviceProperties", "distributedInfo") and n < _HEADER_TOKENS
            top, builder = value, ObjectBuilder() if keep else None
        elif builder is not None and prefix:
            if n > _HEADER_TOKENS:
                builder = None
            else:
                builder.event(event, value)
    return None, header


def _devices(header: dict[str, Any]) -> tuple[TraceDevice, ...]:
    found = header.get("deviceProperties")
    out = []
    for entry in found if isinstance(found, list) else []:
        if not isinstance(entry, dict):
            continue
        major, minor = whole(entry.get("computeMajor")), whole(entry.get("computeMinor"))
        name = entry.get("name")
        out.append(
            TraceDevice(
                index=whole(entry.get("id")) or 0,
                name=name[:200] if isinstance(name, str) else "",
                sm_count=whole(entry.get("numSms")) or None,
                memory_bytes=whole(entry.get("totalGlobalMem")) or None,
                compute_capability=None if major is None or minor is None else (major, minor),
                warp_size=whole(entry.get("warpSize")) or None,
            )
        )
    return tuple(out)


def _rank(header: dict[str, Any]) -> int | None:
    info = header.get("distributedInfo")
    return whole(info.get("rank")) if isinstance(info, dict) else None


def _is_cut(error: BaseException, source: _Remembering) -> bool:
    """Whether the file ends too early: the parser says so, or it met the end in the middle of a number or a word and
    reports that as an error."""
    text = str(error).lower()
    if isinstance(error, EOFError) or "premature eof" in text or "incomplete json" in text:
        return True
    return not isinstance(error, (gzip.BadGzipFile, zlib.error)) and source.ends_open()


def _describe(error: BaseException, cut: bool, events: int) -> str:
    where = f"after {events} events" if events else "before its first event"
    if isinstance(error, EOFError):
        return f"the gzip stream is truncated {where}"
    if isinstance(error, (gzip.BadGzipFile, zlib.error)):
        return f"the gzip stream is damaged {where}"
    if cut:
        return f"the JSON is cut off {where}"
    reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
    return f"not valid JSON {where}: {reason}"
