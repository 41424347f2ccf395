"""One chooser of the bundled kernel's launch: the time model's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.bundled import POLICY
from decodecalc.cost.launcher import chosen_launch, launch_config
from decodecalc.verify.run.execution import execution_of
from decodecalc_kernels import choose as hook

H200 = dc.load_gpu("h200")
SHAPES = [dc.Geometry(32, 8, 128), dc.Geometry(8, 1, 256), dc.Geometry(71, 1, 64), dc.Geometry(32, 8, 128, window=900)]


@given(st.sampled_from(SHAPES), st.lists(st.integers(2, 40_000), min_size=1, max_size=5), st.sampled_from([1, 2]))
@settings(max_examples=25, deadline=None)
def test_the_chosen_launch_is_the_planned_one(geo: dc.Geometry, lens: list[int], q_len: int) -> None:
    """Splits, their size, tile, rows, warps, stages and merge are those with which verify runs the bundled plan."""
    step, kv = dc.Batch(lens, q_len), dc.KvCache()
    config = launch_config(geo, step, kv, H200)
    planned = POLICY.plan(geo, step, kv, H200)
    run = execution_of(planned).timed
    assert run is not None
    assert config.num_splits == planned.splits.launched
    assert (config.tile_keys, config.rows, config.rows_used) == (run.tile_keys, run.rows, run.rows_used)
    assert (config.warps, config.stages) == (run.warps, run.stages)
    names = ("merge_rows", "merge_splits", "merge_dims", "merge_warps")
    assert [getattr(config, n) for n in names] == [getattr(run, n) for n in names]
    assert (config.listed, config.list_length) == (run.listed, run.list_length)
    if not config.direct:
        assert config.split_value == planned.detail.split_keys


@given(st.sampled_from(SHAPES), st.lists(st.integers(2, 40_000), min_size=1, max_size=5), st.sampled_from([1, 2]))
@settings(max_examples=25, deadline=None)
def test_requests_of_different_lengths_are_launched_by_the_list_of_their_splits(
    geo: dc.Geometry, lens: list[int], q_len: int
) -> None:
    """One row of blocks for each live split and none without work; equal requests keep the grid."""
    planned = POLICY.plan(geo, dc.Batch(lens, q_len), dc.KvCache(), H200)
    stage1, live = planned.stage1, planned.splits.live
    assert planned.listed == (len(set(lens)) > 1 and planned.splits.launched > 1)
    if planned.listed:
        assert stage1.grid == (planned.stage1.grid[0], sum(live), 1)
        assert stage1.launched_blocks == stage1.live_blocks
    else:
        assert stage1.grid[1:] == (len(lens), planned.splits.launched)


def test_a_count_by_hand_is_kept() -> None:
    """Ten splits of 2560 keys, whatever is fastest."""
    config = launch_config(dc.Geometry(32, 8, 128), dc.Batch.uniform(1, 2560), dc.KvCache(), H200, num_splits=10)
    assert (config.num_splits, config.split_rule) == (10, "size")


def problem(**more: Any) -> hook.Problem:
    """One request of 32 768 keys on a CPU."""
    values: dict[str, Any] = {
        "q_heads": 8, "kv_heads": 1, "head_dim": 128, "v_dim": 128, "mla": False, "seq_lens": (32_768,), "q_lens": (1,),
        "kv_dtype": "bf16", "query_dtype": "bf16", "page_size": 16, "window": None,
            "warp_groups": False, "device_index": None,
    }  # fmt: skip
    return hook.Problem(**{**values, **more})


def test_the_bundled_policy_registers_the_time_model_as_the_chooser() -> None:
    """After decodecalc.cost.bundled is imported, `choose` is the time model's launch."""
    expected = launch_config(dc.Geometry(8, 1, 128), dc.Batch([32_768]), dc.KvCache(), H200)
    assert hook.choose(problem()) == chosen_launch(problem()) == expected


def test_without_a_chooser_a_config_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says both ways out."""
    monkeypatch.setattr(hook, "_registered", [])
    with pytest.raises(ValueError, match=r"pass config=.*decodecalc\.cost\.bundled"):
        hook.choose(problem())


def test_the_last_chooser_registered_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own chooser replaces the time model's."""
    from decodecalc_kernels import LaunchConfig

    monkeypatch.setattr(hook, "_registered", list(hook._registered))
    hook.register_chooser(lambda asked: LaunchConfig.fixed_size(512, max(asked.seq_lens)))
    assert hook.choose(problem()).num_splits == 64
