"""Random tensors of one decode step for several layers, in which everything that must not be read is poisoned.

Every layer has its own cache. One page table, in shuffled order, serves all layers, as in an engine: from the second
layer on it comes from the L2. Slots of a last page beyond the request's length hold NaN, and table entries beyond a
request's pages are invalid page numbers. Engines' own kernels may load what they then mask, so for them both are
harmless numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, round_up
from decodecalc.kvcache import KvCache

if TYPE_CHECKING:
    import torch

FP8_NAN = 0x7F  # of e4m3fn
FP8_SCALES = (0.5, 1.75)  # of K and V: numbers other than one, so that a scale left out shows
TABLE_MULTIPLE = 16  # Triton specialises on strides divisible by 16: one compiled kernel for all lengths
NO_PAGE = 2**31 - 1


@dataclass(frozen=True)
class Inputs:
    """The tensors: q [tokens, q_heads, D]; keys and values [layers, pages, page, kv_heads, D]; table [B, pages per
    request].

    For page size 1 `table` is kv_indices and `indptr` [B + 1] its offsets. values is None for MLA.
    """

    geometry: Geometry
    batch: Batch
    kv: KvCache
    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor | None
    table: torch.Tensor
    indptr: torch.Tensor | None
    seq_lens: torch.Tensor
    query_start: torch.Tensor | None
    sinks: torch.Tensor | None

    @property
    def layers(self) -> int:
        """Layers that have a cache."""
        return len(self.keys)

    def cache(self, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
        """K and V of one layer: [pages, page, kv_heads, D] each."""
        return self.keys[layer], None if self.values is None else self.values[layer]

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Shape of the output."""
        return self.batch.query_tokens, self.geometry.q_heads, self.geometry.v_dim

    def common(self) -> dict[str, Any]:
        """The arguments that the kernel and its reference share, except the page table and the window."""
        geo = self.geometry
        out: dict[str, Any] = {"seq_lens": self.seq_lens, "q_len": self.batch.max_q_len, "softcap": geo.softcap or 0.0}
        if self.query_start is not None:
            out["query_start"] = self.query_start
        if geo.mla:
            out["v_dim"] = geo.v_dim
        if self.sinks is not None:
            out["sinks"] = self.sinks
        if self.kv.dtype == "fp8":
            out["k_scale"], out["v_scale"] = FP8_SCALES
        return out

    def arguments(self) -> dict[str, Any]:
        """All arguments; they are the same for every layer."""
        if self.indptr is not None:
            return {**self.common(), "kv_indptr": self.indptr, "kv_indices": self.table}
        return {**self.common(), "page_table": self.table}

    def alone(self, request: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """The queries and arguments of one request by itself, over the same cache.

        They are copies and not slices, because an address that is no multiple of 16 would make Triton compile another
        kernel.
        """
        first = sum(self.batch.q_lens[:request])
        tokens = self.batch.q_lens[request]
        args = self.arguments()
        args.update(seq_lens=self.seq_lens[request : request + 1].clone(), q_len=tokens)
        args.pop("query_start", None)
        if self.indptr is not None:
            args["kv_indptr"] = self.indptr[request : request + 2].clone()
        else:
            args["page_table"] = self.table[request : request + 1].clone()
        return self.q[first : first + tokens].clone(), args


def layer_bytes(geo: Geometry, kv: KvCache, batch: Batch) -> int:
    """Cache bytes of one layer, whole pages."""
    keys = sum(round_up(max(n, 1), kv.page_size) for n in batch.seq_lens)
    return int(keys * kv.bytes_per_key(geo))


def make_inputs(
    geo: Geometry,
    batch: Batch,
    kv: KvCache,
    device: str,
    layers: int = 1,
    seed: int = 0,
    min_pages: int = 0,
    tail: float = math.nan,
    no_page: int = NO_PAGE,
) -> Inputs:
    """Random inputs. The same seed, shapes and device give the same tensors.

    tail: what slots of a last page beyond the request's length hold; no_page: what table entries beyond its pages hold.
    """
    import torch

    gen = torch.Generator(device=device).manual_seed(seed)
    of = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}
    kv_type, q_type = of[kv.dtype], of.get(kv.query_dtype, torch.bfloat16)
    q_type = torch.bfloat16 if q_type == torch.float8_e4m3fn else q_type
    page = kv.page_size
    pages_of = [cdiv(max(n, 1), page) for n in batch.seq_lens]
    per_layer = sum(pages_of)
    pool = (layers, per_layer, page, geo.kv_heads)

    def fill(*shape: int) -> torch.Tensor:
        if kv_type != torch.float8_e4m3fn:
            return torch.randn(shape, generator=gen, device=device, dtype=kv_type)
        out = torch.empty(shape, device=device, dtype=kv_type)
        step = max(1, (1 << 28) // max(1, out[0].numel()))  # pages converted at a time: 1 GiB of fp32
        for i in range(0, shape[0], step):
            part = torch.randn((min(step, shape[0] - i), *shape[1:]), generator=gen, device=device)
            out[i : i + step] = part.to(kv_type)
        return out

    keys = fill(*pool, geo.head_dim)
    values = None if geo.mla else fill(*pool, geo.v_dim)
    order = torch.randperm(per_layer, generator=gen, device=device).int()
    columns = round_up(max([*pages_of, min_pages]) + 1, TABLE_MULTIPLE)
    table = torch.full((batch.size, columns), no_page, dtype=torch.int32, device=device)
    for r, (length, own) in enumerate(zip(batch.seq_lens, order.split(pages_of))):
        table[r, : len(own)] = own
        filled = length - (len(own) - 1) * page
        for cache in (keys, values):
            if cache is not None and filled < page:
                _poison(cache, own[-1:].long(), filled, tail)
    indptr = None
    if page == 1:
        ends = torch.tensor(batch.seq_lens, device=device).cumsum(0).int()
        indptr = torch.cat([torch.zeros(1, dtype=torch.int32, device=device), ends])
        table = order
    starts = None
    if len(set(batch.q_lens)) > 1:
        starts = torch.tensor([0, *torch.tensor(batch.q_lens).cumsum(0).tolist()], dtype=torch.int32, device=device)
    return Inputs(
        geo,
        batch,
        kv,
        torch.randn((batch.query_tokens, geo.q_heads, geo.head_dim), generator=gen, device=device).to(q_type),
        keys,
        values,
        table,
        indptr,
        torch.tensor(batch.seq_lens, dtype=torch.int32, device=device),
        starts,
        torch.randn(geo.q_heads, generator=gen, device=device) if geo.sinks else None,
    )


def _poison(cache: torch.Tensor, pages: torch.Tensor, filled: int, tail: float) -> None:
    """Writes `tail` into the slots from `filled` on of these pages, in every layer."""
    import torch

    if cache.dtype == torch.float8_e4m3fn:  # FP8 has no indexing kernels
        byte = FP8_NAN if math.isnan(tail) else int(torch.tensor(tail).to(cache.dtype).view(torch.uint8))
        cache.view(torch.uint8)[:, pages, filled:] = byte
    else:
        cache[:, pages, filled:] = tail
