"""Which blocks a launch has, in closed form and one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.cuts import Cuts, alike, cuts_of
from decodecalc.cost.own_launch import equal_splits
from decodecalc.engines import load_policy
from decodecalc.errors import DecodecalcError
from decodecalc.launch.arrays import Batches, plan_arrays
from decodecalc.launch.plan import LaunchPlan


def cuts(plan: LaunchPlan, tile_keys: int | None = None) -> Cuts:
    """The plan's partition in its own tiles, or in others."""
    batches, found = plan_arrays(plan)
    return cuts_of(batches, found, tile_keys or found.tile_keys)


def totals_of(tiles: Any) -> tuple[int, ...]:
    """What `Cuts.totals` says of blocks with these tiles."""
    working = tiles[tiles > 0]
    most = int(working.max(initial=0))
    short = working[working < most]
    return len(working), most, int(working.sum()), len(short), int(short.sum())


def drawn_plan(data: Any, engine: str) -> LaunchPlan | None:
    """A plan of the engine for any shape, window and batch; None where it refuses."""
    mla = engine in ("flashmla", "vllm-triton-mla")
    geo = data.draw(strategies.mla_geometries() if mla else strategies.geometries(windows=True))
    batch = data.draw(strategies.batches(max_q_len=2))
    gpu = "mi300x" if engine in ("rocm-paged", "aiter-unified") else "h200"
    kv = dc.KvCache(page_size={"flashmla": 64, "flash-attention-2": 256}.get(engine, 16))
    try:
        return load_policy(engine).plan(geo, batch, kv, dc.load_gpu(gpu))
    except DecodecalcError:
        return None


@pytest.mark.parametrize("engine", dc.engine_names())
@given(data=st.data(), tile=st.sampled_from([None, 16, 64, 128]))
@settings(max_examples=12, deadline=None)
def test_the_closed_form_counts_the_blocks_that_are_listed(engine: str, data: Any, tile: int | None) -> None:
    """Blocks, tiles of the longest, all tiles and the short blocks agree with the list of every block, in the engine's
    own tiles and in another kernel's, whatever the window and wherever the splits lie."""
    plan = drawn_plan(data, engine)
    if plan is not None:
        found = cuts(plan, tile)
        assert tuple(int(column[0]) for column in found.totals()) == totals_of(found.order(0).tiles)


@pytest.mark.parametrize("engine", dc.engine_names())
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_blocks_walk_what_the_plan_says(engine: str, data: Any) -> None:
    """Each request's working splits are the plan's, and their tiles hold at least its visible keys."""
    plan = drawn_plan(data, engine)
    if plan is None:
        return
    found = cuts(plan)
    blocks = found.order(0)
    if found.pieces_in_turn is not None:  # a persistent block walks pieces of several requests: only sums can be held
        keys = [sum(plan.splits.key_counts(r)) for r in range(plan.batch.size)]
        walked = sum(n * blocks for n, blocks in zip(keys, plan.blocks_per_split))
        assert int(blocks.tiles.sum()) * plan.tile_keys >= walked
        return
    for r, (length, queries) in enumerate(zip(plan.batch.seq_lens, plan.batch.q_lens)):
        mine = (blocks.request == r) & (blocks.tiles > 0)
        assert len(set(blocks.split[mine].tolist())) == plan.splits.working[r]
        assert int(mine.sum()) == plan.splits.working[r] * plan.blocks_per_split[r]
        window = plan.geometry.window
        seen = length if window is None else min(length, window + queries - 1)
        left_out = 1 if plan.engine == "sglang-triton" else 0  # its kernels read one key less of a window
        assert blocks.tiles[mine].sum() * plan.tile_keys >= (seen - left_out) * plan.blocks_per_split[r]


def test_launch_order_walks_every_live_split_of_a_ragged_plan() -> None:
    """vLLM, 32/8, requests of 100 and 1000 keys: blocks times tiles cover each request's keys, splits outermost; every
    split of the grid is there, those without keys with no tiles."""
    plan = dc.plan("vllm-triton", dc.Geometry(32, 8, 128), dc.Batch([100, 1000]), gpu="h200-sxm")
    blocks = cuts(plan).order(0)
    assert len(blocks.tiles) == 8 * 2 * plan.splits.launched
    assert (blocks.tiles > 0).sum() == plan.live_blocks
    assert (np.diff(blocks.split) >= 0).all()
    for r, length in enumerate((100, 1000)):
        tiles = blocks.tiles[blocks.request == r].sum() / 8
        assert -(-length // plan.tile_keys) <= tiles <= -(-length // plan.tile_keys) + plan.splits.live[r]


@pytest.mark.parametrize(("engine", "page"), [("flashmla", 64), ("sglang-triton", 16)])
def test_a_class_of_equal_requests_is_cut_like_the_requests_written_out(engine: str, page: int) -> None:
    """Work that is dealt to the SMs in turn cuts equal requests in different places: 20 as one class are the 20."""
    geo = dc.Geometry(16, 1, 576, 512, mla=True)
    gpu = dc.load_gpu("h200" if engine == "flashmla" else "mi300x")
    policy, kv = load_policy(engine), dc.KvCache(page_size=page)

    def tiles(batches: Batches) -> list[int]:
        found = policy.launches(geo, batches, kv, gpu, policy.options_type(), policy.version())
        walked = cuts_of(batches, found, found.tile_keys).order(0).tiles
        return sorted(walked[walked > 0].tolist())

    assert tiles(Batches.uniform(20, 5000)) == tiles(Batches.single(dc.Batch.uniform(20, 5000)))


@given(
    keys=st.integers(0, 5000), live=st.integers(1, 40), piece=st.sampled_from([16, 64, 128]),
    tile=st.sampled_from([16, 32, 64]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_pieces_dealt_in_turn_have_a_closed_form_too(keys: int, live: int, piece: int, tile: int) -> None:
    """Splits that take every n-th piece: what three kinds of splits come to is what all of them are, one by one."""
    from dataclasses import replace

    batches = Batches.uniform(3, keys)
    live = min(live, max(-(-keys // piece), 1))
    base = equal_splits(dc.Geometry(8, 2, 128), batches, np.array([max(keys, 1)]), tile, 16)
    found = replace(
        base, live=np.array([[live]]), launched=np.array([live]), interleave_keys=np.array([piece]), keys_read=None
    )
    walked = cuts_of(batches, found, tile)
    blocks = walked.order(0)
    assert tuple(int(column[0]) for column in walked.totals()) == totals_of(blocks.tiles)
    pieces = [[min(piece, keys - start) for start in range(i * piece, keys, live * piece)] for i in range(live)]
    expected = [-(-sum(own) // tile) for own in pieces for _ in range(3 * 2)]
    assert blocks.tiles.tolist() == expected


def test_requests_are_alike_when_the_present_ones_are() -> None:
    """A class without requests does not count; another length or draft does."""
    lens, q_lens = np.array([[5, 5], [5, 9], [5, 9], [5, 5]]), np.array([[1, 1], [1, 1], [1, 1], [1, 2]])
    counts = np.array([[1, 3], [1, 3], [0, 3], [1, 3]])
    assert alike(Batches(lens, q_lens, counts)).tolist() == [True, False, True, False]


def test_a_persistent_block_walks_its_pieces_one_after_another() -> None:
    """FlashMLA's parts are as many blocks, with the tiles of all their pieces and two more for each further piece."""
    lens = [64 * n for n in (3, 40, 7, 7, 100, 1)]
    plan = dc.plan(
        "flashmla", dc.Geometry(64, 1, 576, head_dim_v=512, mla=True), dc.Batch(lens), kv=dc.KvCache(page_size=64),
        gpu="h200",
    )  # fmt: skip
    assert plan.pieces_in_turn is not None
    found = cuts(plan)
    order = found.order(0)
    extra = sum(plan.pieces_in_turn) - len(plan.pieces_in_turn)
    assert len(order.tiles) == len(plan.pieces_in_turn)
    assert int(order.tiles.sum()) == sum(n // 64 for n in lens) + 2 * extra
    assert tuple(int(x[0]) for x in found.totals()) == totals_of(order.tiles)


def test_a_scheduler_hands_out_blocks_request_by_request() -> None:
    """The same blocks in another order; none without work."""
    plan = dc.plan("flash-attention-3", dc.Geometry(32, 8, 128), dc.Batch([9000, 300, 20_000]), gpu="h200")
    batches, found = plan_arrays(plan)
    by_split = cuts_of(batches, found, found.tile_keys).order(0)
    by_request = cuts_of(batches, found, found.tile_keys, by_request=True).order(0)
    assert sorted(by_request.tiles) == sorted(by_split.tiles[by_split.tiles > 0])
    assert (np.diff(by_request.request) >= 0).all()


@given(st.lists(st.integers(1, 30_000), min_size=2, max_size=6).filter(lambda lens: len(set(lens)) > 1))
@settings(max_examples=30, deadline=None)
def test_a_listed_launch_has_whole_splits_first_and_then_the_last_ones_by_length(lens: list[int]) -> None:
    """The blocks are those of the grid that have work; no block is longer than one that began before it."""
    plan = dc.plan("bundled", dc.Geometry(16, 2, 128), dc.Batch(lens), gpu="h200", split_keys=1024, tile_keys=64)
    batches, found = plan_arrays(plan)
    listed = cuts_of(batches, found, 64).order(0)
    grid = cuts_of(batches, replace(found, listed=False), 64).order(0)
    working = grid.tiles > 0
    if plan.listed:
        assert (np.diff(listed.tiles) <= 0).all()
        assert (listed.tiles > 0).all()
    assert sorted(zip(listed.request, listed.split, listed.tiles)) == sorted(
        zip(grid.request[working], grid.split[working], grid.tiles[working])
    )
