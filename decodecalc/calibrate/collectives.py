"""`calibrate --collectives`: how long collectives between these GPUs take, against their bytes.

Every process of torchrun runs this with one GPU. A collective is captured many times over in a CUDA graph, back to back
on one stream as the kernels of a layer are, equally often on every process; the time is the median of the replays, of
the slowest process. Beside NCCL's three collectives stands the one-shot merge (`verify.dcp.group`), for which nothing
but a flag crosses before the merging kernel reads its peers' outputs; it is written to the file for comparison, and no
prediction uses it.

Written for NCCL on GPUs of one NVLink domain with multicast off, and not run on one yet. On CPUs the same calls go over
gloo by the host's clock, which only proves that they fit together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.exchange import ALL_GATHER, ALL_TO_ALL, COLLECTIVES, LSE_BYTES, OUTPUT_BYTES, REDUCE_SCATTER
from decodecalc.cost.collectives import SCHEMA, save_collectives
from decodecalc.errors import InputError
from decodecalc.intmath import round_up
from decodecalc.verify.dcp.group import ONE_SHOT, ProcessRanks
from decodecalc.verify.run.timing import captured, replay_times, summarise

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.verify.run.device import Device
    from decodecalc.verify.session.ranks import Ranks

SIZES = (512, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
TOKENS = (1, 16, 64)  # of the one-shot merge
HEADS, WIDTH = 64, 128
CALLS, REPLAYS = 100, 30
PROTOCOL = (
    f"collectives of bf16 captured {CALLS} times back to back in a CUDA graph, median of {REPLAYS} replays, of the "
    "slowest process; NVLink multicast off; decodecalc/calibrate/collectives.py"
)


def check_ranks(ranks: Ranks) -> None:
    """InputError for a single process."""
    if ranks.world < 2:
        raise InputError(
            "collectives need several GPUs, a process for each: torchrun --nproc-per-node 2 -m decodecalc calibrate "
            "--collectives --output FILE"
        )


def calibrate_collectives(ranks: Ranks, device: Device, gpu: Gpu, output: str) -> int:
    """Measures and, in the first process, writes the file; the number of its rows."""
    group = ProcessRanks(ranks, device)
    try:
        rows = measure_collectives(group, device)
        beside = measure_one_shot(group, device) if ONE_SHOT in group.ways else []
        if ranks.is_first:
            save_collectives(output, file_content(rows, beside, device, gpu))
    finally:
        group.close()
    return len(rows)


def file_content(
    rows: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]], device: Device, gpu: Gpu
) -> dict[str, Any]:
    """The file of these rows, as `cost.collectives` reads it."""
    import torch

    return {
        "schema": SCHEMA,
        "gpu": {
            "name": device.name,
            "table_name": gpu.table_name,
            "link_bytes_per_s": gpu.need("interconnect_bytes_per_s_per_direction"),
        },
        "date": datetime.now(timezone.utc).date().isoformat(),
        "protocol": PROTOCOL,
        "source": "decodecalc calibrate --collectives",
        "driver": device.state().driver,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if device.is_cuda else None,
        "one_shot": list(beside),
        "rows": list(rows),
    }


def measure_collectives(
    group: ProcessRanks, device: Device, sizes: Sequence[int] = SIZES, calls: int = CALLS
) -> list[dict[str, Any]]:
    """One row for every kind of collective and size of its whole buffer."""
    rows = []
    for size in sizes:
        whole = round_up(size, 16 * group.size)
        for kind, call in _collectives(group, device, whole).items():
            seconds, spread = _time(group, device, call, calls)
            rows.append({
                "kind": kind, "ranks": group.size, "buffer_bytes": whole, "seconds": seconds, "spread": spread,
            })  # fmt: skip
    return rows


def measure_one_shot(group: ProcessRanks, device: Device, calls: int = CALLS) -> list[dict[str, Any]]:
    """The one-shot merge of outputs and log-sum-exps, for some numbers of tokens."""
    import torch

    rows = []
    for tokens in TOKENS:
        out = torch.randn((tokens, HEADS, WIDTH), device=device.torch_name).bfloat16()
        lse = torch.randn((tokens, HEADS), device=device.torch_name)

        def call(out: Any = out, lse: Any = lse) -> None:
            group.own_heads(out, lse, ONE_SHOT)

        seconds, spread = _time(group, device, call, calls)
        size = tokens * HEADS * (WIDTH * OUTPUT_BYTES + LSE_BYTES)
        rows.append({
            "kind": ONE_SHOT, "ranks": group.size, "tokens": tokens, "buffer_bytes": size, "seconds": seconds,
            "spread": spread,
        })  # fmt: skip
    return rows


def _collectives(group: ProcessRanks, device: Device, whole: int) -> dict[str, Callable[[], Any]]:
    """A call of every kind over a buffer of so many bytes."""
    import torch
    import torch.distributed as dist

    all_of_it = torch.ones(whole // OUTPUT_BYTES, dtype=torch.bfloat16, device=device.torch_name)
    part = torch.ones(len(all_of_it) // group.size, dtype=torch.bfloat16, device=device.torch_name)
    arrived = torch.empty_like(all_of_it)

    def reduce_scatter() -> None:
        if device.is_cuda:
            dist.reduce_scatter_tensor(part, all_of_it, op=dist.ReduceOp.MAX)
        else:  # gloo has no reduce-scatter
            dist.all_reduce(all_of_it, op=dist.ReduceOp.MAX)

    calls: dict[str, Callable[[], Any]] = {
        ALL_GATHER: lambda: dist.all_gather_into_tensor(arrived, part),
        REDUCE_SCATTER: reduce_scatter,
        ALL_TO_ALL: lambda: dist.all_to_all_single(arrived, all_of_it),
    }
    assert set(calls) == set(COLLECTIVES)
    return calls


def _time(group: ProcessRanks, device: Device, call: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Seconds of one call and their relative spread, of the slowest process."""

    def many() -> None:
        for _ in range(calls):
            call()

    call()  # communicators are made and kernels are compiled before anything is captured
    device.synchronize()
    group.collect(None)
    if device.is_cuda:
        graph = captured(many)
        replay_times(graph, 3)
        group.collect(None)
        times = replay_times(graph, REPLAYS)
    else:
        begun = time.perf_counter()
        many()
        times = [time.perf_counter() - begun]
    median, spread = summarise(times)
    slowest = max(group.collect((median / calls, spread)))
    return float(slowest[0]), float(slowest[1])
