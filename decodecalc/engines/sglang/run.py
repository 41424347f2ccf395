"""SGLang's own Triton decode kernels, for GQA and MLA, called as its Triton backend calls them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decodecalc.verify.own.peers import find_package
from decodecalc.verify.own.runner import CannotRunError, KernelRunner, OwnStep, Prepared, Trying

FOLDER = "sglang/srt/layers/attention/"
FILES = (FOLDER + "triton_ops/decode_attention.py", FOLDER + "triton_backend.py")
DEFAULT_CAP = 8  # --triton-attention-num-kv-splits
# Its kernel for groups of one multiplies queries and keys in bf16, and both kernels round the weights to the type of
# the values, which are FP8 in an FP8 cache.
BOUNDS = {"bf16": 1.2e-2, "fp16": 2e-3, "fp8": 4e-2}
SCHEDULED_ROWS = 256  # SCHEDULE_SEQ of get_num_kv_splits: at least this many


def prepare(step: OwnStep) -> Prepared:
    """`decode_attention_fwd` as TritonAttnBackend.forward_decode calls it (SGLang 0.5.10): token slots of every
    request, and the split counts of `get_num_kv_splits_triton`, which runs once a step."""
    import torch
    from sglang.srt.layers.attention.triton_backend import get_num_kv_splits_triton
    from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd

    geo, batch, inputs, options = step.geometry, step.batch, step.inputs, step.options
    if options.static_kv_splits or options.deterministic or options.split_tile_size or options.draft_topk:
        raise CannotRunError("the runner has SGLang's adaptive split counts only")
    if batch.max_q_len > 1:
        raise CannotRunError("SGLang decodes one token a request; more are verified by its extend kernel")
    cap = options.max_kv_splits_arg or DEFAULT_CAP
    # Models hand their window less 1 to the backend, whose update_sliding_window_buffer lists the last keys of each
    # request; the split counts stay those of the full lengths.
    window = None if geo.window is None else geo.window - 1
    lens = [n if window is None else min(n, window) for n in batch.seq_lens]
    indices = torch.cat([token_slots(inputs, r)[n - own : n] for r, (n, own) in enumerate(zip(batch.seq_lens, lens))])
    starts = torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32, device=step.device)
    more: dict[str, Any] = {"dtype": torch.float32, "device": step.device}
    logits = torch.empty((batch.size, geo.q_heads, cap, geo.v_dim), **more)
    lse = torch.empty((batch.size, geo.q_heads, cap), **more)
    splits = torch.empty(batch.size, dtype=torch.int32, device=step.device)
    sms = torch.cuda.get_device_properties(step.device).multi_processor_count
    rows = max(SCHEDULED_ROWS, 1 << (batch.size - 1).bit_length())
    k_scale, v_scale = (inputs.common().get(name, 1.0) for name in ("k_scale", "v_scale"))

    def once() -> None:
        get_num_kv_splits_triton[(1,)](
            splits, inputs.seq_lens, batch.size, 1, geo.q_heads, geo.kv_heads, cap, sms, MAX_NUM_SEQ=rows
        )

    def layer(index: int) -> None:
        keys, values = inputs.cache(index)
        keys = keys.view(-1, geo.kv_heads, geo.head_dim)
        values = keys[..., : geo.v_dim] if values is None else values.view(-1, geo.kv_heads, geo.v_dim)
        decode_attention_fwd(
            inputs.q, keys, values, step.out, starts, indices, logits, lse, splits, cap, step.scale, k_scale, v_scale,
            logit_cap=geo.softcap or 0.0, sinks=inputs.sinks,
        )  # fmt: skip

    once()
    note = "" if window is None else f"SGLang reads the last {window} keys: models hand it their window less 1"
    return Prepared(layer=layer, once=once, window=window, note=note)


def token_slots(inputs: Any, request: int) -> Any:
    """[keys of whole pages] int64: the slots of one request's tokens in the flattened cache."""
    import torch

    if inputs.indptr is not None:
        return inputs.table[int(inputs.indptr[request]) : int(inputs.indptr[request + 1])].long()
    page = inputs.kv.page_size
    pages = inputs.table[request].long()
    return (pages[:, None] * page + torch.arange(page, device=pages.device)).flatten()


RUNNERS = (
    KernelRunner(
        engine="sglang-triton",
        calls="SGLang's Triton decode_attention_fwd",
        find=partial(find_package, "sglang-triton", "sglang", FILES),
        prepare=prepare,
        bounds=BOUNDS,
        steps=(
            Trying(model="llama3-8b", context=2560),
            Trying(model="llama3-8b", tp=8, context=32768),
            Trying(model="llama3-8b", batch=64, context=8192),
            Trying(model="llama3-8b", ragged=(128, 8192, 777, 2560, 1, 4096, 333, 16384)),
            Trying(model="llama2-7b", context=4096),
            Trying(model="llama3-8b", batch=4, context=8192, dtype="fp8"),
            Trying(model="gpt-oss-20b", batch=4, group="full"),
            Trying(model="gemma3-27b", batch=2, context=8192, group="sliding"),
            Trying(model="deepseek-v3", tp=8, page=64),
            Trying(model="deepseek-v3", tp=8, ragged=(5000, 1200, 300), page=64),
        ),
    ),
)
