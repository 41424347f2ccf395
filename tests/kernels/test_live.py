"""The one definition of live splits, in Python, with NumPy, and as the kernels observed it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc_kernels import live


@pytest.mark.parametrize(
    ("seq_len", "count", "size", "last"),
    [
        (128, 8, 16, 16),
        (256, 16, 16, 16),
        (257, 9, 32, 1),
        (500, 16, 32, 20),
        (4096, 16, 256, 256),
        (4097, 16, 272, 17),
    ],
)
def test_vllm_rule_gives_its_published_splits(seq_len, count, size, last):
    got = live.splits(seq_len, live.split_keys_of(seq_len, 16, 16), 16)
    assert len(got) == count
    assert got[0][1] - got[0][0] == min(size, seq_len)
    assert got[-1][1] - got[-1][0] == last


def test_sglang_rule_leaves_8_of_29_requested_splits_of_256_keys_live():
    assert len(live.splits(256, live.split_keys_of(256, 29, 32), 29)) == 8


def test_windowed_request_has_16_live_splits_of_which_2_have_work():
    got = live.splits(20000, live.split_keys_of(20000, 16, 32), 16, window=1024, tile=32)
    assert len(got) == 16
    assert sum(end > start for start, end in got) == 2


lengths = st.integers(0, 5000)
counts = st.integers(1, 300)
units = st.sampled_from([1, 16, 32, 64])


@given(lengths, counts, units)
def test_live_splits_tile_the_request_exactly(seq_len, count, unit):
    got = live.splits(seq_len, max(live.split_keys_of(seq_len, count, unit), 1), count)
    assert [k for a, b in got for k in (a, b)][1:-1:2] == [a for a, _ in got][1:]
    assert (got[0][0], got[-1][1]) == (0, seq_len) if seq_len else not got


@given(lengths, st.integers(1, 6000))
def test_live_splits_counts_what_is_live(keys, split_keys):
    assert live.live_splits(keys, split_keys) == sum(live.is_live(s, split_keys, keys) for s in range(keys + 1))
    assert live.live_splits(0, 0) == 0  # an empty request under a count rule: its split length is 0 too


@given(st.integers(1, 5000), counts, units, st.integers(1, 600), st.integers(1, 8), st.booleans())
def test_every_key_in_some_tokens_window_is_walked_once(seq_len, count, unit, window, q_len, clamp):
    q_len = min(q_len, seq_len)
    begin = live.first_key(seq_len, q_len, window, int(clamp))
    size = live.split_keys_of(seq_len - begin, count, unit)
    got = live.splits(seq_len, size, count, q_len=q_len, window=window, clamp=clamp, tile=16)
    walked = [k for a, b in got for k in range(a, b)]
    assert len(walked) == len(set(walked))
    assert set(range(max(0, seq_len - q_len + 1 - window), seq_len)) <= set(walked)


@given(st.lists(lengths, min_size=1), counts, units)
def test_arrays_give_what_scalars_give(seq_lens, count, unit):
    got = live.split_keys_of(np.array(seq_lens), count, unit)
    assert got.tolist() == [live.split_keys_of(n, count, unit) for n in seq_lens]


@pytest.mark.interpreter
@pytest.mark.parametrize("window", [None, 40])
def test_recorded_blocks_walk_exactly_the_predicted_keys(problem, window):
    from decodecalc_kernels import LaunchConfig, record_launch

    lens = [150, 0, 17]
    made = problem(lens, q_heads=4, kv_heads=2, head_dim=16, options={"window": window})
    config = LaunchConfig.fixed_count(6, unit=16, tile_keys=16, idle_requests=1, merge_rows=4)
    out, seen = record_launch(made.q, made.k, made.v, config=config, **made.args)
    assert made.error(out, made.reference()[0]) < 2e-5
    assert seen.grid == (2, 4, 6)
    for b, n in enumerate(lens):
        predicted = live.splits(n, live.split_keys_of(n, 6, 16), 6, window=window or 0, tile=16)
        for column in range(2):
            assert seen.split_keys(b, column) == predicted
        assert seen.live_splits()[b] == len(predicted)
    assert seen.exited[:, 3:].all()  # the idle requests' blocks
    assert seen.live_blocks == 2 * sum(seen.live_splits())


@pytest.mark.interpreter
def test_a_listed_launch_records_the_same_blocks_and_no_others(problem):
    from decodecalc_kernels import LaunchConfig, record_launch

    lens = [150, 0, 17, 33]
    made = problem(lens, q_heads=4, kv_heads=2, head_dim=16)
    config = LaunchConfig.fixed_size(32, 150, tile_keys=16, merge_rows=4)
    _, grid = record_launch(made.q, made.k, made.v, config=config, **made.args)
    listed = config.replace(listed=True, list_length=live.list_length(sum(lens), 32, len(lens)))
    _, seen = record_launch(made.q, made.k, made.v, config=listed, **made.args)
    assert seen.grid == (2, sum(lens) // 32 + len(lens), 1)
    for b in range(len(lens)):
        assert [seen.split_keys(b, c) for c in range(2)] == [grid.split_keys(b, c) for c in range(2)]
    assert seen.live_splits() == grid.live_splits()
    assert seen.live_blocks == grid.live_blocks
    assert seen.launched_blocks == 2 * (sum(lens) // 32 + len(lens))
    assert seen.early_exits == seen.launched_blocks - seen.live_blocks
    assert int((seen.exited == 1).sum()) == 2  # of the request without keys, which has an entry


@given(st.lists(lengths, min_size=1, max_size=40), st.integers(1, 600))
def test_the_list_of_splits_is_never_longer_than_the_keys_allow(seq_lens, split_keys):
    entries = sum(max(live.live_splits(n, split_keys), 1) for n in seq_lens)
    assert entries <= live.list_length(sum(seq_lens), split_keys, len(seq_lens))
