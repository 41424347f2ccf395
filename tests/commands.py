"""One call of every command that prints a table, as people type them."""

from __future__ import annotations

CHOOSE = ("choose", "--model", "llama3-70b", "--tp", "8", "--gpu", "h200", "--context", "8k")

COMMANDS: dict[str, tuple[str, ...]] = {
    "grid": ("grid", "--model", "llama3-8b", "--tp", "8"),
    "choose": CHOOSE,
    "predict": ("predict", "--engine", "all", "--q-len", "1,2"),
    "prefix": ("predict", "--batch", "8", "--context", "8k", "--shared-prefix", "4096"),
    "ranks": ("predict", "--model", "deepseek-v3", "--tp", "8", "--dcp", "2"),
    "layers": ("grid", "--model", "gpt-oss-120b", "--engine", "vllm-triton,flashinfer"),
    "latent": ("grid", "--model", "deepseek-v3", "--tp", "8"),
    "merge": ("merge", "--engine", "all", "--context", "128,4k"),
    "roofline": ("roofline", "--compare"),
    "segments": ("segments", "--context", "257"),
    "paging": ("paging", "--engine", "all"),
    "kv": ("kv", "--model", "deepseek-v3", "--tp", "8"),
    "step": ("step", "--batch", "1,64"),
    "models": ("models", "qwen"),
    "model": ("models", "gpt-oss-20b"),
    "gpus": ("gpus",),
    "gpu": ("gpus", "h200-sxm"),
    "engines": ("engines",),
    "engine": ("engines", "sglang-triton"),
    "serve": ("serve", "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8", "--gpu", "h100"),
}
