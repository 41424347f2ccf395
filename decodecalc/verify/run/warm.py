"""Compiles every kernel variant that a run will need, in several processes at once, into Triton's cache on disk.

A suite needs some hundreds of variants that take a second each, which is more than the checks themselves take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from decodecalc.batch import Batch
from decodecalc.launch.plan import LaunchPlan
from decodecalc.verify.run.execution import BUNDLED, Execution
from decodecalc.verify.session.suites import Case

if TYPE_CHECKING:
    from decodecalc.verify.run.inputs import Inputs

MOST_WORKERS = 10
WARM_KEYS = 64
Job = tuple[LaunchPlan, Execution]


def warm_up(jobs: Sequence[Job], device_index: int, progress: Callable[[int, int], None]) -> None:
    """Compiles for all jobs. A job that fails to compile is reported by its own row later."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    todo = list({_key(plan, run): (plan, run) for plan, run in jobs}.values())
    workers = min(MOST_WORKERS, max(1, (os.cpu_count() or 2) - 2), len(todo))
    if workers < 2:
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(compile_variants, plan, run, device_index) for plan, run in todo]
        try:
            for done, _ in enumerate(as_completed(waiting), 1):
                progress(done, len(todo))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def jobs_of(cases: Sequence[Case], runs: dict[str, Execution]) -> list[Job]:
    """The jobs of cases that can run."""
    return [(case.plan, runs[case.id]) for case in cases if case.plan is not None and not runs[case.id].unsupported]


def _key(plan: LaunchPlan, run: Execution) -> str:
    """What determines the compiled code: geometry, cache, query tokens and the launch without its counts."""
    config = run.launch.replace(num_splits=2, split_value=1, split_unit=1, idle_requests=0, list_length=None)
    tokens = plan.batch.max_q_len
    who = f"{plan.engine == BUNDLED}|{plan.batch.size}"
    return f"{who}|{plan.geometry}|{plan.kv}|{tokens}|{run.launch.direct}|{run.window}|{config}"


def compile_variants(plan: LaunchPlan, run: Execution, device_index: int) -> None:
    """Launches short requests, as many as the plan has, under every variant of `run` that the claims use."""
    import contextlib

    import torch

    from decodecalc.verify.run.device import open_device
    from decodecalc.verify.run.inputs import make_inputs
    from decodecalc_kernels import Workspace, decode_attention, record_launch

    device = open_device("cuda", device_index)
    q_len, requests = plan.batch.max_q_len, plan.batch.size  # as many requests: crowded launches compile apart
    batch = Batch([WARM_KEYS + q_len] * requests, [q_len] * requests)
    inputs = make_inputs(plan.geometry, batch, plan.kv, device.torch_name)
    tokens, q_heads, v_dim = inputs.out_shape
    base = run.launch
    one = base.on_grid(num_splits=1, split_rule="count", split_value=1, split_unit=1)
    fixed = base.on_grid(num_splits=2, split_rule="size", split_value=WARM_KEYS, window_partition="full")
    value = 1 if base.split_rule == "counts" else 2 * WARM_KEYS
    values = torch.tensor([value] * requests, dtype=torch.int32, device=inputs.q.device)
    for config in (base, replace(run, config=run.timed or base).launch, one, fixed):
        space = Workspace.allocate(tokens, q_heads, v_dim, config.num_splits, device.torch_name, tokens)
        out = torch.empty(inputs.out_shape, dtype=inputs.q.dtype, device=inputs.q.device)
        args = {
            **inputs.arguments(), "config": config, "workspace": space, "out": out, "window": run.window,
            "split_values": values if run.split_values is not None else None,
        }  # fmt: skip
        with contextlib.suppress(Exception):  # reported where it matters
            decode_attention(inputs.q, *inputs.cache(), **args)
            if config is base:
                record_launch(inputs.q, *inputs.cache(), **args)
    if plan.engine == BUNDLED:
        _compile_merges(plan, run, inputs)
    device.synchronize()


def _compile_merges(plan: LaunchPlan, run: Execution, inputs: Inputs) -> None:
    """The merges of a sweep over split counts, whose shape depends on the count."""
    import contextlib

    import torch

    from decodecalc_kernels import Workspace, decode_attention
    from decodecalc_kernels.blocks import merge_shape

    tokens, q_heads, v_dim = inputs.out_shape
    rows = tokens * q_heads
    out = torch.empty(inputs.out_shape, dtype=inputs.q.dtype, device=inputs.q.device)
    for splits in (2**i for i in range(1, 10)):
        config = run.launch.on_grid(
            num_splits=splits, split_rule="size", split_value=WARM_KEYS, **merge_shape(splits, rows, v_dim)
        )
        space = Workspace.allocate(tokens, q_heads, v_dim, splits, str(inputs.q.device), tokens)
        with contextlib.suppress(Exception):
            decode_attention(
                inputs.q, *inputs.cache(), **inputs.arguments(), config=config, workspace=space, out=out,
                window=run.window, run="merge",
            )  # fmt: skip
