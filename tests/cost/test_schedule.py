"""The list schedule, against its closed form and its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.cuts import cuts_of
from decodecalc.cost.model import Bodies, Work, uniform_bodies
from decodecalc.cost.rates import Rates
from decodecalc.cost.schedule import Blocks, list_schedule, ragged_bodies, timeline
from decodecalc.launch.arrays import plan_arrays

BASE: dict[str, Any] = {
    "sm_count": 4, "slots": 8, "launch_s": 0, "launch_block_s": 0, "gap_s": 0, "hbm_bytes_per_s": 1.0,
    "l2_bytes_per_s": 3.0, "l2_capacity_bytes": 1e6, "peak_flop_per_s": 1e15, "exponent": 2.0, "refill_s": 0.25,
    "row_s": 0, "blocks": (1.0, 4.0, 40.0), "latency_s": (0.5, 1.0, 5.0), "starts_s": ((0.0, 0.0, 0.0),) * 5,
    "merge_rows": (1.0, 2.0), "merge_splits": (1.0, 2.0), "merge_s": (0.0,) * 4, "warm": False,
    "half_width": 0,
    "half_width_ragged": 0,
}  # fmt: skip
rate_sets = st.builds(
    lambda per_sm, refill, p, bandwidth: Rates(
        **{**BASE, "slots": 4 * per_sm, "refill_s": refill, "exponent": p, "hbm_bytes_per_s": bandwidth}
    ),
    st.integers(1, 10),
    st.floats(0, 3),
    st.floats(1, 8),
    st.floats(0.01, 100),
)
tile_lists = st.lists(st.integers(1, 50), min_size=1, max_size=120).map(lambda x: np.array(x, dtype=np.int64))


def work_of(tiles: Any) -> Work:
    """Blocks with these tiles, a byte each."""
    total, n = int(tiles.sum()), int((tiles > 0).sum())
    return Work(n, n, int(tiles.max()), total, total, total, total, len(tiles), False, 1, 0, 0, 0)


def blocks_of(tiles: Any) -> Blocks:
    """Blocks of one request each."""
    return Blocks(tiles, np.arange(len(tiles)), np.zeros(len(tiles), dtype=np.int64))


@given(rate_sets, st.integers(1, 400), st.integers(1, 60))
def test_equal_blocks_have_the_closed_form(rates: Rates, n: int, tiles: int) -> None:
    """Where every block is alike, the list schedule is whole waves."""
    equal = np.full(n, tiles, dtype=np.int64)
    closed, ragged = uniform_bodies(work_of(equal), rates), ragged_bodies(equal, work_of(equal), rates)
    for name in Bodies._fields:
        assert float(getattr(ragged, name)) == pytest.approx(float(getattr(closed, name)), rel=1e-6), name


@given(rate_sets, st.integers(1, 40), st.integers(1, 20), st.integers(2, 60), st.data())
def test_short_last_splits_have_the_closed_form_too(
    rates: Rates, whole: int, short: int, tiles: int, data: st.DataObject
) -> None:
    """Up to one block an SM the two agree; beyond, the closed form lies between all blocks whole and none short."""
    part = data.draw(st.integers(1, tiles - 1))
    mixed = np.array([tiles] * whole + [part] * short, dtype=np.int64)
    work = work_of(mixed)._replace(short_blocks=short, short_tiles=part)
    closed = float(uniform_bodies(work, rates).scheduled_s)
    if whole + short <= rates.sm_count:
        assert closed == pytest.approx(float(ragged_bodies(mixed, work, rates).scheduled_s), rel=1e-6)
    if whole + short <= rates.slots:
        none, all_whole = np.full(whole, tiles), np.full(whole + short, tiles)
        low, high = (float(uniform_bodies(work_of(t), rates).scheduled_s) for t in (none, all_whole))
        assert low * (1 - 1e-9) <= closed <= high * (1 + 1e-9)


@given(tile_lists, st.integers(1, 40))
def test_the_makespan_lies_between_the_even_spread_and_graham_s_bound(tiles: Any, slots: int) -> None:
    """Never below the even spread or the longest block; never above average load plus one block (Graham 1966)."""
    makespan, longest, load = max(list_schedule(tiles.astype(float), slots).end), tiles.max(), tiles.sum() / slots
    assert max(load, longest) * (1 - 1e-12) <= makespan <= load + longest


@given(tile_lists, st.integers(1, 40), st.integers(1, 20))
def test_more_slots_never_delay_the_end(tiles: Any, slots: int, more: int) -> None:
    """Independent blocks in a fixed order have no scheduling anomaly."""
    durations = tiles.astype(float)
    assert max(list_schedule(durations, slots + more).end) <= max(list_schedule(durations, slots).end)


@given(rate_sets, tile_lists)
def test_the_timeline_is_a_schedule(rates: Rates, tiles: Any) -> None:
    """Every block runs once, no slot runs two at a time, blocks start in launch order, the last end is stage 1's."""
    slots = list(timeline(blocks_of(tiles), work_of(tiles), rates))
    assert [s.request for s in slots] == list(range(len(tiles)))
    starts = [s.start_s for s in slots]
    assert starts == sorted(starts)
    by_slot: dict[int, float] = {}
    for s in slots:
        assert s.start_s >= by_slot.get(s.slot, 0.0) - 1e-9
        assert 0 <= s.slot < rates.slots
        by_slot[s.slot] = s.end_s
    body = ragged_bodies(tiles, work_of(tiles), rates)
    assert max(by_slot.values()) == pytest.approx(body.scheduled_s)
    assert body.scheduled_s >= body.even_s * (1 - 1e-9) >= body.no_compute_s * (1 - 1e-6)


@given(rate_sets, tile_lists, st.floats(1, 5))
def test_more_bandwidth_never_hurts_a_ragged_launch(rates: Rates, tiles: Any, faster: float) -> None:
    """Every interval of the schedule stretches less."""
    wider = rates._replace(hbm_bytes_per_s=rates.hbm_bytes_per_s * faster)
    work = work_of(tiles)
    assert ragged_bodies(tiles, work, wider).scheduled_s <= ragged_bodies(tiles, work, rates).scheduled_s * (1 + 1e-9)


@given(rate_sets, tile_lists, st.integers(0, 119), st.integers(1, 9))
def test_a_longer_block_never_ends_the_schedule_sooner(rates: Rates, tiles: Any, at: int, longer: int) -> None:
    """More keys in one request cannot shorten the schedule."""
    grown = tiles.copy()
    grown[at % len(tiles)] += longer
    assert max(list_schedule(grown * 1.0, rates.slots).end) >= max(list_schedule(tiles * 1.0, rates.slots).end)


def test_one_long_request_sets_the_end_by_its_own_latency() -> None:
    """Seven short blocks and one of 100 tiles on 8 slots: the long one streams on alone, little more than a lone
    block's latency for each tile."""
    rates = Rates(**{**BASE, "hbm_bytes_per_s": 100.0, "l2_bytes_per_s": 100.0, "refill_s": 0.0})
    tiles = np.array([100, 1, 1, 1, 1, 1, 1, 1])
    assert ragged_bodies(tiles, work_of(tiles), rates).scheduled_s == pytest.approx(50.0, rel=0.03)


def test_blocks_without_work_between_the_others_crowd_some_sms() -> None:
    """Four blocks of 50 tiles on four SMs of two slots: one on each as they are, but two on each of two when blocks
    that leave at once lie between them. The device did so with SGLang's grid of a ragged batch."""
    rates = Rates(**{**BASE, "hbm_bytes_per_s": 1e6, "l2_bytes_per_s": 1e6, "refill_s": 0.0})
    even, between = np.full(4, 50), np.array([50, 50, 0, 0, 50, 50, 0, 0])
    alone, crowded = (ragged_bodies(t, work_of(t), rates).scheduled_s for t in (even, between))
    assert alone == pytest.approx(50.0, rel=0.01)
    # Two a SM: as with 4 x 1.03 of at most 40 blocks at work.
    assert crowded == pytest.approx(50 * np.interp(4.12, (4, 40), (1, 5)), rel=0.01)
    assert [s.slot % 4 for s in timeline(blocks_of(between), work_of(between), rates)] == [0, 1, 0, 1]


@given(rate_sets, tile_lists, st.lists(st.integers(0, 119), max_size=40))
def test_blocks_without_work_never_help(rates: Rates, tiles: Any, places: list[int]) -> None:
    """Wherever they lie, a launch with blocks that leave at once is bounded below by its work spread evenly."""
    mixed = tiles.copy()
    for place in places:
        mixed = np.insert(mixed, place % (len(mixed) + 1), 0)
    plain, found = (ragged_bodies(t, work_of(t), rates) for t in (tiles, mixed))
    assert found.scheduled_s >= found.even_s * (1 - 1e-9)
    assert found.even_s == pytest.approx(plain.even_s)


def test_an_empty_request_has_no_blocks() -> None:
    """A request without keys launches nothing that lasts."""
    batches, found = plan_arrays(dc.plan("vllm-triton", dc.Geometry(32, 8, 128), dc.Batch([0, 64]), gpu="h200-sxm"))
    blocks = cuts_of(batches, found, found.tile_keys).order(0)
    assert set(blocks.request[blocks.tiles > 0].tolist()) == {1}
    nothing = np.zeros(0, dtype=np.int64)
    assert list(timeline(blocks_of(nothing), work_of(np.array([1])), Rates(**BASE))) == []
    assert ragged_bodies(nothing, work_of(np.array([1])), Rates(**BASE)).scheduled_s == 0.0
