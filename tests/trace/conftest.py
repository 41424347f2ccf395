"""Trace files made by hand, in each format, and plans turned into the trace that they would leave."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from launches import block_of, whole_name

from decodecalc.launch.plan import LaunchPlan
from decodecalc.trace.events import dim3

DEVICE = {
    "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0,
    "warpSize": 32, "numSms": 132,
}  # fmt: skip

NSYS_COLUMNS = (
    "CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,"
    "DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)

Event = dict[str, Any]


def make_kernel(
    name: str,
    ts: float,
    dur: float = 10.0,
    grid: Sequence[int] | None = (1, 1, 1),
    block: Sequence[int] | None = (128, 1, 1),
    stream: int = 7,
    correlation: int | None = None,
    **args: Any,
) -> Event:
    """One Kineto kernel event; times in microseconds."""
    found: dict[str, Any] = {"device": 0, "stream": stream, **args}
    if correlation is not None:
        found["correlation"] = correlation
    if grid is not None:
        found["grid"] = list(grid)
    if block is not None:
        found["block"] = list(block)
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": found}


def make_events(plan: LaunchPlan, rounds: int = 2) -> list[Event]:
    """The kernels that a plan launches, in order, `rounds` times; a kernel of another library between them."""
    order = {"scheduler": 0, "stage1": 1, "merge": 2}
    events, ts = [], 1000.0
    for _ in range(rounds):
        for kernel in sorted(plan.kernels, key=lambda k: order[k.role]):
            grid = dim3(kernel.grid)
            events.append(make_kernel(whole_name(kernel.name), ts, 10.0, grid, block_of(kernel)))
            events.append(make_kernel("void at::native::vectorized_elementwise_kernel<4>(int)", ts + 20, 2.0))
            ts += 100.0
    return events


@pytest.fixture(scope="session")
def kernel() -> Callable[..., Event]:
    """kernel("name", ts, dur, grid) is one Kineto kernel event."""
    return make_kernel


@pytest.fixture(scope="session")
def events_of() -> Callable[..., list[Event]]:
    """events_of(plan) is the trace that the plan would leave."""
    return make_events


@pytest.fixture
def kineto(tmp_path: Path) -> Callable[..., str]:
    """kineto(events, …) writes a trace and returns its path."""
    made = iter(range(1_000_000))

    def write(events: Any, *, device: Any = DEVICE, gz: bool = False, after: bool = False, **top: Any) -> str:
        head = {"deviceProperties": [device]} if device is not None else {}
        body = {"traceEvents": events}
        whole = {"schemaVersion": 1, **top, **body, **head} if after else {"schemaVersion": 1, **top, **head, **body}
        path = tmp_path / f"trace{next(made)}.json{'.gz' if gz else ''}"
        data = json.dumps(whole).encode()
        path.write_bytes(gzip.compress(data) if gz else data)
        return str(path)

    return write


@pytest.fixture
def nsys_sqlite(tmp_path: Path) -> Callable[..., str]:
    """nsys_sqlite(events, …) writes an Nsight Systems export with the schema of 2024 (or an older one)."""

    def write(events: Sequence[Event], *, graph_columns: bool = True, graph: bool = False, gpu: bool = True) -> str:
        path = tmp_path / "report.sqlite"
        db = sqlite3.connect(path)
        extra = ", graphNodeId INTEGER, graphId INTEGER" if graph_columns else ""
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, "
            "contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT "
            "NULL, shortName INTEGER NOT NULL, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY "
            "INTEGER, blockZ INTEGER, registersPerThread INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory "
            f"INTEGER{extra})"
        )
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        ids: dict[str, int] = {}
        for n, e in enumerate(events):
            name, a = e["name"], e["args"]
            ids.setdefault(name, len(ids) + 100)
            grid, block = a.get("grid") or [None] * 3, a.get("block") or [None] * 3
            row = [
                int(e["ts"] * 1000), int((e["ts"] + e["dur"]) * 1000), 0, 1, a["stream"], n, 0, ids[name], ids[name],
                *grid, *block, 64, 1024, 2048,
            ]  # fmt: skip
            row += [7 if graph else None, 3 if graph else None] if graph_columns else []
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(row))})", row)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, name) for name, i in ids.items()])
        if gpu:
            db.execute(
                "CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT, totalMemory "
                "INTEGER, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER, cuDevice INTEGER)"
            )
            db.execute(
                "INSERT INTO TARGET_INFO_GPU VALUES (1, 0, 'NVIDIA H200', '0000:01:00.0', 150109880320, 132, 9, 0, 0)"
            )
        db.commit()
        db.close()
        return str(path)

    return write


@pytest.fixture
def nsys_csv(tmp_path: Path) -> Callable[..., str]:
    """nsys_csv(events) writes the cuda_gpu_trace report, with a memory copy and the tool's chatter."""

    def write(events: Sequence[Event], unit: str = "ns") -> str:
        path = tmp_path / "gpu_trace.csv"
        scale = {"ns": 1000, "us": 1}[unit]
        with path.open("w", newline="") as file:
            file.write("Processing [report.sqlite] with [cuda_gpu_trace.py]...\n\n")
            out = csv.writer(file)
            out.writerow([f"Start ({unit})", f"Duration ({unit})", *NSYS_COLUMNS.split(",")])
            gpu = "NVIDIA H200 (0)"
            out.writerow([0, 5, 1, *[""] * 9, 0.004, 1.0, "Pageable", "Device", gpu, 1, "", 7, "[CUDA memcpy HtoD]"])
            for n, e in enumerate(events):
                a = e["args"]
                launch = [e["ts"] * scale, e["dur"] * scale, n, *a["grid"], *a["block"], 64, 0.001, 0.002]
                out.writerow([*launch, "", "", "", "", gpu, 1, "", a["stream"], e["name"]])
        return str(path)

    return write


@pytest.fixture
def ncu_csv(tmp_path: Path) -> Callable[..., str]:
    """ncu_csv(events, page) writes Nsight Compute's details or raw page."""

    def write(events: Sequence[Event], page: str = "details") -> str:
        path = tmp_path / f"ncu_{page}.csv"
        with path.open("w", newline="") as file:
            file.write("==PROF== Connected to process 4711\n==PROF== Disconnected\n")
            out = csv.writer(file, quoting=csv.QUOTE_ALL)
            base = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
                    "Grid Size", "Device", "CC"]  # fmt: skip
            rows = []
            for n, e in enumerate(events):
                grid, block = str(tuple(e["args"]["grid"])), str(tuple(e["args"]["block"]))
                rows.append([n, 1, "python", "h", e["name"], 1, 7, block, grid, 0, "9.0"])
            if page == "details":
                out.writerow([*base, "Section Name", "Metric Name", "Metric Unit", "Metric Value"])
                for row, e in zip(rows, events):
                    out.writerow([*row, "GPU Speed Of Light Throughput", "Duration", "us", f"{e['dur']:,.2f}"])
                    out.writerow([*row, "Launch Statistics", "Registers Per Thread", "register/thread", 64])
                    out.writerow([*row, "Launch Statistics", "# SMs", "SM", 132])
            else:
                metrics = ["gpu__time_duration.sum", "launch__registers_per_thread",
                           "device__attribute_multiprocessor_count"]  # fmt: skip
                out.writerow([*base, *metrics])
                out.writerow([*[""] * len(base), "us", "register/thread", ""])
                for row, e in zip(rows, events):
                    out.writerow([*row, f"{e['dur']:,.2f}", 64, 132])
        return str(path)

    return write
