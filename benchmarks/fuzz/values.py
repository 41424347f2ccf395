"""Values that do not belong where they are put, and ways to spoil JSON and bytes. Everything follows from the `rng`."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

# Values that have broken programs: bounds of types, empty things, units, other scripts, escapes, endless paths.
NUMBERS = (
    "0", "1", "-1", "2", "7", "16", "128", "4096", "1g", "1m", "128k", "1e9", "1.5", "NaN", "inf", "9" * 20,
    "9" * 5000, "", " ", "1,2,4", "1:64:x2", "1:99999:1", "1:0", "0x10", "١٢", "1:1:0", "1:9:x1", ",", "1,,2",
    "1:9999:1", "1:65536:1", "-0", "1_000", "+8", "1e400", "1e-400", "99999999999", "2147483648", "1:4:x99",
)  # fmt: skip
WORDS = (
    "", "all", "auto", "none", "x", "llama3-8b", "deepseek-v3", "gpt-oss-20b", "gemma3-27b", "deepseek-v4-flash",
    "h100", "mi300x", "gaudi3", "l4", "vllm-triton", "flashinfer@0.6.17", "vllm-triton@", "flashmla,flash-decoding",
    "bf16", "fp8", "int4", "a=b", "\x1b[2J", "\u202e", "\udc80", "$\\frac$", "=cmd()", "<script>", "a" * 3000,
    "/dev/zero", "/dev/null", "/no/such", "..", "-", "--", "-h", "--debug",
    "num_splits=0", "num_splits=99999999999", "batch > 1", "1/0 > 1", "20 by waves", "1/2",
    "2/1", "1/99999999999", "'a' * 9999999999 == 'b'", "batch in [1, 2]", "time_s < none", "[[[[1]]]] > 0",
    "9" * 400 + " > 1", "batch.x > 1", "not batch", "engine,engine,batch", "1-99999999999", "2,5,10", "10x10", "0x0",
    "num_splits=nan", "batch_invariant=yes", "max_num_seqs=1", "cuda_graph=no", "=", "==", "0:99", "0:99999999999",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3.5, 1e308, 1 << 70, "", "x", "\x1b[2J", [], {}, [0], [[]], {"a": 1}, [None] * 3,
    "1e400", float("inf"), float("nan"), 128, "full_attention", [1, 2, 4], "\ud800", "9" * 5000, -3.0, 1e-320, "64",
)  # fmt: skip


def odd(rng: random.Random) -> Any:
    """One of the values that do not belong there."""
    return copy.deepcopy(rng.choice(JSON_VALUES))


def mutate_json(rng: random.Random, value: Any, times: int) -> Any:
    """The value with `times` parts replaced, removed or repeated."""
    value = json.loads(json.dumps(value))
    for _ in range(times):
        spot: Any = value
        parents: list[tuple[Any, Any]] = []
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
    """The value mutated and written: as JSON mostly, else with broken bytes. Some stay as they are."""
    raw = json.dumps(mutate_json(rng, value, rng.choice((0, 1, 1, 2, 5)))).encode()
    path.write_bytes(raw if rng.random() < 0.85 else mutate_bytes(rng, raw))
    return str(path)
