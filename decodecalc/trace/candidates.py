"""Which layer and batch a launch group may be: what the user says, otherwise what the trace says, otherwise nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.models import LayerGroup
from decodecalc.trace.inference import Inferred
from decodecalc.trace.steps import StepNote

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.models import Model

DEFAULT_HEAD_DIM = 128
GIVEN, ANNOTATED, UNKNOWN = "given", "annotated", "unknown"


@dataclass(frozen=True)
class Known:
    """What the user says about the traced run. A field is empty or None where nothing was said.

    whole_model: the layer groups know how many layers there are of each, because they are those of a model and not one
    layer given by hand. requests: batch sizes. contexts: lengths of uniform batches. ragged: one batch with every
    length. engines: (name, version) pairs to compare launches with; None means the engines that the launches are
    attributed to. model: where the layer groups come from.
    """

    layer_groups: tuple[LayerGroup, ...] = ()
    model_kv_heads: int | None = None
    whole_model: bool = True
    requests: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    ragged: Batch | None = None
    q_len: int = 1
    kv: KvCache = field(default_factory=KvCache)
    gpu: Gpu | None = None
    engines: tuple[tuple[str, str | None], ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Model | None = None


@dataclass(frozen=True)
class Candidate:
    """A layer and a batch. lengths: where they come from: given by the user, annotated in the trace (their sum), or
    unknown. inferred: what was taken from the launch itself; agreement in it proves less."""

    layer: LayerGroup
    batch: Batch
    lengths: str
    inferred: tuple[str, ...]


def candidates(
    known: Known, seen: Inferred, notes: Sequence[StepNote], stand_ins: Sequence[int] = ()
) -> tuple[list[Candidate], str]:
    """All candidates for the group, and what is missing when there is none. stand_ins: lengths to use where nothing
    states any, for engines whose launch says something without them."""
    layers, from_launch = _layers(known, seen)
    if not layers:
        return [], "the layer (--model, or --q-heads, --kv-heads, --head-dim)"
    out = []
    missing = ""
    for layer in layers:
        batches, missing = _batches(known, seen, notes, stand_ins)
        out += [Candidate(layer, batch, lengths, (*from_launch, *taken)) for batch, lengths, taken in batches]
    return out, missing


def _layers(known: Known, seen: Inferred) -> tuple[tuple[LayerGroup, ...], tuple[str, ...]]:
    if known.layer_groups:
        return known.layer_groups, ()
    q_heads = seen.q_heads or (seen.kv_heads * seen.group if seen.kv_heads and seen.group else None)
    if q_heads is None or seen.kv_heads is None or q_heads % seen.kv_heads:
        return (), ()
    dim = seen.head_dim or DEFAULT_HEAD_DIM
    geo = Geometry(q_heads, seen.kv_heads, dim, 512 if seen.mla and dim == 576 else None, mla=bool(seen.mla))
    return (LayerGroup("inferred", 1, geo),), ("heads",)


def _batches(
    known: Known, seen: Inferred, notes: Sequence[StepNote], stand_ins: Sequence[int]
) -> tuple[list[tuple[Batch, str, tuple[str, ...]]], str]:
    """(batch, origin of its lengths, what was inferred) triples, and what is missing when there is none."""
    if known.ragged is not None:
        return [(known.ragged, GIVEN, ())], ""
    sizes, q_len = known.requests, known.q_len
    taken: tuple[str, ...] = ()
    decodes = {note.decodes for note in notes if note.decodes}
    if not sizes and len(notes) == 1 and len(decodes) == 1:
        whole = notes[0].batch()
        if whole is not None and not known.contexts and not notes[0].prefills:
            return [(whole, ANNOTATED, ())], ""
        sizes = tuple(decodes)
    if not sizes and seen.batch is not None:
        sizes, taken = (seen.batch,), ("batch",)
        if seen.query_tokens and seen.query_tokens % seen.batch == 0 and q_len == 1:
            q_len = seen.query_tokens // seen.batch
    if not sizes:
        return [], "the batch (--batch with --context, or --seq-lens)"
    if known.contexts:
        return [(Batch.uniform(b, c, q_len), GIVEN, taken) for b in sizes for c in known.contexts], ""
    if seen.context_range is not None:
        return [(Batch.uniform(b, seen.context_range[1], q_len), UNKNOWN, (*taken, "length range")) for b in sizes], ""
    if not stand_ins:
        return [], "the KV lengths (--context or --seq-lens), on which this engine's launch depends"
    return [(Batch.uniform(b, c, q_len), UNKNOWN, taken) for b in sizes for c in stand_ins], ""
