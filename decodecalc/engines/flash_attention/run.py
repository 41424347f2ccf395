"""FlashAttention 2 and 3 as vLLM builds and calls them (`vllm.vllm_flash_attn`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from decodecalc.verify.own.peers import find_package
from decodecalc.verify.own.runner import CannotRunError, KernelRunner, OwnStep, Prepared, Trying

FOLDER = "vllm/vllm_flash_attn/"
INTERFACE = FOLDER + "flash_attn_interface.py"
# The kernel rounds weights and queries to e4m3, which keeps three bits. The reference uses the rounded queries, so this
# bound covers the weights alone.
FP8_BOUND = 4e-2


def window_of(step: OwnStep) -> list[int]:
    """window_size as vLLM passes it: the window less the query's own key, and nothing to the right."""
    left, right = step.options.window_left, step.options.window_right
    if left is None:
        left = -1 if step.geometry.window is None else step.geometry.window - 1
    if right is None:
        right = -1 if step.geometry.window is None else 0
    return [left, right]


def common_arguments(step: OwnStep) -> dict[str, Any]:
    """What both generations are given: packed queries, paged keys, per-request lengths."""
    batch = step.batch
    if not step.options.paged:
        raise CannotRunError("the runner has a paged cache only")
    return {
        "cu_seqlens_q": step.query_starts(),
        "max_seqlen_q": batch.max_q_len,
        "seqused_k": step.inputs.seq_lens,
        "softmax_scale": step.scale,
        "causal": step.options.causal,
        "window_size": window_of(step),
        "softcap": step.geometry.softcap or 0.0,
        "block_table": step.inputs.table,
        "out": step.out,
    }


def prepare_2(step: OwnStep) -> Prepared:
    """`flash_attn_varlen_func` with fa_version 2."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    options = step.options
    splits = 1 if options.batch_invariant else options.num_splits_arg
    if options.api == "kvcache" or options.alibi:
        raise CannotRunError("the runner has vLLM's varlen entry without ALiBi slopes only")
    if splits > 1:
        raise CannotRunError("vLLM's FlashAttention 2 takes no split count above 1")
    arguments = {**common_arguments(step), "max_seqlen_k": options.seqlen_k or step.batch.max_seq_len}

    def layer(index: int) -> None:
        keys, values = step.inputs.cache(index)
        flash_attn_varlen_func(step.inputs.q, keys, values, num_splits=splits, fa_version=2, **arguments)

    return Prepared(layer=layer)


def prepare_3(step: OwnStep) -> Prepared:
    """`flash_attn_varlen_func` with fa_version 3. Without ready-made metadata each call launches its scheduler; as
    under vLLM's CUDA graphs (cuda_graph) it is launched once a step, by `get_scheduler_metadata`."""
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

    options, inputs, geo = step.options, step.inputs, step.geometry
    if not options.cache_seqlens or not options.cu_seqlens_q or options.sm_margin:
        raise CannotRunError("the runner has packed queries and per-request lengths only")
    splits = 1 if options.batch_invariant else options.num_splits_arg
    if options.cuda_graph and not splits:
        splits = int(step.settled.num_splits_given)
    arguments = {**common_arguments(step), "max_seqlen_k": options.seqlen_k_capacity or step.batch.max_seq_len}
    if inputs.sinks is not None:
        arguments["s_aux"] = inputs.sinks.to(torch.bfloat16)
    queries, read = inputs.q, None
    if inputs.kv.dtype == "fp8":
        queries = inputs.q.to(torch.float8_e4m3fn)
        read = queries.to(inputs.q.dtype)
        shape = (step.batch.size, geo.kv_heads)
        scales = {"q_descale": 1.0, "k_descale": inputs.common()["k_scale"], "v_descale": inputs.common()["v_scale"]}
        for name, value in scales.items():
            arguments[name] = torch.full((), value, dtype=torch.float32, device=step.device).expand(shape)

    def layer(index: int) -> None:
        keys, values = inputs.cache(index)
        flash_attn_varlen_func(queries, keys, values, num_splits=splits, fa_version=3, **arguments)

    if not options.cuda_graph:
        return Prepared(layer=layer, queries=read)

    def once() -> None:
        arguments["scheduler_metadata"] = get_scheduler_metadata(
            batch_size=step.batch.size, max_seqlen_q=arguments["max_seqlen_q"],
            max_seqlen_k=arguments["max_seqlen_k"], num_heads_q=geo.q_heads, num_heads_kv=geo.kv_heads,
            headdim=geo.head_dim, headdim_v=geo.v_dim, cache_seqlens=inputs.seq_lens, qkv_dtype=queries.dtype,
            cu_seqlens_q=arguments["cu_seqlens_q"], page_size=step.kv.page_size, causal=arguments["causal"],
            window_size=tuple(arguments["window_size"]), has_softcap=bool(arguments["softcap"]), num_splits=splits,
        )  # fmt: skip

    once()
    return Prepared(layer=layer, once=once, queries=read, note="the scheduler runs once a step")


RUNNERS = (
    KernelRunner(
        engine="flash-attention-2",
        calls="flash_attn_varlen_func, version 2",
        find=partial(
            find_package, "flash-attention-2", "vllm", (INTERFACE, FOLDER + "_vllm_fa2_C.abi3.so"), "vllm-{version}"
        ),
        prepare=prepare_2,
        steps=(
            Trying(model="llama3-8b", context=2560),
            Trying(model="llama3-8b", tp=8, context=32768),
            Trying(model="llama3-8b", batch=64, context=8192),
            Trying(model="llama3-8b", ragged=(128, 8192, 777, 2560, 1, 4096, 333, 16384)),
            Trying(model="llama3-8b", batch=2, q_len=4),
        ),
    ),
    KernelRunner(
        engine="flash-attention-3",
        calls="flash_attn_varlen_func, version 3",
        find=partial(
            find_package, "flash-attention-3", "vllm", (INTERFACE, FOLDER + "_vllm_fa3_C.abi3.so"), "vllm-{version}"
        ),
        prepare=prepare_3,
        steps=(
            Trying(model="llama3-8b", context=2560),
            Trying(model="llama3-8b", tp=8, context=32768),
            Trying(model="llama3-8b", batch=64, context=8192),
            Trying(model="llama3-8b", ragged=(128, 8192, 777, 2560, 1, 4096, 333, 16384)),
            Trying(model="llama3-8b", batch=4, context=8192, dtype="fp8"),
            Trying(model="llama3-8b", batch=2, q_len=4),
            Trying(model="llama3.2-1b", batch=4),
            Trying(model="gemma-2b", context=8192),
            Trying(model="gemma3-27b", batch=2, context=8192, group="sliding"),
            Trying(model="gpt-oss-20b", batch=4, group="sliding"),
            Trying(model="llama3-8b", context=8192, options=(("cuda_graph", True),)),
        ),
        bounds={"fp8": FP8_BOUND},
    ),
)
