"""Blocks that fit an SM, and blocks seen at one time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decodecalc import load_gpu
from decodecalc.gpus import Gpu
from decodecalc.verify.run.residency import most_at_once, resident_blocks

H200 = load_gpu("h200")


def test_known_occupancies_of_a_hopper_sm():
    # Nsight Compute's occupancy calculator, compute capability 9.0.
    assert resident_blocks(H200, 128, 128, 0) == 4
    assert resident_blocks(H200, 128, 32, 0) == 16
    assert resident_blocks(H200, 128, 255, 0) == 2
    assert resident_blocks(H200, 32, 16, 0) == 32  # the hardware's limit of blocks
    assert resident_blocks(H200, 128, 64, 100_000) == 2


def test_limits_that_are_not_known_give_no_answer():
    assert resident_blocks(Gpu(name="mine", sm_count=4), 128, 32, 0) is None


@given(threads=st.sampled_from([32, 64, 128, 256]), registers=st.integers(16, 254), shared=st.integers(0, 200_000))
def test_a_kernel_that_needs_more_never_fits_more_often(threads, registers, shared):
    now = resident_blocks(H200, threads, registers, shared)
    assert resident_blocks(H200, threads, registers + 1, shared) <= now
    assert resident_blocks(H200, threads, registers, shared + 1000) <= now


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9)), max_size=30))
def test_the_most_at_once_is_what_a_count_at_every_instant_gives(spans):
    blocks = [(sm, begin, begin + length) for sm, begin, length in spans]
    counted = [sum(b <= t < e for s, b, e in blocks if s == sm) for sm in range(4) for t in range(30)]
    assert most_at_once(blocks) == max(counted)
