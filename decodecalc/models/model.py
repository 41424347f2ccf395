"""A model as the planning of decode attention sees it: groups of layers that share a geometry, whole or for one rank.

Limits: one rank holds 1/tp of the query heads of every layer (Megatron-style tensor parallelism), or under decode
context parallelism the heads of its whole group over a share of the keys. Pipeline and data parallelism do not change
the geometry of a layer and are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from decodecalc.batch import Batch
from decodecalc.errors import ShardingError
from decodecalc.geometry import Geometry, check_count
from decodecalc.keyshare import KeyShare
from decodecalc.models.weights import States, Weights
from decodecalc.values import Shown


@dataclass(frozen=True, slots=True)
class LayerGroup(Shown):
    """Layers of one model that run softmax attention and share one geometry."""

    name: str
    """Name of the group, such as `all`, `sliding` or `full`."""
    layers: int
    """How many layers the group has."""
    geometry: Geometry
    """What each of them looks like. `geometry.gather` says what a sparse layer reads."""
    chunk: int | None = None
    """Keys of a chunk for chunked attention (Llama-4), where a query sees only the keys of its own chunk; else None."""
    layer_indices: tuple[int, ...] = field(default=(), repr=False)
    """Which layers of the model they are; 0 is the first."""

    @property
    def topk(self) -> int | None:
        """Most keys, or compressed entries, that an indexer selects; None where there is no indexer."""
        return None if self.geometry.gather is None else self.geometry.gather.topk

    @property
    def compress_ratio(self) -> int | None:
        """Tokens behind one entry of the compressed cache, which is read in addition to the window (DeepSeek-V4)."""
        return None if self.geometry.gather is None else self.geometry.gather.compress

    def keys_read(self, context: int) -> int:
        """Cache entries that one decode query reads in one of these layers when the sequence has `context` keys, its
        own included; under context parallelism those on the rank that has most.

        >>> LayerGroup("chunked", 36, Geometry(40, 8, 128), chunk=8192).keys_read(8193)
        1
        """
        context = check_count("context", context)
        if self.geometry.gather is not None:
            return int(self.geometry.gather.keys(context))
        if self.geometry.share is not None:
            return int(self.geometry.share.local(context))
        keys = context if self.chunk is None else (context - 1) % self.chunk + 1
        return keys if self.geometry.window is None else min(keys, self.geometry.window)

    def seen_batch(self, batch: Batch) -> Batch:
        """The batch as the layer's kernel sees it. Chunked attention shortens every request; a sparse layer gathers a
        list of entries from each; under context parallelism a rank has a share of each.

        vLLM shortens requests by rewriting the metadata into one request per chunk (v1/attention/backends/utils.py,
        make_local_attention_virtual_batches); a decode token touches the last chunk only.
        """
        if self.chunk is not None:
            return Batch([self.keys_read(n) if n else 0 for n in batch.seq_lens], batch.q_lens)
        return batch.seen_by(self.geometry)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "layers": self.layers,
            "geometry": self.geometry.to_dict(),
            "chunk": self.chunk,
            "compress_ratio": self.compress_ratio,
            "topk": self.topk,
            "layer_indices": list(self.layer_indices),
        }


@dataclass(frozen=True, slots=True)
class RankModel(Shown):
    """One rank's share of a model under tensor parallelism."""

    name: str
    """Name of the model."""
    tp: int
    """Tensor-parallel degree."""
    total_layers: int
    """Layers of the model, those without softmax attention included."""
    layer_groups: tuple[LayerGroup, ...]
    """Layer groups, with the heads that this rank holds."""
    model_kv_heads: int
    """KV heads that an engine derives for the rank from the model-wide `num_key_value_heads`, whatever the
    layers have. vLLM 0.33 sizes its split threshold with it (`ModelConfig.get_num_kv_heads`), so it can differ
    from `geometry.kv_heads` of a group."""
    max_position: int | None = None
    """Longest context that the configuration states, in tokens; None where it states none."""

    @property
    def attention_layers(self) -> int:
        """Layers that run softmax attention."""
        return sum(group.layers for group in self.layer_groups)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "tp": self.tp,
            "total_layers": self.total_layers,
            "attention_layers": self.attention_layers,
            "layer_groups": [group.to_dict() for group in self.layer_groups],
            "model_kv_heads": self.model_kv_heads,
            "max_position": self.max_position,
        }


@dataclass(frozen=True, slots=True)
class Model(Shown):
    """A decoder model as its configuration describes it, before sharding."""

    name: str
    """Zoo name, repository id or file name."""
    model_type: str
    """`model_type` of the configuration."""
    total_layers: int
    """Layers of the model, those without softmax attention (Mamba, linear attention, MLP only, no-op) included."""
    layer_groups: tuple[LayerGroup, ...]
    """Layers with softmax attention, grouped by geometry, in the order in which the groups first appear."""
    kv_heads: int
    """KV heads that the configuration states for the whole model (see `RankModel.model_kv_heads`)."""
    max_position: int | None = None
    """Longest context that the configuration states, in tokens; None where it states none."""
    source: str = ""
    """Where the configuration was read from."""
    warnings: tuple[str, ...] = ()
    """Guesses that a user should know of, such as a class default that stands in for a missing field."""
    notes: tuple[str, ...] = ()
    """Facts about the model that the numbers do not show."""
    layer_types: tuple[str, ...] = field(default=(), repr=False)
    """What every layer of the model is, in order [total_layers]."""
    weights: Weights | None = field(default=None, repr=False)
    """The matrices by kind; None where the configuration does not state their shapes."""
    states: States | None = field(default=None, repr=False)
    """Recurrent states of the layers without softmax attention; None without such layers, or without their sizes."""
    hidden_size: int | None = field(default=None, repr=False)
    """Width of the residual stream; None where the configuration does not state it."""
    shared_layers: frozenset[int] = field(default=frozenset(), repr=False)
    """Layers that read the cache of earlier ones and store no keys of their own."""
    kv_dtype: str | None = None
    """Element type of the KV cache that the checkpoint declares, which servers take for `auto`; None without one."""

    @property
    def attention_layers(self) -> int:
        """Layers that run softmax attention."""
        return sum(group.layers for group in self.layer_groups)

    @property
    def kind(self) -> str:
        """MHA, GQA, MQA or MLA when all layers agree, else `mixed`."""
        kinds = {group.geometry.kind for group in self.layer_groups}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def stored_layers(self, group: LayerGroup) -> int:
        """Layers of a group that store keys of their own."""
        return group.layers - len(self.shared_layers.intersection(group.layer_indices))

    def replicas(self, group: LayerGroup, tp: int) -> int:
        """Ranks that hold the same KV head of a layer group at tensor-parallel degree `tp`.

        >>> from decodecalc.models import load_model
        >>> model = load_model("llama3-8b")
        >>> model.replicas(model.layer_groups[0], 8), model.replicas(model.layer_groups[0], 16)
        (1, 2)
        """
        return tp if group.geometry.mla else max(1, tp // group.geometry.kv_heads)

    def valid_tp(self) -> list[int]:
        """Tensor-parallel degrees that fit every layer group.

        The rule is that of vLLM (`ModelConfig.verify_with_parallel_config`, `QKVParallelLinear`): a degree divides the
        query heads, and it either divides the KV heads or is a multiple of them (each KV head is then replicated). An
        MLA latent is replicated on every rank.
        """
        most = min(group.geometry.q_heads for group in self.layer_groups)
        return [tp for tp in range(1, most + 1) if all(_fits(group.geometry, tp) for group in self.layer_groups)]

    def valid_dcp(self, tp: int) -> list[int]:
        """Ranks that can divide the keys of a request at tensor-parallel degree `tp`, 1 included.

        They are ranks that would otherwise hold the same KV heads, and whole groups of them make up the `tp` ranks. The
        rule is that of vLLM (`ModelConfig.verify_with_parallel_config`, `ParallelConfig`). Layers with a window, chunks
        or lists of keys are not divided.

        >>> from decodecalc.models import load_model
        >>> load_model("deepseek-v3").valid_dcp(8), load_model("llama3-8b").valid_dcp(16)
        ([1, 2, 4, 8], [1, 2])
        """
        if any(not _divides(group) for group in self.layer_groups):
            return [1]
        copies = [self.replicas(group, tp) for group in self.layer_groups]
        return [n for n in range(1, tp + 1) if tp % n == 0 and all(c % n == 0 for c in copies)]

    def shard(self, tp: int = 1, dcp: int | KeyShare = 1) -> RankModel:
        """One rank's share at tensor-parallel degree `tp`; ShardingError names the valid degrees.

        dcp: ranks, within `tp`, that divide the keys of every request (decode context parallelism), or a `KeyShare`
        that also says how. A rank then has the query heads of its whole group.
        """
        tp = check_count("tp", tp)
        share = dcp if isinstance(dcp, KeyShare) else KeyShare(dcp) if check_count("dcp", dcp) > 1 else None
        if not all(_fits(group.geometry, tp) for group in self.layer_groups):
            heads = sorted({(group.geometry.q_heads, group.geometry.kv_heads) for group in self.layer_groups})
            shown = " and ".join(f"{q} query / {kv} KV heads" for q, kv in heads[:4])
            valid = ", ".join(map(str, self.valid_tp()))
            raise ShardingError(f"tp {tp} does not fit {self.name} ({shown}); valid: {valid}")
        if share is not None and share.ranks not in (fitting := self.valid_dcp(tp)):
            raise ShardingError(_no_dcp(self, tp, share.ranks, fitting))
        groups = tuple(replace(group, geometry=_shard(group.geometry, tp, share)) for group in self.layer_groups)
        return RankModel(
            name=self.name,
            tp=tp,
            total_layers=self.total_layers,
            layer_groups=groups,
            model_kv_heads=max(1, self.kv_heads // tp),
            max_position=self.max_position,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the derived `kind`, `attention_layers` and `valid_tp`."""
        return {
            "name": self.name,
            "model_type": self.model_type,
            "kind": self.kind,
            "total_layers": self.total_layers,
            "attention_layers": self.attention_layers,
            "layer_groups": [group.to_dict() for group in self.layer_groups],
            "kv_heads": self.kv_heads,
            "max_position": self.max_position,
            "kv_dtype": self.kv_dtype,
            "valid_tp": self.valid_tp(),
            "source": self.source,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "layer_types": list(self.layer_types),
        }


def _fits(geometry: Geometry, tp: int) -> bool:
    if geometry.q_heads % tp:
        return False
    return geometry.mla or geometry.kv_heads % tp == 0 or tp % geometry.kv_heads == 0


def _divides(group: LayerGroup) -> bool:
    """Whether the keys of these layers can be divided over ranks: every query reads every key."""
    return group.chunk is None and group.geometry.window is None and group.geometry.gather is None


def _no_dcp(model: Model, tp: int, ranks: int, fitting: list[int]) -> str:
    """Why so many ranks cannot divide the keys, and what can be done."""
    partial = [group.name for group in model.layer_groups if not _divides(group)]
    if partial:
        return (
            f"the keys of {model.name} cannot be divided over ranks: {', '.join(partial)} layers do not read every key "
            "(a window, chunks or a list of selected keys)"
        )
    if len(fitting) > 1:
        return f"{ranks} ranks cannot divide the keys of {model.name} at tp {tp}; valid: {', '.join(map(str, fitting))}"
    return (
        f"{ranks} ranks cannot divide the keys of {model.name} at tp {tp}, where no two ranks hold the same KV heads; "
        "give a larger tensor-parallel degree"
    )


def _shard(geometry: Geometry, tp: int, share: KeyShare | None = None) -> Geometry:
    kv_heads = 1 if geometry.mla else max(1, geometry.kv_heads // tp)
    own = geometry.q_heads // tp
    return replace(geometry, q_heads=own * (1 if share is None else share.ranks), kv_heads=kv_heads, share=share)
