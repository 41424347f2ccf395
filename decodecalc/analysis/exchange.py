"""What the ranks of decode context parallelism exchange for one layer of one step, and the kernels around it.

Before stage 1 a rank gathers the queries of its group (unless every rank computes them all): it needs every query head,
because it alone has its keys. After it the partial outputs are merged, each weighted by its share of the softmax, w_r =
exp(lse_r - lse) with lse = log sum_r exp(lse_r). Two ways are in use:

- `ag_rs`: an all-gather of the log-sum-exps, a kernel that scales the own output by w_r, and a reduce-scatter that adds
  the outputs and leaves each rank its own heads;
- `a2a`: a kernel that packs outputs and log-sum-exps by receiver, one all-to-all, and a kernel that weights and adds
  what has arrived.

With more than one query token, the heads of a collective's buffer lie apart, and copies put them in order: three with
`ag_rs` (gathered queries, and the outputs before and after the reduce-scatter), one with `a2a`.

Every formula takes numbers or arrays of query tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from decodecalc.engines.registry import traits_of
from decodecalc.geometry import Geometry
from decodecalc.keyshare import AG_RS
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan, check_plan
from decodecalc.values import Shown

LSE_BYTES = 4  # a log-sum-exp is fp32
OUTPUT_BYTES = 2  # a partial output is 16 bits wide
ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_gather", "reduce_scatter", "all_to_all"
COLLECTIVES = (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one layer."""

    kind: str
    """One of `COLLECTIVES`."""
    what: str
    """What it moves, in words."""
    buffer_bytes: Any
    """Bytes of the whole buffer: what all ranks hold after a gather, what one rank brings to a reduce-scatter or to an
    all-to-all."""
    ranks: int
    """Ranks that take part."""

    @property
    def received_bytes(self) -> Any:
        """Bytes that one rank receives from the others: all of the buffer but its own part."""
        return self.buffer_bytes * (self.ranks - 1) // self.ranks

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        names = ("kind", "what", "buffer_bytes", "ranks", "received_bytes")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class SideKernel:
    """A kernel that a layer launches beside its attention, to prepare or finish the exchange."""

    what: str
    """What it does, in words."""
    moved_bytes: Any
    """Bytes that it reads and writes."""
    when: Any = True
    """bool or bool [N]: the steps that launch it."""
    blocks: int = 0
    """Blocks that it launches, where their number can tell in its time; 0 where it is not counted."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"what": self.what, "moved_bytes": self.moved_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Shown):
    """The exchange of one layer of one step."""

    ranks: int
    """Ranks of the group."""
    gathered_heads: int
    """Query heads that every rank computes."""
    own_heads: int
    """Query heads that a rank brings and gets back."""
    collectives: tuple[Collective, ...]
    """The collectives in launch order."""
    kernels: tuple[SideKernel, ...]
    """The kernels around them; of a plan, those that it launches."""

    @property
    def received_bytes(self) -> Any:
        """Bytes that one rank receives in all collectives."""
        return sum(collective.received_bytes for collective in self.collectives)

    @property
    def launches(self) -> Any:
        """Collectives and kernels."""
        return len(self.collectives) + sum(kernel.when * 1 for kernel in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested."""
        return {
            "ranks": self.ranks,
            "gathered_heads": self.gathered_heads,
            "own_heads": self.own_heads,
            "collectives": [collective.to_dict() for collective in self.collectives],
            "kernels": [kernel.to_dict() for kernel in self.kernels],
            "received_bytes": self.received_bytes,
            "launches": self.launches,
        }


def exchange_arrays(geo: Geometry, kv: KvCache, tokens: Any, own_keys_apart: bool = False) -> Exchange | None:
    """The exchange of a layer for `tokens` query tokens, a number or an [N] array; None where keys are not divided.

    own_keys_apart: the server attends the step's own keys in a launch of its own and merges once more.
    """
    share = geo.share
    if share is None:
        return None
    ranks, heads = share.ranks, geo.q_heads
    queries = tokens * heads * int(geo.head_dim * kv.query_element_bytes)
    outputs, sums = tokens * heads * geo.v_dim * OUTPUT_BYTES, tokens * heads * LSE_BYTES
    apart = tokens > 1
    collectives, kernels = [], []
    if not share.replicated:
        collectives.append(Collective(ALL_GATHER, "queries", queries, ranks))
        kernels.append(SideKernel("put the gathered queries in order", 2 * queries, apart))
    if share.exchange == AG_RS:
        collectives += [
            Collective(ALL_GATHER, "log-sum-exps", sums * ranks, ranks),
            Collective(REDUCE_SCATTER, "outputs", outputs, ranks),
        ]
        kernels += [
            SideKernel("scale the outputs by their weights", 2 * outputs + sums * (ranks + 1)),
            SideKernel("put the outputs in the order of the ranks", 2 * outputs, apart),
            SideKernel("put the reduced outputs in order", 2 * outputs // ranks, apart),
        ]
    else:
        collectives += [Collective(ALL_TO_ALL, "outputs and log-sum-exps", outputs + sums, ranks)]
        kernels += [
            SideKernel("pack outputs and log-sum-exps by receiver", 2 * (outputs + sums)),
            SideKernel("weight and add what has arrived", outputs + sums + outputs // ranks),
        ]
    if own_keys_apart:
        own = outputs // ranks
        kernels += [
            SideKernel("attend the step's own keys", queries // ranks + own),
            SideKernel("merge the two outputs", 3 * own + 2 * (sums // ranks)),
        ]
    return Exchange(
        ranks=ranks,
        gathered_heads=heads,
        own_heads=heads // ranks,
        collectives=tuple(collectives),
        kernels=tuple(kernels),
    )


def exchange_of_policy(engine: str, geo: Geometry, kv: KvCache, tokens: Any) -> Exchange | None:
    """`exchange_arrays` as the server does it that divides keys with this engine's kernel."""
    if geo.share is None:
        return None
    return exchange_arrays(geo, kv, tokens, traits_of(engine).own_keys_apart and not geo.mla)


def exchange(plan: LaunchPlan) -> Exchange | None:
    """What the ranks exchange for the plan's layer; None where its keys are not divided."""
    check_plan(plan)
    found = exchange_of_policy(plan.engine, plan.geometry, plan.kv, plan.batch.query_tokens)
    return None if found is None else replace(found, kernels=tuple(k for k in found.kernels if k.when))
