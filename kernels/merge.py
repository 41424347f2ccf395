"""Combine partial states: out = Σ w_i · o_i / Σ w_i · l_i with w_i = 2^(m_i - max m), over a request's live splits.

Partial states are what `stage1.py` writes, fp32: o the unnormalised output, m the running maximum of the scores in
base-2 units (score · log2 e), l the running sum of 2^(score - m). An empty state has m = -inf, l = 0 and weight 0;
with no state at all the output is 0. A sink (one learned logit per query head, in natural units) joins the sum here,
once, however many splits there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from decodecalc_kernels import live

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # older than Triton 3.4: PDL is off (see launch.py), so these are never called

    @triton.jit
    def gdc_wait():
        pass

    @triton.jit
    def gdc_launch_dependents():
        pass


def on_device(function: Callable[..., Any]) -> Any:
    """A function of plain arithmetic, callable from kernels. The interpreter runs it as the Python that it is."""
    return function if os.environ.get("TRITON_INTERPRET") == "1" else triton.jit(function)


first_key = on_device(live.first_key)
split_keys_of = on_device(live.split_keys_of)
is_live = on_device(live.is_live)
live_splits = on_device(live.live_splits)

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)

# How a request's split length is found on the device (launch.SPLIT_RULES). No compile-time constant of the kernels: one
# kernel, with one speed, serves all rules.
BY_SIZE = tl.constexpr(0)  # one length for all: a launch argument
BY_COUNT = tl.constexpr(1)  # one count for all: a launch argument
BY_COUNTS = tl.constexpr(2)  # a count per request: a device array
BY_SIZES = tl.constexpr(3)  # a length per request: a device array


@triton.jit
def split_keys_for(request, keys, split_values_ptr, rule, split_value, split_unit):
    """Keys per split of `request`, whose partition covers `keys` keys. `split_values_ptr` is read by rules of one value
    a request only. `request` and `keys` may be vectors."""
    value = split_value + request * 0
    if (rule == BY_COUNTS) | (rule == BY_SIZES):
        value = tl.load(split_values_ptr + request)
    if (rule == BY_COUNT) | (rule == BY_COUNTS):
        # A count of 0 (a padded row) means nothing is split: one split.
        value = split_keys_of(keys, tl.maximum(value, 1), split_unit)
    return value


@triton.jit
def merge_rows(
    state,  # [ROWS] int64: index of each row's first partial state, (token · q_heads + head) · num_splits
    row_valid,  # [ROWS]
    sink,  # [ROWS] base-2 units, -inf without a sink
    part_out_ptr,  # [.., D_V] fp32
    part_max_ptr,
    part_sum_ptr,
    num_live,  # splits that have a state
    d,  # [DIMS] which output elements
    D_V: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,  # splits per step
    DIMS: tl.constexpr,
):
    """Merge ROWS rows at once, SPLITS states a step. Returns out [ROWS, DIMS] and log2-sum-exp [ROWS]."""
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    m = sink
    total = tl.where(sink > float("-inf"), 1.0, 0.0)
    for first in range(0, num_live, SPLITS):
        s = first + tl.arange(0, SPLITS)
        present = s < num_live  # [SPLITS]
        mask = row_valid[:, None] & present[None, :]
        index = state[:, None] + s[None, :]  # [ROWS, SPLITS]
        # .cg: the fused merge reads what other SMs wrote during this very launch, so from L2
        ms = tl.load(part_max_ptr + index, mask=mask, other=float("-inf"), cache_modifier=".cg")
        ls = tl.load(part_sum_ptr + index, mask=mask, other=0.0, cache_modifier=".cg")
        o = tl.load(
            part_out_ptr + index[:, :, None] * D_V + d[None, None, :],
            mask=mask[:, :, None] & (d < D_V)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )  # [ROWS, SPLITS, DIMS]
        m_new = tl.maximum(m, tl.max(ms, 1))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # all empty so far: every weight is 2^-inf = 0
        w = tl.exp2(ms - m_ref[:, None])
        scale = tl.exp2(m - m_ref)
        total = total * scale + tl.sum(w * ls, 1)
        acc = acc * scale[:, None] + tl.sum(w[:, :, None] * o, 1)
        m = m_new
    out = tl.where(total[:, None] > 0, acc / total[:, None], 0.0)
    return out, m + tl.log2(total)


@triton.jit
def load_sink(sinks_ptr, head, valid, HAS_SINKS: tl.constexpr):
    """Each row's sink in base-2 units; -inf (no weight) without sinks. `head` [ROWS]."""
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head, mask=valid, other=0.0).to(tl.float32) * LOG2E
        return tl.where(valid, sink, float("-inf"))
    else:
        return tl.zeros_like(head).to(tl.float32) + float("-inf")


@triton.jit(do_not_specialize=["rule", "num_splits", "split_value", "split_unit", "q_heads", "scale_group"])
def merge_kernel(
    part_out_ptr,
    part_max_ptr,
    part_sum_ptr,
    out_ptr,
    lse_ptr,
    seq_lens_ptr,
    query_start_ptr,
    split_values_ptr,
    sinks_ptr,
    v_scale_ptr,
    v_scale,
    rule,
    split_value,
    split_unit,
    num_splits,
    q_heads,
    scale_group,  # query heads that share an element of v_scale_ptr
    out_stride_token,
    out_stride_head,
    Q_LEN: tl.constexpr,
    WINDOW: tl.constexpr,
    CLAMP: tl.constexpr,
    D_V: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    DIMS: tl.constexpr,
    PDL: tl.constexpr,
    LATE: tl.constexpr,  # let the next launch's blocks come when stage 1 is over, not while it runs
):
    """Grid (ceil(Q_LEN · q_heads / ROWS), requests, ceil(D_V / DIMS))."""
    request = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # [ROWS] over (token, head) of the request
    # Lengths and sinks were there before stage 1 began, so they need not wait for it.
    seq_len = tl.load(seq_lens_ptr + request)
    if query_start_ptr is not None:
        token0 = tl.load(query_start_ptr + request)
        q_len = tl.load(query_start_ptr + request + 1) - token0
    else:
        token0 = request * Q_LEN
        q_len = Q_LEN
    keys = seq_len - first_key(seq_len, q_len, WINDOW, CLAMP)
    split_keys = split_keys_for(request, keys, split_values_ptr, rule, split_value, split_unit)
    num_live = tl.minimum(live_splits(keys, split_keys), num_splits)
    valid = row < q_len * q_heads
    head = row % q_heads
    token = token0 + row // q_heads
    sink = load_sink(sinks_ptr, head, valid & (keys > 0), sinks_ptr is not None)
    d = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    if PDL:
        if not LATE:
            gdc_launch_dependents()
        gdc_wait()
        if LATE:
            gdc_launch_dependents()
    state = (token * q_heads + head).to(tl.int64) * num_splits
    out, lse = merge_rows(
        state, valid, sink, part_out_ptr, part_max_ptr, part_sum_ptr,
        num_live, d, D_V, ROWS, SPLITS, DIMS,
    )  # fmt: skip
    out = tl.where(keys > 0, out, 0.0)
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + head // scale_group)[:, None]
    out *= v_scale
    at = token.to(tl.int64)[:, None] * out_stride_token + head[:, None] * out_stride_head + d[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=valid[:, None] & (d < D_V)[None, :])
    if lse_ptr is not None and tl.program_id(2) == 0:
        tl.store(lse_ptr + token * q_heads + head, lse * LN2, mask=valid)
