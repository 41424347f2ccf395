"""The time model's laws, on arrays of made-up work."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.cost.model import Terms, Work, step_terms, stream_time, tile_time, uniform_bodies
from decodecalc.cost.rates import Rates

times = st.floats(1e-9, 1e-4)


@st.composite
def rate_sets(draw: Any) -> Rates:
    """Any device and kernel that could exist."""
    sms = draw(st.integers(1, 304))
    slots_per_sm = draw(st.integers(1, 8))
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
        fixed_s=draw(times),
        refill_s=draw(times),
        crowd_s=draw(st.floats(0, 1e-6)),
        row_s=draw(st.floats(0, 1e-8)),
        tau_s=(tau := draw(times)),
        tau_loaded_s=tau * draw(st.floats(1, 4)),
        tau_sm_s=draw(st.floats(0, 1e-5)),
        in_flight=draw(st.integers(1, 4)),
        merge_fixed_s=draw(times),
        merge_per_split_s=draw(st.floats(0, 1e-7)),
        warm=draw(st.booleans()),
        half_width=0.1,
    )


def uniform_work(blocks: Any, tiles: Any, tile_bytes: float = 32768.0, splits: Any = 1) -> Work:
    """Equal blocks of `tiles` tiles each."""
    total = np.asarray(blocks) * tiles
    return Work(
        blocks=blocks,
        tiles=tiles,
        tiles_total=total,
        hbm_bytes=total * tile_bytes,
        requested_bytes=total * tile_bytes,
        flop=total * 1e6,
        launched_blocks=blocks,
        is_split=np.asarray(splits) > 1,
        live_splits=splits,
        merge_bytes=np.asarray(splits) * 520.0 * 32 * (np.asarray(splits) > 1),
        merge_blocks=32,
    )


def total(work: Work, rates: Rates) -> Any:
    """Time of equal blocks."""
    return step_terms(work, uniform_bodies(work, rates), rates).total_s


@given(rate_sets(), st.integers(0, 5000), st.integers(1, 500), st.integers(1, 64))
def test_terms_are_never_negative_and_add_up(rates: Rates, blocks: int, tiles: int, splits: int) -> None:
    """Every term is a share of the total: none below zero (to rounding), and the total is their sum."""
    work = uniform_work(blocks, tiles if blocks else 0, splits=splits)
    terms = step_terms(work, uniform_bodies(work, rates), rates)
    values = [float(getattr(terms, f.name)) for f in fields(Terms)]
    assert min(values) >= -1e-9 * sum(values)
    assert float(terms.total_s) == pytest.approx(sum(values))


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
    wider = replace(r, hbm_bytes_per_s=r.hbm_bytes_per_s * faster, l2_bytes_per_s=r.l2_bytes_per_s * faster)
    assert total(work, wider) <= total(work, r) * (1 + 1e-9)


def with_sms(r: Rates, sms: int) -> Rates:
    """The same device with another number of SMs."""
    return replace(r, sm_count=sms, slots=sms * (r.slots // r.sm_count))


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(2, 4))
def test_a_multiple_of_the_sms_never_hurts(r: Rates, blocks: int, tiles: int, times: int) -> None:
    """For a fixed launch, twice (three, four times) the SMs never make it slower, but for starting more blocks at once:
    t_block for each."""
    work = uniform_work(blocks, tiles)
    start = r.crowd_s * (r.slots * times) ** 0.5
    assert total(work, with_sms(r, r.sm_count * times)) <= total(work, r) * (1 + 1e-9) + start


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(1, 200))
def test_sms_enough_for_one_wave_never_hurt(r: Rates, blocks: int, tiles: int, more: int) -> None:
    """A device that holds the whole launch at once is never slower than one that does not; nor is one larger still."""
    work, calm = uniform_work(blocks, tiles), replace(r, crowd_s=0.0)
    enough = max(-(-blocks // (r.slots // r.sm_count)), r.sm_count)
    whole = total(work, with_sms(calm, enough))
    assert whole <= total(work, calm) * (1 + 1e-9)
    assert total(work, with_sms(calm, enough + more)) <= whole * (1 + 1e-9)


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300), st.integers(1, 200))
def test_any_more_sms_hurt_by_no_more_than_an_exposed_last_wave(r: Rates, blocks: int, tiles: int, more: int) -> None:
    """In between, a shorter last wave may be exposed: never by more than one block's time alone on its SM."""
    work, calm = uniform_work(blocks, tiles), replace(r, crowd_s=0.0)
    alone = max(tiles, r.in_flight) * (r.tau_loaded_s + r.tau_sm_s * (r.slots // r.sm_count)) + r.refill_s
    assert total(work, with_sms(calm, r.sm_count + more)) <= total(work, calm) * (1 + 1e-9) + alone


@given(rate_sets(), st.integers(1, 4000), st.integers(1, 300))
def test_one_more_tile_or_block_costs_no_more_than_it_explains(r: Rates, blocks: int, tiles: int) -> None:
    """One more tile per block adds at most a tile in every wave and on the busiest SM, plus its bytes and FLOP; one
    more block at most one wave edge: a block's own time, and its crowding of the others."""
    cold = replace(r, warm=False)
    base = total(uniform_work(blocks, tiles), cold)
    waves, per_sm = -(-blocks // r.slots), -(-blocks // r.sm_count) + -(-blocks // r.slots)
    tile_s = 32768.0 / min(r.hbm_bytes_per_s, r.l2_bytes_per_s) + 1e6 / r.peak_flop_per_s
    crowd = r.crowd_s * blocks**0.5
    tile = waves * r.tau_loaded_s + per_sm * r.tau_sm_s + blocks * tile_s + crowd / 8
    assert total(uniform_work(blocks, tiles + 1), cold) - base <= tile * (1 + 1e-6)
    slots_per_sm = r.slots // r.sm_count
    edge = (
        max(tiles, r.in_flight) * (r.tau_loaded_s + r.tau_sm_s * slots_per_sm + tile_s)
        + r.refill_s
        + r.launch_block_s
        + r.crowd_s
    )
    crowding = waves * max(tiles, r.in_flight) * (float(tile_time(blocks + 1, r)) - float(tile_time(blocks, r)))
    assert total(uniform_work(blocks + 1, tiles), cold) - base <= (edge + crowding) * (1 + 1e-6)


def test_whole_waves(rates: Rates) -> None:
    """200 slots: 200 equal blocks take one wave, 201 take two; the last one by itself waits for latency alone."""
    calm = replace(rates, exponent=20.0, tau_sm_s=0.0)
    one, two = (float(uniform_bodies(uniform_work(n, 10, 1.0), calm).scheduled_s) for n in (200, 201))
    assert one == pytest.approx(10 * 0.8e-6, rel=1e-3)
    assert two == pytest.approx(2 * one + 0.5e-6, rel=1e-3)


def test_tiles_slow_down_as_the_device_fills(rates: Rates) -> None:
    """tau grows with the logarithm of the blocks, from a lone block to one on each of 100 SMs, and no further."""
    assert tile_time(np.array([1, 10, 100, 5000]), rates) == pytest.approx([0.4e-6, 0.6e-6, 0.8e-6, 0.8e-6])


def test_a_lone_block_is_bound_by_latency_and_a_full_device_by_bytes(rates: Rates) -> None:
    """One block of 100 tiles waits 100 tile latencies; 20 000 of them move 65 GB at the sustained rate."""
    calm = replace(rates, exponent=8.0, tau_sm_s=0.0, refill_s=0.0, launch_block_s=0.0)
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
    warm = replace(rates, warm=True)
    sizes = np.array([1e6, 4e7, 4.4e7, 8e7, 1e9])
    cold_s, warm_s = stream_time(sizes, sizes, rates), stream_time(sizes, sizes, warm)
    assert (warm_s <= cold_s).all()
    assert warm_s[:2] == pytest.approx(sizes[:2] / 8e12)
    assert warm_s[3:] == pytest.approx(cold_s[3:])
    assert (np.diff(warm_s) > 0).all()
