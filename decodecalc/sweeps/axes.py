"""The axes of a sweep, and their product cut into families.

A family is what a policy treats as plain numbers: one layer group of one rank, one GPU, one engine and version, one
cache layout, one set of options. Batch, context and query tokens vary inside a family, as arrays. Scenarios are
numbered in the order family, batch, context, query tokens. A shard is a contiguous range of those numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.errors import InputError, ShardingError, UnknownNameError
from decodecalc.intmath import IntArray
from decodecalc.keyshare import AG_RS, KeyShare
from decodecalc.kvcache import KvCache
from decodecalc.launch.options import EngineOptions
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.models import LayerGroup, Model, RankModel
from decodecalc.servers import architecture_of
from decodecalc.servers.policies import Place, policies_named
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


MAX_FAMILIES = 100_000  # each is an object of its own; batches, contexts and query lengths are arrays


@dataclass(frozen=True, slots=True)
class Axes(Shown):
    """Values of every axis of a sweep; their product is swept."""

    models: tuple[Model, ...]
    """Models."""
    tps: tuple[int, ...]
    """Tensor-parallel degrees. A degree that does not fit a model is left out for it."""
    gpus: tuple[Gpu, ...]
    """GPUs."""
    engines: tuple[str, ...]
    """Engines: `name`, `name@version`, `all`, or the name of a server or of one of its backends."""
    batches: tuple[int, ...]
    """Batch sizes, in requests."""
    contexts: tuple[int, ...]
    """Keys of each request."""
    q_lens: tuple[int, ...] = (1,)
    """Query tokens of each request."""
    kv_dtypes: tuple[str, ...] | None = None
    """Element types of the cache; None for the one that each checkpoint declares, else the 16-bit type that models
    run in on the device."""
    page_sizes: tuple[int, ...] = (16,)
    """Keys of a page."""
    splits: tuple[int, ...] = ()
    """Split counts for engines that take one by hand; other engines ignore them."""
    options: tuple[tuple[str, Any], ...] = ()
    """Engine options as (name, value); each engine takes those that it has."""
    dcps: tuple[int, ...] = (1,)
    """Ranks that divide the keys of every request, among those of a tensor-parallel degree. One that does not fit is
    left out for that degree."""
    dcp_interleave: int = 1
    """Neighbouring keys that lie on one rank."""
    dcp_exchange: str = AG_RS
    """How the ranks merge their outputs: one of `keyshare.EXCHANGES`."""
    eager: bool | None = None
    """Plan without CUDA graphs, or (False) with them; None takes each engine's own defaults."""
    own_pages: bool = False
    """Whether an engine that takes none of these pages gets pages that it takes."""

    def __post_init__(self) -> None:
        for f in fields(self):
            may_be_empty = f.name in ("splits", "options", "eager", "own_pages", "dcp_interleave")
            may_be_empty |= f.name == "kv_dtypes" and self.kv_dtypes is None
            if not may_be_empty and not getattr(self, f.name):
                raise InputError(f"axis {f.name} is empty")
        for name in ("batches", "contexts", "q_lens"):
            if min(getattr(self, name)) < 1:
                raise InputError(f"{name} must be at least 1, not {min(getattr(self, name))}")

    def share(self, dcp: int) -> int | KeyShare:
        """How `dcp` ranks divide the keys; 1 where one rank holds them all."""
        return 1 if dcp == 1 else KeyShare(dcp, self.dcp_interleave, self.dcp_exchange)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; models and GPUs by their names."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out.update(models=[model.name for model in self.models], gpus=[gpu.name for gpu in self.gpus])
        return {name: list(value) if isinstance(value, tuple) else value for name, value in out.items()}

    @property
    def steps_per_family(self) -> int:
        """Scenarios inside one family."""
        return len(self.batches) * len(self.contexts) * len(self.q_lens)


@dataclass(frozen=True, slots=True)
class Family:
    """Everything that is constant while a policy evaluates one array of steps."""

    index: int
    model: str
    tp: int
    layer_group: LayerGroup
    gpu: Gpu
    policy: Policy
    version: PolicyVersion
    kv: KvCache
    options: EngineOptions
    splits: int | None


def families(axes: Axes) -> tuple[list[Family], list[str]]:
    """All families in order, and a note for every (model, TP) that does not shard."""
    found: list[Family] = []
    skipped: list[str] = []
    count = len(axes.engines)
    for name in ("models", "tps", "dcps", "gpus", "kv_dtypes", "page_sizes"):
        count *= len(getattr(axes, name) or (None,))
    count *= max(1, len(axes.splits))
    if count > MAX_FAMILIES:
        raise InputError(
            f"models x TP x GPUs x engines x dtypes x pages x splits are {count} combinations, more than "
            f"{MAX_FAMILIES}: sweep fewer of them at a time"
        )
    for model in axes.models:
        for tp, dcp in product(axes.tps, axes.dcps):
            try:
                rank = model.shard(tp, axes.share(dcp))
            except ShardingError as error:
                skipped.append(str(error))
                continue
            for gpu in axes.gpus:
                half = gpu.half_type
                dtypes = axes.kv_dtypes or (model.kv_dtype or half,)
                caches = [KvCache(d, p, None, half) for d in dtypes for p in axes.page_sizes]
                for policy, version, kv in _policies(axes, model, rank, gpu, caches, skipped):
                    for splits, options in _options(axes, policy, rank.model_kv_heads):
                        for group in rank.layer_groups:
                            cache = policy.cache_of(kv)
                            if axes.own_pages:
                                page = policy.imposed_page(group.geometry, kv, gpu, options, version)
                                cache = cache if page is None else replace(cache, page_size=page)
                            found.append(
                                Family(
                                    len(found), model.name, tp, group, gpu, policy, policy.version(version),
                                    cache, options, splits,
                                )
                            )  # fmt: skip
    if not found:
        raise InputError("; ".join(skipped[:3]) or "nothing to sweep")
    return found, skipped


def _policies(
    axes: Axes, model: Model, rank: RankModel, gpu: Gpu, caches: Sequence[KvCache], skipped: list[str]
) -> Iterator[tuple[Policy, str | None, KvCache]]:
    """Every engine with every cache, in that order; a server's name is resolved for each cache."""
    tp = rank.tp
    for spec in axes.engines:
        for kv in caches:
            place = Place(
                groups=rank.layer_groups, gpu=gpu, kv=kv, tp=tp, architecture=architecture_of(model), eager=axes.eager
            )
            try:
                for policy, version in policies_named(spec, place):
                    yield policy, version, kv
            except UnknownNameError:
                raise
            except InputError as refused:
                skipped.append(f"{spec} does not run {model.name} TP {tp} on {gpu.name}: {refused}")


def _options(axes: Axes, policy: Policy, model_kv_heads: int) -> Iterator[tuple[int | None, EngineOptions]]:
    given = policy.own_options(dict(axes.options), model_kv_heads)
    by_hand = policy.traits.count_option
    for splits in axes.splits if axes.splits and by_hand else (None,):
        chosen = {**given, by_hand: splits} if by_hand and splits is not None else given
        yield splits, policy.options_type.from_mapping(policy.name, chosen)


def steps(axes: Axes, first: int, last: int) -> tuple[IntArray, IntArray, IntArray]:
    """batch, context, q_len of the scenarios [first, last) inside a family, as arrays."""
    index = np.arange(first, last)
    q = len(axes.q_lens)
    c = len(axes.contexts)
    return (
        np.asarray(axes.batches, dtype=np.int64)[index // (c * q)],
        np.asarray(axes.contexts, dtype=np.int64)[index // q % c],
        np.asarray(axes.q_lens, dtype=np.int64)[index % q],
    )


def shard_range(total: int, shard: Sequence[int] | None) -> tuple[int, int]:
    """The scenario numbers of shard (i, n), with i from 1 to n: a contiguous range. All shards in order make up the
    whole."""
    if shard is None:
        return 0, total
    i, n = shard
    if not 1 <= i <= n:
        raise InputError(f"--shard {i}/{n}: the first number must be between 1 and the second")
    return total * (i - 1) // n, total * i // n
