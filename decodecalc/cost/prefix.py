"""What it costs to attend a shared prefix apart, and from which prefix on it pays.

    T(shared) = T(prefix) + T(suffix) + side kernels        against        T(whole)

Both launches are predicted like any other, with their own launch, start and merge. The side kernels are the merge of
the two outputs of every (token, head), and for a kernel that folds query tokens into heads the copy that does so,
unless the layer has one KV head. `CHANGE_S` is what a launch takes longer behind another kernel than behind its like,
from which the predictions of both launches come.

A server keeps a shared prefix once, in pages that all requests point to. The whole step then asks for these keys once a
request, but the memory delivers them less often, and the L2 the rest (`shared_pages.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.analysis.exchange import LSE_BYTES, OUTPUT_BYTES, SideKernel
from decodecalc.analysis.traffic import traffic
from decodecalc.batch import Batch
from decodecalc.cost.load import own_calibration
from decodecalc.cost.prediction import OWN, Part, Prediction, plan_part, predict
from decodecalc.cost.shared_pages import KeyCost, faster, shared_share, shared_start, walks_of
from decodecalc.engines.registry import traits_of
from decodecalc.intmath import cdiv, next_power_of_2
from decodecalc.launch.plan import LaunchPlan
from decodecalc.prefix import parts
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.cost.calibration import Calibration
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu
    from decodecalc.kvcache import KvCache
    from decodecalc.launch.policy import Policy

LEAST_KEYS, MOST_KEYS = 16, 1 << 20
# Of a small kernel between two others, without its bytes and blocks: 1.2 us for the merge of few rows on an H200
# (reports/h200/shared-prefix.md).
SIDE_S = 1.2e-6
CHANGE_S = 0.9e-6  # 0.9 to 1.1 us in the steps of that report with the smallest launches
WORTH = 0.05  # a gain below this share is within the error of two predictions of one kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix(Shown):
    """A step with its shared prefix attended apart, beside the same step without."""

    keys: int
    """Keys that all requests share."""
    whole: tuple[LaunchPlan, Prediction]
    """The step without sharing, as if every request had keys of its own."""
    whole_s: float | None
    """Time of a layer without sharing, of requests that point to the same pages."""
    prefix: tuple[LaunchPlan, Prediction]
    """The launch over the shared keys."""
    prefix_s: float | None
    """Its time. With many requests several blocks walk the same keys for other query rows."""
    suffix: tuple[LaunchPlan, Prediction]
    """The launch over each request's own keys."""
    kernels: tuple[SideKernel, ...]
    """The kernels beside the two."""
    kernels_s: float
    """Their time."""

    @property
    def launches(self) -> int:
        """Kernels of one layer."""
        return len(self.prefix[0].kernels) + len(self.suffix[0].kernels) + len(self.kernels)

    @property
    def saved_bytes(self) -> int:
        """Keys and values that are not asked for again (of which the L2 may have held some), less what the side kernels
        move."""
        read = sum(traffic(plan).kv_read_bytes for plan, _ in (self.prefix, self.suffix))
        moved = sum(kernel.moved_bytes for kernel in self.kernels)
        return int(traffic(self.whole[0]).kv_read_bytes - read - moved)

    @property
    def total_s(self) -> float | None:
        """Time of a layer with the prefix attended apart; None where the kernel was not calibrated."""
        prefix, suffix = self.prefix_s, self.suffix[1].total_s
        return None if prefix is None or suffix is None else prefix + suffix + self.kernels_s

    @property
    def saved_s(self) -> float | None:
        """What sharing saves of a layer's time; negative where it does not pay."""
        total, whole = self.total_s, self.whole_s
        return None if total is None or whole is None else whole - total

    @property
    def verdict(self) -> str | None:
        """`pays`, `does not pay` or `makes no difference that can be told`; None where there is no time."""
        if self.saved_s is None or self.whole_s is None:
            return None
        if abs(self.saved_s) < WORTH * self.whole_s:
            return "makes no difference that can be told"
        return "pays" if self.saved_s > 0 else "does not pay"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "keys": self.keys,
            "whole_s": self.whole_s,
            "whole_apart_s": self.whole[1].total_s,
            "prefix_s": self.prefix_s,
            "suffix_s": self.suffix[1].total_s,
            "kernels": [kernel.to_dict() for kernel in self.kernels],
            "kernels_s": self.kernels_s,
            "launches": self.launches,
            "saved_bytes": self.saved_bytes,
            "total_s": self.total_s,
            "saved_s": self.saved_s,
            "verdict": self.verdict,
        }


def side_kernels(geo: Geometry, batch: Batch, kv: KvCache, folds: bool) -> tuple[SideKernel, ...]:
    """The kernels beside the two launches, for the layer `geo` as the suffix sees it."""
    from decodecalc_kernels.blocks import MOST_DIMS

    rows = batch.query_tokens * geo.q_heads
    outputs, sums = rows * geo.v_dim * OUTPUT_BYTES, rows * LSE_BYTES
    merge = SideKernel(
        "merge the outputs of prefix and suffix", 3 * outputs + 2 * sums, blocks=rows * cdiv(geo.v_dim, MOST_DIMS)
    )
    if not folds or geo.kv_heads == 1:
        return (merge,)
    queries = int(rows * geo.head_dim * kv.query_element_bytes)
    return SideKernel("fold the queries of all requests into heads", 2 * queries), merge


def share_prefix(
    policy: Policy,
    geo: Geometry,
    batch: Batch,
    keys: int,
    kv: KvCache,
    gpu: Gpu,
    *,
    options: Mapping[str, Any] | None = None,
    version: str | None = None,
    calibration: Calibration | None = None,
    kernel: str = OWN,
    l2: str = "cold",
    launch: str = "graph",
) -> SharedPrefix:
    """Plan and price one layer both ways. InputError of `prefix.check_prefix`, GateError where the engine refuses."""
    folds = policy.traits.folds_queries
    known = own_calibration(calibration, gpu)

    def timed(layer: Geometry, step: Batch) -> tuple[LaunchPlan, Prediction]:
        plan = policy.plan(layer, step, kv, gpu, options, version)
        return plan, predict(plan, gpu, known, kernel=kernel, l2=l2, launch=launch)

    prefix, suffix = parts(geo, batch, keys, folds)
    beside = side_kernels(geo, batch, kv, folds)
    number = {name: parameter.number for name, parameter in known.parameters.items()}
    each = number["launch_stream_s"] if launch == "stream" else 0.0
    kernels = (
        max(SIDE_S, each) + k.moved_bytes / number["l2_bytes_per_s"] + k.blocks * number["launch_block_s"]
        for k in beside
    )
    whole, first = timed(geo, batch), timed(prefix.geometry, prefix.batch)
    priced = [plan_part(plan, gpu, known, kernel, l2, launch)[1] for plan, _ in (whole, first)]
    return SharedPrefix(
        keys=keys,
        whole=whole,
        whole_s=on_shared_pages(*whole, keys, priced[0]),
        prefix=first,
        prefix_s=with_shared_rows(*first, priced[1]),
        suffix=timed(suffix.geometry, suffix.batch),
        kernels=beside,
        kernels_s=sum(kernels) + (0.0 if launch == "stream" else 2 * CHANGE_S),
    )


def on_shared_pages(plan: LaunchPlan, found: Prediction, keys: int, part: Part) -> float | None:
    """Time of one layer whose requests keep their first `keys` keys once, in pages that all of them point to.

    found, part: what is predicted as if every request had pages of its own. With a warm L2 it is that.
    """
    if found.total_s is None or part.rates.warm:
        return found.total_s
    rates, geo = part.rates, plan.geometry
    kept = keys * plan.kv.bytes_per_key(geo)
    in_turn = traits_of(plan.engine).requests_in_turn
    if in_turn and kept > rates.l2_capacity_bytes:  # blocks of different requests are at different keys
        return found.total_s
    walks = walks_of(plan, keys, in_turn)
    if not len(walks.blocks):
        return found.total_s
    each = float(walks.blocks.max())
    heads = min(each, geo.kv_heads)
    tile = int(part.cuts.tile_keys[0, 0])
    flop, tiles = (float(np.ravel(x)[0]) for x in (part.work.flop, part.work.tiles_total))
    cost = KeyCost(plan.kv.bytes_per_key(geo) / heads, tile, each / heads, flop / max(tiles * tile, 1))
    terms = found.terms
    body = sum(terms[name] for name in ("stream_s", "latency_s", "compute_s", "tail_s"))
    start = min(shared_start(shared_share(walks), part.work, rates), terms["fixed_s"])
    return found.total_s - (terms["fixed_s"] - start) - body * (1 - faster(walks, kept, cost, rates))


def with_shared_rows(plan: LaunchPlan, found: Prediction, part: Part) -> float | None:
    """Time of a launch in which several blocks begin with the same keys, for different query rows."""
    if found.total_s is None or part.rates.warm:
        return found.total_s
    row_blocks = max(max(plan.blocks_per_split) / plan.geometry.kv_heads, 1.0)
    start = shared_start(1 - 1 / row_blocks, part.work, part.rates)
    return found.total_s - max(found.terms["fixed_s"] - start, 0.0)


def prefix_break_even(policy: Policy, geo: Geometry, own: Batch, kv: KvCache, gpu: Gpu, **how: Any) -> int | None:
    """The least prefix, in keys, from which on attending it apart is predicted to take less time; None where there is
    none up to `MOST_KEYS`.

    own: the step without the prefix, each request's own keys. how: keywords of `share_prefix`.
    """

    def gain(keys: int) -> float | None:
        step = Batch([n + keys for n in own.seq_lens], own.q_lens)
        return share_prefix(policy, geo, step, keys, kv, gpu, **how).saved_s

    tried, keys = [], max(LEAST_KEYS, next_power_of_2(own.query_tokens))  # a prefix has the keys of its query tokens
    while keys <= MOST_KEYS:
        found = gain(keys)
        if found is None:
            return None
        tried.append((keys, found))
        keys *= 2
    losing = [i for i, (_, saved) in enumerate(tried) if saved <= 0]
    if losing and losing[-1] == len(tried) - 1:
        return None
    if not losing:
        return tried[0][0]
    low, high = tried[losing[-1]][0], tried[losing[-1] + 1][0]
    while high - low > max(low // 32, 1):
        middle = (low + high) // 2
        saved = gain(middle)
        low, high = (low, middle) if saved is not None and saved > 0 else (middle, high)
    return high
