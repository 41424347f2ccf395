"""Rows and columns of `kv`: what the cache takes, and how many sequences fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.memory import CacheSize, cache_size
from decodecalc.errors import InputError
from decodecalc.models import Model
from decodecalc.tables.table import Column, Table
from decodecalc.units import human_bytes

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
NOTES = (
    "bytes a token: on one GPU, over the layers of the group that store keys; a window stops growing when it is full.",
    "sequences: those whose cache fits beside the weights. Pages are counted whole; padding of groups is not.",
)


def available_bytes(
    model: Model, gpu: Gpu, *, tp: int, pp: int, fraction: float, reserve_bytes: int, stored: str | None
) -> float | None:
    """What a share of the GPU's memory leaves for the cache; None where the memory or the weights are not known."""
    total = gpu.capacity_bytes
    if total is None or model.weights is None:
        return None
    return total * fraction - model.weights.rank_bytes(tp=tp, stored=stored) / pp - reserve_bytes


def kv_table(
    model: Model,
    gpu: Gpu,
    kv: KvCache,
    *,
    tp: int = 1,
    dcp: int = 1,
    pp: int = 1,
    contexts: tuple[int, ...] | None = None,
    available: float | None = None,
    inputs: dict[str, Any] | None = None,
) -> Table:
    """One row for every context: bytes of a sequence, and how many fit; the layer groups are in the heading."""
    if dcp > tp or tp % dcp:
        raise InputError(f"--dcp {dcp} must divide the {tp} tensor-parallel ranks")
    size = cache_size(model, kv, tp=tp, dcp=dcp, pp=pp)
    most = model.max_position
    chosen = contexts or tuple(c for c in CONTEXTS if most is None or c <= most) or (most or CONTEXTS[0],)
    rows = [_row(size, context, available) for context in chosen]
    degrees = [f"{name} {n}" for name, n in (("TP", tp), ("DCP", dcp), ("PP", pp)) if n > 1]
    heading = [
        " ".join([model.name, *degrees]) + f" on {gpu.name}, KV {kv.dtype}, page {kv.page_size}",
        *_groups(size),
        f"{size.token_bytes:.10g} bytes a token on each GPU"
        + (f"; {size.growing_token_bytes:.10g} in a long sequence, whose windows are full" if _bounded(size) else ""),
    ]
    if size.state_bytes:
        heading.append(f"{human_bytes(size.state_bytes)} of recurrent states a sequence")
    copies = max(group.copies for group in size.groups)
    if copies > 1:
        heading.append(
            f"{copies} ranks hold the same KV heads: tensor parallelism beyond them does not divide the cache"
        )
    notes = list(NOTES)
    if available is None:
        notes.append("what fits is not known: the weights or the GPU's memory are not")
    elif available <= 0:
        notes.append("the weights leave no room for a cache on this GPU")
    else:
        tokens = f", {size.tokens(available) * dcp} tokens" if size.keeps_every_token else ""
        notes.insert(0, f"{human_bytes(available)} for the cache{tokens}")
    everything = {**(inputs or {}), "cache": size.to_dict(), "available_bytes": available}
    return Table("kv", everything, rows, _columns(), heading, notes)


def _bounded(size: CacheSize) -> bool:
    return any(group.window is not None or group.compress is not None for group in size.groups)


def _groups(size: CacheSize) -> list[str]:
    lines = []
    for group in size.groups:
        shared = group.layers - group.stored_layers
        parts = [f"{group.stored_layers} of {group.layers} layers store" if shared else f"{group.layers} layers"]
        heads = f"{group.kv_heads} KV head{'s' if group.kv_heads > 1 else ''} a rank"
        parts += [heads, f"{group.key_bytes:.10g} B a token and layer", f"{group.token_bytes:.10g} B in all"]
        if group.compress is not None:
            parts.append(f"one entry for {group.compress} tokens")
        if group.window is not None:
            parts.append(f"at most {group.window} tokens")
        lines.append(f"{group.layer_group}: " + ", ".join(parts))
    return lines


def _row(size: CacheSize, context: int, available: float | None) -> dict[str, Any]:
    count = None if available is None else size.sequences(max(available, 0.0), context)
    return {
        "context": context,
        "sequence_bytes": size.sequence_bytes(context),
        "sequences": count,
        "tokens": None if count is None else count * context,
    }


def _columns() -> list[Column]:
    return [
        Column("context", "context", rank=0),
        Column("sequence_bytes", "a sequence", human_bytes, rank=0),
        Column("sequences", "sequences", rank=0),
        Column("tokens", "tokens"),
    ]
