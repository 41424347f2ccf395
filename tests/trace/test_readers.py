"""The same launches come out of every format, and what is no trace is refused in words."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import decodecalc as dc
from decodecalc.errors import InputError
from decodecalc.trace.events import Trace
from decodecalc.trace.readers import read_trace


@pytest.fixture
def step(events_of: Callable[..., Any]) -> list[dict[str, Any]]:
    """Three rounds of SGLang's kernels for 3 requests of Llama-3-8B's layer."""
    plan = dc.plan("sglang-triton", dc.Geometry(32, 8, 128), dc.Batch([4096, 900, 77]), gpu="h200-sxm")
    return events_of(plan, rounds=3)


def everything(name: str) -> bool:
    """A verdict that keeps every kernel."""
    return True


def launches(trace: Trace) -> list[tuple[Any, ...]]:
    """Name, grid, block, start from the first, and duration of each launch, in microseconds."""
    events = list(trace.log.events())
    first = events[0].start_s
    return [
        (e.shape.name, e.shape.grid, e.shape.block, round((e.start_s - first) * 1e6, 3), round(e.duration_s * 1e6, 3))
        for e in events
    ]


def expected(step: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What `launches` must say."""
    out = []
    for e in step:
        a = e["args"]
        out.append((e["name"], tuple(a["grid"]), tuple(a["block"]), round(e["ts"] - step[0]["ts"], 3), e["dur"]))
    return out


def test_kineto_plain_zipped_bare_and_with_metadata_last(step: Any, kineto: Callable[..., str], tmp_path: Path) -> None:
    """All four spellings of a Chrome trace give the same launches; metadata is found on either side of the events."""
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(step))
    for path in (kineto(step), kineto(step, gz=True), kineto(step, after=True), str(bare)):
        trace = read_trace(path, everything)
        assert launches(trace) == expected(step)
        assert trace.format == "kineto"
        if path != str(bare):
            device = trace.device()
            assert device is not None
            assert (device.name, device.sm_count) == ("NVIDIA H200", 132)


def test_kineto_says_its_rank(step: Any, kineto: Callable[..., str]) -> None:
    """distributedInfo carries the rank."""
    assert read_trace(kineto(step, distributedInfo={"rank": 3, "world_size": 8}), everything).rank == 3


def test_unwanted_kernels_are_counted_and_summed(step: Any, kineto: Callable[..., str]) -> None:
    """Only wanted launches are kept; the totals hold all."""
    trace = read_trace(kineto(step), lambda name: "stage1" in name)
    assert len(trace.log) == 3
    assert trace.log.kernels == len(step)
    assert trace.log.kernel_s == pytest.approx(sum(e["dur"] for e in step) * 1e-6)


def test_graph_launches_are_marked_by_correlation(kernel: Any, kineto: Callable[..., str]) -> None:
    """Kernels that share the id of a cudaGraphLaunch are replays, whether it stands before or behind them."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "dur": 1, "args": {"correlation": 5}}
    events = [kernel("a", 1, correlation=5), kernel("b", 2, correlation=6), call, kernel("c", 3, correlation=5)]
    assert [e.graph for e in read_trace(kineto(events), everything).log.events()] == [True, False, True]


@pytest.mark.parametrize("graph_columns", [True, False])
def test_nsys_sqlite(step: Any, nsys_sqlite: Callable[..., str], graph_columns: bool) -> None:
    """The real schema, of versions with and without graph columns; names come from StringIds."""
    trace = read_trace(nsys_sqlite(step, graph_columns=graph_columns), everything)
    assert launches(trace) == expected(step)
    device = trace.device()
    assert device is not None
    assert (trace.format, device.name, device.sm_count) == ("nsys sqlite", "NVIDIA H200", 132)
    assert {e.shape.smem_bytes for e in trace.log.events()} == {3072}
    assert not any(e.graph for e in trace.log.events())


def test_nsys_sqlite_marks_graph_nodes(step: Any, nsys_sqlite: Callable[..., str]) -> None:
    """graphNodeId says that a kernel was replayed."""
    assert all(e.graph for e in read_trace(nsys_sqlite(step, graph=True), everything).log.events())


def test_nsys_sqlite_says_that_graphs_were_recorded_as_a_whole(step: Any, nsys_sqlite: Callable[..., str]) -> None:
    """nsys traces graphs as units unless told otherwise: their kernels are missing, and the note names the flag."""
    path = nsys_sqlite(step)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, graphId INTEGER)")
    db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, 1)", [(n, n + 1) for n in range(5)])
    db.commit()
    db.close()
    (note,) = read_trace(path, everything).notes
    assert "5 CUDA-graph launches" in note
    assert "--cuda-graph-trace=node" in note


@pytest.mark.parametrize("unit", ["ns", "us"])
def test_nsys_csv(step: Any, nsys_csv: Callable[..., str], unit: str) -> None:
    """cuda_gpu_trace in either unit, below the tool's chatter, copies left out."""
    trace = read_trace(nsys_csv(step, unit), everything)
    assert launches(trace) == expected(step)
    device = trace.device()
    assert device is not None
    assert device.name == "NVIDIA H200"


@pytest.mark.parametrize("page", ["details", "raw"])
def test_ncu_csv(step: Any, ncu_csv: Callable[..., str], page: str) -> None:
    """Both pages of Nsight Compute; order stands for time, numbers have thousands separators."""
    step[0]["dur"] = 1234.5
    trace = read_trace(ncu_csv(step, page), everything)
    assert [found[:3] + found[4:] for found in launches(trace)] == [e[:3] + e[4:] for e in expected(step)]
    device = trace.device()
    assert device is not None
    assert (device.sm_count, device.compute_capability) == (132, (9, 0))


def refused(path: object, words: str, **options: Any) -> None:
    """Reading fails with an InputError that holds these words."""
    with pytest.raises(InputError, match=words):
        read_trace(str(path), everything, **options)


def test_truncated_files_say_where_they_end(step: Any, kineto: Callable[..., str], tmp_path: Path) -> None:
    """A cut gzip stream and a cut JSON name the cut; --allow-truncated keeps what comes before."""
    whole = Path(kineto(step)).read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    refused(cut, r"cut off after \d+ events .*--allow-truncated")
    kept = read_trace(str(cut), everything, allow_truncated=True)
    assert 0 < len(kept.log) < len(step)
    assert launches(kept) == expected(step)[: len(kept.log)]
    assert "cut off" in kept.notes[0]
    noise = random.Random(0)
    many = [{**e, "ts": e["ts"] + noise.random()} for e in step * 200]
    zipped = Path(kineto(many, gz=True)).read_bytes()
    cut_gz = tmp_path / "cut.json.gz"
    cut_gz.write_bytes(zipped[: len(zipped) // 2])
    refused(cut_gz, r"gzip stream is truncated after \d+ events")
    assert 0 < len(read_trace(str(cut_gz), everything, allow_truncated=True).log) < len(many)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"   {]", "not valid JSON"),
        (b'{"a": 1}', "no traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel" oops}]}', "not valid JSON"),
        (b'{"traceEvents": [', "cut off"),
        (gzip.compress(b"{}", mtime=0)[:-9] + b"x" * 9, "gzip stream is damaged"),
        (b"PK\x03\x04zip", "zip"),
        (b"hello, world\n", "not a trace"),
        (b"Start (ns),Duration (ns),GrdX,Name\n1,2,3,x\n", "no column GrdY"),
        (b"Start,Duration,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Name\n", "unit of time"),
        (b'"ID","Kernel Name","Metric Name"\n', "Grid Size"),
        (b"SQLite format 3\x00" + b"\xff" * 200, "SQLite file cannot be read"),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    """Each wrong file gets its own sentence."""
    path = tmp_path / "file.json"
    path.write_bytes(data)
    refused(path, words)


def test_other_databases_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    """An SQLite file of something else names the table that it lacks."""
    path = tmp_path / "other.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE people (name TEXT)")
    db.commit()
    db.close()
    refused(path, "CUPTI_ACTIVITY_KIND_KERNEL")
    refused(tmp_path, "is a folder")
    refused(tmp_path / "nothing.json", "No such file")


def test_a_kernel_table_without_times_is_refused(tmp_path: Path) -> None:
    """The table is there but not its columns."""
    path = tmp_path / "odd.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, demangledName INTEGER)")
    db.commit()
    db.close()
    refused(path, "no column end")


def test_a_damaged_database_says_after_how_many_kernels(
    kernel: Any, nsys_sqlite: Callable[..., str], tmp_path: Path
) -> None:
    """Pages overwritten in the middle of the table: refused, or audited up to there when asked."""
    path = Path(nsys_sqlite([kernel("k", float(i), 1.0) for i in range(20_000)]))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40_960] = b"\xff" * 40_960
    path.write_bytes(bytes(data))
    refused(path, r"damaged after \d+ kernels")
    kept = read_trace(str(path), everything, allow_truncated=True)
    assert 0 < len(kept.log) < 20_000


def test_events_with_missing_or_mad_fields_are_counted(kernel: Any, kineto: Callable[..., str]) -> None:
    """Events without name, time or args, with text for numbers, or with clocks that run backwards do no harm."""
    good = kernel("k", 1.0)
    bad = [
        {"ph": "X", "cat": "kernel"},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1.0},
        {"ph": "X", "cat": "kernel", "name": ["k"], "ts": 1, "dur": 1.0},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": None},
        17,
        None,
    ]
    odd = [
        {"ph": "X", "cat": "kernel", "name": "no args", "ts": 1, "dur": 1.0},
        {**kernel("flat grid", 1.0), "args": {"grid": 5}},
        {**kernel("nested grid", 1.0), "args": {"grid": [[1], 2, 3]}},
        {**kernel("zero grid", 1.0), "args": {"grid": [0, 1, 1]}},
        {**kernel("text grid", 1.0), "args": {"grid": "1,2,3", "stream": "seven", "device": None}},
    ]
    backwards = kernel("late", 5.0, -3.0)
    log = read_trace(kineto([good, *bad, *odd, backwards, good]), everything).log
    names = [e.shape.name for e in log.events()]
    assert names == ["k", "no args", "flat grid", "nested grid", "zero grid", "text grid", "late", "k"]
    assert [e.shape.grid for e in log.events()][1:6] == [None] * 5
    assert log.malformed >= len(bad)
    assert log.bad_times == 1
    assert log.kernels == len(names)


def test_progress_reports_the_bytes_of_the_file(step: Any, kineto: Callable[..., str]) -> None:
    """The steps of the bar add up to the file's size."""
    path = kineto(step, gz=True)
    told: list[int] = []
    read_trace(path, everything, progress=told.append)
    assert sum(told) == Path(path).stat().st_size
