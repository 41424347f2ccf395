"""`trtllm-serve`, `llama-server` and `lmdeploy serve api_server`.

Sources: TensorRT-LLM `tensorrt_llm/commands/serve.py`; llama.cpp `common/arg.cpp`; LMDeploy
`lmdeploy/cli/serve.py`, `lmdeploy/messages.py` (TurbomindEngineConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.servers.commands.facts import EXACT, SHARE_OF_FREE, Facts
from decodecalc.servers.commands.flags import FLOAT, IGNORED, INT, JSON, ON, STR, Read, flag

TRTLLM_FLAGS = (
    flag("--model", "model", STR, "the model"),
    flag("--tp-size --tensor-parallel-size --tp", "tp", INT, "ranks that divide the heads"),
    flag("--pp-size --pipeline-parallel-size --pp", "pp", INT, "stages that divide the layers"),
    flag("--ep-size --moe-expert-parallel-size --ep", "ep", INT, "whole experts on each rank"),
    flag("--max-batch-size", "max_num_seqs", INT, "most sequences of a step"),
    flag("--max-seq-len", "max_model_len", INT, "most tokens of a sequence"),
    flag(
        "--kv-cache-free-gpu-memory-fraction --free-gpu-memory-fraction", "memory_fraction", FLOAT, "share of the rest"
    ),
    flag("--kv-cache-dtype", "kv_cache_dtype", STR, "element type of the cache"),
    flag("--backend --max-num-tokens --max-beam-width --tokenizer --host --port", "ignored", IGNORED),
    flag("--extra-llm-api-options --config", "config_file", STR),
)
LLAMA_FLAGS = (
    flag("--model -m", "model", STR, "the model's file"),
    flag("--hf-repo -hf -hfr", "repo", STR, "the model's repository"),
    flag("--ctx-size -c", "context", INT, "tokens of all sequences together"),
    flag("--parallel -np", "max_num_seqs", INT, "most sequences of a step"),
    flag("--cache-type-k -ctk", "kv_cache_dtype", STR, "element type of the keys"),
    flag("--cache-type-v -ctv", "value_dtype", STR, "element type of the values"),
    flag("--flash-attn -fa", "flash", STR, "FlashAttention"),
    flag("--n-gpu-layers --gpu-layers -ngl", "gpu_layers", STR, "layers on the GPU"),
    flag("--split-mode -sm", "split_mode", STR, "how several GPUs share the model"),
    flag("--tensor-split -ts --main-gpu -mg --threads -t --batch-size -b --ubatch-size -ub", "ignored", IGNORED),
    flag("--host --port --alias -a --chat-template --temp --top-p --top-k", "ignored", IGNORED),
    flag("--jinja --mlock --no-mmap --cont-batching -cb --metrics --embedding --verbose -v", "switch", ON),
)
LMDEPLOY_FLAGS = (
    flag("--model-path", "model", STR, "the model"),
    flag("--tp", "tp", INT, "ranks that divide the heads"),
    flag("--dp", "dp", INT, "replicas of the attention layers"),
    flag("--session-len", "max_model_len", INT, "most tokens of a sequence"),
    flag("--max-batch-size", "max_num_seqs", INT, "most sequences of a step"),
    flag("--cache-max-entry-count", "memory_fraction", FLOAT, "share of the rest"),
    flag("--cache-block-seq-len", "page_size", INT, "keys of a page"),
    flag("--quant-policy", "quant_policy", INT, "bits of the cache"),
    flag("--model-format", "quantization", STR, "bytes of a weight"),
    flag("--dtype", "dtype", STR, "element type of the model"),
    flag("--backend", "engine", STR, "turbomind or pytorch"),
    flag("--hf-overrides", "hf_overrides", JSON, "fields of the configuration"),
    flag("--server-name --server-port --model-name --api-keys --log-level --chat-template", "ignored", IGNORED),
)
_FLOATS = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16"}
# llama.cpp's cache types in our words.
_GGML = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "q8_0": "int8", "q4_0": "int4", "q4_1": "int4"}


def trtllm_values(read: Read, env: Mapping[str, str]) -> dict[str, Any]:
    """`trtllm-serve`'s fields."""
    got = read.values
    names = ("tp", "pp", "max_num_seqs", "max_model_len", "memory_fraction", "kv_cache_dtype")
    out: dict[str, Any] = {name: got[name] for name in names if name in got}
    notes = []
    if "config_file" in got:
        notes.append(f"{got['config_file']} is not read: give what it sets as flags.")
    if got.get("ep"):
        out["expert_ranks"] = got.get("tp", 1)
    return {**out, "notes": notes}


def llama_values(read: Read, env: Mapping[str, str]) -> dict[str, Any]:
    """`llama-server`'s fields: the context is shared by the slots."""
    got, notes = read.values, []
    out: dict[str, Any] = {"max_num_seqs": got.get("max_num_seqs", 1), "eager": False, "dtype": "float16"}
    if "repo" in got:
        got["model"] = got["repo"].partition(":")[0]
    if got.get("context"):
        out["max_model_len"] = max(got["context"] // max(out["max_num_seqs"], 1), 1)
        if out["max_num_seqs"] > 1:
            notes.append(f"-c {got['context']} is shared: a sequence has {out['max_model_len']} tokens.")
    kind = got.get("kv_cache_dtype", "f16")
    out["kv_cache_dtype"] = _GGML.get(kind, kind)
    if str(got.get("flash", "auto")).lower() in ("off", "0", "false"):
        notes.append("Without FlashAttention llama.cpp multiplies matrices instead: the launch shown is not what runs.")
    if got.get("value_dtype", kind) != kind:
        notes.append("Keys and values have different types: both are counted as the keys' type.")
    if got.get("split_mode", "layer") != "layer":
        notes.append(f"--split-mode {got['split_mode']} is planned as one GPU.")
    return {**out, "notes": notes}


def lmdeploy_values(read: Read, env: Mapping[str, str]) -> dict[str, Any]:
    """`lmdeploy serve api_server`'s fields."""
    got, notes = read.values, []
    names = ("tp", "dp", "max_num_seqs", "max_model_len", "memory_fraction", "page_size", "hf_overrides")
    out: dict[str, Any] = {name: got[name] for name in names if name in got}
    out["kv_cache_dtype"] = {4: "int4", 8: "int8"}.get(got.get("quant_policy", 0))
    if got.get("quantization") not in (None, "hf"):
        out["quantization"] = got["quantization"]
    if "dtype" in got:
        out["dtype"] = _FLOATS.get(got["dtype"])
    if got.get("engine") == "pytorch":
        notes.append("--backend pytorch runs Triton kernels of LMDeploy's own, for which there is no policy.")
    return {**out, "notes": notes}


TRTLLM_FACTS = Facts(
    memory_rule=SHARE_OF_FREE,
    memory_fraction=lambda gpu, ranks: 0.9,
    default_seqs=lambda gpu: 2048,
    flags={
        "max_num_seqs": "--max_batch_size {}",
        "max_model_len": "--max_seq_len {}",
        "tp": "--tp_size {}",
        "memory_fraction": "--kv_cache_free_gpu_memory_fraction {}",
    },
    page_size=32,
    flags_table=TRTLLM_FLAGS,
)
LLAMA_FACTS = Facts(
    memory_rule=EXACT,
    memory_fraction=lambda gpu, ranks: 1.0,
    default_seqs=lambda gpu: 1,
    flags={"max_num_seqs": "-np {}", "max_model_len": "-c {}"},
    smaller_cache="-ctk q8_0 -ctv q8_0",
    flags_table=LLAMA_FLAGS,
)
LMDEPLOY_FACTS = Facts(
    memory_rule=SHARE_OF_FREE,
    memory_fraction=lambda gpu, ranks: 0.8,
    default_seqs=lambda gpu: 128,
    flags={
        "max_num_seqs": "--max-batch-size {}",
        "max_model_len": "--session-len {}",
        "tp": "--tp {}",
        "memory_fraction": "--cache-max-entry-count {}",
    },
    smaller_cache="--quant-policy 8",
    page_size=64,
    flags_table=LMDEPLOY_FLAGS,
)
