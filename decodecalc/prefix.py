"""A prefix that all requests of a step share, attended once for all of them, and the rest of every request by itself.

In cascade attention the shared keys are read once for the queries of all requests, in one launch; the keys that a
request has for itself in another; and the two outputs of every query head are merged by their log-sum-exps. It moves
fewer bytes and launches more kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from decodecalc.batch import Batch
from decodecalc.errors import InputError
from decodecalc.geometry import MAX_HEADS, Geometry, check_count

WHOLE, PREFIX, SUFFIX = "whole", "prefix", "suffix"


@dataclass(frozen=True, slots=True)
class StepPart:
    """One of the launches that serve a step whose requests share a prefix."""

    name: str
    """`whole` (nothing is shared), `prefix` (the shared keys, for the queries of all requests) or `suffix` (each
    request's own keys)."""
    geometry: Geometry
    """The layer as this launch sees it."""
    batch: Batch
    """The step as this launch sees it."""


def check_prefix(geo: Geometry, batch: Batch, keys: int) -> None:
    """InputError where the first `keys` keys of all requests cannot be attended apart."""
    check_count("shared prefix", keys)
    if geo.window is not None or geo.gather is not None:
        raise InputError("a shared prefix needs layers that read every key: not those with a window, nor sparse ones")
    if geo.share is not None:
        raise InputError("a shared prefix and --dcp are not planned together: no server that was read does both")
    least = min(n - q for n, q in zip(batch.seq_lens, batch.q_lens))
    if keys > least:
        raise InputError(
            f"a shared prefix of {keys} keys is longer than the keys before the new tokens of the shortest request, "
            f"{least}"
        )


def parts(geo: Geometry, batch: Batch, keys: int, folds: bool = False) -> tuple[StepPart, ...]:
    """The launches of a step whose requests share their first `keys` keys; with 0 keys just the whole step.

    folds: the kernel takes the query tokens of all requests as further heads of one token, because its mask is causal;
    the others take them as the tokens of one request. InputError of `check_prefix`.

    >>> step = parts(Geometry(8, 1, 128), Batch.uniform(4, 1000), 512)
    >>> [(part.name, part.batch.seq_lens, part.batch.q_lens) for part in step]
    [('prefix', (512,), (4,)), ('suffix', (488, 488, 488, 488), (1, 1, 1, 1))]
    """
    if keys == 0:
        return (StepPart(WHOLE, geo, batch),)
    check_prefix(geo, batch, keys)
    tokens = batch.query_tokens
    if folds and geo.q_heads * tokens > MAX_HEADS:
        raise InputError(f"{tokens} query tokens of {geo.q_heads} heads are more than the {MAX_HEADS} rows of a prefix")
    layer = replace(geo, q_heads=geo.q_heads * tokens) if folds else geo
    shared = Batch([keys], 1 if folds else tokens)
    return StepPart(PREFIX, layer, shared), StepPart(
        SUFFIX, geo, Batch([n - keys for n in batch.seq_lens], batch.q_lens)
    )
