"""What a user should be told before any number: steps that the model was not made for, caches that do not fit.

Lines for people, one a finding; a plan is made all the same, since its launch is right whether or not the step is wise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from decodecalc.batch import Batch
from decodecalc.kvcache import KvCache
from decodecalc.models import LayerGroup, Model
from decodecalc.units import human_bytes

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


def replication_lines(model: Model, tp: int, dcp: int = 1) -> list[str]:
    """Where tensor parallelism copies KV heads instead of dividing them. dcp: ranks that divide the keys instead."""
    if tp == 1:
        return []
    lines = []
    for group in model.layer_groups:
        copies = model.replicas(group, tp) // dcp
        name = "" if len(model.layer_groups) == 1 else f"{group.name} layers: "
        if copies > 1 and group.geometry.mla and dcp > 1:
            lines.append(f"{name}{copies} of the {tp} ranks hold the same keys of the latent cache")
        elif copies > 1 and group.geometry.mla:
            lines.append(f"{name}every one of the {tp} ranks holds the whole latent cache")
        elif copies > 1:
            heads = group.geometry.kv_heads
            plural = "" if heads == 1 else "s"
            lines.append(f"{name}{heads} KV head{plural} on {tp} ranks: each is held {copies} times")
    return lines


def kept_bytes(model: Model, groups: Sequence[LayerGroup], batch: Batch, kv: KvCache) -> float:
    """The least that a rank's cache of a step takes: what layers with a window or a chunk need not keep is left out.

    groups: the rank's layer groups, in the order of the model's.
    """
    total = 0.0
    for whole, group in zip(model.layer_groups, groups, strict=True):
        layers, gather, share = model.stored_layers(whole), group.geometry.gather, group.geometry.share
        keys = 0
        for length in batch.seq_lens if share is None else map(share.local, batch.seq_lens):
            if gather is not None and gather.compress:
                kept = length // gather.compress + min(length, gather.window or 0)
            else:
                kept = min(length, group.geometry.window or length, group.chunk or length)
            keys += kept
        total += layers * keys * kv.bytes_per_key(group.geometry)
    return total


def length_lines(model: Model, longest: int) -> list[str]:
    """Where a request of `longest` keys is beyond what the model was made for."""
    if model.max_position is None or longest <= model.max_position:
        return []
    return [
        f"{longest} keys are more than the {model.max_position} positions that {model.name} is made for: a server "
        f"refuses such a request"
    ]


def sanity_lines(
    model: Model, groups: Sequence[LayerGroup], batches: Iterable[Batch], kv: KvCache, gpu: Gpu, tp: int
) -> list[str]:
    """Contexts beyond the model's longest, and caches (with the weights, where they are known) beyond the memory."""
    batches = list(batches)
    lines = []
    lines += length_lines(model, max(batch.max_seq_len for batch in batches))
    share = groups[0].geometry.share if groups else None
    lines += replication_lines(model, tp, 1 if share is None else share.ranks)
    capacity = gpu.capacity_bytes
    if capacity is None:
        return lines
    weights = 0.0 if model.weights is None else model.weights.rank_bytes(tp=tp)
    largest = max(batches, key=lambda batch: batch.total_keys)
    cache = kept_bytes(model, groups, largest, kv)
    memory = f"the {human_bytes(capacity)} of {gpu.name}"
    if weights > capacity:
        lines.append(f"the weights alone ({human_bytes(weights)} a rank) are more than {memory}")
    elif cache > capacity:
        lines.append(f"the KV cache of {_step(largest)} ({human_bytes(cache)} a rank) is more than {memory}")
    elif cache + weights > capacity:
        lines.append(
            f"the KV cache of {_step(largest)} ({human_bytes(cache)} a rank) does not fit beside the weights "
            f"({human_bytes(weights)}) into {memory}"
        )
    return lines


def _step(batch: Batch) -> str:
    keys = f"{batch.max_seq_len} keys" if batch.is_uniform else f"up to {batch.max_seq_len} keys"
    return f"{batch.size} request{'s' if batch.size > 1 else ''} of {keys}"
