"""The time model's laws, on arrays of made-up work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.cost.model import (
    Work,
    idle_time,
    latency,
    merge_time,
    start_time,
    step_terms,
    stream_time,
    uniform_bodies,
)
from decodecalc.cost.parameters import START_TILES
from decodecalc.cost.rates import Rates

times = st.floats(1e-9, 1e-4)


def rising(values: Any) -> Any:
    """Lists of the values that do not fall."""
    return st.lists(values, min_size=3, max_size=3).map(lambda x: tuple(sorted(x)))


@st.composite
def rate_sets(draw: Any) -> Rates:
    """Any device and kernel that could exist: what a tile and a start take rises with the blocks at work."""
    sms = draw(st.integers(1, 304))
    slots_per_sm = draw(st.integers(1, 8))
    low = draw(rising(times))
    return Rates(
        sm_count=sms,
        slots=sms * slots_per_sm,
        launch_s=draw(times),
        launch_block_s=draw(st.floats(0, 1e-8)),
        gap_s=draw(times),
        hbm_bytes_per_s=draw(st.floats(1e11, 1e13)),
        l2_bytes_per_s=draw(st.floats(1e12, 5e13)),
        l2_capacity_bytes=draw(st.floats(1e6, 3e8)),
        peak_flop_per_s=draw(st.floats(1e13, 3e15)),
        exponent=draw(st.floats(1.0, 8.0)),
        refill_s=draw(times),
        row_s=draw(st.floats(0, 1e-8)),
        blocks=(1.0, float(sms + 1), float(sms * slots_per_sm + 2)),
        latency_s=draw(rising(times)),
        starts_s=tuple(tuple(x * (1 + i / 4) for x in low) for i in range(len(START_TILES))),
        merge_rows=(8.0, 512.0),
        merge_splits=(2.0, 64.0),
        merge_s=sum(sorted(draw(st.lists(rising(times).map(lambda x: x[:2]), min_size=2, max_size=2))), ()),
        warm=draw(st.booleans()),
        half_width=0.1,
        half_width_ragged=0.1,
    )


def uniform_work(blocks: Any, tiles: Any, tile_bytes: float = 32768.0, splits: Any = 1) -> Work:
    """Equal blocks of `tiles` tiles each."""
    total = np.asarray(blocks) * tiles
    return Work(
        blocks=blocks,
        started=blocks,
        tiles=tiles,
        tiles_total=total,
        hbm_bytes=total * tile_bytes,
        requested_bytes=total * tile_bytes,
        flop=total * 1e6,
        launched_blocks=blocks,
        is_split=np.asarray(splits) > 1,
        live_splits=splits,
        states=32 * np.asarray(splits),
        merge_bytes=np.asarray(splits) * 520.0 * 32 * (np.asarray(splits) > 1),
        merge_rows=32,
    )


def total(work: Work, rates: Rates) -> Any:
    """Time of equal blocks."""
    return step_terms(work, uniform_bodies(work, rates), rates).total_s


@given(rate_sets(), st.integers(0, 5000), st.integers(1, 500), st.integers(1, 64), st.booleans())
def test_terms_are_never_negative_and_add_up(rates: Rates, blocks: int, tiles: int, splits: int, crawls: bool) -> None:
    """Every term is a share of the total: none below zero, and the total is their sum. A memory of a few bytes a
    second, as a damaged calibration may state it, leaves the other terms nothing but rounding."""
    rates = rates._replace(hbm_bytes_per_s=3.5) if crawls else rates
    work = uniform_work(blocks, tiles if blocks else 0, splits=splits)
    terms = step_terms(work, uniform_bodies(work, rates), rates)
    values = [float(value) for value in terms]
    assert min(values) >= 0
    assert float(terms.total_s) == pytest.approx(sum(values))


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.floats(0, 1), st.integers(1, 16))
def test_blocks_with_the_same_keys_share_their_first_loads(
    r: Rates, blocks: int, tiles: int, shared: float, readers: int
) -> None:
    """Where each key is asked for by several blocks, `start_shared` of a start counts once for all of them."""
    work = uniform_work(blocks, tiles)
    several = work._replace(hbm_bytes=work.requested_bytes / readers)
    sharing = r._replace(start_shared=shared)
    alone, together = (float(step_terms(w, uniform_bodies(w, r), sharing).fixed_s) for w in (work, several))
    assert alone == pytest.approx(float(step_terms(work, uniform_bodies(work, r), r).fixed_s))
    assert together == pytest.approx(alone * (1 - shared + shared / readers), abs=1e-18)


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(1, 40), st.integers(1, 40))
def test_time_does_not_fall_when_keys_or_batch_grow(r: Rates, blocks: int, tiles: int, more: int, longer: int) -> None:
    """At a fixed split count, more blocks (batch, heads) or more tiles per block (keys) never take less time."""
    base = total(uniform_work(blocks, tiles), r)
    assert total(uniform_work(blocks + more, tiles), r) >= base * (1 - 1e-9)
    assert total(uniform_work(blocks, tiles + longer), r) >= base * (1 - 1e-9)


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(1, 64), st.floats(1, 4))
def test_more_bandwidth_never_hurts(r: Rates, blocks: int, tiles: int, splits: int, faster: float) -> None:
    """For a fixed launch, faster memory and L2 never make it slower."""
    work = uniform_work(blocks, tiles, splits=splits)
    wider = r._replace(hbm_bytes_per_s=r.hbm_bytes_per_s * faster, l2_bytes_per_s=r.l2_bytes_per_s * faster)
    assert total(work, wider) <= total(work, r) * (1 + 1e-9)


def with_sms(r: Rates, sms: int) -> Rates:
    """The same device with another number of SMs: its curves at the same number of blocks per SM."""
    ratio = sms / r.sm_count
    return r._replace(sm_count=sms, slots=sms * (r.slots // r.sm_count), blocks=tuple(k * ratio for k in r.blocks))


def even(r: Rates) -> Rates:
    """The same with starts that cost the same however many start."""
    return r._replace(starts_s=tuple((s[0],) * len(s) for s in r.starts_s))


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(2, 4))
def test_a_multiple_of_the_sms_never_hurts(r: Rates, blocks: int, tiles: int, times: int) -> None:
    """For a fixed launch, twice (three, four times) the SMs never make it slower, but for more blocks starting at
    once."""
    work = uniform_work(blocks, tiles)
    assert total(work, with_sms(even(r), r.sm_count * times)) <= total(work, even(r)) * (1 + 1e-9)


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(1, 200))
def test_sms_enough_for_one_wave_never_hurt(r: Rates, blocks: int, tiles: int, more: int) -> None:
    """A device that gives every block an SM is never slower than one that does not; nor is one larger still."""
    work, calm = uniform_work(blocks, tiles), even(r)
    enough = max(blocks, r.sm_count)
    whole = total(work, with_sms(calm, enough))
    assert whole <= total(work, calm) * (1 + 1e-9)
    assert total(work, with_sms(calm, enough + more)) <= whole * (1 + 1e-9)


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(1, 200))
def test_any_more_sms_hurt_by_no_more_than_an_exposed_last_wave(r: Rates, blocks: int, tiles: int, more: int) -> None:
    """In between, a shorter last wave may be exposed: never by more than one block's time among as many as fit."""
    work, calm = uniform_work(blocks, tiles), even(r)
    alone = tiles * r.latency_s[-1] + r.refill_s
    assert total(work, with_sms(calm, r.sm_count + more)) <= total(work, calm) * (1 + 1e-9) + alone


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300))
def test_one_more_tile_or_block_costs_no_more_than_it_explains(r: Rates, blocks: int, tiles: int) -> None:
    """One more tile per block adds at most a tile in every wave, its bytes and FLOP, and what the start grows by; one
    more block at most one wave edge: a block's own time, and its crowding of the others."""
    cold = r._replace(warm=False)
    base = total(uniform_work(blocks, tiles), cold)
    waves = -(-blocks // r.slots)
    slowest = r.latency_s[-1]
    tile_s = 32768.0 / min(r.hbm_bytes_per_s, r.l2_bytes_per_s) + 1e6 / r.peak_flop_per_s
    start = float(start_time(blocks, tiles + 1, cold) - start_time(blocks, tiles, cold))
    tile = waves * slowest + blocks * tile_s + max(start, 0.0)
    assert total(uniform_work(blocks, tiles + 1), cold) - base <= tile * (1 + 1e-6)
    edge = tiles * (slowest + tile_s) + r.refill_s + r.launch_block_s
    start = float(start_time(blocks + 1, tiles, cold) - start_time(blocks, tiles, cold))
    left, full = blocks % r.slots, min(blocks, r.slots)
    crowding = sum(waves * tiles * float(latency(min(k + 1, r.slots), cold) - latency(k, cold)) for k in {left, full})
    assert total(uniform_work(blocks + 1, tiles), cold) - base <= (edge + crowding + max(start, 0.0)) * (1 + 1e-6)


def test_whole_waves(rates: Rates) -> None:
    """200 slots: 200 equal blocks take one wave, 201 take two; the last one by itself waits for latency alone, and
    refills one slot of 200."""
    calm = rates._replace(exponent=20.0)
    one, two = (float(uniform_bodies(uniform_work(n, 10, 1.0), calm).scheduled_s) for n in (200, 201))
    assert one == pytest.approx(10 * 1.4e-6, rel=1e-3)
    assert two == pytest.approx(one + 0.5e-6 / 200 + 10 * float(latency(1, rates)), rel=1e-3)


def test_tiles_slow_down_as_the_device_fills(rates: Rates) -> None:
    """Between the knots by straight lines."""
    assert latency(np.array([1, 50.5, 100, 150, 200]), rates) == pytest.approx([0.4e-6, 0.6e-6, 0.8e-6, 1.1e-6, 1.4e-6])


def test_blocks_that_share_an_sm_slow_each_other_where_others_are_idle(rates: Rates) -> None:
    """Two on one SM: as with 103 blocks on 100 SMs; the curve decides where more than that are at work."""
    assert float(latency(10, rates, fullest=2)) == pytest.approx(0.818e-6)
    assert float(latency(10, rates, fullest=1)) == float(latency(10, rates))
    assert float(latency(150, rates, fullest=2)) == float(latency(150, rates))


def test_a_ragged_merge_takes_all_rows_mean_or_as_many_as_have_most_splits(rates: Rates) -> None:
    """512 rows of 2 splits and one of 64 are 1086 states: as long as 17 rows of 64, not as 512 of them."""
    few, many = float(merge_time(512, 2, 512 * 2, rates)), float(merge_time(512, 64, 512 * 64, rates))
    assert few == pytest.approx(1.5e-6)
    assert many == pytest.approx(4e-6)
    assert float(merge_time(512, 64, 1086, rates)) == pytest.approx(float(merge_time(1086 / 64, 64, 1086, rates)))
    assert 2e-6 < float(merge_time(512, 64, 1086, rates)) < 2.1e-6


def test_a_start_lies_between_those_measured(rates: Rates) -> None:
    """One block: the same for any tiles. 200: 2 us for one tile, 3 us for 4, 4 us for 16, by the logarithm between."""
    assert start_time(1, np.array([1, 2, 4, 8, 16, 99]), rates) == pytest.approx([1e-6] * 6)
    found = start_time(200, np.array([1, 2, 4, 8, 16, 99]), rates)
    assert found == pytest.approx([2e-6, 2.5e-6, 3e-6, 3.5e-6, 4e-6, 4e-6])
    assert float(start_time(5000, 4, rates)) == pytest.approx(3e-6)  # no more than all slots start at once


def test_a_merge_is_read_off_its_table_and_carried_on_beyond(rates: Rates) -> None:
    """At knots, half way, and as far again beyond the last."""
    rows, splits = np.array([8, 512, 260]), np.array([2, 64, 33])
    assert merge_time(rows, splits, rows * splits, rates) == pytest.approx([1.2e-6, 4e-6, 2.175e-6])
    assert float(merge_time(8, 126, 8 * 126, rates)) == pytest.approx(2.8e-6)
    assert float(merge_time(1, 1, 1, rates)) == pytest.approx(1.2e-6)


def test_a_lone_block_is_bound_by_latency_and_a_full_device_by_bytes(rates: Rates) -> None:
    """One block of 100 tiles waits 100 tile latencies; 20 000 of them move 65 GB at the sustained rate."""
    calm = rates._replace(exponent=8.0, refill_s=0.0, launch_block_s=0.0)
    lone = uniform_work(1, 100)
    assert float(step_terms(lone, uniform_bodies(lone, calm), calm).body_s) == pytest.approx(100 * 0.4e-6, rel=0.01)
    full = uniform_work(20_000, 100, tile_bytes=327680.0)
    terms = step_terms(full, uniform_bodies(full, calm), calm)
    assert float(terms.stream_s) == pytest.approx(20_000 * 100 * 327680.0 / 4e12)
    assert float(terms.body_s) == pytest.approx(float(terms.stream_s), rel=0.01)


def test_an_empty_launch_costs_its_launch_alone(rates: Rates) -> None:
    """No live block: no start, no bytes, no merge."""
    work = uniform_work(0, 0)
    terms = step_terms(work, uniform_bodies(work, rates), rates)
    assert float(terms.total_s) == pytest.approx(rates.launch_s)


def test_warm_l2_is_never_slower_and_fades_out_beyond_its_capacity(rates: Rates) -> None:
    """KV within the capacity comes at the L2's rate; KV of twice the capacity as from memory."""
    warm = rates._replace(warm=True)
    sizes = np.array([1e6, 4e7, 4.4e7, 8e7, 1e9])
    cold_s, warm_s = stream_time(sizes, sizes, rates), stream_time(sizes, sizes, warm)
    assert (warm_s <= cold_s).all()
    assert warm_s[:2] == pytest.approx(sizes[:2] / 8e12)
    assert warm_s[3:] == pytest.approx(cold_s[3:])
    assert (np.diff(warm_s) > 0).all()


def test_splits_that_a_merge_visits_in_vain_cost_by_the_number(rates: Rates) -> None:
    """A loop over a cap of 64 with 8 live splits takes 56 visits more than one over the live ones."""
    slow = rates._replace(merge_walk_s=1e-6)
    work = uniform_work(64, 10, splits=8)
    plain, capped = (step_terms(w, uniform_bodies(w, slow), slow) for w in (work, work._replace(merge_walks=64)))
    assert float(capped.merge_s) >= 56e-6
    assert float(capped.merge_s - plain.merge_s) <= 56e-6


def test_blocks_without_work_pass_through_the_free_slots_first(rates: Rates) -> None:
    """With half of the slots free they pass while the others run, and take time of their own only beyond that."""
    slow = rates._replace(idle_block_s=1e-9)
    half = rates.slots // 2
    work = uniform_work(half, 10)._replace(launched_blocks=half + 1000)
    assert float(idle_time(work, 10e-6, slow)) == 0.0
    many = work._replace(launched_blocks=half + 100_000)
    assert float(idle_time(many, 10e-6, slow)) == pytest.approx(100e-6 - 10e-6 / 2)
