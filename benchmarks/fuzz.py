"""Throws malformed and extreme input at the command line, the API and the readers, and reports what gets through.

    python benchmarks/fuzz.py [--seconds 60] [--seed 1] [--only commands|calls|traces|reports|calibrations|configs]

What counts as got through: an exception that is not the project's own, an "internal error", a traceback, an exit code
that the contract does not have, JSON that does not parse, output with control characters, or a case that takes longer
than 10 s of processor time. The address space is limited to 4 GB (`resource.setrlimit`), so that what explodes ends as
a MemoryError in the case that caused it. Every case follows from the seed and its number: `--seed S --case N` runs
one again, with its traceback. Exit code 1 where anything got through.

It runs in one process and writes nothing outside a temporary folder. A test of the suite runs it for some seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import io
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30
SLOW_S = 10.0
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's package, wherever the tool is started

# Values that have broken programs: bounds of types, empty things, units, other scripts, escapes, endless paths.
NUMBERS = (
    "0", "1", "-1", "2", "7", "16", "128", "4096", "1g", "1m", "128k", "1e9", "1.5", "NaN", "inf", "9" * 20,
    "9" * 5000, "", " ", "1,2,4", "1:64:x2", "1:99999:1", "1:0", "0x10", "١٢", "1:1:0", "1:9:x1", ",", "1,,2",
)  # fmt: skip
WORDS = (
    "", "all", "auto", "none", "x", "llama3-8b", "deepseek-v3", "gpt-oss-20b", "gemma3-27b", "deepseek-v4-flash",
    "h100", "mi300x", "gaudi3", "l4", "vllm-triton", "flashinfer@0.6.17", "vllm-triton@", "flashmla,flash-decoding",
    "bf16", "fp8", "int4", "a=b", "\x1b[2J", "\u202e", "\udc80", "$\\frac$", "=cmd()", "<script>", "a" * 3000,
    "/dev/zero", "/dev/null", "/no/such", "..", "-", "--",
    "num_splits=0", "num_splits=99999999999", "batch > 1", "1/0 > 1", "20 by waves", "1/2",
    "2/1", "1/99999999999",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3.5, 1e308, 1 << 70, "", "x", "\x1b[2J", [], {}, [0], [[]], {"a": 1}, [None] * 3,
    "1e400", float("inf"), float("nan"), 128, "full_attention", [1, 2, 4],
)  # fmt: skip


class GotThroughError(Exception):
    """A case that ended as none may end."""


def commands(rng: random.Random, folder: Path) -> str:
    """One command line of real commands and options with odd values."""
    from click import Choice, Context

    from decodecalc.cli.main import COMMANDS, cli

    name = rng.choice([n for n in COMMANDS if n not in ("calibrate",)])
    command = cli.get_command(Context(cli), name)
    assert command is not None
    argv = [name]
    for parameter in command.params:
        if rng.random() > (0.25 if parameter.param_type_name == "option" else 0.8):
            continue
        if parameter.name in ("suite", "base", "output", "resume", "kind", "counters", "html", "data"):
            continue
        value = rng.choice(NUMBERS if rng.random() < 0.5 else WORDS)
        if isinstance(parameter.type, Choice) and rng.random() < 0.8:
            value = rng.choice([str(choice) for choice in parameter.type.choices])
        if parameter.param_type_name == "argument":
            argv.append(value)
        elif getattr(parameter, "is_flag", False):
            argv.append(parameter.opts[0])
        else:
            argv += [parameter.opts[0], value]
    if name == "verify":
        argv.append("--dry-run")
    if name in ("sweep", "plot"):
        argv += ["-o", str(folder / rng.choice(("a.csv", "a.png", "a.jsonl", "none/a.csv")))]
    run_command(argv)
    return " ".join(argv)


def run_command(argv: list[str]) -> None:
    """One command in this process, held to the contract of exit codes and output."""
    from decodecalc.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"{}"))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(argv)
    finally:
        sys.stdin = stdin
    said = err.getvalue()
    shown = f"{argv!r:.300}: exit {code}, {said[:300]!r}"
    if code not in (0, 1, 2, 3):
        raise GotThroughError(f"exit code: {shown}")
    if "internal error" in said or "Traceback" in said:
        raise GotThroughError(f"internal error: {shown}")
    if code == 2 and not said:
        raise GotThroughError(f"no message: {shown}")
    if any(mark in out.getvalue() + said for mark in ("\x1b[2J", "\u202e")):
        raise GotThroughError(f"escapes: {shown}")
    if code == 0 and "json" in argv and out.getvalue().startswith("{"):
        json.loads(out.getvalue())


def calls(rng: random.Random, folder: Path) -> str:
    """One plan of the API with odd and with extreme but valid numbers, and its analyses."""
    import decodecalc as dc

    def number(*usual: Any) -> Any:
        return rng.choice(usual) if rng.random() < 0.93 else odd(rng)

    engine = rng.choice(dc_engines())
    made = f"{engine}"
    try:
        mla = rng.random() < 0.2
        kv_heads = 1 if mla else number(1, 2, 3, 8, 10, 40)
        geo = dc.Geometry(
            number(1, 8, 16, 32, 71, 128, 120), kv_heads, number(64, 72, 128, 192, 256, 576) if not mla else 576,
            number(None, 128, 512) if not mla else 512, None if mla else number(None, None, 1, 128, 4096), mla=mla,
        )  # fmt: skip
        lens = [number(0, 1, 17, 512, 4097, 131072, 1 << 20) for _ in range(rng.choice((1, 1, 2, 5)))]
        batch = dc.Batch(lens, number(1, 1, 2, 4, 9))
        kv = dc.KvCache(number("bf16", "bf16", "fp8", "int8", "nvfp4"), number(1, 16, 64, 256, 1056))
        gpu = number("h100", "h200", "a100", "b200", "mi300x", "l4", "gaudi3", "v100")
        made += f" {geo!r:.200} {batch!r:.120} {kv} {gpu!r:.30}"
        plan = dc.plan(engine, geo, batch, kv=kv, gpu=gpu)
        plan.to_dict()
        dc.occupancy(plan)
        dc.traffic(plan)
        dc.roofline(plan)
        dc.paging(plan)
        for request in range(batch.size):
            owned = sum(plan.splits.key_counts(request))
            if owned > max(batch.seq_lens[request], plan.batch.seq_lens[request]):
                raise GotThroughError(f"splits own {owned} keys: {made}")
        if plan.gpu.hbm_bytes_per_s is not None and rng.random() < 0.3:
            dc.predict(plan, plan.gpu)
    except dc.DecodecalcError:
        pass
    return made


def dc_engines() -> tuple[str, ...]:
    from decodecalc.engines.registry import engine_names

    return engine_names()


def odd(rng: random.Random) -> Any:
    """One of the values that do not belong there."""
    return copy.deepcopy(rng.choice(JSON_VALUES))


def mutate_json(rng: random.Random, value: Any, times: int) -> Any:
    """The value with `times` parts replaced, removed or repeated."""
    value = json.loads(json.dumps(value))
    for _ in range(times):
        spot, parents = value, []
        while isinstance(spot, (dict, list)) and spot and (not parents or rng.random() < 0.85):
            key = rng.choice(list(spot)) if isinstance(spot, dict) else rng.randrange(len(spot))
            parents.append((spot, key))
            spot = spot[key]
        if not parents:
            return odd(rng)
        parent, key = parents[-1]
        action = rng.random()
        if action < 0.6:
            parent[key] = odd(rng)
        elif action < 0.8:
            del parent[key]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[rng.choice(WORDS[4:])] = copy.deepcopy(parent[key])
    return value


def mutate_bytes(rng: random.Random, raw: bytes) -> bytes:
    """The bytes cut, with some overwritten, or with a part repeated."""
    data = bytearray(raw)
    action = rng.random()
    if action < 0.3:
        return bytes(data[: rng.randrange(len(data) + 1)])
    for _ in range(rng.randrange(1, 20)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if action > 0.8:
        at = rng.randrange(len(data))
        data[at:at] = data[at : at + 200] * rng.randrange(1, 50)
    return bytes(data)


def saved(rng: random.Random, path: Path, value: Any) -> str:
    """The value mutated and written: as JSON mostly, else with broken bytes."""
    raw = json.dumps(mutate_json(rng, value, rng.choice((0, 1, 1, 2, 5)))).encode()
    path.write_bytes(raw if rng.random() < 0.85 else mutate_bytes(rng, raw))
    return str(path)


def traces(rng: random.Random, folder: Path) -> str:
    """A profiler trace, mutated, through `audit`."""
    kernel = {
        "ph": "X", "cat": "kernel", "name": rng.choice((
            "kernel_unified_attention", "reduce_segments", "_fwd_grouped_kernel_stage1", "flash_fwd_splitkv_kernel",
            "void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>(P)", "x" * 200_000, "gemm",
        )),
        "ts": 1.0, "dur": 10.0,
        "args": {"grid": [1, 8, 16], "block": [128, 1, 1], "device": 0, "stream": 7, "correlation": 1},
    }  # fmt: skip
    device = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "computeMajor": 9, "computeMinor": 0}
    value = {
        "deviceProperties": [device],
        "traceEvents": [dict(kernel, ts=float(i)) for i in range(rng.choice((1, 4, 40)))],
    }
    path = folder / "t.json"
    if rng.random() < 0.08:
        depth = rng.choice((100, 5000, 200_000))
        path.write_bytes(b'{"traceEvents": [' + b"[" * depth)
    elif rng.random() < 0.05:
        path.write_bytes(b"SQLite format 3\0" + rng.randbytes(4000))
    elif rng.random() < 0.08:
        header = b'"Start (ns)","Duration (ns)","GrdX","GrdY","GrdZ","BlkX","BlkY","BlkZ","Name"\n'
        path.write_bytes(mutate_bytes(rng, header + b'1,2,1,8,16,128,1,1,"kernel_unified_attention"\n' * 5))
    else:
        saved(rng, path, value)
    if rng.random() < 0.2:
        path.write_bytes(gzip.compress(path.read_bytes()))
    argv = ["audit", str(path)] + (["-m", "llama3-8b"] if rng.random() < 0.5 else [])
    argv += ["--allow-truncated"] if rng.random() < 0.3 else []
    argv += ["-f", rng.choice(("table", "json", "csv", "markdown"))]
    run_command(argv)
    return " ".join(argv)


def reports(rng: random.Random, folder: Path) -> str:
    """A verification report, mutated, merged and compared."""
    row = {
        "case": "c", "claim": rng.choice((1, 3, 10, 11)), "verdict": "pass", "scenario": "s", "engine": "e",
        "reason": "", "observed": 2.0, "predicted": 2.1, "spread": 0.01, "kv_read_bytes": 10, "how": "",
        "claim_name": "x",
        "quantities": [{"name": "total", "predicted": 2.1, "observed": 2.0, "unit": "s"}],
    }  # fmt: skip
    value = {
        "schema": "decodecalc/verify/1", "rows": [dict(row, case=f"c{i}") for i in range(rng.choice((1, 3, 12)))],
        "inputs": {"device": "d", "shard": rng.choice((None, "1/1", "1/2")), "state_before": {"driver": "1"}},
    }  # fmt: skip
    paths = [saved(rng, folder / f"r{i}.json", value) for i in range(rng.choice((1, 1, 2)))]
    argv = ["report", "merge", *paths, "-f", rng.choice(("table", "json", "csv", "markdown", "html"))]
    argv += ["--against", saved(rng, folder / "before.json", value)] if rng.random() < 0.4 else []
    run_command(argv)
    return " ".join(argv)


def calibrations(rng: random.Random, folder: Path) -> str:
    """A shipped calibration, mutated, through `predict`."""
    value = _calibration()
    path = saved(rng, folder / "c.json", value)
    argv = ["predict", "--gpu", "h200-sxm", "--calibration", path, "-e", rng.choice(("bundled", "vllm-triton"))]
    argv += ["--kv-dtype", rng.choice(("bf16", "fp8"))]
    run_command(argv)
    return " ".join(argv)


def _calibration() -> Any:
    data = json.loads((ROOT / "decodecalc" / "data" / "calibration_h200.json").read_bytes())
    data["variants"] = data["variants"][:8]
    return data


def configs(rng: random.Random, folder: Path) -> str:
    """A real model configuration, or a GPU file, mutated, through `models`, `grid` or `gpus`."""
    if rng.random() < 0.2:
        gpu = {"name": "x", "sm_count": 100, "hbm_bytes_per_s": 2e12, "vendor": "nvidia", "compute_capability": "9.0"}
        run_command(["grid", "-g", saved(rng, folder / "g.json", gpu), "-e", "vllm-triton", "-f", "json"])
        return "gpu file"
    known = json.loads((ROOT / "tests" / "data" / "configs" / "configs.json").read_bytes())
    name = rng.choice(list(known))
    path = saved(rng, folder / "m.json", known[name])
    argv = rng.choice((["models", path], ["grid", "-m", path, "--tp", "2"], ["models", path, "-f", "json"]))
    run_command(argv)
    return f"{name}: {' '.join(argv)}"


KINDS: dict[str, Callable[[random.Random, Path], str]] = {
    "commands": commands, "calls": calls, "traces": traces, "reports": reports, "calibrations": calibrations,
    "configs": configs,
}  # fmt: skip


def one(kind: str, seed: int, case: int) -> tuple[str | None, float]:
    """(what got through, processor seconds) of one case."""
    rng = random.Random(f"{seed}/{kind}/{case}")
    start, what = time.process_time(), ""
    found: str | None = None
    with tempfile.TemporaryDirectory(prefix="decodecalc-fuzz-") as folder:
        here = os.getcwd()
        os.chdir(folder)  # what a command writes without a name lands here
        try:
            what = KINDS[kind](rng, Path(folder))
        except GotThroughError as got:
            found = str(got)
        except MemoryError:
            found = f"memory: more than {MEMORY_BYTES >> 30} GB"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found = f"{type(error).__name__}: {str(error)[:200]}\n{traceback.format_exc()[-1500:]}"
        finally:
            os.chdir(here)
    spent = time.process_time() - start
    if found is None and spent > SLOW_S:
        found = f"slow: {spent:.1f} s: {what[:300]}"
    return found, spent


def fuzz(seconds: float, seed: int, only: list[str], say: Callable[[str], None] = print) -> dict[str, int]:
    """Runs cases of every kind in turn until the time is over and counts them. `say` is told what got through."""
    ran: Counter[str] = Counter()
    failures = 0
    end = time.monotonic() + seconds
    case = 0
    while time.monotonic() < end:
        for kind in only:
            found, _ = one(kind, seed, case)
            ran[kind] += 1
            if found is not None:
                failures += 1
                say(f"--only {kind} --seed {seed} --case {case}: {found}")
            if time.monotonic() >= end:
                break
        case += 1
    return {**ran, "got through": failures}


def limit_memory() -> None:
    """The limit for this process; nothing on systems that have none."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=1, help="what the cases follow from")
    parser.add_argument(
        "--only", choices=list(KINDS), action="append", help="kinds of cases (repeatable); default: all"
    )
    parser.add_argument("--case", type=int, help="run this case of one kind again")
    given = parser.parse_args()
    limit_memory()
    only = given.only or list(KINDS)
    if given.case is not None:
        found, spent = one(only[0], given.seed, given.case)
        print(found or "nothing got through", f"({spent:.2f} s)")
        return int(found is not None)
    ran = fuzz(given.seconds, given.seed, only)
    print(", ".join(f"{count} {name}" for name, count in ran.items()))
    return int(ran["got through"] > 0)


if __name__ == "__main__":
    sys.exit(main())
