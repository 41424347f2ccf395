"""Reads kernels as CUPTI saw them: torch.profiler records grid, block, registers and shared memory of a launch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Entry points of the bundled kernels -> role.
ROLES = {"stage1_kernel": "stage1", "mla_stage1_kernel": "stage1", "merge_kernel": "merge"}


@dataclass(frozen=True)
class ObservedKernel:
    """One launch. registers are per thread, shared_bytes per block (static and dynamic)."""

    role: str
    name: str
    grid: tuple[int, int, int]
    threads: int
    registers: int | None
    shared_bytes: int | None


def profiled(call: Callable[[], Any]) -> tuple[ObservedKernel, ...]:
    """The bundled kernels that `call` launches, in order of their start (CUDA only)."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as session:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return observed_kernels(events)


def observed_kernels(events: list[dict[str, Any]]) -> tuple[ObservedKernel, ...]:
    """The bundled kernels among a Chrome trace's events, in order of their start."""
    found = []
    for event in events:
        role = ROLES.get(str(event.get("name", "")))
        args = event.get("args", {})
        if event.get("cat") != "kernel" or role is None or "grid" not in args:
            continue
        x, y, z = args["block"]
        grid = args["grid"]
        found.append(
            (
                event.get("ts", 0),
                ObservedKernel(
                    role,
                    event["name"],
                    (int(grid[0]), int(grid[1]), int(grid[2])),
                    x * y * z,
                    args.get("registers per thread"),
                    args.get("shared memory"),
                ),
            )
        )
    return tuple(kernel for _, kernel in sorted(found, key=lambda pair: pair[0]))
