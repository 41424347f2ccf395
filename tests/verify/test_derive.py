"""Parameters from microbenchmark times: times made by the model itself give its own parameters back."""

from __future__ import annotations

from typing import Any

import pytest

from decodecalc.cost.model import Work, step_terms, uniform_bodies
from decodecalc.cost.rates import Rates
from decodecalc.verify.derive import FEW, LONG, MANY, StageTimes, Surroundings, derive_merge, derive_stage

SMS, SLOTS, TILE_BYTES = 132, 4, 32768.0
TRUE: dict[str, float] = {
    "t_fixed_s": 1.2e-6, "t_crowd_s": 0.2e-6, "refill_s": 1.5e-6, "tau_unloaded_s": 1.3e-6, "tau_loaded_s": 1.4e-6,
    "t_row_s": 5e-9, "overlap_exponent": 3.0,
}  # fmt: skip


def rates(**changes: Any) -> Rates:
    """A device and kernel with TRUE parameters."""
    values: dict[str, Any] = dict(  # noqa: C408
        sm_count=SMS, slots=SMS * SLOTS, launch_s=0.5e-6, launch_block_s=0.0, gap_s=0.6e-6, hbm_bytes_per_s=4.5e12,
        l2_bytes_per_s=8e12, l2_capacity_bytes=5e7, peak_flop_per_s=1e15, exponent=TRUE["overlap_exponent"],
        fixed_s=TRUE["t_fixed_s"], crowd_s=TRUE["t_crowd_s"], refill_s=TRUE["refill_s"], row_s=TRUE["t_row_s"],
        tau_s=TRUE["tau_unloaded_s"], tau_loaded_s=TRUE["tau_loaded_s"], tau_sm_s=0.0, in_flight=1, merge_fixed_s=0.0,
        merge_per_split_s=0.0, warm=False, half_width=0.0,
    )  # fmt: skip
    return Rates(**{**values, **changes})


def seconds(blocks: int, tiles: int, rows: int = 0, r: Rates | None = None, bytes_each: float = TILE_BYTES) -> float:
    """What the model says of a launch of equal blocks."""
    known, total = r or rates(), blocks * tiles
    work = Work(blocks, tiles, total, total * bytes_each, total * TILE_BYTES, 0, blocks, False, 1, 0, 0, rows)
    return float(step_terms(work, uniform_bodies(work, known), known).total_s)


def stage_times(r: Rates | None = None) -> StageTimes:
    """The probes' times by the model."""
    full = SMS * SLOTS
    points = {(n, t) for n in (1, SMS, 2 * SMS, full) for t in (FEW, MANY, LONG)} | {(3 * full, 2)}
    return StageTimes(
        by_blocks={p: seconds(*p, r=r) for p in points},
        few=1, one=SMS, two=2 * SMS, full=full, waves=3 * full,
        narrow_s=seconds(SMS, FEW, 1, r), wide_s=seconds(SMS, FEW, 16, r), narrow_rows=1, wide_rows=16,
        shared_s={t: seconds(full, t, 0, r, bytes_each=0.0) for t in (FEW, MANY)},
    )  # fmt: skip


AT = Surroundings(SMS, SLOTS, 0.5e-6, 4.5e12, 8e12, TILE_BYTES)


def test_the_model_s_own_times_give_its_parameters_back() -> None:
    """Every stage-1 parameter within the search's grid, from times without noise."""
    found = derive_stage(stage_times(), AT)
    for name in ("t_fixed_s", "t_crowd_s", "tau_unloaded_s", "tau_loaded_s", "overlap_exponent"):
        assert found[name] == pytest.approx(TRUE[name], rel=0.1), name
    assert found["refill_s"] == pytest.approx(TRUE["refill_s"], rel=0.3)
    assert found["tau_busy_s"] == 0.0
    # The row probe runs side by side with bandwidth: part of each row is hidden.
    assert 0.4 * TRUE["t_row_s"] < found["t_row_s"] <= TRUE["t_row_s"]


def test_derived_parameters_predict_the_times_they_came_from() -> None:
    """Each probe within 6 %, the many-wave one too."""
    found = derive_stage(stage_times(), AT)
    again = rates(
        fixed_s=found["t_fixed_s"], crowd_s=found["t_crowd_s"], refill_s=found["refill_s"],
        tau_s=found["tau_unloaded_s"], tau_loaded_s=found["tau_loaded_s"], exponent=found["overlap_exponent"],
    )  # fmt: skip
    for (n, t), time in stage_times().by_blocks.items():
        assert seconds(n, t, r=again) == pytest.approx(time, rel=0.06), (n, t)


def test_a_kernel_that_keeps_its_sm_busy_shows_it() -> None:
    """FP8's conversions: 0.5 us of an SM per tile, twice what the L2 explains."""
    busy = rates(tau_sm_s=1.2e-6, exponent=8.0)
    assert derive_stage(stage_times(busy), AT)["tau_busy_s"] == pytest.approx(1.2e-6, rel=0.1)


def test_merge_costs_come_apart() -> None:
    """Both kernels cost 1.5 us more than stage 1, and 10 ns a split; the merge alone says how much is a gap."""
    splits = (2, 8, 32, 128)
    stage1 = {s: 3e-6 + 2e-8 * s for s in splits}
    both = {s: stage1[s] + 1.5e-6 + 1e-8 * (s - 1) for s in splits}
    alone = {s: 0.5e-6 + 0.6e-6 + 1e-8 * (s - 1) for s in splits}
    found = derive_merge(both, stage1, alone, 0.5e-6)
    assert found["merge_per_split_s"] == pytest.approx(1e-8)
    assert found["merge_fixed_s"] == pytest.approx(0.6e-6)
    assert found["dependent_launch_gap_s"] == pytest.approx(0.9e-6)
