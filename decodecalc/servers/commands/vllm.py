"""`vllm serve` and `python -m vllm.entrypoints.openai.api_server`.

Source: vLLM `vllm/engine/arg_utils.py` (EngineArgs.add_cli_args, get_batch_defaults), `vllm/config/cache.py`,
`vllm/config/attention.py`, `vllm/envs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.errors import InputError
from decodecalc.servers.commands.facts import SHARE_OF_TOTAL, Facts
from decodecalc.servers.commands.flags import COUNT, FLOAT, IGNORED, INT, INTS, JSON, OFF, ON, STR, Read, flag

FLAGS = (
    flag("--model", "model", STR, "the model"),
    flag("--tensor-parallel-size -tp", "tp", INT, "ranks that divide the heads"),
    flag("--pipeline-parallel-size -pp", "pp", INT, "stages that divide the layers"),
    flag("--data-parallel-size -dp", "dp", INT, "replicas of the attention layers"),
    flag("--decode-context-parallel-size -dcp", "dcp", INT, "ranks that divide a sequence's keys"),
    flag("--cp-kv-cache-interleave-size --dcp-kv-cache-interleave-size", "dcp_interleave", INT, "keys of a run"),
    flag("--dcp-comm-backend", "dcp_exchange", STR, "how the ranks merge their outputs"),
    flag("--dcp-q-replicate", "dcp_replicated", ON, "every rank computes all queries"),
    flag("--enable-expert-parallel -ep", "ep", ON, "whole experts on each rank"),
    flag("--max-num-seqs", "max_num_seqs", COUNT, "most sequences of a step"),
    flag("--max-num-batched-tokens", "max_num_batched_tokens", COUNT, "most tokens of a step"),
    flag("--max-model-len", "max_model_len", COUNT, "most tokens of a sequence"),
    flag("--block-size", "page_size", INT, "keys of a page"),
    flag("--kv-cache-dtype", "kv_cache_dtype", STR, "element type of the cache"),
    flag("--attention-backend", "backend", STR, "the backend"),
    flag("--attention-config -ac", "attention", JSON, "the backend's settings"),
    flag("--compilation-config -cc -O", "compilation", JSON, "CUDA graphs"),
    flag("--enforce-eager", "eager", ON, "no CUDA graphs"),
    flag("--no-enforce-eager", "eager", OFF, "CUDA graphs"),
    flag("--cudagraph-capture-sizes --cuda-graph-sizes", "capture_sizes", INTS, "captured batches"),
    flag("--max-cudagraph-capture-size", "max_capture", INT, "largest captured batch"),
    flag("--performance-mode", "performance_mode", STR, "profile of the captured batches"),
    flag("--speculative-config -sc", "speculative", JSON, "draft tokens"),
    flag("--gpu-memory-utilization", "memory_fraction", FLOAT, "share of the GPU's memory"),
    flag("--kv-cache-memory-bytes", "kv_bytes", COUNT, "bytes of the cache"),
    flag("--cpu-offload-gb", "offload_gb", FLOAT, "weights kept in the host's memory"),
    flag("--quantization -q", "quantization", STR, "bytes of a weight"),
    flag("--dtype", "dtype", STR, "element type of the model"),
    flag("--hf-overrides", "hf_overrides", JSON, "fields of the configuration"),
    flag("--served-model-name", "ignored", IGNORED),
    flag("--api-key --host --port --tool-call-parser --reasoning-parser --chat-template", "ignored", IGNORED),
)
_FLOATS = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32"}
_ATTENTION = (
    "flash_attn_version",
    "use_trtllm_attention",
    "disable_flashinfer_q_quantization",
    "flash_attn_max_num_splits_for_cuda_graph",
    "tq_max_kv_splits_for_cuda_graph",
    "use_non_causal",
    "backend_per_kind",
)


def values_of(read: Read, env: Mapping[str, str]) -> dict[str, Any]:
    """The command's fields from its flags and environment."""
    got, notes = dict(read.values), []
    attention: dict[str, Any] = got.pop("attention", {})
    settings: dict[str, Any] = {name: attention[name] for name in _ATTENTION if name in attention}
    settings["env"] = dict(env)
    options: dict[str, Any] = {}
    if str(env.get("VLLM_BATCH_INVARIANT", "0")) == "1":
        settings["batch_invariant"] = True
    if "VLLM_ATTENTION_BACKEND" in env:
        notes.append(
            "VLLM_ATTENTION_BACKEND is not read by these releases: the flag is "
            f"--attention-backend {env['VLLM_ATTENTION_BACKEND']}."
        )
    _graphs(got, settings, options)
    tp, dp = got.get("tp", 1), got.get("dp", 1)
    out: dict[str, Any] = {name: got[name] for name in _PLAIN if name in got}
    out["backend"] = got.get("backend") or attention.get("backend")
    if got.pop("ep", False):
        out["expert_ranks"] = tp * dp
    elif dp > 1:
        out["expert_ranks"] = tp * dp
        notes.append("Experts are divided over the ranks of all replicas, as vLLM does with data parallelism.")
    drafts = got.get("speculative", {}).get("num_speculative_tokens")
    if drafts is not None:
        if isinstance(drafts, bool) or not isinstance(drafts, int) or drafts < 1:
            raise InputError(f"num_speculative_tokens must be a whole number of at least 1, not {drafts!r:.40}")
        out["draft_tokens"] = options["num_speculative_tokens"] = drafts
    for name in ("max_num_seqs", "max_num_batched_tokens", "performance_mode"):
        if name in got:
            options[name] = got[name]
    if "dtype" in got:
        if got["dtype"] != "auto" and got["dtype"] not in _FLOATS:
            raise InputError(f"--dtype {got['dtype']!r:.40} is not one of auto, {', '.join(_FLOATS)}")
        out["dtype"] = _FLOATS.get(got["dtype"])
    out["offload_bytes"] = int(got.get("offload_gb", 0) * (1 << 30))
    return {**out, "settings": settings, "engine_options": options, "notes": notes}


_PLAIN = (
    "tp", "pp", "dp", "dcp", "dcp_interleave", "dcp_exchange", "dcp_replicated", "max_num_seqs", "max_model_len",
    "page_size", "kv_cache_dtype", "memory_fraction", "kv_bytes", "quantization", "hf_overrides", "eager",
)  # fmt: skip


def _graphs(got: dict[str, Any], settings: dict[str, Any], options: dict[str, Any]) -> None:
    """`cudagraph_mode` and the captured sizes, from wherever they are given."""
    compilation: dict[str, Any] = got.pop("compilation", {})
    level = compilation.get("mode", compilation.get("level"))
    mode = compilation.get("cudagraph_mode")
    if got.get("eager") or level == 0:
        mode = "NONE"
        got["eager"] = True
    if mode is not None:
        settings["cudagraph_mode"] = str(mode).upper()
        if settings["cudagraph_mode"] in ("NONE", "PIECEWISE"):
            options["capture_sizes"] = None
    sizes = got.get("capture_sizes") or compilation.get("cudagraph_capture_sizes")
    if sizes and "capture_sizes" not in options:
        options["capture_sizes"] = sorted(sizes)
        settings["max_cudagraph_capture_size"] = max(sizes)
    most = got.get("max_capture") or compilation.get("max_cudagraph_capture_size")
    if most:
        settings["max_cudagraph_capture_size"] = most


def default_seqs(gpu: Any) -> int:
    """`get_batch_defaults` of the API server: 1024 on GPUs of 70 GiB and more that are not A100, else 256."""
    capacity = gpu.capacity_bytes or 0
    return 1024 if capacity >= 70 << 30 and "a100" not in gpu.name.lower() else 256


FACTS = Facts(
    memory_rule=SHARE_OF_TOTAL,
    memory_fraction=lambda gpu, ranks: 0.92,
    default_seqs=default_seqs,
    flags={
        "max_num_seqs": "--max-num-seqs {}",
        "max_model_len": "--max-model-len {}",
        "tp": "--tensor-parallel-size {}",
        "dcp": "--decode-context-parallel-size {}",
        "backend": "--attention-backend {}",
        "memory_fraction": "--gpu-memory-utilization {}",
    },
    smaller_cache="--kv-cache-dtype fp8",
    longer_than_model="VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",  # 0.33, config/model.py, _get_and_verify_max_len
    trials=(
        "--attention-config.flash_attn_max_num_splits_for_cuda_graph 16",
        "--attention-config.flash_attn_max_num_splits_for_cuda_graph 64",
        "--attention-config.flash_attn_max_num_splits_for_cuda_graph 128",
    ),
    flags_table=FLAGS,
)
