"""`python -m sglang.launch_server` and `sglang serve`.

Source: SGLang `python/sglang/srt/server_args.py` (ServerArgs.add_cli_args, the memory heuristics).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.servers.commands.facts import SHARE_HELD_BACK, Facts
from decodecalc.servers.commands.flags import FLOAT, IGNORED, INT, INTS, JSON, ON, STR, Read, flag

FLAGS = (
    flag("--model-path --model", "model", STR, "the model"),
    flag("--tensor-parallel-size --tp-size --tp", "tp", INT, "ranks that divide the heads"),
    flag("--pipeline-parallel-size --pp-size --pp", "pp", INT, "stages that divide the layers"),
    flag("--data-parallel-size --dp-size --dp", "dp", INT, "replicas of the attention layers"),
    flag("--decode-context-parallel-size --dcp-size", "dcp", INT, "ranks that divide a sequence's keys"),
    flag("--dcp-comm-backend", "dcp_exchange", STR, "how the ranks merge their outputs"),
    flag("--dcp-replicate-q-proj", "dcp_replicated", ON, "every rank computes all queries"),
    flag("--enable-dp-attention", "dp_attention", ON, "replicas of attention inside the tensor-parallel ranks"),
    flag("--expert-parallel-size --ep-size --ep", "ep", INT, "whole experts on each rank"),
    flag("--max-running-requests", "max_num_seqs", INT, "most sequences of a step"),
    flag("--context-length", "max_model_len", INT, "most tokens of a sequence"),
    flag("--page-size", "page_size", INT, "keys of a page"),
    flag("--kv-cache-dtype", "kv_cache_dtype", STR, "element type of the cache"),
    flag("--attention-backend", "backend", STR, "the backend"),
    flag("--decode-attention-backend", "decode_attention_backend", STR, "the backend of decoding"),
    flag("--prefill-attention-backend", "prefill_attention_backend", STR, "the backend of prefill"),
    flag("--enable-deterministic-inference", "deterministic", ON, "results do not depend on the batch"),
    flag("--triton-attention-num-kv-splits", "num_kv_splits", INT, "cap on the splits of a row"),
    flag("--triton-attention-split-tile-size", "split_tile_size", INT, "keys of a split"),
    flag("--speculative-algorithm", "speculative_algorithm", STR, "drafting"),
    flag("--speculative-eagle-topk", "speculative_eagle_topk", INT, "branches of a draft"),
    flag("--speculative-num-draft-tokens", "num_draft_tokens", INT, "tokens that are verified at once"),
    flag("--speculative-num-steps", "num_steps", INT, "draft steps"),
    flag("--cuda-graph-max-bs", "graph_max", INT, "largest captured batch"),
    flag("--cuda-graph-bs", "graph_sizes", INTS, "captured batches"),
    flag("--disable-cuda-graph", "eager", ON, "no CUDA graphs"),
    flag("--mem-fraction-static", "memory_fraction", FLOAT, "share of the memory for weights and cache"),
    flag("--max-total-tokens", "max_total_tokens", INT, "tokens of the cache"),
    flag("--quantization", "quantization", STR, "bytes of a weight"),
    flag("--dtype", "dtype", STR, "element type of the model"),
    flag("--json-model-override-args", "hf_overrides", JSON, "fields of the configuration"),
    flag("--host --port --served-model-name --tool-call-parser --reasoning-parser --chat-template", "ignored", IGNORED),
    flag("--speculative-draft-model-path --speculative-draft-model", "ignored", IGNORED),
)
_FLOATS = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32"}
_SETTINGS = (
    "decode_attention_backend", "prefill_attention_backend", "deterministic", "num_kv_splits", "split_tile_size",
    "speculative_algorithm", "speculative_eagle_topk",
)  # fmt: skip
_PLAIN = (
    "pp", "dcp", "dcp_exchange", "dcp_replicated", "max_num_seqs", "max_model_len", "page_size", "kv_cache_dtype",
    "backend", "memory_fraction", "quantization", "hf_overrides", "eager",
)  # fmt: skip


def values_of(read: Read, env: Mapping[str, str]) -> dict[str, Any]:
    """The command's fields from its flags and environment."""
    got, notes = read.values, []
    tp, dp = got.get("tp", 1), got.get("dp", 1)
    out: dict[str, Any] = {name: got[name] for name in _PLAIN if name in got}
    if got.get("dp_attention") and dp > 1:
        out.update(tp=max(tp // dp, 1), dp=dp, expert_ranks=tp)
        notes.append(f"With --enable-dp-attention each attention layer is divided over {tp} / {dp} ranks.")
    else:
        out.update(tp=tp, dp=dp)
        if got.get("ep"):
            out["expert_ranks"] = tp
    settings: dict[str, Any] = {name: got[name] for name in _SETTINGS if name in got}
    settings["env"] = dict(env)
    options: dict[str, Any] = {}
    if "max_model_len" in got:
        options["max_context_len"] = got["max_model_len"]
    if str(env.get("SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS", "")).lower() in ("1", "true"):
        options["static_kv_splits"] = True
    drafted = got.get("num_draft_tokens")
    if drafted and got.get("speculative_algorithm"):
        out["draft_tokens"] = max(drafted - 1, 0)
        notes.append("SGLang verifies drafts with its extend kernel: the launch shown is the decode kernel's for them.")
    if "dtype" in got:
        out["dtype"] = _FLOATS.get(got["dtype"])
    return {**out, "settings": settings, "engine_options": options, "notes": notes}


def default_fraction(gpu: Any, ranks: int) -> float:
    """`mem_fraction_static` where none is given: what is held back for prefill chunks, graphs and the ranks, in MiB."""
    capacity = (gpu.capacity_bytes or 80 << 30) / (1 << 20)
    chunk = 2048 if capacity < 35 * 1024 else 4096 if capacity < 60 * 1024 else 8192 if capacity < 160 * 1024 else 16384
    graphs = (8 if capacity < 20 * 1024 else 24 if capacity < 35 * 1024 else 256) if ranks < 4 else 512
    held_back = 512 + chunk * 1.5 + graphs * 2 + ranks / 8 * 1024
    return float(round(max(capacity - held_back, 0) / capacity, 3))


FACTS = Facts(
    memory_rule=SHARE_HELD_BACK,
    memory_fraction=default_fraction,
    default_seqs=lambda gpu: 256,
    seqs_are="assumed: the server derives it from the tokens that fit",
    flags={
        "max_num_seqs": "--max-running-requests {}",
        "max_model_len": "--context-length {}",
        "tp": "--tp-size {}",
        "dcp": "--dcp-size {}",
        "backend": "--attention-backend {}",
        "memory_fraction": "--mem-fraction-static {}",
    },
    # 0.5.23, configs/model_config.py, _derive_context_length
    longer_than_model="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    smaller_cache="--kv-cache-dtype fp8_e4m3",
    dcp_exchange="a2a",
    trials=("--triton-attention-num-kv-splits 16", "--triton-attention-num-kv-splits 32"),
    flags_table=FLAGS,
)
