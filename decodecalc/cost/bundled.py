"""bundled: this project's own kernel (`decodecalc_kernels`), under S_opt or under any other engine's split rule.

Own rule: the time model's S_opt (`decodecalc.cost.tuning`), as one split length for the whole batch: a whole number of
tiles, so that long requests get more splits and every block does the same work. With `split_policy` the splits are
another engine's and everything else (tile, rows, warps, stages, merge) stays the bundled kernel's: what that rule
costs, told apart from what that engine's kernel costs.

Grid (KV heads x row blocks, requests, splits); merge grid (query tokens x query heads / rows of a block, requests,
value dims / dims of a block), as `decodecalc_kernels.blocks.merge_shape` shapes blocks by splits and output rows.
Source: kernels/launch.py, kernels/config.py, kernels/blocks.py of this repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc._version import __version__
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, distinct
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.traits import Traits

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


@dataclass(frozen=True, slots=True)
class BundledDetail:
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
    traits = Traits(sparse=True)  # a gathered list is a block table with pages of one key

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
        from decodecalc.cost.tuning import STATE_SCALARS, row_block

        _check(options)
        rows = row_block(geo, int(batches.max_q_len.max(initial=1)))
        row_blocks = cdiv(batches.q_lens * geo.group, rows)
        columns = geo.kv_heads * row_blocks
        has_keys = (batches.seq_lens > 0) & (batches.q_lens > 0)
        cut = self._cut(geo, batches, kv, gpu, options)
        live = np.where(has_keys, cut.live, 0)
        is_split = cut.launched > 1
        unsplit = batches.total(columns * has_keys)
        grid = (batches.largest(row_blocks) * geo.kv_heads, batches.batch, cut.launched)
        merge = _merge_blocks(cut.launched, batches.batch * batches.max_q_len * geo.q_heads, geo.v_dim)
        dim_blocks = cdiv(geo.v_dim, merge.dims)
        merge_grid = (cdiv(batches.max_q_len * geo.q_heads, merge.rows), batches.batch, dim_blocks)
        state = geo.v_dim + STATE_SCALARS
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name="stage1_kernel",
                    role="stage1",
                    grid=grid,
                    threads=_threads(cut.warps),
                    live_blocks=batches.total(columns * live),
                    tile_keys=cut.tile,
                ),
                KernelArray(
                    name="merge_kernel",
                    role="merge",
                    grid=merge_grid,
                    threads=_threads(merge.warps),
                    live_blocks=batches.total(cdiv(batches.q_lens * geo.q_heads, merge.rows[:, None])) * dim_blocks,
                    when=is_split,
                ),
            ),
            requested=cut.launched[:, None],
            launched=cut.launched,
            live=live,
            working=None if cut.working is None else np.where(has_keys, cut.working, 0),
            split_keys=cut.split_keys,
            first_key=cut.first,
            keys_read=batches.seq_lens - visible_start(batches, geo.window),
            blocks_per_split=columns,
            unsplit_blocks=unsplit,
            tile_keys=cut.tile,
            block_rows=rows,
            live_rows=np.minimum(batches.max_q_len * geo.group, rows),
            state_values=state,
            scratch_bytes=is_split * batches.query_tokens * geo.q_heads * cut.launched * state * 4,
            determinism=cut.determinism,
            gates=(GateArray("split", is_split, lambda n: cut.reason(n)),),
            detail=BundledDetail(cut.size, batches.largest(row_blocks), cut.warps, cut.stages, options.split_policy),
            key_ranges=cut.key_ranges,
        )

    def _cut(self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: BundledOptions) -> _Cut:
        if options.split_policy:
            return _others_cut(geo, batches, kv, gpu, options)
        return _own_cut(geo, batches, kv, gpu, options)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How the keys are cut. launched, tile, warps, stages, size [N] (or numbers); live, first, split_keys [N, R]."""

    launched: IntArray
    live: IntArray
    working: Any
    first: Any
    split_keys: Any
    size: Any
    tile: Any
    warps: Any
    stages: Any
    determinism: str
    reason: Any
    key_ranges: Any = None


class _MergeBlocks(NamedTuple):
    """What a merge block of each step takes [N]: output rows and elements, by so many warps."""

    rows: IntArray
    dims: IntArray
    warps: IntArray


def _merge_blocks(launched: Any, rows: IntArray, v_dim: int) -> _MergeBlocks:
    """The launcher's merge for so many splits and output rows [N]; where nothing is split, that of two splits."""
    from decodecalc_kernels.blocks import merge_shape

    each = int(rows.max(initial=0)) + 1  # one number for each pair of splits and rows
    kinds, which = np.unique(launched * each + rows, return_inverse=True)
    shapes = [merge_shape(kind // each, kind % each, v_dim) for kind in kinds.tolist()]
    columns = [(s["merge_rows"], s["merge_dims"], s["merge_warps"]) for s in shapes]
    found = np.array(columns, dtype=np.int64).reshape(-1, 3)[which]
    return _MergeBlocks(*found.T)


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
    from decodecalc.cost.calibration import load_calibration
    from decodecalc.cost.tuning import fastest, tuned_variants

    first = visible_start(batches, geo.window)
    keys = batches.seq_lens - first
    longest = batches.largest(keys)
    calibration = load_calibration(gpu=gpu)
    variants = _matching(tuned_variants(calibration, geo, kv, int(batches.max_q_len.max(initial=1))), options)
    counts = None if options.num_splits is None else np.array([options.num_splits], dtype=np.int64)
    best = fastest(geo, batches, kv, gpu, calibration, variants=variants, candidates=counts)
    tile, warps, stages = (
        np.array([getattr(v, name) for v in variants], dtype=np.int64)[best.which]
        for name in ("tile_keys", "warps", "stages")
    )
    size = best.split_keys
    how, determinism = "the least predicted time", "batch-dependent"
    if options.split_keys is not None:
        size = np.full(batches.n, options.split_keys, dtype=np.int64)
        how, determinism = "split_keys given", "fixed size"
    elif options.num_splits is not None:
        how, determinism = "num_splits given", "fixed count" if options.num_splits != 1 else "invariant"
    launched = np.clip(cdiv(longest, size), 1, None)
    _fit_grid(launched)

    def reason(n: int) -> str:
        return f"{at(launched, n)} splits of {at(size, n)} keys for {at(longest, n)}: {how}"

    return _Cut(
        launched, cdiv(keys, size[:, None]), None, first, size[:, None], size, tile, warps, stages, determinism, reason
    )


def _others_cut(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: BundledOptions) -> _Cut:
    """Another engine's splits, walked in the bundled kernel's tiles."""
    from decodecalc.cost.calibration import load_calibration
    from decodecalc.cost.tuning import tuned_variants
    from decodecalc.engines.registry import load_policies

    ((policy, version),) = load_policies([options.split_policy or ""])
    if policy.name == Bundled.name:
        raise InputError("bundled: split_policy names another engine, not bundled itself")
    _, found = policy.on_layer(geo, batches, kv, gpu, policy.options_type(), policy.version(version))
    variants = tuned_variants(load_calibration(gpu=gpu), geo, kv, int(batches.max_q_len.max(initial=1)))
    variant = _matching(variants, options)[0]
    shape, n = batches.seq_lens.shape, batches.n
    live = np.broadcast_to(np.asarray(found.live), shape)
    split = np.broadcast_to(np.asarray(found.is_split), (n,))
    # An engine without a merge launches one split per request; its grid may call other things splits.
    most = batches.largest(live)
    launched = np.where(split, most if found.shared_slots else np.maximum(found.launched, most), 1)
    _fit_grid(launched)

    def reason(n: int) -> str:
        return f"{at(launched, n)} splits by {policy.name}'s rule"

    return _Cut(
        launched, live, found.working, found.first_key, found.split_keys, 0, variant.tile_keys, variant.warps,
        variant.stages, found.determinism, reason, found.key_ranges,
    )  # fmt: skip


def _matching(variants: tuple[Any, ...], options: BundledOptions) -> tuple[Any, ...]:
    """The variants that agree with what the options fix; a tuning that was not measured is made from the first."""
    fixed = {n: v for n in ("tile_keys", "warps", "stages") if (v := getattr(options, n)) is not None}
    agreeing = tuple(v for v in variants if all(getattr(v, n) == value for n, value in fixed.items()))
    return agreeing or (variants[0]._replace(**fixed),)


def _fit_grid(launched: IntArray) -> None:
    most = int(launched.max(initial=1))
    if most > MOST_GRID_SPLITS:
        raise GateError(f"bundled: {most} splits do not fit the grid's z axis ({MOST_GRID_SPLITS})", "grid")


POLICY = Bundled()
