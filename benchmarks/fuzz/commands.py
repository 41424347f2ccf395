"""Command lines of every command: real options with usual, extreme and senseless values."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz.contract import run_command
from benchmarks.fuzz.values import NUMBERS, WORDS

# What a user would write for an option. An option that is not here takes its choices, or odd values only.
USUAL: dict[str, tuple[str, ...]] = {
    "model": ("llama3-8b", "llama3-70b", "deepseek-v3", "gpt-oss-20b", "gemma3-27b", "glm-5", "qwen3.5-27b",
              "deepseek-v4-flash", "mimo-v2-flash", "minimax-m3", "qwen3-4b"),
    "q_heads": ("8", "32", "71", "128"), "kv_heads": ("1", "2", "8", "40"), "head_dim": ("64", "128", "192", "576"),
    "head_dim_v": ("128", "512"), "window": ("1", "128", "4096"), "tp": ("1", "2", "3", "8"),
    "gpu": ("h100", "h200-sxm", "a100-sxm", "b200", "mi300x", "l4", "gaudi3", "rtx 5090", "v100"),
    "server": ("vllm", "sglang", "vllm@0.30.0", "sglang@0.5.10", "vllm@9"),
    "opts": ("num_splits=4", "batch_invariant=yes", "max_num_seqs=64", "cuda_graph=no", "num_splits_arg=2"),
    "batch": ("1", "4,16", "1:64:x2", "1:9:1"), "context": ("1", "2k,32k", "131072"), "seq_lens": ("17,65,200", "1,1"),
    "q_len": ("1", "2", "1,4"), "kv_dtype": ("bf16", "fp8", "nvfp4", "int4"), "query_dtype": ("bf16", "fp16", "fp8"),
    "page_size": ("1", "16", "64", "256", "1056"), "stored": ("fp8", "bf16", "int4"), "workload": ("1k:10,8k:1",),
    "splits": ("1,2,4", "1:64:x2"), "select": ("engine,batch,live_blocks", "engine,batch,time_s"),
    "where": ("batch > 1", "live_blocks < 132 and batch != 2"), "top": ("5 by waves", "3 by sm_coverage"),
    "shard": ("1/1", "1/2", "2/3"), "tps": ("1,2,4",), "size": ("slide", "column"), "against": ("a100",),
    "claims": ("1,3", "2", "1-6"), "seed": ("1",), "request": ("0", "1"), "page_ids": ("0,5,3,9", "0:9"),
    "device_index": ("0",), "pp": ("1", "2"), "dcp": ("1", "2"), "reserve_gib": ("2",), "memory_fraction": ("0.9",),
    "available_gib": ("40",), "expert_ranks": ("1", "8"), "server_version": ("0.33.0", "0.5.23"),
    "allocator_page_size": ("16", "64"), "name": ("llama3-8b", "h100", "vllm-triton"),
}  # fmt: skip
USUAL_OF = {
    ("grid", "engine"): ("all", "vllm-triton", "flashinfer", "flash-attention-3,flashmla", "flashmla-sparse"),
    ("models", "name"): USUAL["model"], ("gpus", "name"): USUAL["gpu"],
    ("engines", "name"): ("vllm-triton", "flashinfer@0.6.17", "flashmla"),
}  # fmt: skip
SERVE = (
    "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-num-seqs 64",
    "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --kv-cache-dtype fp8_e4m3",
    "vllm serve Qwen/Qwen3-4B --kv-cache-dtype fp8 --max-model-len 32768 --attention-backend FLASHINFER",
    "docker run --gpus all vllm/vllm-openai:v0.28.0 --model google/gemma-3-27b-it --tensor-parallel-size 2",
    "VLLM_ATTENTION_BACKEND=TRITON_ATTN vllm serve openai/gpt-oss-20b --enforce-eager",
    "services:\n  a:\n    image: vllm/vllm-openai:latest\n    command: --model openai/gpt-oss-20b -tp 2\n",
)
# Files are written to the case's own folder, of these names; the last cannot be.
FILES = ("a.csv", "a.json", "a.png", "a.svg", "a.jsonl", "a.html", "none/a.csv")
# Figures take longest: they are drawn less often than their share.
RARE = {"plot": 0.25, "sweep": 0.5}
WRITES = ("output", "html", "data", "base", "path", "measured", "traces", "resume")


@lru_cache(maxsize=1)
def _commands() -> tuple[tuple[tuple[str, ...], Any], ...]:
    """(words of the command, the command), subcommands of groups included."""
    from click import Context, Group

    from decodecalc.cli.main import COMMANDS, cli

    found: list[tuple[tuple[str, ...], Any]] = []
    for name in COMMANDS:
        command = cli.get_command(Context(cli), name)
        if isinstance(command, Group):
            found += [((name, sub), of) for sub, of in command.commands.items()]
        else:
            found.append(((name,), command))
    return tuple(found)


def commands(rng: random.Random, folder: Path) -> tuple[str, int]:
    """One command line; (the line, 1)."""
    words, command = rng.choice(_commands())
    while rng.random() > RARE.get(words[0], 1.0):
        words, command = rng.choice(_commands())
    oddness = rng.choice((0.0, 0.05, 0.3, 0.8))  # some lines are what users write, some are nothing of the sort
    argv = list(words)
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        needed = parameter.required and rng.random() < 0.9
        if not needed and rng.random() > (0.22 if is_option else 0.7):
            continue
        if parameter.name in WRITES and not (needed or rng.random() < 0.3):
            continue
        if getattr(parameter, "is_flag", False):
            argv.append(parameter.opts[0])
            continue
        value = _value(rng, words[0], parameter, folder, oddness)
        argv += [parameter.opts[0], value] if is_option else [value]
    if words[0] == "verify" and "--dry-run" not in argv:
        argv.append("--dry-run")
    if words[0] in ("sweep", "plot") and "-o" not in argv and "--output" not in argv:
        argv += ["-o", str(folder / rng.choice(FILES))]
    if rng.random() < 0.25 * oddness:
        argv.insert(rng.randrange(len(argv) + 1), rng.choice(WORDS))
        if words[0] == "verify" and argv[-1] != "--dry-run":
            argv.append("--dry-run")
    run_command(argv)
    return " ".join(argv), 1


def _value(rng: random.Random, command: str, parameter: Any, folder: Path, oddness: float) -> str:
    from click import Choice

    if parameter.name in ("output", "html", "data", "base"):
        return str(folder / rng.choice(FILES))
    if parameter.name == "command":
        return _serve_command(rng, oddness)
    if rng.random() < oddness:
        return rng.choice(NUMBERS if rng.random() < 0.5 else WORDS)
    if isinstance(parameter.type, Choice):
        return str(rng.choice(list(parameter.type.choices)))
    if parameter.name == "engine":
        return rng.choice(USUAL_OF[("grid", "engine")] + tuple(_engines()))
    usual = USUAL_OF.get((command, str(parameter.name))) or USUAL.get(str(parameter.name))
    return rng.choice(usual or NUMBERS)


def _serve_command(rng: random.Random, oddness: float) -> str:
    """A serve command with words left out, doubled, swapped or replaced."""
    text = rng.choice(SERVE)
    words = text.split(" ")
    while words and rng.random() < oddness:
        at, action = rng.randrange(len(words)), rng.random()
        if action < 0.3:
            del words[at]
        elif action < 0.5:
            words.insert(at, words[at])
        else:
            words[at] = rng.choice(WORDS + NUMBERS)
    return " ".join(words)


@lru_cache(maxsize=1)
def _engines() -> tuple[str, ...]:
    from decodecalc.engines.registry import engine_names

    return engine_names()
