"""Merge finished outputs of disjoint keys: out = Σ w_s · out_s with w_s = exp(lse_s) / Σ exp(lse).

`merge.py` combines the partial states of one launch, before they are divided. Here every state is a finished output
with its natural log-sum-exp, as `decode_attention(..., lse=...)` leaves them: of another rank's keys (context
parallelism), or of a shared prefix and of a request's own keys (cascade). A state without keys has lse = -inf and
weight 0, whatever its output holds; with no state at all the output is 0. States are added in their order, so that
equal inputs give equal bits.

* `merge_outputs`: states in one buffer, one after another.
* `merge_peers`: states in the memory of other GPUs, read through their addresses; each rank merges its own heads.
* `scale_outputs`: the weight alone, for a merge whose sum a collective makes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decodecalc_kernels.blocks import MOST_DIMS, cdiv, next_power_of_2
from decodecalc_kernels.launch import pdl_supported
from decodecalc_kernels.merge import gdc_wait

_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
FOLD_ROWS = 8  # query rows that one block of `fold_tokens` copies


@triton.jit
def merge_outputs_kernel(
    outs_ptr,  # [S, rows, D], or with PEERS [S] addresses of [rows, D]
    lses_ptr,  # [S, rows] fp32, or with PEERS [S] addresses of [rows]
    out_ptr,  # [tokens · heads_out, D]
    lse_ptr,  # [tokens · heads_out] fp32 or None
    out_stride,  # elements from one state to the next
    lse_stride,
    tokens,
    heads,  # heads of a state
    heads_out,
    head0,  # the first of the heads that are merged
    group,
    S: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    FOLD: tl.constexpr,  # state 0 has its rows in the order (KV head, token, head of the group)
    PEERS: tl.constexpr,
    TYPE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (tokens · heads_out, ceil(D / DIMS)). With PDL its blocks come while the launch before it ends, and wait."""
    row = tl.program_id(0)
    d = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    token, head = row // heads_out, head0 + row % heads_out
    plain = (token * heads + head).to(tl.int64)
    folded = ((head // group * tokens + token) * group + head % group).to(tl.int64)
    if PDL:
        gdc_wait()
    m = float("-inf")
    for s in tl.static_range(S):
        at = folded if FOLD and s == 0 else plain
        if PEERS:
            lse = tl.load(tl.load(lses_ptr + s).to(tl.pointer_type(tl.float32)) + at)
        else:
            lse = tl.load(lses_ptr + s * lse_stride + at)
        m = tl.maximum(m, lse)
    m = tl.where(m == float("-inf"), 0.0, m)
    total = 0.0
    acc = tl.zeros([DIMS], tl.float32)
    for s in tl.static_range(S):
        at = folded if FOLD and s == 0 else plain
        if PEERS:
            lse = tl.load(tl.load(lses_ptr + s).to(tl.pointer_type(tl.float32)) + at)
            o = tl.load(tl.load(outs_ptr + s).to(tl.pointer_type(TYPE)) + at * D + d, mask=d < D, other=0.0)
        else:
            lse = tl.load(lses_ptr + s * lse_stride + at)
            o = tl.load(outs_ptr + s * out_stride + at * D + d, mask=d < D, other=0.0)
        w = tl.exp(lse - m)
        total += w
        acc += tl.where(w > 0, w * o.to(tl.float32), 0.0)
    out = acc / tl.where(total > 0, total, 1.0)
    to = row.to(tl.int64)
    tl.store(out_ptr + to * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)
    if lse_ptr is not None and tl.program_id(1) == 0:
        tl.store(lse_ptr + to, m + tl.log(total))


@triton.jit
def fold_tokens_kernel(
    q_ptr,  # [tokens, heads, D]
    out_ptr,  # [kv_heads, tokens, group, D]
    tokens,
    heads,
    group,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Grid (ceil(tokens · heads / ROWS),)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # of the queries
    d = tl.arange(0, DIMS)
    token, head = row // heads, row % heads
    to = (head // group * tokens + token) * group + head % group
    mask = (row < tokens * heads)[:, None] & (d < D)[None, :]
    values = tl.load(q_ptr + row.to(tl.int64)[:, None] * D + d[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + to.to(tl.int64)[:, None] * D + d[None, :], values, mask=mask)


@triton.jit
def scale_outputs_kernel(
    out_ptr,  # [rows, D], scaled in place
    lses_ptr,  # [S, rows] fp32
    own,  # which state this one is
    rows,
    S: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Grid (rows, ceil(D / DIMS))."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    m = float("-inf")
    for s in tl.static_range(S):
        m = tl.maximum(m, tl.load(lses_ptr + s * rows + row))
    m = tl.where(m == float("-inf"), 0.0, m)
    total = 0.0
    for s in tl.static_range(S):
        total += tl.exp(tl.load(lses_ptr + s * rows + row) - m)
    w = tl.where(total > 0, tl.exp(tl.load(lses_ptr + own * rows + row) - m) / total, 0.0)
    o = tl.load(out_ptr + row * D + d, mask=d < D, other=0.0)
    scaled = tl.where(w > 0, w * o.to(tl.float32), 0.0)
    tl.store(out_ptr + row * D + d, scaled.to(out_ptr.dtype.element_ty), mask=d < D)


def _dims(width: int) -> int:
    return min(MOST_DIMS, max(16, next_power_of_2(width)))


def merge_outputs(
    outs: torch.Tensor,
    lses: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    folded_group: int | None = None,
) -> torch.Tensor:
    """Merge `outs` [S, tokens, heads, D] by `lses` [S, tokens, heads] (fp32, natural) into `out` [tokens, heads, D].

    The states may lie apart. lse: takes the merged log-sum-exp [tokens, heads]. folded_group: heads of a KV head, where
    state 0 has its rows in the order (KV head, token, head of the group), as a launch leaves them that took the tokens
    for heads. Nothing is allocated when `out` is given. ValueError for shapes or types that do not fit.
    """
    states, tokens, heads, width = outs.shape
    if lses.shape != (states, tokens, heads) or lses.dtype != torch.float32:
        raise ValueError(f"merge_outputs: lses must be fp32 {(states, tokens, heads)}, not {tuple(lses.shape)}")
    if not (outs[0].is_contiguous() and lses[0].is_contiguous()) or outs.dtype not in _TYPES:
        raise ValueError("merge_outputs: each state must be a contiguous tensor of bf16, fp16 or fp32")
    if folded_group is not None and heads % folded_group:
        raise ValueError(f"merge_outputs: {heads} heads are not a multiple of folded_group {folded_group}")
    out = torch.empty_like(outs[0]) if out is None else out
    if out.shape != outs.shape[1:] or not out.is_contiguous():
        raise ValueError(f"merge_outputs: out must be contiguous {tuple(outs.shape[1:])}")
    dims = _dims(width)
    pdl = pdl_supported(outs.device)
    merge_outputs_kernel[(tokens * heads, cdiv(width, dims))](
        outs, lses, out, lse, outs.stride(0), lses.stride(0), tokens, heads, heads, 0, folded_group or 1,
        S=states, D=width, DIMS=dims, FOLD=folded_group is not None, PEERS=False, TYPE=_TYPES[outs.dtype], PDL=pdl,
        num_warps=1, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    return out


def merge_peers(
    out_addresses: torch.Tensor, lse_addresses: torch.Tensor, out: torch.Tensor, *, heads: int, first_head: int
) -> torch.Tensor:
    """Merge this rank's heads of states that lie in the memory of its peers, into `out` [tokens, own heads, D].

    out_addresses, lse_addresses [S] int64: where each peer's output [tokens, heads, D] of `out`'s type and its
    log-sum-exp [tokens, heads] begin. The peers must have written them, and must not write them again before this is
    over.
    """
    tokens, own, width = out.shape
    dims = _dims(width)
    merge_outputs_kernel[(tokens * own, cdiv(width, dims))](
        out_addresses, lse_addresses, out, None, 0, 0, tokens, heads, own, first_head, 1,
        S=out_addresses.shape[0], D=width, DIMS=dims, FOLD=False, PEERS=True, TYPE=_TYPES[out.dtype],
        PDL=False, num_warps=1,
    )  # fmt: skip
    return out


def scale_outputs(out: torch.Tensor, lses: torch.Tensor, own: int) -> torch.Tensor:
    """Scale `out` [tokens, heads, D] in place by the weight of state `own` among `lses` [S, tokens, heads] fp32: the
    outputs of all states then add up to the merged one."""
    tokens, heads, width = out.shape
    if lses.shape[1:] != (tokens, heads) or not (out.is_contiguous() and lses.is_contiguous()):
        raise ValueError(f"scale_outputs: lses must be contiguous [S, {tokens}, {heads}], not {tuple(lses.shape)}")
    dims = _dims(width)
    scale_outputs_kernel[(tokens * heads, cdiv(width, dims))](
        out, lses, own, tokens * heads, S=lses.shape[0], D=width, DIMS=dims, num_warps=1
    )
    return out


def fold_tokens(q: torch.Tensor, kv_heads: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Queries [tokens, heads, D] as one token's heads [1, heads · tokens, D], in the order (KV head, token, head of the
    group): a launch over shared keys then serves all tokens, without its causal mask. One KV head needs no copy."""
    tokens, heads, width = q.shape
    if kv_heads == 1:
        return q.reshape(1, tokens * heads, width)
    if out is None:
        out = torch.empty(1, tokens * heads, width, dtype=q.dtype, device=q.device)
    if out.numel() != q.numel() or not (q.is_contiguous() and out.is_contiguous()):
        raise ValueError("fold_tokens: queries and out must be contiguous and of one size")
    fold_tokens_kernel[(cdiv(tokens * heads, FOLD_ROWS),)](
        q, out, tokens, heads, heads // kv_heads, D=width, DIMS=next_power_of_2(width), ROWS=FOLD_ROWS, num_warps=2
    )
    return out
