"""S_opt against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.choice import time_curve
from decodecalc.cost.load import load_calibration
from decodecalc.cost.own_launch import row_block
from decodecalc.cost.prediction import predict
from decodecalc.cost.tuning import (
    candidate_splits,
    fastest,
    path_rates,
    s_opt,
    split_curve,
    tune,
    tuned_variants,
)
from decodecalc.launch.arrays import Batches

GPU = dc.load_gpu("h200")
KV = dc.KvCache()
GEO = dc.Geometry(32, 8, 128)
shapes = st.sampled_from([GEO, dc.Geometry(8, 1, 128), dc.Geometry(32, 32, 64), dc.Geometry(16, 1, 576, 512, mla=True)])


@given(shapes, st.integers(1, 128), st.integers(1, 60_000))
@settings(max_examples=25, deadline=None)
def test_no_split_count_is_predicted_faster_than_s_opt_by_more_than_2_percent(
    geo: Any, batch: int, context: int
) -> None:
    """Against every count from one to the number of tiles (or 600), for every measured variant."""
    calibration, steps = load_calibration(gpu=GPU), Batches.uniform(batch, context)
    best = float(fastest(geo, steps, KV, GPU).total_s[0])
    rows = row_block(geo, 1)
    every = np.arange(1, 601)
    for variant in tuned_variants(calibration, geo, KV):
        rates = path_rates(calibration, GPU, variant, KV)
        _, _, time = split_curve(geo, steps, KV, rates, variant.tile_keys, rows, every)
        assert best <= time.min() * 1.02


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 100_000)), min_size=1, max_size=8))
@settings(max_examples=25, deadline=None)
def test_an_array_of_steps_gets_each_step_s_own_choice(steps: list[tuple[int, int]]) -> None:
    """The array rule is the scalar rule, N times."""
    found = fastest(GEO, Batches.uniform([b for b, _ in steps], [c for _, c in steps]), KV, GPU)
    for n, (batch, context) in enumerate(steps):
        assert int(found.splits[n]) == s_opt(GEO, dc.Batch.uniform(batch, context), KV, GPU)


def test_the_chosen_launch_is_the_one_that_bundled_plans_and_predict_times() -> None:
    """tune, plan and predict agree on splits, split length and time, for ragged batches too."""
    ragged = dc.Batch([100, 8192, 700, 20_000])
    for step in (dc.Batch.uniform(1, 2560), dc.Batch.uniform(64, 8192), dc.Batch.uniform(1, 100), ragged):
        best = tune(GEO, step, KV, GPU)
        plan = dc.plan("bundled", GEO, step, kv=KV, gpu=GPU)
        assert (plan.splits.launched, plan.tile_keys) == (best.splits, best.tile_keys)
        assert predict(plan).total_s == pytest.approx(best.total_s, rel=1e-12)


def test_a_ragged_batch_is_cut_by_length() -> None:
    """One long request among short ones gets most of the splits, all of one size."""
    plan = dc.plan("bundled", GEO, dc.Batch([512, 512, 60_000]), gpu="h200")
    best = tune(GEO, dc.Batch([512, 512, 60_000]), KV, GPU)
    assert plan.splits.live[2] == best.splits > 10 * plan.splits.live[0]
    assert predict(plan).total_s == pytest.approx(best.total_s, rel=1e-12)


def test_a_full_device_is_not_split_and_a_starved_one_is() -> None:
    """512 requests of 32 KV heads fill every slot; one request of one KV head does not."""
    assert s_opt(dc.Geometry(32, 32, 128), dc.Batch.uniform(512, 512), KV, GPU) == 1
    assert s_opt(dc.Geometry(8, 1, 128), dc.Batch.uniform(1, 131_072), KV, GPU) > 16


def test_candidates_are_distinct_and_end_at_the_cap() -> None:
    """Every count to 32, then gaps of at most 6 % and one."""
    tried = candidate_splits()
    assert tried[:32].tolist() == list(range(1, 33))
    assert (np.diff(tried) > 0).all()
    assert (tried[1:] <= np.maximum(tried[:-1] * 1.06, tried[:-1] + 1)).all()
    assert tried[-1] == 1024


def test_the_curve_holds_every_launchable_count_once() -> None:
    """2560 keys in tiles of 64: 40 tiles; the curve's counts are those that whole tiles allow."""
    calibration = load_calibration(gpu=GPU)
    variant = next(v for v in tuned_variants(calibration, GEO, KV))
    points = time_curve(GEO, dc.Batch.uniform(1, 2560), KV, GPU, variant, calibration)
    counts = [p.splits for p in points]
    assert counts == sorted(set(counts))
    tiles = 2560 // variant.tile_keys
    assert set(counts) == {-(-tiles // -(-tiles // s)) for s in candidate_splits().tolist() if s <= tiles}
