"""vLLM's own Triton kernels: unified attention and MLA decode, called as vLLM's backends call them."""

from __future__ import annotations

from functools import partial
from typing import Any

from decodecalc.verify.own.peers import find_package
from decodecalc.verify.own.runner import KernelRunner, OwnStep, Prepared, Trying

# Weights are rounded to the type of the values, which keeps three bits; the reference uses the rounded queries.
FP8_BOUND = 4e-2
OPS = "vllm/v1/attention/ops/"
UNIFIED = OPS + "triton_unified_attention.py"
MLA = (OPS + "triton_decode_attention.py", "vllm/v1/attention/backends/mla/triton_mla.py")


def prepare_unified(step: OwnStep) -> Prepared:
    """`unified_attention` as TritonAttentionImpl.forward calls it (vLLM 0.33). The threshold between its paths and the
    scratch come from the settled step: the server's metadata builder makes them, once for all steps."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import KVQuantMode

    geo, batch, inputs, settled = step.geometry, step.batch, step.inputs, step.settled
    rows = max(int(settled.scratch_rows), batch.query_tokens)
    segments, width = int(settled.scratch_segments), int(settled.head_dim_padded)
    more: dict[str, Any] = {"device": step.device, "dtype": torch.float32}
    scratch = (
        torch.empty((rows, geo.q_heads, segments, width), **more),
        torch.empty((rows, geo.q_heads, segments), **more),
        torch.empty((rows, geo.q_heads, segments), **more),
    )
    scales: list[Any] = [None, None]
    mode, queries, query_scale, read = KVQuantMode.NONE, inputs.q, None, None
    if inputs.kv.dtype == "fp8":
        shape = (batch.size, geo.kv_heads)
        scales = [torch.tensor(s, **more).expand(shape) for s in fp8_scales(step)]
        mode = KVQuantMode.FP8_PER_TENSOR
        # The attention layer rounds queries too: supports_quant_query_input of the backend, on every CUDA device.
        queries, query_scale = inputs.q.to(torch.float8_e4m3fn), torch.ones((), **more)
        read = queries.to(inputs.q.dtype)
    starts = step.query_starts()
    # SlidingWindow of vLLM's backend: the window less the query's own key on the left, nothing on the right.
    window = (-1, -1) if geo.window is None else (geo.window - 1, 0)
    sinks = None if inputs.sinks is None else inputs.sinks.to(inputs.q.dtype)

    def layer(index: int) -> None:
        keys, values = inputs.cache(index)
        unified_attention(
            q=queries, k=keys, v=values, out=step.out, cu_seqlens_q=starts, max_seqlen_q=batch.max_q_len,
            seqused_k=inputs.seq_lens, max_seqlen_k=batch.max_seq_len, softmax_scale=step.scale,
            causal=step.options.causal, window_size=window, block_table=inputs.table, softcap=geo.softcap or 0.0,
            q_descale=query_scale, k_descale=scales[0], v_descale=scales[1], seq_threshold_3D=int(settled.threshold),
            num_par_softmax_segments=segments, softmax_segm_output=scratch[0], softmax_segm_max=scratch[1],
            softmax_segm_expsum=scratch[2], sinks=sinks, kv_quant_mode=mode,
        )  # fmt: skip

    return Prepared(layer=layer, queries=read)


def fp8_scales(step: OwnStep) -> tuple[float, float]:
    """Scales of the keys and values of an FP8 cache."""
    common = step.inputs.common()
    return common["k_scale"], common["v_scale"]


def prepare_mla(step: OwnStep) -> Prepared:
    """`decode_attention_fwd` as TritonMLAImpl.forward_mqa calls it, with that backend's own split count."""
    import torch
    from vllm.v1.attention.backends.mla.triton_mla import _compute_num_kv_splits
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    geo, batch, inputs, options = step.geometry, step.batch, step.inputs, step.options
    sms = torch.cuda.get_device_properties(step.device).multi_processor_count
    longest = options.captured_max_len or batch.max_seq_len
    splits = 1 if options.batch_invariant else _compute_num_kv_splits(longest, sms)
    more: dict[str, Any] = {"device": step.device, "dtype": torch.float32}
    logits = torch.empty((batch.query_tokens, geo.q_heads, splits, geo.v_dim + 1), **more)
    lse = torch.zeros((batch.query_tokens, geo.q_heads), dtype=inputs.q.dtype, device=step.device)
    scale = torch.ones((), **more)
    # One row for each query token: token t of q sees all but the q - 1 - t last keys.
    lens, table = inputs.seq_lens, inputs.table
    if batch.max_q_len > 1:
        counts = torch.tensor(batch.q_lens, device=step.device)
        back = torch.cat([torch.arange(1 - q, 1, device=step.device) for q in batch.q_lens])
        lens = (lens.repeat_interleave(counts) + back).int()
        table = table.repeat_interleave(counts, 0)

    def layer(index: int) -> None:
        cache = inputs.cache(index)[0]
        decode_attention_fwd(
            inputs.q, cache, cache[..., : geo.v_dim], step.out, lse, table, lens, logits, splits, step.scale,
            inputs.kv.page_size, k_scale=scale, v_scale=scale, is_mla=True,
        )  # fmt: skip

    return Prepared(layer=layer)


RUNNERS = (
    KernelRunner(
        engine="vllm-triton",
        calls="vLLM's unified_attention",
        find=partial(find_package, "vllm-triton", "vllm", (UNIFIED,)),
        prepare=prepare_unified,
        steps=(
            Trying(model="llama3-8b", context=2560),
            Trying(model="llama3-8b", tp=8, context=32768),
            Trying(model="llama3-8b", batch=64, context=8192),
            Trying(model="llama3-8b", ragged=(128, 8192, 777, 2560, 1, 4096, 333, 16384)),
            Trying(model="llama3-8b", batch=4, context=8192, dtype="fp8"),
            Trying(model="llama3-8b", batch=2, context=4096, q_len=4),
            Trying(model="llama3.2-1b", batch=4),
            Trying(model="phi-2", batch=2, context=2048),
            Trying(model="gemma-2b", context=8192),
            Trying(model="gemma3-27b", batch=2, context=8192, group="sliding"),
            Trying(model="gpt-oss-20b", batch=4, group="sliding"),
        ),
        bounds={"fp8": FP8_BOUND},
    ),
    KernelRunner(
        engine="vllm-triton-mla",
        calls="vLLM's Triton MLA decode_attention_fwd",
        find=partial(find_package, "vllm-triton-mla", "vllm", MLA),
        prepare=prepare_mla,
        steps=(
            Trying(model="deepseek-v3", tp=8, page=64),
            Trying(model="deepseek-v3", tp=8, batch=16, page=64),
            Trying(model="deepseek-v3", tp=8, ragged=(5000, 1200, 300), page=64),
        ),
    ),
)
