"""The measurement protocol's arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.verify.run.timing import (
    COLD_FACTOR,
    GRAPH_S,
    MAX_CALLS,
    MAX_LAYERS,
    layers_needed,
    percentile,
    rounds_needed,
    summarise,
)

L2 = 60 * 2**20


@given(st.integers(1, 10**10))
def test_layers_overflow_the_l2_three_times_where_their_number_allows(layer_bytes):
    layers, cold = layers_needed(layer_bytes, 10 * layer_bytes, L2, None)
    assert 3 <= layers <= MAX_LAYERS
    assert cold == (layers * layer_bytes >= COLD_FACTOR * L2)
    assert cold or layers == MAX_LAYERS


def test_layers_keep_to_the_memory_there_is():
    assert layers_needed(10**9, 10**9, L2, 2 * 10**9) == (1, True)
    assert layers_needed(10**6, 10**6, L2, 10**8)[0] == 40


def test_a_window_needs_more_layers_than_its_whole_context_would():
    assert layers_needed(10**6, 33 * 10**6, L2, None)[0] > layers_needed(33 * 10**6, 33 * 10**6, L2, None)[0]


@given(st.integers(1, MAX_LAYERS), st.floats(1e-6, 1))
def test_a_graph_runs_long_enough_to_hide_its_start_unless_it_would_hold_too_many_calls(layers, once_s):
    rounds = rounds_needed(layers, once_s)
    assert rounds * once_s >= GRAPH_S * 0.999 or (rounds + 1) * layers > MAX_CALLS
    assert rounds * layers <= MAX_CALLS


def test_median_and_spread():
    assert summarise([1.0] * 9) == (1.0, 0.0)
    median, spread = summarise([float(n) for n in range(1, 101)])
    assert median == 50
    assert spread == pytest.approx(80 / 50)


@given(st.lists(st.floats(0, 1), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values_and_grows_with_its_share(values, share):
    assert percentile(values, share) in values
    assert percentile(values, share) <= percentile(values, 1.0) == max(values)
