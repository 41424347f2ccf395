"""Our kernel beside every peer on random grouped-query steps, equal and ragged.

    python benchmarks/kernels_peers.py .peers                      # once (package registry, no GPU)
    python -m benchmarks.kernels_random --out reports/h200/kernels-random            # on a GPU
    python -m benchmarks.kernels_random --out … --only flashinfer-xqa,sglang-triton  # some of the peers

Peers are vLLM's and SGLang's Triton kernels, FlashAttention-3, FlashInfer's planner on tensor and on CUDA cores, and
XQA, each through the runner that `decodecalc verify --kernel own` has for it. FlashInfer compiles for minutes, beside
the timing of the others. Ours is one runner more: the launch that the time model chooses, its list of live splits made
once a step. All are timed one after another on the same inputs, in CUDA graphs over layers that together overflow the
L2.

A step is lost where a peer is more than 1 % faster; within 1 % it is a tie.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_bars.cells import GQA
from decodecalc.calibrate.own.steps import random_batch
from decodecalc.calibrate.own.timer import DeviceTimer, StepTimer, compile_all, compiling
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep, step_of
from decodecalc.files import write_whole
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.verify.own.runner import FoundEngine, Here, KernelRunner, OwnStep, Prepared, runners_here

BUNDLED = "bundled"
PEERS = (
    OwnCall(engine="vllm-triton"),
    OwnCall(engine="sglang-triton"),
    OwnCall(engine="flash-attention-3"),
    OwnCall(engine="flashinfer", options={"path": "tensor_cores"}),
    OwnCall(engine="flashinfer", options={"path": "cuda_cores"}),
    OwnCall(engine="flashinfer-xqa"),
)
COMPILED_LATE = ("flashinfer", "flashinfer-xqa")
TIE = 1.01
BUDGET_S = 0.02  # of the replays of one launch


def draw(seed: int, steps: int) -> Iterator[ProbeStep]:
    """Layers that models have on one rank, random requests and lengths, two of five batches ragged."""
    rng, kv = random.Random(seed), KvCache("bf16", 16)
    for _ in range(steps):
        geo = Geometry(*rng.choice(GQA))
        yield ProbeStep(geometry=geo, batch=random_batch(rng, geo, kv), kv=kv)


def prepare_ours(step: OwnStep) -> Prepared:
    """The launch of least predicted time, with scratch and list shared by the layers."""
    import torch

    from decodecalc.cost.launcher import launch_config
    from decodecalc.gpus import detect_gpu, load_gpu
    from decodecalc_kernels import Workspace, decode_attention, list_splits

    geo, inputs, lens = step.geometry, step.inputs, step.inputs.seq_lens
    gpu = detect_gpu() if torch.device(step.device).type == "cuda" else load_gpu("h200")
    config = launch_config(geo, step.batch, step.kv, gpu)
    space = Workspace.allocate(
        step.batch.query_tokens, geo.q_heads, geo.v_dim, config.num_splits, step.device, step.batch.query_tokens
    )
    entries = list_splits(config, lens, out=space.entries) if config.listed else None

    def once() -> None:
        list_splits(config, lens, out=entries)

    def layer(index: int) -> None:
        keys, values = inputs.cache(index)
        decode_attention(
            inputs.q, keys, values, seq_lens=lens, page_table=inputs.table, config=config, split_list=entries,
            workspace=space, out=step.out,
        )  # fmt: skip

    return Prepared(layer=layer, once=once if config.listed else None)


def with_ours(only: Sequence[str]) -> dict[str, Here]:
    """The runners of the peers that are here, and ours."""
    found = FoundEngine(package="decodecalc", version="this repository", policy_version=None)
    ours = KernelRunner(engine=BUNDLED, calls="decode_attention", find=lambda: found, prepare=prepare_ours)
    wanted = {call.engine for call in PEERS if not only or call.engine in only}
    here = {name: one for name, one in runners_here().items() if name in wanted and one.found is not None}
    return {BUNDLED: Here(runner=ours, found=found), **here}


def measure(seed: int, steps: int, only: Sequence[str], out: Path) -> dict[str, Any]:
    """Every launch of every step; what is finished is written as it grows."""
    from decodecalc.gpus import detect_gpu
    from decodecalc.verify.run.device import open_device, provenance

    begun, device, here = time.monotonic(), open_device("cuda"), with_ours(only)
    timer = DeviceTimer(device, detect_gpu(), here, BUDGET_S)
    calls = [OwnCall(engine=BUNDLED), *(call for call in PEERS if call.engine in here)]
    late = [call for call in calls if call.engine in COMPILED_LATE]
    drawn = list(draw(seed, steps))
    run: dict[str, Any] = {"seed": seed, "cells": [step.to_dict() for step in drawn], **provenance(device)}
    with compiling([(step, late) for step in drawn] if late else [], processes=6) as wait:
        compile_all([(step, [call for call in calls if call not in late and call.engine != BUNDLED]) for step in drawn])
        wait()
    # Ours with all of the peers: ratios hold within one turn.
    for cell in run["cells"]:
        cell["us"] = time_cell(step_of(cell), calls, timer)
        write_whole(out.with_suffix(".json"), json.dumps(run))
    run["seconds"] = round(time.monotonic() - begun, 1)
    write_whole(out.with_suffix(".json"), json.dumps(run))
    return run


def time_cell(step: ProbeStep, calls: Sequence[OwnCall], timer: StepTimer) -> dict[str, Any]:
    """Microseconds of every launch, or why it did not run."""
    found = timer(step, calls)
    return {
        call.label: seconds[:120] if isinstance(seconds, str) else float(f"{seconds * 1e6:.5g}")
        for call, (_, seconds) in zip(calls, found)
    }


def markdown(run: dict[str, Any], command: str) -> str:
    """The page."""
    rows = []
    for cell in run["cells"]:
        times = {name: us for name, us in cell.get("us", {}).items() if not isinstance(us, str)}
        ours = times.pop(BUNDLED, None)
        if ours and times:
            name = min(times, key=times.__getitem__)
            rows.append((step_of(cell).label, ours, name, times[name], times[name] / ours))
    ratios = [row[-1] for row in rows]
    lost = [row for row in rows if row[-1] < 1 / TIE]
    mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
    lines = [
        "# The bundled kernel beside every peer on random steps\n",
        f"Made by `{command}` on {run.get('device', '?')}, {run.get('date_utc', '?')}.\n",
        f"{len(rows)} steps, {len(lost)} lost (a peer more than 1 % faster). The fastest peer takes {mean:.2f} times "
        "as long in the geometric mean.\n",
        "| step | ours µs | fastest peer | µs | its time over ours |",
        "|---|---:|---|---:|---:|",
        *(f"| {label} | {ours:.2f} | {name} | {us:.2f} | {ratio:.3f} |" for label, ours, name, us, ratio in
          sorted(rows, key=lambda row: row[-1])),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="path without suffix: .json and .md are written")
    parser.add_argument("--seed", type=int, default=2020)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", default="", help="these peers only")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    given = parser.parse_args(argv)
    if given.render:
        run = json.loads(given.out.with_suffix(".json").read_text(encoding="utf-8"))
    else:
        run = measure(given.seed, given.steps, [name for name in given.only.split(",") if name], given.out)
    command = f"python -m benchmarks.kernels_random --seed {given.seed} --steps {given.steps} --out {given.out}"
    text = markdown(run, command)
    given.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
