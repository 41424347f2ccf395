"""PyTorch's FlexAttention, compiled, on dense keys and values."""

from __future__ import annotations

from functools import partial
from typing import Any

from decodecalc.intmath import round_up
from decodecalc.verify.own.peers import find_package
from decodecalc.verify.own.runner import CannotRunError, KernelRunner, OwnStep, Prepared, Trying


def prepare(step: OwnStep) -> Prepared:
    """`torch.compile(flex_attention)` with a BlockMask of each request's length and window. The pages are copied into
    dense tensors first, as FlexAttention reads no page table."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    geo, batch, inputs, options = step.geometry, step.batch, step.inputs, step.options
    if not options.block_mask:
        raise CannotRunError("without a BlockMask all requests would have as many keys as the capacity")
    if len(set(batch.q_lens)) > 1 or geo.mla or geo.sinks or geo.softcap:
        raise CannotRunError("the runner supports only GQA with one number of query tokens, without sinks and soft cap")
    capacity, q_len = options.kv_len or batch.max_seq_len, batch.max_q_len
    lens = inputs.seq_lens
    dense = [tuple(dense_cache(inputs, cache, capacity) for cache in inputs.cache(i)) for i in range(inputs.layers)]
    queries = inputs.q.view(batch.size, q_len, geo.q_heads, geo.head_dim).transpose(1, 2)

    def visible(b: Any, h: Any, q: Any, k: Any) -> Any:
        own = lens[b] - q_len + q
        seen = k <= own
        return seen if geo.window is None else seen & (k > own - geo.window)

    mask = create_block_mask(
        visible, batch.size, None, q_len, capacity, device=str(step.device), BLOCK_SIZE=options.sparse_block_size,
        _compile=False,
    )  # fmt: skip
    if not options.has_full_blocks:
        raise CannotRunError("the runner supports only masks with full blocks")
    asked: dict[str, Any] = {
        name: value
        for name, value in (("SPLIT_KV", options.split_kv), ("BLOCK_N", options.block_n))
        if value is not None
    }
    if options.force_flex_attention:
        asked["FORCE_USE_FLEX_ATTENTION"] = True
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)

    def layer(index: int) -> None:
        keys, values = dense[index]
        out = compiled(
            queries, keys, values, block_mask=mask, enable_gqa=geo.group > 1, scale=step.scale,
            kernel_options=asked or None,
        )  # fmt: skip
        step.out.view(batch.size, q_len, geo.q_heads, geo.v_dim).copy_(out.transpose(1, 2))

    return Prepared(layer=layer, note="the output is copied into place by one more kernel")


def dense_cache(inputs: Any, cache: Any, capacity: int) -> Any:
    """Pages of one layer as [requests, kv_heads, capacity, D]."""
    pages = round_up(capacity, inputs.kv.page_size) // inputs.kv.page_size
    rows = cache[inputs.table[:, :pages].long()]  # [requests, pages, page, kv_heads, D]
    return rows.flatten(1, 2)[:, :capacity].transpose(1, 2).contiguous()


RUNNERS = (
    KernelRunner(
        engine="flex-decoding",
        calls="torch.compile(flex_attention)",
        find=partial(find_package, "flex-decoding", "torch", ()),
        prepare=prepare,
        steps=(
            Trying(model="llama3-8b", context=4096),
            Trying(model="llama3-8b", ragged=(5000, 1200, 300)),
        ),
    ),
)
