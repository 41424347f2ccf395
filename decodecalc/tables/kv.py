"""Rows and columns of `kv`: what the cache takes, and how many sequences fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.memory import CacheSize, cache_size, read_bytes
from decodecalc.errors import InputError
from decodecalc.models import Model
from decodecalc.sanity import length_lines
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import sentence
from decodecalc.units import counted, human_bytes

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
PADDING = "A sequence takes whole pages. Padding between groups of layers, which some servers need, is not counted."


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
    rows = [
        {**_row(size, context, available), "read_step_bytes": read_bytes(model, kv, context, tp=tp, dcp=dcp, pp=pp)}
        for context in chosen
    ]
    ranks = tp * pp
    for row in rows:
        row.update(token_bytes=size.token_bytes, sequence_all_ranks_bytes=row["sequence_bytes"] * ranks)
    degrees = [f"{name} {n}" for name, n in (("TP", tp), ("DCP", dcp), ("PP", pp)) if n > 1]
    heading = [
        " ".join([model.name, *degrees]) + f" on {gpu.name}, KV {kv.dtype}, page {kv.page_size}",
        *_groups(size),
    ]
    if size.state_bytes:
        heading.append(f"{human_bytes(size.state_bytes)} of recurrent states per sequence")
    notes = []
    notes += [f"warning: {line}" for line in length_lines(model, max(chosen))]
    if available is not None and available <= 0:
        notes.append("The weights leave no room for a cache on this GPU")
    copies = max(group.copies for group in size.groups)
    if copies > 1:
        notes.append(
            f"{copies} ranks hold the same KV heads, so more tensor parallelism does not make the cache of a rank "
            f"smaller"
        )
    if available is None:
        notes.append("How many sequences fit is not known, because the weights or the GPU's memory are not known")
    elif available > 0:
        tokens = f", which is room for {size.tokens(available) * dcp} tokens" if size.keeps_every_token else ""
        notes.append(f"{human_bytes(available)} of memory are left for the cache{tokens}")
    everything = {**(inputs or {}), "cache": size.to_dict(), "available_bytes": available}
    answer = _answer(model.name, size, ranks, rows, available, gpu.name)
    return Table(
        "kv",
        everything,
        rows,
        _columns(ranks),
        heading,
        [*notes, PADDING],
        answer=answer,
        measured=(TOKEN_WORDS, TOKEN),
    )


def _answer(
    name: str, size: CacheSize, ranks: int, rows: Sequence[dict[str, Any]], available: float | None, gpu: str
) -> str:
    """Bytes of a token, and how many sequences of the context in the middle of the table fit."""
    text = f"{name} stores {_token(size.token_bytes)} of KV for a token, over all layers"
    text += (
        f" of one GPU ({_token(size.token_bytes * ranks)} over {'both' if ranks == 2 else f'all {ranks}'} GPUs)"
        if ranks > 1
        else ""
    )
    if _bounded(size):
        text += f", and {_token(size.growing_token_bytes)} once the windows of a long sequence are full"
    row = rows[len(rows) // 2] if len(rows) > 1 else rows[0]
    if available is None:
        return sentence(f"{text}; a sequence of {row['context']} tokens takes {human_bytes(row['sequence_bytes'])}")
    where = f"on {gpu}" if ranks == 1 else f"on {ranks} x {gpu}"
    if available <= 0:
        return sentence(f"{text}; the weights leave no room for a cache {where}")
    fit = "fits" if row["sequences"] == 1 else "fit"
    many = f"{counted(row['sequences'], 'sequence')} of {row['context']} tokens"
    return sentence(f"{text}; {many} {fit} beside the weights {where}")


def _token(value: float) -> str:
    return f"{value:.10g} B" if value < 10_000 else human_bytes(value)


def _bounded(size: CacheSize) -> bool:
    return any(group.window is not None or group.compress is not None for group in size.groups)


def _groups(size: CacheSize) -> list[str]:
    lines = []
    for group in size.groups:
        shared = group.layers - group.stored_layers
        parts = [f"{group.stored_layers} of {group.layers} layers store" if shared else f"{group.layers} layers"]
        heads = f"{group.kv_heads} KV head{'s' if group.kv_heads > 1 else ''} per rank"
        parts += [
            heads,
            f"a token stores {group.key_bytes:.10g} B in a layer and {group.token_bytes:.10g} B in all of them",
        ]
        if group.compress is not None:
            parts.append(f"one cache entry for every {group.compress} tokens")
        if group.window is not None:
            parts.append(f"a window of at most {group.window} tokens")
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


TOKEN_WORDS = "The KV that a token stores on one GPU, over all layers,"
TOKEN = Column("token_bytes", "stored for a token", human_bytes, rank=2)


def _columns(ranks: int) -> list[Column]:
    return [
        Column("context", "tokens of a sequence", rank=0),
        Column("sequence_bytes", "stored on one GPU", human_bytes, rank=0),
        *([Column("sequence_all_ranks_bytes", "stored on all GPUs", human_bytes)] if ranks > 1 else []),
        Column("read_step_bytes", "read a step on one GPU", human_bytes),
        Column("sequences", "sequences that fit", rank=0),
        Column("tokens", "tokens that fit"),
        TOKEN,
    ]
