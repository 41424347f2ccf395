"""Integer arithmetic that the rules share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.intmath import cdiv, next_power_of_2, round_up

counts = st.integers(0, 1 << 40)


@given(counts, st.integers(1, 1 << 20))
def test_cdiv_is_the_least_count_that_covers(a: int, b: int) -> None:
    """b * cdiv(a, b) reaches a, and one fewer does not."""
    assert b * cdiv(a, b) >= a > b * (cdiv(a, b) - 1) or a == 0


@given(st.lists(counts, min_size=1, max_size=20), st.integers(1, 4096))
def test_arrays_and_numbers_agree(values: list[int], b: int) -> None:
    """Each function gives an array what it gives its entries."""
    array = np.array(values, dtype=np.int64)
    assert cdiv(array, b).tolist() == [cdiv(v, b) for v in values]
    assert round_up(array, b).tolist() == [round_up(v, b) for v in values]
    assert next_power_of_2(array).tolist() == [next_power_of_2(v) for v in values]


@given(st.integers(1, 1 << 40))
def test_next_power_of_two_is_a_power_and_the_least(n: int) -> None:
    """p >= n, p is a power of two, and p / 2 < n."""
    p = next_power_of_2(n)
    assert p >= n
    assert p & (p - 1) == 0
    assert p < 2 * n
