"""Which kernel the host code selects, with which grid and split, for every step of an array.

The host selects a kernel, works out the grid, and starts again whenever the grid asks for another kernel (no split, a
reduction in a cluster, values shared out over blocks). Here each of these passes runs over all steps at once.

Read from flashinfer-python 0.7.4, 0.7.2.post1 and 0.6.13: include/flashinfer/trtllm/fmha/fmhaKernels.cuh (tryRun or
run, selectKernel and what it calls, computeCtaAndClusterConfig, fitsMultiCtasKvScratch).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decodecalc.engines.trtllm_gen.kernels import CGA, DISABLED, GMEM, GMEM_SEPARATE, CubinFamily
from decodecalc.intmath import IntArray, cdiv, next_power_of_2
from decodecalc.launch.arrays import BoolArray

PASSES = 4  # kMaxKernelSelectionPasses
MOST_CLUSTER = 16  # blocks of a cluster
CLAMP_KEYS = 4096  # kMaxSeqLenKvPerCtaForCgaClamp
WAVES = 4  # kMaxNumWavesForKvSplit
# Cost model of query tiles for several tokens: main loop and reduction, in float32 as in the source.
TILE_COSTS = ((128, 2.2, 1.32), (64, 1.68, 1.2), (32, 1.48, 1.08), (16, 1.2, 1.03), (8, 1.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtllmGenRules:
    """What differs between versions of the host code."""

    clamps_to_cluster: bool = True
    """More than 16 splits become 16 where that keeps the reduction in a cluster and each reads at most 4096 keys."""
    pads_mla_heads: bool = True
    """Head counts of MLA that are no tile of their own run in the next larger one, up to 64."""
    groups_mla_tokens: bool = True
    """Short drafts of MLA with 8, 16 or 32 heads and pages of 32 keys share a tile of 64 rows."""
    cluster_for_one_mla_request: bool = True
    """One request with one token of MLA, in pages of 32 keys, may reduce in a cluster."""
    short_draft_halves: bool = True
    """Sparse MLA halves its query tile for at most 16 query tokens only."""
    wide_keeps: bool = True
    """Heads of 512 elements have keeps-AB kernels, with values shared out over two blocks."""
    one_head_pages: bool = True
    """Pages of 128 keys and more also serve layers without groups."""
    multi_wave: bool = True
    """An environment variable lets a split use up to four waves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FmhaProblem:
    """One layer's steps as the host code sees them. Arrays are [N]."""

    family: CubinFamily
    """The properties that the kernels share."""
    rules: TrtllmGenRules
    """The version's rules."""
    q_heads: int
    """Query heads of the rank."""
    group: int
    """Query heads of a KV head."""
    sms: int
    """Multiprocessors."""
    window: int | None
    """Keys that a query sees."""
    top_k: int
    """Keys that sparse MLA selects; 0 for dense attention."""
    batch: IntArray
    """Requests."""
    q_len: IntArray
    """Most query tokens of a request."""
    keys: IntArray
    """Most keys of a request, as the caller promises."""

    @property
    def one_request(self) -> BoolArray:
        """One request of DeepSeek's MLA with a short draft, for which the host code has rules of its own [N]."""
        short = (self.batch == 1) & (self.q_len >= 1) & (self.q_len <= 16)
        return short & ((self.family.qk, self.family.vo) == (576, 512))

    @property
    def sliding(self) -> BoolArray:
        """Whether the window is shorter than the promised keys [N]."""
        none = np.zeros(len(self.keys), dtype=bool)
        return none if self.window is None or self.family.mla else self.keys > self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinChoice:
    """The kernel of every step, as far as it is decided. Arrays are [N]."""

    tile_q: IntArray
    """Query rows of a block."""
    keeps: BoolArray
    """keeps-AB kernel, else swaps-AB."""
    mode: IntArray
    """Where splits are combined."""
    persistent: BoolArray
    """Persistent scheduler."""
    width: IntArray
    """Value elements of a block."""
    pair: BoolArray
    """Two blocks share a matrix product (2-CTA)."""
    groups: BoolArray
    """Query tokens and heads share a tile."""
    forced: BoolArray
    """Reduction through global memory is forced."""

    @classmethod
    def fresh(cls, problem: FmhaProblem) -> CubinChoice:
        """Before the first pass."""
        n = len(problem.batch)
        no = np.zeros(n, dtype=bool)
        return cls(
            tile_q=np.full(n, 128), keeps=no, mode=np.full(n, GMEM), persistent=no, width=np.full(n, problem.family.vo),
            pair=no, groups=no, forced=no,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The launch of every step under a choice. Arrays are [N]."""

    ctas_q: IntArray
    """Blocks along a request's query tokens."""
    splits: IntArray
    """Blocks along a request's keys."""
    x: IntArray
    """Grid extent x, splits included."""
    y: IntArray
    """Grid extent y: heads and shares of the value."""
    z: IntArray
    """Grid extent z: requests."""
    cluster: IntArray
    """Blocks of a cluster."""
    wanted: IntArray
    """Splits that one wave has room for, before they are bounded by the keys."""
    most: IntArray
    """Splits of at least two loop iterations each."""
    several_waves: BoolArray
    """The rule for several waves changed the splits."""
    uneven: BoolArray
    """Heads that the tile does not divide, which the host code refuses."""

    @property
    def blocks(self) -> IntArray:
        """Blocks in the grid [N]."""
        return self.x * self.y * self.z


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinLaunch:
    """The final launch of every step. Arrays are [N]."""

    choice: CubinChoice
    """The kernel."""
    grid: Grid
    """Its grid."""
    asked_cluster: IntArray
    """Cluster size of the occupancy query; 0 where none is made."""
    active_clusters: IntArray
    """What the occupancy query answers."""
    settled: BoolArray
    """The passes came to an end."""
    listed: BoolArray
    """Every kernel that was asked for is in the list of 0.6.13."""


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Field by field: `yes` in the steps of `condition`, `no` elsewhere."""
    names = no.__dataclass_fields__
    return replace(no, **{name: np.where(condition, getattr(yes, name), getattr(no, name)) for name in names})


def select_launch(problem: FmhaProblem, gpc_sms: tuple[int, ...], scratch_bytes: int, multi_wave: bool) -> CubinLaunch:
    """The launch of every step. scratch_bytes: what partial states of several waves have to fit into."""
    plain, _ = _try(problem, gpc_sms, scratch_bytes, several=False)
    if not (multi_wave and problem.rules.multi_wave and scratch_bytes > 0):
        return plain
    tried, fits = _try(problem, gpc_sms, scratch_bytes, several=True)
    found = {name: np.where(fits, getattr(tried, name), getattr(plain, name)) for name in _FLAGS}
    return CubinLaunch(
        choice=where(fits, tried.choice, plain.choice), grid=where(fits, tried.grid, plain.grid), **found
    )


_FLAGS = ("asked_cluster", "active_clusters", "settled", "listed")


def _try(
    problem: FmhaProblem, gpc_sms: tuple[int, ...], scratch_bytes: int, *, several: bool
) -> tuple[CubinLaunch, BoolArray]:
    """One selection from a fresh state, and in which steps it can be launched [N]."""
    n = len(problem.batch)
    choice, listed = CubinChoice.fresh(problem), np.ones(n, dtype=bool)
    again, grid = np.ones(n, dtype=bool), None
    for _ in range(PASSES):
        chosen, found = _select(problem, choice)
        listed &= ~again | (found & _listed(problem, chosen))
        done, after, repeat = _configure(problem, chosen, several=several)
        grid = done if grid is None else where(again, done, grid)
        choice = where(again, after, choice)
        again = again & repeat
        if not again.any():
            break
    assert grid is not None
    settled, fits = ~again, _fits(problem, choice, grid, scratch_bytes)
    cluster = choice.mode == CGA
    active = sum(np.asarray(sms) // grid.cluster for sms in gpc_sms)
    crowded = cluster & (active * grid.cluster < grid.blocks)
    asked, answer = np.where(cluster, grid.cluster, 0), np.where(cluster, active, 0)
    if crowded.any():
        forced = replace(choice, forced=choice.forced | crowded, mode=np.where(crowded, GMEM, choice.mode))
        chosen, found = _select(problem, forced)
        done, after, repeat = _configure(problem, chosen, several=several)
        listed &= ~crowded | (found & _listed(problem, chosen))
        settled &= ~(crowded & repeat)
        choice, grid = where(crowded, after, choice), where(crowded, done, grid)
        fits &= ~crowded | (_fits(problem, choice, grid, scratch_bytes) & ~repeat)
    return (
        CubinLaunch(
            choice=choice, grid=grid, asked_cluster=asked, active_clusters=answer, settled=settled, listed=listed
        ),
        fits,
    )


def _listed(problem: FmhaProblem, choice: CubinChoice) -> BoolArray:
    found: BoolArray = problem.family.listed(choice.tile_q, choice.keeps, choice.mode, choice.width, choice.groups)
    return found


def _fits(problem: FmhaProblem, choice: CubinChoice, grid: Grid, scratch_bytes: int) -> BoolArray:
    """Whether the partial states of several waves fit (fitsMultiCtasKvScratch)."""
    fits: BoolArray = ~grid.several_waves | (partial_bytes(problem.sms, choice, grid) <= scratch_bytes)
    return fits


def partial_bytes(sms: int, choice: CubinChoice, grid: Grid) -> IntArray:
    """Bytes of all partial states: two fp32 numbers a row, at least for as many blocks as SMs, and 16-bit outputs."""
    outputs = grid.blocks * choice.tile_q * choice.width * np.where(choice.pair, 2, 1) * 2
    total: IntArray = np.maximum(sms, grid.blocks) * choice.tile_q * 8 + outputs
    return total


def _select(problem: FmhaProblem, choice: CubinChoice) -> tuple[CubinChoice, BoolArray]:
    """The kernel of every step from what is decided so far, and whether all kernels tried on the way exist [N]."""
    everything = np.ones(len(problem.batch), dtype=bool)
    if problem.family.mla:
        return (_select_sparse if problem.family.sparse else _select_mla)(problem, choice), everything
    return _select_grouped_query(problem, choice)


def _padded_tile(problem: FmhaProblem) -> int:
    """The tile of an MLA head count that is no tile of its own (getPaddedMlaTileSizeQ); 0 where it is one."""
    g = problem.group
    if not problem.rules.pads_mla_heads or g >= 128 or (g >= 8 and g & (g - 1) == 0):
        return 0
    return max(8, int(next_power_of_2(g)))


def _select_mla(problem: FmhaProblem, choice: CubinChoice) -> CubinChoice:
    g, sms, padded = problem.group, problem.sms, _padded_tile(problem)
    heads = problem.batch * problem.q_len * cdiv(g, 16)
    parts = np.minimum(cdiv(problem.keys, 256), np.maximum(sms // np.maximum(heads, 1), 1))
    little = (cdiv(problem.keys, np.maximum(parts, 1)) <= 1024) & (heads <= sms)
    swaps = np.full_like(little, padded <= 32) if padded else (g <= 32) | little
    keeps = ~swaps
    split = choice.mode > DISABLED
    pair = keeps & (g == 128)
    found = replace(
        choice,
        keeps=keeps,
        tile_q=np.where(swaps, padded or (8 if g <= 8 else 16), 64),
        mode=np.where(keeps & split, GMEM_SEPARATE, choice.mode),
        pair=choice.pair | pair,
        width=np.where(pair, 256, choice.width),
        groups=np.zeros_like(keeps),
    )
    if not problem.rules.groups_mla_tokens or g not in (8, 16, 32):
        return found
    family = problem.family
    together = (problem.q_len > 1) & (problem.batch <= 16) & (family.page_size == 32 and family.qk == 576)
    base = problem.batch * cdiv(problem.q_len * g, 64)
    return where(
        together,
        replace(
            choice,
            keeps=np.ones_like(keeps),
            tile_q=np.full_like(choice.tile_q, 64),
            mode=np.where(split, GMEM_SEPARATE, choice.mode),
            persistent=choice.persistent & ~split,
            forced=np.ones_like(keeps),
            groups=np.ones_like(keeps),
            pair=np.zeros_like(keeps),
            width=np.where(base <= 1, 128, np.where(base <= 4, 256, 512)),
        ),
        found,
    )


def _select_sparse(problem: FmhaProblem, choice: CubinChoice) -> CubinChoice:
    g, padded = problem.group, _padded_tile(problem)
    no = np.zeros(len(problem.batch), dtype=bool)
    if g <= 32:
        selected = cdiv(np.minimum(problem.keys, problem.top_k), 128)
        half = (g // 2 >= 8) & (problem.batch * selected <= problem.sms // 8)
        if problem.rules.short_draft_halves:
            half &= problem.q_len <= 16
        tile = np.full_like(choice.tile_q, padded) if padded else np.where(half, g // 2, g)
        return replace(choice, keeps=no, tile_q=tile, groups=no)
    crowd = problem.batch * (g // 64) * 8 > problem.sms
    pair = (g == 128) & ((problem.q_len > 1) | crowd)
    return replace(
        choice,
        keeps=~no,
        tile_q=np.full_like(choice.tile_q, padded or 64),
        mode=np.where(choice.mode == GMEM, GMEM_SEPARATE, choice.mode),
        pair=choice.pair | pair,
        width=np.where(pair, 256, choice.width),
        groups=no,
    )


def _select_grouped_query(problem: FmhaProblem, choice: CubinChoice) -> tuple[CubinChoice, BoolArray]:
    g, n = problem.group, len(problem.batch)
    everything = np.ones(n, dtype=bool)
    if problem.family.mixed:
        tile = np.full(n, 8 if g <= 8 else 16)
        return replace(choice, tile_q=tile, keeps=~everything, groups=~everything), everything
    rows = g * problem.q_len
    tile = np.select([rows <= 8, rows <= 16, rows <= 32, rows <= 64], [8, 16, 32, 64], 128)
    found = _synced(problem, replace(choice, tile_q=tile, keeps=tile >= 64, groups=everything))
    several = problem.q_len > 1
    if several.any():
        tuned, listed = _tuned_tile(problem, found)
        found, everything = where(several, tuned, found), ~several | listed
    if problem.family.vo > 256:
        found = replace(found, width=np.where(found.keeps, 256, found.width))
    return found, everything


def _synced(problem: FmhaProblem, choice: CubinChoice) -> CubinChoice:
    """Width and reduction that fit the kernel type (syncGqaGenerationTraitsForKernelHash, from 0.7.2 on)."""
    if not problem.rules.wide_keeps:
        return choice
    vo, split = problem.family.vo, choice.mode > DISABLED
    wide = choice.keeps & (vo > 256)
    back = split & (choice.mode == GMEM_SEPARATE)
    return replace(
        choice,
        width=np.where(wide, 256, vo),
        mode=np.where(wide & split, GMEM_SEPARATE, np.where(~wide & back, GMEM, choice.mode)),
    )


def _tuned_tile(problem: FmhaProblem, choice: CubinChoice) -> tuple[CubinChoice, BoolArray]:
    """The query tile of least modelled time where half of the SMs are idle (selectTileSizeQForGqaGeneration).

    What a candidate's grid decides, such as not to split, stays decided for the candidates after it.
    """
    listed = _listed(problem, choice)
    grid, copy, _ = _configure(problem, choice, several=False)
    search = (grid.blocks * 2 <= problem.sms) & (copy.tile_q > 8)
    default, best_tile = copy.tile_q, copy.tile_q
    best = np.full(len(problem.batch), np.finfo(np.float32).max, dtype=np.float32)
    for tile, loop, reduction in TILE_COSTS:
        tried = search & (tile <= default) & (tile >= problem.group)
        if not tried.any():
            continue
        keeps = np.full_like(copy.keeps, tile >= 64)
        candidate = _synced(problem, replace(copy, tile_q=np.full_like(copy.tile_q, tile), keeps=keeps))
        listed &= ~tried | _listed(problem, candidate)
        grid, after, _ = _configure(problem, candidate, several=False)
        copy = where(tried, after, copy)
        step = problem.family.step_kv(keeps)
        keys = (cdiv(cdiv(problem.keys, step), grid.splits) * step).astype(np.float32)
        merging = np.float32(reduction) * np.float32(128.0) * grid.splits.astype(np.float32)
        time = np.float32(loop) * keys + merging
        time = time * cdiv(grid.blocks, problem.sms).astype(np.float32)
        better = tried & (time < best)
        best, best_tile = np.where(better, time, best), np.where(better, tile, best_tile)
    tuned = _synced(problem, replace(choice, tile_q=best_tile, keeps=best_tile >= 64))
    return where(search, tuned, choice), listed


def _configure(problem: FmhaProblem, choice: CubinChoice, *, several: bool) -> tuple[Grid, CubinChoice, BoolArray]:
    """Grid and split under a choice, the choice that they lead to, and whether another kernel has to be selected.

    several: the rule for several waves may be used (computeCtaAndClusterConfig).
    """
    family, rules, g = problem.family, problem.rules, problem.group
    per_tile = np.maximum(choice.tile_q // g, 1)
    ctas_q = np.where(choice.groups, cdiv(problem.q_len, per_tile), problem.q_len)
    ctas_q = np.where(problem.q_len > 1, ctas_q, cdiv(problem.q_len, choice.tile_q))
    heads = np.minimum(g, choice.tile_q)
    all_heads = problem.q_heads // heads
    y = all_heads * (family.vo // choice.width)
    x = ctas_q * np.where(choice.pair, 2, 1)
    y = np.where(choice.pair, np.maximum(y // 4, 1), y)
    z = problem.batch

    step = family.step_kv(choice.keeps)
    seen = problem.keys
    if problem.top_k:
        seen = np.minimum(seen, problem.top_k)
    if problem.window is not None:
        seen = np.where(problem.sliding, np.minimum(seen, problem.window + step - 1), seen)
    split = choice.mode > DISABLED
    most = cdiv(seen, 2 * step)
    base = np.maximum(x * y * z, 1)
    one_wave = problem.sms // base
    splits = np.minimum(most, np.maximum(one_wave, 1))
    waves = np.zeros_like(split)
    if several and not family.mla:
        counters = cdiv(np.maximum(z * problem.q_heads, problem.sms), 8) * 8
        allowed = split & (one_wave <= 2) & (base <= counters)
        more = np.minimum(most, np.maximum(WAVES * problem.sms // base, 1))
        waves = allowed & (more != splits)
        splits = np.where(waves, more, splits)
    alone = problem.one_request
    if rules.clamps_to_cluster:
        clamp = (
            (splits > MOST_CLUSTER)
            & ((problem.q_len == 1) | (family.vo != 256))
            & (family.vo < 512)
            & ~alone
            & ~choice.forced
            & ~choice.keeps
            & (cdiv(seen, MOST_CLUSTER) <= CLAMP_KEYS)
            & ((choice.mode == CGA) | (choice.mode == GMEM))
        )
        splits = np.where(clamp, MOST_CLUSTER, splits)
    splits = np.where(split, splits, 1)
    x = x * splits
    unsplit = split & (splits <= 1)
    may = (family.vo < 512) & ~alone
    if rules.cluster_for_one_mla_request:
        may |= (
            alone
            & (problem.q_len == 1)
            & (family.page_size == 32 and not family.sparse)
            & (choice.width == 128)
            & (choice.tile_q == 16)
        )
    cga = split & ~unsplit & may & (splits <= MOST_CLUSTER) & ~choice.keeps & (choice.mode == GMEM) & ~choice.forced
    mode = np.where(unsplit, DISABLED, np.where(cga, CGA, choice.mode))
    again = unsplit | cga
    cluster = np.where(choice.pair, 2, 1) * np.where(mode == CGA, splits, 1)

    # Values of MLA are shared out over blocks where SMs are still idle.
    width = choice.width
    if family.mla:
        factor = np.where(alone, 1, 2)
        total = x * y * z
        grouped = choice.groups if rules.groups_mla_tokens else np.zeros_like(split)
        share = ~grouped & ~again & ~choice.pair & (width == 512) & (total * factor <= problem.sms)
        width = np.where(share, np.where(total * 2 * factor <= problem.sms, 128, 256), width)
        again |= share
    grid = Grid(
        ctas_q=ctas_q,
        splits=splits,
        x=x,
        y=y,
        z=z,
        cluster=cluster,
        wanted=np.maximum(one_wave, 1),
        most=most,
        several_waves=waves,
        uneven=heads * all_heads != problem.q_heads,
    )
    after = replace(choice, mode=mode, persistent=choice.persistent | unsplit, width=width)
    return grid, after, again
