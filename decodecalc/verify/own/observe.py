"""An engine's kernels as CUPTI saw them, told apart by what the engine folders know about kernel names."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodecalc.trace.events import dim3
from decodecalc.trace.load import knowledge
from decodecalc.trace.recognise import MERGE, SCHEDULER, STAGE1

PLANNED_ROLES = (SCHEDULER, STAGE1, MERGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenKernel:
    """One launch."""

    role: str
    """stage1, merge or scheduler; `other` where no rule knows the name."""
    kernel: str
    """What plans call the kernel."""
    name: str
    """Its whole name."""
    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    threads: int
    """Threads of a block."""
    family: str = ""
    """The kernels that it belongs to (`trace.knowledge`)."""


def seen_kernels(events: Sequence[dict[str, Any]]) -> tuple[SeenKernel, ...]:
    """The kernels among a Chrome trace's events, in order of their start."""
    known = knowledge()
    found = []
    for event in events:
        args = event.get("args", {})
        if event.get("cat") != "kernel" or "grid" not in args or "block" not in args:
            continue
        what = known.recognise(str(event["name"]))
        grid = dim3(args["grid"])
        assert grid is not None
        found.append(
            (
                event.get("ts", 0),
                SeenKernel(
                    role=what.role if what else "other",
                    kernel=what.kernel if what else str(event["name"]),
                    name=str(event["name"]),
                    grid=grid,
                    threads=math.prod(args["block"]),
                    family=what.family if what else "",
                ),
            )
        )
    return tuple(kernel for _, kernel in sorted(found, key=lambda pair: pair[0]))


def kernel_events(call: Callable[[], Any]) -> dict[str, Any]:
    """The Chrome trace of `call`, cut down to its kernels and the devices they ran on (CUDA only)."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as session:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return only_kernels(trace)


def only_kernels(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace without everything that is not a kernel: its schema, its devices, its kernels."""
    kept: dict[str, Any] = {key: trace[key] for key in ("schemaVersion", "deviceProperties") if key in trace}
    return {**kept, "traceEvents": [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]}


def planned_part(seen: Sequence[SeenKernel]) -> list[SeenKernel]:
    """The kernels that a plan speaks of, in order."""
    return [kernel for kernel in seen if kernel.role in PLANNED_ROLES]
