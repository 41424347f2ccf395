"""The 85 % rule: float32 decides ties, and the array form equals the loop that the engines run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.engines.flash_attention.wave_efficiency import fills_without_split, splits_by_wave_efficiency


def loop(blocks, slots, n_blocks, skip_equal_sizes, width=np.float32):
    """The rule one candidate at a time, in `width`."""
    if width(blocks) >= width(0.8) * width(slots):
        return 1
    candidates = []
    for s in range(1, min(128, slots, n_blocks) + 1):
        if skip_equal_sizes and s > 1 and -(-n_blocks // s) == -(-n_blocks // (s - 1)):
            continue
        waves = width(blocks * s) / width(slots)
        candidates.append((s, width(waves / np.ceil(waves))))
    best = max((e for _, e in candidates), default=width(0))
    return next((s for s, e in candidates if float(e) >= 0.85 * float(best)), 1)


def rule(blocks, slots, n_blocks, skip):
    return splits_by_wave_efficiency(np.array([blocks]), slots, np.array([n_blocks]), skip).item()


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 40_000)), min_size=1, max_size=12),
    st.integers(1, 640),
    st.booleans(),
)
def test_array_form_is_the_loop(pairs, slots, skip):
    """Every entry of an array gets what the loop over candidates gives it."""
    blocks, n_blocks = (np.array(x) for x in zip(*pairs))
    got = splits_by_wave_efficiency(blocks, slots, n_blocks, skip).tolist()
    assert got == [loop(b, slots, n, skip) for b, n in pairs]


@pytest.mark.parametrize(
    ("blocks", "slots", "n_blocks", "float32", "float64"),
    [(107, 264, 40, 7, 2), (6, 264, 400, 37, 34), (5, 216, 400, 37, 34), (24, 58, 40, 2, 7)],
)
def test_float64_would_choose_another_count(blocks, slots, n_blocks, float32, float64):
    """Ties at 85 % and at whole waves fall by rounding: H100 (264 slots) and A100 (216) grids among them."""
    assert rule(blocks, slots, n_blocks, True) == loop(blocks, slots, n_blocks, True) == float32
    assert loop(blocks, slots, n_blocks, True, np.float64) == float64


def test_wide_ranges_are_sorted_instead_of_tabulated():
    """Block counts too far apart for a table give the same counts."""
    blocks = np.array([3, 7, 99, 2_000_000])
    n_blocks = np.array([5000, 129, 640, 5000])
    got = splits_by_wave_efficiency(blocks, 4_000_000, n_blocks, True).tolist()
    assert got == [loop(b, 4_000_000, n, True) for b, n in zip(blocks.tolist(), n_blocks.tolist())]


@pytest.mark.parametrize(
    ("blocks", "slots", "full"), [(105, 132, False), (106, 132, True), (211, 264, False), (4, 5, True)]
)
def test_four_fifths_of_the_slots_are_enough(blocks, slots, full):
    """0.8 of the slots, compared in float32: 4 of 5 counts as full."""
    assert bool(fills_without_split(blocks, slots)) is full


def test_no_key_blocks_give_one_split():
    """An empty sequence is not split."""
    assert rule(4, 132, 0, True) == 1
    assert rule(4, 132, 0, False) == 1
