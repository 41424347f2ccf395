"""bundled: this project's own kernel (`decodecalc_kernels`), under S_opt or under any other engine's split rule.

Its own rule is the time model's S_opt (`decodecalc.cost.tuning`), as one split length for the whole batch: a whole
number of tiles, so that long requests get more splits and every block does the same work. With `split_policy` the
splits are another engine's, and everything else (tile, rows, warps, stages, merge) stays the bundled kernel's. This
separates the cost of the engine's rule from the cost of its kernel.

Grid (KV heads x row blocks, requests, splits), or where requests differ in length (KV heads x row blocks, live splits
of all requests); merge grid (query tokens x query heads / rows of a block, requests,
value dims / dims of a block), as `decodecalc_kernels.blocks.merge_shape` shapes blocks by splits and output rows.
Source: kernels/launch.py, kernels/config.py, kernels/blocks.py of this repository.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc._version import __version__
from decodecalc.analysis.traffic import PARTIAL_BYTES
from decodecalc.cost.launcher import chosen_launch
from decodecalc.cost.load import load_calibration
from decodecalc.cost.own_launch import equal_splits, has_work, in_warp_groups, row_blocks_of, under_rule
from decodecalc.cost.parameters import Variant
from decodecalc.cost.tuning import fastest, tuned_variants
from decodecalc.engines.registry import load_policies
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, distinct
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import FLOATS, Takes
from decodecalc.launch.traits import SIZE, Partition, SplitSetting, Traits
from decodecalc_kernels.choose import register_chooser

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MOST_GRID_SPLITS = 65535  # grid axis z


@dataclass(frozen=True, slots=True)
class BundledOptions(EngineOptions):
    """What `decodecalc_kernels.LaunchConfig` takes, and whose split rule to run."""

    split_policy: str | None = option(None, "str?", "another engine (name or name@version) whose split rule to run")
    num_splits: int | None = option(None, "int?", "splits of the longest request, instead of S_opt", low=1)
    split_keys: int | None = option(None, "int?", "keys of every split: fixed size, batch-invariant", low=1)
    tile_keys: int | None = option(None, "int?", "keys of a tile, instead of the tuned one", low=16)
    warps: int | None = option(None, "int?", "warps of a block, instead of the tuned count", low=1)
    stages: int | None = option(None, "int?", "loads in flight, instead of the tuned count", low=1)


class BundledDetail(NamedTuple):
    """split_keys: keys of every split [N] (0 under another engine's rule); row_blocks: blocks that share a KV head's
    keys because its query rows do not fit one block; warps, stages: of the tuned kernel."""

    split_keys: Any
    row_blocks: Any
    warps: Any
    stages: Any
    split_policy: str | None


class Bundled(Policy):
    """The bundled kernel."""

    name = "bundled"
    title = "decodecalc's own Triton kernel"
    versions = (PolicyVersion(__version__, "this repository, kernels/ and decodecalc/cost/tuning.py"),)
    options_type = BundledOptions
    rule = "one split length for the batch, a whole number of tiles, the one the time model finds fastest (S_opt)"
    split_flag = "num_splits"
    traits = Traits(
        split_setting=SplitSetting("num_splits={splits}", "num_splits"),
        by_hand_option="split_keys",
        partition=Partition(rule=SIZE),
        vendors=("NVIDIA", "AMD", "Intel"),  # Triton compiles for each; only NVIDIA devices were measured
        sparse=True,  # a gathered list is a block table with pages of one key
        returns_lse=True,
        folds_queries=True,
    )

    def combinations(self, options: BundledOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        return (Takes(sparse=True, cache_dtypes=(*FLOATS, "int8")),)

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: BundledOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. GateError for a tile that the kernel cannot have."""
        _check(options)
        cut = (_others_cut if options.split_policy else _own_cut)(geo, batches, kv, gpu, options)
        found = cut.found
        is_split, row_blocks = found.is_split, found.blocks_per_split // geo.kv_heads
        merge = _merge_blocks(found.launched, batches.batch * batches.max_q_len * geo.q_heads, geo.v_dim)
        dim_blocks = cdiv(geo.v_dim, merge.dims)
        merge_kernel = KernelArray(
            name="merge_kernel",
            role="merge",
            grid=(cdiv(batches.max_q_len * geo.q_heads, merge.rows), batches.batch, dim_blocks),
            threads=_threads(merge.warps),
            live_blocks=batches.total(cdiv(batches.q_lens * geo.q_heads, merge.rows[:, None])) * dim_blocks,
            when=is_split,
        )
        states = is_split * batches.query_tokens * geo.q_heads * found.launched
        return replace(
            found,
            kernels=(*_stages(found, cut.warps), merge_kernel),
            keys_read=batches.seq_lens - visible_start(batches, geo.window),
            scratch_bytes=states * found.state_values * PARTIAL_BYTES,
            gates=(GateArray(name="split", passed=is_split, reason=cut.reason),),
            detail=BundledDetail(
                split_keys=cut.size,
                row_blocks=batches.largest(row_blocks),
                warps=cut.warps,
                stages=cut.stages,
                split_policy=options.split_policy,
            ),
        )


class _Cut(NamedTuple):
    """How the keys are cut, and by which tuning."""

    found: Launches
    """Stage 1's launch."""
    size: Any
    """Keys of every split [N]; 0 under another engine's rule."""
    warps: Any
    """Warps of a stage-1 block, a number or [N]."""
    stages: Any
    """Loads in flight, a number or [N]."""
    reason: Callable[[int], str]
    """Why step n is cut that way."""


class _MergeBlocks(NamedTuple):
    """What a merge block of each step takes [N]: its output rows, elements and warps."""

    rows: IntArray
    dims: IntArray
    warps: IntArray


def _merge_blocks(launched: Any, rows: IntArray, v_dim: int) -> _MergeBlocks:
    """The launcher's merge for these splits and output rows [N]; steps that do not split get that of two splits."""
    from decodecalc_kernels.blocks import merge_shape

    each = int(rows.max(initial=0)) + 1  # one number for each pair of splits and rows
    kinds, which = np.unique(launched * each + rows, return_inverse=True)
    shapes = [merge_shape(kind // each, kind % each, v_dim) for kind in kinds.tolist()]
    columns = [(s["merge_rows"], s["merge_dims"], s["merge_warps"]) for s in shapes]
    found = np.array(columns, dtype=np.int64).reshape(-1, 3)[which]
    return _MergeBlocks(*found.T)


def _stages(found: Launches, warps: Any) -> tuple[KernelArray, ...]:
    """The stage-1 kernels, with the threads of those whose blocks the tuning shapes."""
    plain = np.asarray(warps)[~np.asarray(in_warp_groups(warps))]
    stages = (k for k in found.kernels if k.role == "stage1")
    return tuple(k if k.threads else k._replace(threads=_threads(plain)) for k in stages)


def _threads(warps: Any) -> int | None:
    """Threads of a block, where all steps have the same tuning."""
    kinds = distinct(warps)
    return 32 * kinds[0] if len(kinds) == 1 else None


def _check(options: BundledOptions) -> None:
    for name in ("tile_keys", "warps"):
        value = getattr(options, name)
        if value is not None and value & (value - 1):
            raise GateError(f"bundled: {name} must be a power of two, not {value}", name)
    given = [n for n in ("split_policy", "num_splits", "split_keys") if getattr(options, n) is not None]
    if len(given) > 1:
        raise InputError(f"bundled: {' and '.join(given)} each fix the splits: give one of them")


def _own_cut(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: BundledOptions) -> _Cut:
    """One split length for every request of a step."""
    size, tile, warps, stages = (np.ones(batches.n, dtype=np.int64) for _ in range(4))
    counts = None if options.num_splits is None else np.array([options.num_splits], dtype=np.int64)
    calibration = load_calibration(gpu=gpu)
    for q_len in distinct(batches.max_q_len):
        steps = np.flatnonzero(batches.max_q_len == q_len)
        variants = _agreeing(tuned_variants(calibration, geo, kv, q_len, gpu), options)
        if not variants or (in_warp_groups(variants[0].warps) and (options.split_keys or 0) % variants[0].tile_keys):
            variants = _matching(tuned_variants(calibration, geo, kv, q_len), options)
        best = fastest(geo, batches.take(steps), kv, gpu, calibration, variants=variants, candidates=counts)
        size[steps] = best.split_keys
        for values, name in ((tile, "tile_keys"), (warps, "warps"), (stages, "stages")):
            values[steps] = np.array([getattr(v, name) for v in variants], dtype=np.int64)[best.which]
    how, determinism = "the least predicted time", "batch-dependent"
    if options.split_keys is not None:
        size = np.full(batches.n, options.split_keys, dtype=np.int64)
        how, determinism = "split_keys given", "fixed size"
    elif options.num_splits is not None:
        how, determinism = "num_splits given", "fixed count" if options.num_splits != 1 else "invariant"
    found = equal_splits(geo, batches, size, tile, row_blocks_of(geo, batches, warps), determinism, warps)
    _fit_grid(found.launched)
    longest = batches.largest(batches.seq_lens - visible_start(batches, geo.window))

    def reason(n: int) -> str:
        return f"{at(found.launched, n)} splits of {at(size, n)} keys for {at(longest, n)}: {how}"

    return _Cut(found=found, size=size, warps=warps, stages=stages, reason=reason)


def _others_cut(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: BundledOptions) -> _Cut:
    """Another engine's splits, walked in the bundled kernel's tiles."""
    ((policy, version),) = load_policies([options.split_policy or ""])
    if policy.name == Bundled.name:
        raise InputError("bundled: split_policy names another engine, not bundled itself")
    _, theirs = policy.on_layer(geo, batches, kv, gpu, policy.options_type(), policy.version(version))
    theirs = replace(
        theirs,
        live=np.where(has_work(batches), theirs.live, 0),
        working=None if theirs.working is None else np.where(has_work(batches), theirs.working, 0),
    )
    calibration = load_calibration(gpu=gpu)
    tile, warps, stages = (np.ones(batches.n, dtype=np.int64) for _ in range(3))
    for q_len in distinct(batches.max_q_len):
        variant = _matching(tuned_variants(calibration, geo, kv, q_len), options)[0]
        steps = batches.max_q_len == q_len
        tile[steps], warps[steps], stages[steps] = variant.tile_keys, variant.warps, variant.stages
    found = under_rule(theirs, geo, batches, tile, row_blocks_of(geo, batches))
    _fit_grid(found.launched)

    def reason(n: int) -> str:
        return f"{at(found.launched, n)} splits by {policy.name}'s rule"

    return _Cut(found=found, size=0, warps=warps, stages=stages, reason=reason)


def _fixed(options: BundledOptions) -> dict[str, Any]:
    return {n: v for n in ("tile_keys", "warps", "stages") if (v := getattr(options, n)) is not None}


def _agreeing(variants: tuple[Variant, ...], options: BundledOptions) -> tuple[Variant, ...]:
    """The variants that agree with what the options fix."""
    fixed = _fixed(options)
    return tuple(v for v in variants if all(getattr(v, n) == value for n, value in fixed.items()))


def _matching(variants: tuple[Variant, ...], options: BundledOptions) -> tuple[Variant, ...]:
    """The variants that agree with what the options fix; a tuning that was not measured is made from the first."""
    return _agreeing(variants, options) or (variants[0]._replace(**_fixed(options)),)


def _fit_grid(launched: IntArray) -> None:
    most = int(launched.max(initial=1))
    if most > MOST_GRID_SPLITS:
        raise GateError(f"bundled: {most} splits do not fit the grid's z axis ({MOST_GRID_SPLITS})", "grid")


POLICY = Bundled()
# From here on `decodecalc_kernels.decode_attention` without a config runs what this policy plans.
register_chooser(chosen_launch)
