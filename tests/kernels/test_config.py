"""LaunchConfig and the choice of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc_kernels import LaunchConfig, invariant_config
from decodecalc_kernels.blocks import default_rows, key_blocks, merge_shape, next_power_of_2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_splits": 0}, "num_splits"),
        ({"num_splits": 70000}, "grid axis z"),
        ({"split_rule": "auto"}, "split_rule"),
        ({"split_value": 4}, "do not fit"),
        ({"tile_keys": 48}, "power of two"),
        ({"rows": 8}, "rows"),
        ({"rows_used": 17}, "rows_used"),
        ({"merge": "later"}, "merge"),
        ({"listed": True}, "no list"),
        ({"list_length": 4, "num_splits": 2, "split_rule": "size"}, "list_length"),
    ],
)
def test_config_that_cannot_launch_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LaunchConfig(**fields)


@given(st.integers(16, 600))
def test_key_blocks_cover_the_head_and_waste_less_than_padding(head_dim):
    first, rest = key_blocks(head_dim)
    assert first <= head_dim <= first + rest or rest == 0
    assert first + rest >= head_dim
    assert first + rest <= max(2 * first, 32)


def test_rows_hold_the_group_up_to_what_registers_allow():
    assert default_rows(1, 4, 128) == 16
    assert default_rows(1, 71, 128) == 64
    assert default_rows(1, 128, 512) == 64


@given(st.integers(1, 200_000), st.integers(1, 200_000), st.integers(1, 4096))
def test_the_invariant_launch_differs_between_servers_only_in_the_grids_depth(one, other, split_keys):
    layer = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "split_keys": split_keys}
    a, b = (invariant_config(**layer, max_seq_len=n) for n in (one, other))
    assert a.replace(num_splits=b.num_splits) == b
    assert a.num_splits * a.split_value >= one


@given(st.integers(1, 1024), st.integers(1, 10_000), st.sampled_from([16, 48, 64, 80, 128, 256, 512]))
def test_a_merge_s_blocks_are_small_and_take_all_states_of_a_row_in_one_step(splits, rows, v_dim):
    """At most four warps with 64 elements a thread, up to 512 states a step, no more dims than there are."""
    shape = merge_shape(splits, rows, v_dim)
    config = LaunchConfig(num_splits=splits, split_rule="size", split_value=64, **shape)
    elements = config.merge_rows * config.merge_splits * config.merge_dims
    assert elements <= 64 * 32 * config.merge_warps
    assert config.merge_warps <= 4
    assert config.merge_splits <= max(8, 2 * splits)
    assert config.merge_splits >= min(splits, 512)
    assert config.merge_dims <= max(16, next_power_of_2(v_dim))
