"""One rank's part of a step's tensors: its keys in a cache of its own, and all query heads of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv
from decodecalc.keyshare import KeyShare
from decodecalc.verify.run.inputs import NO_PAGE, Inputs

if TYPE_CHECKING:
    import torch


def local_inputs(whole: Inputs, geo: Geometry, share: KeyShare, rank: int) -> Inputs:
    """The keys of `whole` that lie on `rank`, in pages of their own; everything that is not read is NaN.

    geo: the layer of the rank, with `share`. The queries are those of `whole`, whose heads are the gathered ones.
    """
    import torch

    batch, page, device = whole.batch.seen_by(geo, rank), whole.kv.page_size, whole.q.device
    pages_of = [cdiv(max(n, 1), page) for n in batch.seq_lens]
    first = [sum(pages_of[:r]) for r in range(batch.size)]
    table = torch.full((batch.size, whole.table.shape[-1]), NO_PAGE, dtype=torch.int32, device=device)
    source: list[Any] = []
    target: list[Any] = []
    for r, length in enumerate(whole.batch.seq_lens):
        table[r, : pages_of[r]] = torch.arange(first[r], first[r] + pages_of[r], dtype=torch.int32, device=device)
        position = torch.arange(length, device=device)
        mine = position[share.owner(position) == rank]
        source.append(slots_of(whole, r, mine))
        target.append(first[r] * page + torch.arange(len(mine), device=device))
    indptr = None
    if page == 1:
        ends = torch.tensor(batch.seq_lens, device=device).cumsum(0).int()
        indptr = torch.cat([torch.zeros(1, dtype=torch.int32, device=device), ends])
        keep = torch.cat([first[r] + torch.arange(n, device=device) for r, n in enumerate(batch.seq_lens)])
        table = keep.int()
    places = torch.cat(source), torch.cat(target)
    return Inputs(
        geo,
        batch,
        whole.kv,
        whole.q,
        _moved(whole.keys, *places, sum(pages_of)),
        None if whole.values is None else _moved(whole.values, *places, sum(pages_of)),
        table,
        indptr,
        torch.tensor(batch.seq_lens, dtype=torch.int32, device=device),
        whole.query_start,
        whole.sinks,
    )


def slots_of(inputs: Inputs, request: int, position: torch.Tensor) -> torch.Tensor:
    """Cache slots (page x page size + place) of these keys of a request."""
    page = inputs.kv.page_size
    if inputs.indptr is not None:
        return inputs.table[int(inputs.indptr[request]) + position].long()
    return inputs.table[request].long()[position // page] * page + position % page


def _moved(cache: torch.Tensor, source: torch.Tensor, target: torch.Tensor, pages: int) -> torch.Tensor:
    """A cache [layers, pages, page, heads, D] of `pages` pages that holds `source`'s slots at `target`, NaN
    elsewhere."""
    import torch

    layers, _, page, heads, width = cache.shape
    raw = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache  # FP8 has no indexing kernels
    filler = 0x7F if raw is not cache else float("nan")
    out = torch.full((layers, pages * page, heads, width), filler, dtype=raw.dtype, device=cache.device)
    out[:, target] = raw.reshape(layers, -1, heads, width)[:, source]
    return out.view(layers, pages, page, heads, width).view(cache.dtype)
