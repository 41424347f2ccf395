"""The list of live splits of a step, which a listed launch has its blocks from (config.LaunchConfig.listed).

First come all splits but the last of each request, request by request. They are whole, so that blocks of one length
begin one after another. Then comes the last split of each request, the longest first: the shortest blocks begin last,
where the SMs become free. A request without keys has one entry too, without keys.

One list serves all layers of a step, which have the same lengths. A block reads its entry where it would read the
length of its request, so the list costs the layers nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decodecalc_kernels import live
from decodecalc_kernels.blocks import list_grid
from decodecalc_kernels.config import SPLIT_RULES, LaunchConfig
from decodecalc_kernels.merge import first_key, live_splits, on_device, split_keys_for

split_end = on_device(live.split_end)

ENTRY_FIELDS = tl.constexpr(4)  # request, split, first key, end
CHUNK = 128  # requests, or splits of one, at a time


@triton.jit
def partition_of(
    request, seq_lens_ptr, query_start_ptr, split_values_ptr, rule, split_value, split_unit, num_splits,
    Q_LEN: tl.constexpr, WINDOW: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """(length, first key, keys of a split, splits before the last) of a request, or of a vector of them."""
    seq_len = tl.load(seq_lens_ptr + request)
    if query_start_ptr is not None:
        q_len = tl.load(query_start_ptr + request + 1) - tl.load(query_start_ptr + request)
    else:
        q_len = Q_LEN
    begin = first_key(seq_len, q_len, WINDOW, CLAMP)
    keys = seq_len - begin
    split_keys = split_keys_for(request, keys, split_values_ptr, rule, split_value, split_unit)
    whole = tl.maximum(tl.minimum(live_splits(keys, split_keys), num_splits) - 1, 0)
    return seq_len, begin, split_keys, whole


@triton.jit
def store_entry(list_ptr, item, request, split, start, end, mask):
    """Write entry `item`, or a vector of entries."""
    at = list_ptr + (item + 1) * ENTRY_FIELDS
    tl.store(at, request, mask=mask)
    tl.store(at + 1, split, mask=mask)
    tl.store(at + 2, start, mask=mask)
    tl.store(at + 3, end, mask=mask)


@triton.jit(do_not_specialize=["rule", "split_value", "split_unit", "num_splits", "requests", "capacity"])
def list_splits_kernel(
    list_ptr,  # [1 + capacity, ENTRY_FIELDS] int32: in the first row how many entries there are
    seq_lens_ptr,
    query_start_ptr,
    split_values_ptr,
    rule,
    split_value,
    split_unit,
    num_splits,
    requests,
    capacity,
    Q_LEN: tl.constexpr,
    WINDOW: tl.constexpr,
    CLAMP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid (requests): each writes the entries of its own splits, after counting those of all requests."""
    own = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    seq_len, begin, split_keys, whole = partition_of(
        own, seq_lens_ptr, query_start_ptr, split_values_ptr, rule, split_value, split_unit, num_splits, Q_LEN, WINDOW,
        CLAMP,
    )  # fmt: skip
    last_start = begin + whole * split_keys
    last_keys = seq_len - last_start
    before = 0  # whole splits of the requests before this one
    total = 0  # and of all
    rank = 0  # of this request's last split among all
    for first in range(0, requests, CHUNK):
        request = tl.minimum(first + lane, requests - 1)
        len_there, begin_there, keys_there, whole_there = partition_of(
            request, seq_lens_ptr, query_start_ptr, split_values_ptr, rule, split_value, split_unit, num_splits, Q_LEN,
            WINDOW, CLAMP,
        )  # fmt: skip
        there = first + lane < requests
        total += tl.sum(tl.where(there, whole_there, 0), 0)
        before += tl.sum(tl.where(first + lane < own, whole_there, 0), 0)
        last_there = len_there - begin_there - whole_there * keys_there
        sooner = (last_there > last_keys) | ((last_there == last_keys) & (first + lane < own))
        rank += tl.sum(tl.where(there & sooner, 1, 0), 0)
    for first in range(0, whole, CHUNK):
        split = first + lane
        start = begin + split * split_keys
        mask = (split < whole) & (before + split < capacity)
        store_entry(list_ptr, before + split, own + split * 0, split, start, start + split_keys, mask)
    end = split_end(last_start, split_keys, seq_len)
    store_entry(list_ptr, total + rank, own, whole, last_start, end, total + rank < capacity)
    if own == 0:
        tl.store(list_ptr, total + requests)


def split_list(entries: int, device: torch.device | str) -> torch.Tensor:
    """Room for a list of so many entries, and for what the few blocks read that a grid has beyond them."""
    y, z = list_grid(entries)
    return torch.empty(1 + y * z, ENTRY_FIELDS.value, dtype=torch.int32, device=device)


def list_splits(
    config: LaunchConfig,
    seq_lens: torch.Tensor,
    *,
    q_len: int = 1,
    query_start: torch.Tensor | None = None,
    split_values: torch.Tensor | None = None,
    window: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The list of live splits that `config` cuts a step into, for `decode_attention(..., split_list=)`.

    Once a step, for all of its layers that have the same rule and window: arguments as there. `out`: room for at least
    `config.list_length` entries (see `split_list`); allocated when None. It can be captured in a CUDA graph with the
    launches that read it, and replayed after the lengths changed in place.
    """
    requests = seq_lens.shape[0]
    entries = config.list_length or requests * config.num_splits
    out = split_list(entries, seq_lens.device) if out is None else out
    y, z = list_grid(entries)
    if out.numel() < (1 + y * z) * ENTRY_FIELDS.value or not out.is_contiguous():
        raise ValueError(f"list_splits: out must have room for {entries} entries and be contiguous")
    list_splits_kernel[(requests,)](
        out, seq_lens, query_start, seq_lens if split_values is None else split_values,
        SPLIT_RULES.index(config.split_rule), config.split_value, config.split_unit, config.num_splits, requests,
        entries, Q_LEN=q_len, WINDOW=window or 0, CLAMP=int(config.window_partition == "window"), CHUNK=CHUNK,
        num_warps=4,
    )  # fmt: skip
    return out
