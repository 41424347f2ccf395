"""The list schedule, against its closed form and its bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.model import uniform_chain
from decodecalc.cost.rates import Rates
from decodecalc.cost.schedule import Blocks, launch_order, makespan, timeline

BASE: dict[str, Any] = {
    "sm_count": 4, "slots": 8, "launch_s": 0, "launch_block_s": 0, "gap_s": 0, "hbm_bytes_per_s": 1e12,
    "l2_bytes_per_s": 1e12, "l2_capacity_bytes": 1e6, "peak_flop_per_s": 1e15, "exponent": 2.0, "fixed_s": 0,
    "refill_s": 0.25, "row_s": 0, "tau_s": 1.0, "tau_sm_s": 0, "merge_fixed_s": 0, "merge_per_split_s": 0,
    "warm": False, "half_width": 0,
}  # fmt: skip
rate_sets = st.builds(lambda slots, refill: Rates(**{**BASE, "slots": slots, "refill_s": refill}),
                      st.integers(1, 40), st.floats(0, 3))  # fmt: skip
tile_lists = st.lists(st.integers(1, 50), min_size=1, max_size=120).map(lambda x: np.array(x, dtype=np.int64))


def blocks_of(tiles: Any) -> Blocks:
    """Blocks of one request each."""
    return Blocks(tiles, np.arange(len(tiles)), np.zeros(len(tiles), dtype=np.int64))


@given(rate_sets, st.integers(1, 400), st.integers(1, 60))
def test_equal_blocks_have_the_closed_form(rates: Rates, n: int, tiles: int) -> None:
    """Where every block is alike, the list schedule is whole waves."""
    even_blocks = np.full(n, tiles, dtype=np.int64)
    assert makespan(even_blocks, rates) == pytest.approx(uniform_chain(n, tiles, rates))
    ends = [slot.end_s for slot in timeline(blocks_of(even_blocks), rates)]
    assert max(ends) == pytest.approx(makespan(even_blocks, rates)[0])


@given(rate_sets, tile_lists)
def test_the_makespan_lies_between_the_even_spread_and_graham_s_bound(rates: Rates, tiles: Any) -> None:
    """Never below the even spread or the longest block; never above average load plus one block (Graham 1966)."""
    chain, even = makespan(tiles, rates)
    longest = float(tiles.max())
    assert even <= chain * (1 + 1e-12)
    assert chain >= longest
    refills = max(len(tiles) - rates.slots, 0) * rates.refill_s
    assert chain <= (float(tiles.sum()) + refills) / rates.slots + longest + rates.refill_s + 1e-9


@given(rate_sets, tile_lists)
def test_the_timeline_is_a_schedule(rates: Rates, tiles: Any) -> None:
    """Every block runs once, no slot runs two at a time, blocks start in launch order, the last end is the makespan."""
    slots = list(timeline(blocks_of(tiles), rates))
    assert [s.request for s in slots] == list(range(len(tiles)))
    starts = [s.start_s for s in slots]
    assert starts == sorted(starts)
    by_slot: dict[int, float] = {}
    for s in slots:
        assert s.start_s >= by_slot.get(s.slot, 0.0) - 1e-9
        assert 0 <= s.slot < rates.slots
        by_slot[s.slot] = s.end_s
    assert max(by_slot.values()) == pytest.approx(makespan(tiles, rates)[0])


@given(rate_sets, tile_lists, st.integers(1, 20))
def test_more_slots_never_delay_the_end(rates: Rates, tiles: Any, more: int) -> None:
    """Independent blocks in a fixed order have no scheduling anomaly."""
    assert makespan(tiles, replace(rates, slots=rates.slots + more))[0] <= makespan(tiles, rates)[0] * (1 + 1e-12)


@given(rate_sets, tile_lists, st.integers(0, 119), st.integers(1, 9))
def test_a_longer_block_never_ends_the_launch_sooner(rates: Rates, tiles: Any, at: int, longer: int) -> None:
    """More keys in one request cannot shorten the schedule."""
    grown = tiles.copy()
    grown[at % len(tiles)] += longer
    assert makespan(grown, rates)[0] >= makespan(tiles, rates)[0] * (1 - 1e-12)


def test_stretching_keeps_the_shape_and_moves_the_end() -> None:
    """A timeline stretched to 30 s ends at 30 s, each block with its share."""
    rates = Rates(**{**BASE, "slots": 2, "refill_s": 0.0})
    slots = list(timeline(blocks_of(np.array([4, 2, 4])), rates, body_s=30.0))
    assert [(s.slot, s.start_s, s.end_s) for s in slots] == [(0, 0.0, 20.0), (1, 0.0, 10.0), (1, 10.0, 30.0)]


def test_launch_order_walks_every_live_split_of_a_ragged_plan() -> None:
    """vLLM, 32/8, requests of 100 and 1000 keys: blocks times tiles cover each request's keys, splits outermost."""
    plan = dc.plan("vllm-triton", dc.Geometry(32, 8, 128), dc.Batch([100, 1000]), gpu="h200-sxm")
    blocks = launch_order(plan)
    assert len(blocks.tiles) == plan.live_blocks
    assert (np.diff(blocks.split) >= 0).all()
    for r, length in enumerate((100, 1000)):
        tiles = blocks.tiles[blocks.request == r].sum() / 8
        assert -(-length // plan.tile_keys) <= tiles <= -(-length // plan.tile_keys) + plan.splits.live[r]


def test_an_empty_request_has_no_blocks() -> None:
    """A request without keys launches nothing that lasts."""
    plan = dc.plan("vllm-triton", dc.Geometry(32, 8, 128), dc.Batch([0, 64]), gpu="h200-sxm")
    assert set(launch_order(plan).request.tolist()) == {1}
    assert makespan(np.zeros(0, dtype=np.int64), Rates(**BASE)) == (0.0, 0.0)
