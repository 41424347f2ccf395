"""Files that commands read, mutated: traces, reports, calibrations, model configurations and GPU files."""

from __future__ import annotations

import gzip
import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz.contract import run_command
from benchmarks.fuzz.values import mutate_bytes, saved

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ("table", "json", "json", "csv", "markdown")
KERNELS = (
    "kernel_unified_attention", "reduce_segments", "_fwd_grouped_kernel_stage1", "flash_fwd_splitkv_kernel",
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>(P)", "x" * 200_000, "gemm", "_fwd_kernel_stage2",
    "triton_tem_fused__to_copy_flex_attention_1", "void flash_fwd_splitkv_mla_kernel<T>(P)", "kernel_mha", "",
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<P>(Q)", "paged_attention_ll4mi_reduce_kernel", "\x1b[2J",
    "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u>()", "fmhaSm100aKernel", "pa_decode_gluon",
)  # fmt: skip


def traces(rng: random.Random, folder: Path) -> tuple[str, int]:
    """A profiler trace, mutated, through `audit`."""
    path = folder / "t.json"
    shape = rng.random()
    if shape < 0.04:
        path.write_bytes(b'{"traceEvents": [' + b"[" * rng.choice((100, 5000, 200_000)))
    elif shape < 0.08:
        path.write_bytes(b"SQLite format 3\0" + rng.randbytes(4000))
    elif shape < 0.16:
        header = b'"Start (ns)","Duration (ns)","GrdX","GrdY","GrdZ","BlkX","BlkY","BlkZ","Name"\n'
        path.write_bytes(mutate_bytes(rng, header + b'1,2,1,8,16,128,1,1,"kernel_unified_attention"\n' * 5))
    elif shape < 0.24:
        raw = rng.choice(_real_traces())
        path.write_bytes(raw if rng.random() < 0.1 else mutate_bytes(rng, raw))
    else:
        saved(rng, path, _trace(rng))
    if rng.random() < 0.2:
        path.write_bytes(gzip.compress(path.read_bytes()))
        if rng.random() < 0.3:
            path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    argv = ["audit", str(path), *rng.choice(([], ["-m", "llama3-8b"], ["--q-heads", "32", "--kv-heads", "8"]))]
    argv += ["--allow-truncated"] if rng.random() < 0.3 else []
    run_command([*argv, "-f", rng.choice(FORMATS)])
    return " ".join(argv), 1


def _trace(rng: random.Random) -> dict[str, Any]:
    name = rng.choice(KERNELS)
    kernel = {
        "ph": "X", "cat": "kernel", "name": name, "ts": 1.0, "dur": 10.0,
        "args": {"grid": [1, 8, 16], "block": [128, 1, 1], "device": 0, "stream": 7, "correlation": 1},
    }  # fmt: skip
    device = {"id": 0, "name": rng.choice(("NVIDIA H200", "AMD Instinct MI300X", "x")), "numSms": 132,
              "computeMajor": 9, "computeMinor": 0}  # fmt: skip
    events = [dict(kernel, ts=float(i), name=rng.choice((name, *KERNELS))) for i in range(rng.choice((1, 4, 40)))]
    return {"deviceProperties": [device], "traceEvents": events}


@lru_cache(maxsize=1)
def _real_traces() -> tuple[bytes, ...]:
    """The smallest traces of the test data, unpacked."""
    found = sorted((ROOT / "tests" / "data" / "traces").rglob("*.json.gz"), key=lambda p: (p.stat().st_size, p.name))
    return tuple(gzip.decompress(p.read_bytes()) for p in found[:3]) or (b"{}",)


def reports(rng: random.Random, folder: Path) -> tuple[str, int]:
    """A verification report, mutated, merged and compared."""
    row = {
        "case": "c", "claim": rng.choice((1, 3, 10, 11)), "verdict": rng.choice(("pass", "pass", "off", "skip")),
        "scenario": "s", "engine": "e", "reason": "", "observed": 2.0, "predicted": 2.1, "spread": 0.01,
        "kv_read_bytes": 10, "how": "", "claim_name": "x",
        "quantities": [{"name": "total", "predicted": 2.1, "observed": 2.0, "unit": "s"}],
    }  # fmt: skip
    value = {
        "schema": "decodecalc/verify/1", "rows": [dict(row, case=f"c{i}") for i in range(rng.choice((1, 3, 12)))],
        "inputs": {"device": "d", "shard": rng.choice((None, "1/1", "1/2")), "state_before": {"driver": "1"}},
    }  # fmt: skip
    paths = [saved(rng, folder / f"r{i}.json", value) for i in range(rng.choice((1, 1, 2)))]
    argv = ["report", "merge", *paths, "-f", rng.choice((*FORMATS, "html"))]
    argv += ["--against", saved(rng, folder / "before.json", value)] if rng.random() < 0.4 else []
    run_command(argv, computed=False)
    return " ".join(argv), 1


def calibrations(rng: random.Random, folder: Path) -> tuple[str, int]:
    """A shipped calibration, mutated, through `predict`, `choose` or `step`."""
    path = saved(rng, folder / "c.json", _calibration())
    argv = [*rng.choice((["predict", "-f", "json"], ["predict"], ["choose"], ["step", "-m", "llama3-8b"]))]
    argv += ["--gpu", "h200-sxm", "--calibration", path, "-e", rng.choice(("bundled", "vllm-triton", "flashinfer"))]
    argv += ["--kv-dtype", rng.choice(("bf16", "fp8"))]
    run_command(argv)
    return " ".join(argv), 1


@lru_cache(maxsize=1)
def _calibration() -> Any:
    data = json.loads((ROOT / "decodecalc" / "data" / "calibration_h200.json").read_bytes())
    data["variants"] = data["variants"][:8]
    return data


def configs(rng: random.Random, folder: Path) -> tuple[str, int]:
    """A real model configuration, or a GPU file, mutated, through `models`, `grid` or `kv`."""
    if rng.random() < 0.2:
        gpu = {"name": "x", "sm_count": 100, "hbm_bytes_per_s": 2e12, "vendor": "nvidia", "compute_capability": "9.0"}
        run_command(["grid", "-g", saved(rng, folder / "g.json", gpu), "-e", "vllm-triton", "-f", "json"])
        return "gpu file", 1
    known = json.loads((ROOT / "tests" / "data" / "configs" / "configs.json").read_bytes())
    name = rng.choice(list(known))
    path = saved(rng, folder / "m.json", known[name])
    argv = rng.choice((["models", path], ["grid", "-m", path, "--tp", "2"], ["models", path, "-f", "json"],
                       ["kv", "-m", path, "-f", "json"]))  # fmt: skip
    run_command(argv)
    return f"{name}: {' '.join(argv)}", 1
