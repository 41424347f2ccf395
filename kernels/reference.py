"""The same attention in plain float64 PyTorch, written to be read. The correctness of the kernels is measured against
it."""

from __future__ import annotations

import torch


def gather_cache(
    cache: torch.Tensor,
    request: int,
    seq_len: int,
    page_table: torch.Tensor | None,
    kv_indptr: torch.Tensor | None,
    kv_indices: torch.Tensor | None,
) -> torch.Tensor:
    """A request's keys (or values) in order: cache [pages, page, kv_heads, D] -> [seq_len, kv_heads, D] float64.
    Entries below 0 name no key and are left out."""
    page = cache.shape[1]
    position = torch.arange(seq_len, device=cache.device)  # [L]
    if page_table is not None:
        pages = page_table[request].long()[position // page]  # [L]
        slots = position % page
        pages, slots = pages[pages >= 0], slots[pages >= 0]
    else:
        assert kv_indptr is not None
        assert kv_indices is not None
        token = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request]) + seq_len].long()  # [L]
        token = token[token >= 0]
        pages, slots = token // page, token % page
    if cache.is_floating_point() and cache.element_size() == 1:  # no indexing kernels for FP8: index its bytes
        return cache.view(torch.uint8)[pages, slots].view(cache.dtype).double()
    return cache[pages, slots].double()


def decode_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor | None = None,
    kv_indptr: torch.Tensor | None = None,
    kv_indices: torch.Tensor | None = None,
    v_dim: int | None = None,
    q_len: int = 1,
    query_start: torch.Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: float | torch.Tensor = 1.0,
    v_scale: float | torch.Tensor = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [T, q_heads, v_dim] and natural log-sum-exp [T, q_heads], float64. Arguments: see `decode_attention`."""
    tokens, q_heads, d = q.shape
    kv_heads = k_cache.shape[2]
    group = q_heads // kv_heads
    if v_cache is None:
        v_cache = k_cache[..., :v_dim]
    scale = d**-0.5 if scale is None else scale
    k_scale, v_scale = (torch.as_tensor(x, device=q.device).double().view(-1, 1) for x in (k_scale, v_scale))
    out = torch.zeros(tokens, q_heads, v_cache.shape[3], dtype=torch.float64, device=q.device)
    lse = torch.full((tokens, q_heads), float("-inf"), dtype=torch.float64, device=q.device)

    for b, length in enumerate(seq_lens.tolist()):
        if query_start is None:
            first, last = b * q_len, (b + 1) * q_len
        else:
            first, last = int(query_start[b]), int(query_start[b + 1])
        if length == 0 or first == last:
            continue
        k = gather_cache(k_cache, b, length, page_table, kv_indptr, kv_indices) * k_scale  # [L, kv_heads, D]
        seq_len = len(k)  # without holes
        if seq_len == 0:
            continue
        v = gather_cache(v_cache, b, length, page_table, kv_indptr, kv_indices) * v_scale  # [L, kv_heads, Dv]
        queries = q[first:last].double().unflatten(1, (kv_heads, group))  # [t, kv_heads, group, D]
        s = torch.einsum("tkgd,lkd->tkgl", queries, k).flatten(1, 2) * scale  # [t, q_heads, L]
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        key = torch.arange(seq_len, device=q.device)  # [L]
        own = torch.arange(seq_len - (last - first), seq_len, device=q.device)  # [t] each token's own key
        visible = key[None, :] <= own[:, None]  # [t, L]
        if window:
            visible &= key[None, :] > own[:, None] - window
        s = s.masked_fill(~visible[:, None, :], float("-inf"))
        if sinks is not None:
            # One more logit per head in the sum, with no value.
            sink = sinks.double()[None, :, None].expand(last - first, q_heads, 1)
            lse[first:last] = torch.logsumexp(torch.cat([s, sink], dim=2), dim=2)
        else:
            lse[first:last] = torch.logsumexp(s, dim=2)
        weights = torch.exp(s - lse[first:last, :, None]).unflatten(1, (kv_heads, group))  # [t, kv_heads, group, L]
        out[first:last] = torch.einsum("tkgl,lkd->tkgd", weights, v).flatten(1, 2)
    return out, lse
