"""Arithmetic of one layer against the roofline.

A multiply-add counts as two FLOP: the two matrix products have 2 * q_heads * (D_k + D_v) FLOP per (query token, visible
key). The exponentials of the softmax are left out, as is usual. Intensity is FLOP over useful KV bytes: 2g/b for a
group of g query heads and b bytes per element.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import traffic
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan, check_plan
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


@dataclass(frozen=True, slots=True)
class TileWork:
    """Work of one loop iteration of one stage-1 block, for one KV head."""

    rows: int
    """Query rows of the tile."""
    live_rows: int
    """Rows that hold a query."""
    keys: int
    """Keys of the tile."""
    kv_bytes: float
    """Bytes of keys and values that it loads."""
    flop: int
    """FLOP on rows that hold a query."""
    executed_flop: int
    """FLOP on all rows."""
    wasted_row_share: float
    """Share of the rows that hold no query."""
    intensity_flop_per_byte: float
    """`flop` over `kv_bytes`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Roofline(Shown):
    """Arithmetic and bytes of one layer of one step against the peaks of one GPU."""

    kind: str
    """MHA, GQA, MQA or MLA."""
    flop: int
    """FLOP of the two matrix products over visible keys."""
    kv_read_bytes: int
    """Bytes of the visible keys and values, each counted once."""
    total_bytes: int
    """All bytes that the step moves, partial states included."""
    intensity_flop_per_byte: float
    """`flop` over `kv_read_bytes`."""
    intensity_total_flop_per_byte: float
    """`flop` over `total_bytes`; partial states lower it."""
    peak_dtype: str
    """Element type whose matrix peak is used."""
    peak_reason: str
    """Why it is this type."""
    peak_flop_per_s: float | None
    """The matrix peak, in FLOP per second; None where it is not known."""
    hbm_bytes_per_s: float | None
    """Peak bandwidth of the memory, in bytes per second; None where it is not known."""
    ridge_flop_per_byte: float | None
    """Intensity at which the two limits meet; None where a peak is not known."""
    memory_bound_factor: float | None
    """Ridge over intensity: the layer is memory-bound by this factor when it is above 1."""
    memory_s: float | None
    """Seconds of `kv_read_bytes` at the peak bandwidth."""
    compute_s: float | None
    """Seconds of `flop` at the matrix peak."""
    roofline_s: float | None
    """The larger of the two. It counts no overheads: a lower bound, not a prediction."""
    tile: TileWork
    """Work of one tile."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the tile flattened with a `tile_` prefix."""
        out = asdict(self)
        tile = out.pop("tile")
        return {**out, **{f"tile_{key}": value for key, value in tile.items()}}


def attention_flop(geo: Geometry, seq_lens: tuple[int, ...], q_lens: tuple[int, ...]) -> int:
    """FLOP of the two matrix products of one layer over visible (token, key) pairs."""
    pairs = sum(_visible_pairs(length, q_len, geo.window) for length, q_len in zip(seq_lens, q_lens))
    return 2 * geo.q_heads * (geo.head_dim + geo.v_dim) * pairs


def _visible_pairs(length: int, q_len: int, window: int | None) -> int:
    """The last q_len tokens of a sequence see one key more each, the last of them all keys, and at most the window.

    >>> _visible_pairs(10, 3, None), _visible_pairs(10, 3, 9), _visible_pairs(2, 3, None)
    (27, 26, 3)
    """
    first = max(length - q_len + 1, 1)  # keys that the first token sees that sees any
    if q_len == 0 or first > length:
        return 0
    most = length if window is None else min(window, length)
    growing = max(most - first + 1, 0)  # tokens that see fewer keys than the window, or as many
    return growing * (first + most) // 2 + (length - first + 1 - growing) * most


def intensity_limit(geo: Geometry, kv: KvCache) -> float:
    """FLOP per KV byte of one query token over many keys: 2g/b, and 2 * q_heads * (D_k + D_v) / (D_k * b) for MLA.

    >>> intensity_limit(Geometry(32, 8, 128), KvCache())
    4.0
    """
    return 2 * geo.q_heads * (geo.head_dim + geo.v_dim) / kv.bytes_per_key(geo)


def roofline(plan: LaunchPlan, gpu: Gpu | str | None = None) -> Roofline:
    """The plan's layer on `gpu`, a GPU or its name (the plan's own when None).

    The matrix peak is that of the query's element type, in which the kernel multiplies.
    """
    from decodecalc.gpus import load_gpu

    check_plan(plan)
    device = plan.gpu if gpu is None else load_gpu(gpu)
    geo, kv = plan.geometry, plan.kv
    moved = traffic(plan)
    flop = attention_flop(geo, plan.batch.seq_lens, plan.batch.q_lens)
    peak = device.peak_flop_per_s(kv.query_dtype)
    ridge = device.ridge_flop_per_byte(kv.query_dtype)
    intensity = flop / moved.kv_read_bytes if moved.kv_read_bytes else 0.0
    memory_s = moved.kv_read_bytes / device.hbm_bytes_per_s if device.hbm_bytes_per_s else None
    compute_s = flop / peak.flop_per_s if peak.flop_per_s else None
    known = [t for t in (memory_s, compute_s) if t is not None]
    return Roofline(
        kind=geo.kind,
        flop=flop,
        kv_read_bytes=moved.kv_read_bytes,
        total_bytes=moved.total_bytes,
        intensity_flop_per_byte=intensity,
        intensity_total_flop_per_byte=flop / moved.total_bytes if moved.total_bytes else 0.0,
        peak_dtype=peak.dtype,
        peak_reason=peak.reason,
        peak_flop_per_s=peak.flop_per_s,
        hbm_bytes_per_s=device.hbm_bytes_per_s,
        ridge_flop_per_byte=ridge,
        memory_bound_factor=ridge / intensity if ridge is not None and intensity else None,
        memory_s=memory_s,
        compute_s=compute_s,
        roofline_s=max(known) if known else None,
        tile=tile_work(plan),
    )


def tile_work(plan: LaunchPlan) -> TileWork:
    """Work of one full tile of one block: K and V of one KV head."""
    geo = plan.geometry
    per_key = plan.kv.bytes_per_key(geo) / geo.kv_heads
    flop_per_row = 2 * (geo.head_dim + geo.v_dim) * plan.tile_keys
    kv_bytes = plan.tile_keys * per_key
    return TileWork(
        rows=plan.block_rows,
        live_rows=plan.live_rows,
        keys=plan.tile_keys,
        kv_bytes=kv_bytes,
        flop=plan.live_rows * flop_per_row,
        executed_flop=plan.block_rows * flop_per_row,
        wasted_row_share=1 - plan.live_rows / plan.block_rows,
        intensity_flop_per_byte=plan.live_rows * flop_per_row / kv_bytes,
    )
