"""Hardware counters by Nsight Compute: DRAM and L2 bytes of the two kernels, with one profiled launch per case.

ncu runs a child process of this package that launches every case once between cudaProfilerStart and Stop. It flushes
all caches before each kernel, so stage 1 reads its KV from DRAM. The clocks are not changed (--clock-control none).
"""

from __future__ import annotations

import csv
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodecalc.launch.plan import LaunchPlan
from decodecalc.verify.run.execution import Execution
from decodecalc.verify.run.profile import ROLES

DRAM_READ = "dram__bytes_read.sum"
L2_READ_SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"
L2_WRITE_SECTORS = "lts__t_sectors_srcunit_tex_op_write.sum"
SECTOR_BYTES = 32
TIMEOUT_S = 300


@dataclass(frozen=True)
class Counted:
    """Bytes by hardware counters. merge_*: None when nothing is split."""

    stage1_dram_read_bytes: int
    stage1_l2_write_bytes: int
    merge_dram_read_bytes: int | None = None
    merge_l2_read_bytes: int | None = None


def find_ncu() -> str | None:
    """The command line of Nsight Compute, where it is installed; otherwise None."""
    return shutil.which("ncu") or next((str(p) for p in sorted(Path("/usr/local").glob("cuda*/bin/ncu"))), None)


def count(jobs: Sequence[tuple[str, LaunchPlan, Execution]], device_index: int) -> tuple[dict[str, Counted], str]:
    """Counters by case id, and the reason where a case has none."""
    ncu = find_ncu()
    if ncu is None:
        return {}, "ncu (Nsight Compute) is not installed"
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "jobs.pickle"
        spec.write_bytes(pickle.dumps(list(jobs)))
        command = [
            ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
            "--print-units", "base", "--kernel-name", "regex:^(stage1|merge)_kernel$",
            "--metrics", ",".join((DRAM_READ, L2_READ_SECTORS, L2_WRITE_SECTORS)),
            sys.executable, "-m", "decodecalc.verify.run.counters", str(spec), str(device_index),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as failed:
            return {}, f"ncu did not finish: {type(failed).__name__}"
    rows = parse(done.stdout)
    found = assign(rows, jobs)
    missing = "" if len(found) == len(jobs) else f"ncu: {_last_words(done)}"
    return found, missing


def _last_words(done: Any) -> str:
    lines = [
        line for line in (done.stdout + "\n" + done.stderr).splitlines() if line.startswith("==") or "Error" in line
    ]
    return (lines[-1] if lines else f"exit code {done.returncode}")[:200]


def parse(text: str) -> list[dict[str, Any]]:
    """Kernels of `ncu --csv --page raw`: name and counters, in order of launch. Lines of other origin are skipped."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = []
    for row in csv.DictReader(lines):
        name = row.get("Kernel Name") or ""
        try:
            values = {
                key: float((row.get(key) or "").replace(",", ""))
                for key in (DRAM_READ, L2_READ_SECTORS, L2_WRITE_SECTORS)
            }
        except ValueError:
            continue  # the line of units
        rows.append({"name": name.split("(")[0], **values})
    return rows


def assign(rows: Sequence[dict[str, Any]], jobs: Sequence[tuple[str, LaunchPlan, Execution]]) -> dict[str, Counted]:
    """Assigns rows to cases: each stage 1 begins a case, and a merge belongs to the stage 1 before it."""
    groups: list[list[dict[str, Any]]] = []
    for row in rows:
        if ROLES.get(row["name"]) == "stage1":
            groups.append([row])
        elif groups:
            groups[-1].append(row)
    found = {}
    for (case_id, _, _), group in zip(jobs, groups):
        stage1, merge = group[0], group[1] if len(group) > 1 else None
        found[case_id] = Counted(
            round(stage1[DRAM_READ]),
            round(stage1[L2_WRITE_SECTORS] * SECTOR_BYTES),
            round(merge[DRAM_READ]) if merge else None,
            round(merge[L2_READ_SECTORS] * SECTOR_BYTES) if merge else None,
        )
    return found


def child(spec: str, device_index: int) -> None:
    """Launches every job once while the profiler watches. A job that fails launches nothing and ends the run there."""
    import torch

    from decodecalc.verify.run.device import open_device
    from decodecalc.verify.run.inputs import make_inputs
    from decodecalc_kernels import Workspace, decode_attention

    # Written by `count` a moment ago, by this user.
    jobs = pickle.loads(Path(spec).read_bytes())
    device = open_device("cuda", device_index)
    for _, plan, run in jobs:
        inputs = make_inputs(plan.geometry, plan.batch, plan.kv, device.torch_name)
        config = run.config
        tokens, q_heads, v_dim = inputs.out_shape
        space = Workspace.allocate(
            tokens, q_heads, v_dim, config.num_splits, device.torch_name, plan.batch.size * plan.batch.max_q_len
        )
        values = None
        if run.split_values is not None:
            values = torch.tensor(run.split_values, dtype=torch.int32, device=device.torch_name)
        out = torch.empty(inputs.out_shape, dtype=inputs.q.dtype, device=device.torch_name)
        args = {
            **inputs.arguments(), "config": config, "workspace": space, "out": out, "split_values": values,
            "window": run.window,
        }  # fmt: skip
        decode_attention(inputs.q, *inputs.cache(), **args)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        decode_attention(inputs.q, *inputs.cache(), **args)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]))
