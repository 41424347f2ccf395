"""How long and how much memory `decodecalc audit` takes on a large trace.

    python -m benchmarks.audit_large_trace [--kernels 1000000] [--share 0.25] [--format json|json.gz|sqlite]

Writes a trace of that many kernels in a temporary folder (share of them decode attention of three engines in the layout
Kineto has, the rest GEMMs and elementwise kernels with the same launch facts), audits it in a process of its own, and
prints wall time, processor time and peak memory. Bar: 1 000 000 kernels in under 20 s and 500 MB on two cores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import decodecalc as dc
from decodecalc.trace.events import dim3

ORDER = {"scheduler": 0, "stage1": 1, "merge": 2}
OTHERS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3ul>>(int)",
    "nvjet_hsh_128x64_64x10_1x2_h_bz_coopA_TNT",
    "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, float, int, int)",
)


def kernels(count: int, share: float) -> Iterator[dict[str, Any]]:
    """`count` kernel events, one after another on one stream."""
    geo, batch, noise = dc.Geometry(32, 8, 128), dc.Batch([2048] * 16), random.Random(0)
    cycle = [
        (kernel.name, dim3(kernel.grid), kernel.threads)
        for engine in ("vllm-triton", "sglang-triton", "flash-attention-3")
        for kernel in sorted(dc.plan(engine, geo, batch, gpu="h200-sxm").kernels, key=lambda k: ORDER[k.role])
    ]
    ts, n, due = 5128528620301.256, 0, 0.0
    for i in range(count):
        due += share
        if due >= 1:
            due -= 1
            name, grid, threads = cycle[n % len(cycle)]
            n += 1
        else:
            name, grid, threads = OTHERS[i % len(OTHERS)], (264, 1, 1), 256
        ts += 20
        yield {
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": round(ts, 3),
            "dur": round(8 + 4 * noise.random(), 3),
            "args": {
                "External id": i, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": i,
                "registers per thread": 88, "shared memory": 12928, "blocks per SM": 0.97, "warps per SM": 3.88,
                "grid": list(grid or ()), "block": [threads or 128, 1, 1], "est. achieved occupancy %": 6,
            },
        }  # fmt: skip


def write_json(path: Path, events: Iterator[dict[str, Any]]) -> None:
    """A Chrome trace."""
    with gzip.open(path, "wt", compresslevel=3) if path.suffix == ".gz" else path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],\n')
        file.write('"traceEvents": [\n')
        for i, event in enumerate(events):
            file.write((",\n" if i else "") + json.dumps(event))
        file.write("\n]}\n")


def write_sqlite(path: Path, events: Iterator[dict[str, Any]]) -> None:
    """An Nsight Systems export."""
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
        "correlationId INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, "
        "blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER)"
    )
    db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    db.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER)")
    db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 132)")
    ids: dict[str, int] = {}

    def rows() -> Iterator[tuple[Any, ...]]:
        for e in events:
            a, start = e["args"], int(e["ts"] * 1000)
            key = ids.setdefault(e["name"], len(ids))
            yield (start, start + int(e["dur"] * 1000), 0, 7, a["correlation"], key, *a["grid"], *a["block"], 88)

    db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 13)})", rows())
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, name) for name, i in ids.items()])
    db.commit()
    db.close()


def main() -> None:
    """Write, audit, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--share", type=float, default=0.25, help="share of the kernels that is decode attention")
    parser.add_argument("--format", choices=("json", "json.gz", "sqlite"), default="json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trace.{asked.format}"
        writer = write_sqlite if asked.format == "sqlite" else write_json
        writer(path, kernels(asked.kernels, asked.share))
        argv = [sys.executable, "-m", "decodecalc", "audit", str(path), "--q-heads", "32", "--kv-heads", "8"]
        started = time.perf_counter()
        done = subprocess.run(
            [*argv, "--batch", "16", "--context", "2048"], capture_output=True, text=True, check=False
        )
        wall_s = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(done.stdout, done.stderr, sep="")
        print(
            f"{asked.kernels} kernels, {path.stat().st_size / 1e6:.0f} MB {asked.format}: {wall_s:.1f} s wall, "
            f"{used.ru_utime + used.ru_stime:.1f} s processor, {used.ru_maxrss / 1024:.0f} MiB peak, "
            f"exit {done.returncode}"
        )


if __name__ == "__main__":
    main()
