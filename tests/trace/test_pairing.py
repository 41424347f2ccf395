"""Stage 1, merge and scheduler find each other; equal launches become one group with its times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodecalc.trace.load import knowledge
from decodecalc.trace.pairing import LaunchGroup, pair
from decodecalc.trace.readers import read_trace

STAGE1, MERGE, COUNTS = "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2", "get_num_kv_splits_triton"
OTHER = "void at::native::elementwise_kernel<4>(int)"


@pytest.fixture
def groups_of(kineto: Callable[..., str]) -> Callable[..., list[LaunchGroup]]:
    """groups_of(events, …) of one or more traces."""

    def run(*traces: Any) -> list[LaunchGroup]:
        book = knowledge().name_book()
        return pair([read_trace(kineto(events), book.wanted) for events in traces], book)

    return run


def test_kernels_of_one_layer_make_a_group(kernel: Any, groups_of: Any) -> None:
    """Scheduler before, merge after, another kernel between: one group, median times, a scheduler each time."""
    events = []
    for n, dur in enumerate((10.0, 12.0, 11.0)):
        t = 100.0 * n
        events += [kernel(COUNTS, t, 1.0), kernel(OTHER, t + 5, 3.0), kernel(STAGE1, t + 10, dur, (2, 8, 8))]
        events += [kernel(MERGE, t + 40, 2.0, (2, 32, 1))]
    (group,) = groups_of(events)
    assert group.launches == 3
    assert group.merge is not None
    assert group.merge.grid == (2, 32, 1)
    assert group.scheduler is not None
    assert group.stage1_time.median_s == 11e-6
    assert group.step_s == pytest.approx(11e-6 + 2e-6 + 1e-6)
    assert group.total_s == pytest.approx((33 + 6 + 3) * 1e-6)


def test_a_scheduler_that_runs_once_per_step_is_not_charged_to_every_layer(kernel: Any, groups_of: Any) -> None:
    """Two layers, one scheduler launch: still one group, whose step time leaves the scheduler out."""
    events = [kernel(COUNTS, 0, 1.0)]
    for layer in range(2):
        events += [kernel(STAGE1, 10 + 20 * layer, 5.0), kernel(MERGE, 20 + 20 * layer, 2.0)]
    (group,) = groups_of(events)
    assert group.launches == 2
    assert group.scheduler_time is not None
    assert group.scheduler_time.launches == 1
    assert group.step_s == pytest.approx(7e-6)


def test_streams_do_not_mix(kernel: Any, groups_of: Any) -> None:
    """A merge on another stream is not this stage 1's, although it starts right after it."""
    events = [kernel(STAGE1, 0, grid=(1, 8, 8), stream=1), kernel(STAGE1, 1, grid=(2, 8, 8), stream=2)]
    events += [kernel(MERGE, 2, grid=(2, 32, 1), stream=2), kernel(MERGE, 3, grid=(1, 32, 1), stream=1)]
    found = {g.stage1.grid: g.merge.grid for g in groups_of(events) if g.merge is not None}
    assert found == {(1, 8, 8): (1, 32, 1), (2, 8, 8): (2, 32, 1)}


@given(order=st.permutations(range(12)))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_order_in_the_file_does_not_matter(order: list[int], kernel: Any, groups_of: Any) -> None:
    """Profilers write buffers in any order: starts decide."""
    events = []
    for n in range(4):
        events += [kernel(COUNTS, n * 50, 1.0), kernel(STAGE1, n * 50 + 10, 9.0), kernel(MERGE, n * 50 + 18, 2.0)]
    (group,) = groups_of([events[i] for i in order])
    assert (group.launches, group.merge is not None, group.scheduler is not None) == (4, True, True)


def test_a_merge_that_starts_before_its_stage_1_has_ended_is_still_its_own(kernel: Any, groups_of: Any) -> None:
    """Programmatic dependent launch overlaps them."""
    (group,) = groups_of([kernel(STAGE1, 0, 50.0), kernel(MERGE, 30, 25.0)])
    assert group.merge is not None


def test_a_merge_alone_and_a_launch_cut_from_its_merge(kernel: Any, groups_of: Any) -> None:
    """A recording that begins before a merge and ends before one: the first is set apart, the last is left out."""
    whole = [kernel(STAGE1, 10), kernel(MERGE, 30), kernel(STAGE1, 50), kernel(MERGE, 70)]
    found = groups_of([kernel(MERGE, 0), *whole, kernel(STAGE1, 90)])
    assert sorted((g.kind.role, g.launches) for g in found) == [("merge", 1), ("stage1", 2)]


def test_a_launch_without_merge_between_others_is_a_group_of_its_own(kernel: Any, groups_of: Any) -> None:
    """A missing merge in the middle is shown, not smoothed over."""
    events = [kernel(STAGE1, 10), kernel(STAGE1, 30), kernel(MERGE, 50), kernel(STAGE1, 70), kernel(MERGE, 90)]
    assert sorted((g.merge is None, g.launches) for g in groups_of(events)) == [(False, 2), (True, 1)]


def test_ranks_join_and_replays_do_not(kernel: Any, groups_of: Any) -> None:
    """Equal launches of two ranks are one group; those replayed from a graph are another."""
    eager = [kernel(STAGE1, 0), kernel(MERGE, 20)]
    (group,) = groups_of(eager, eager)
    assert (group.launches, group.ranks) == (2, (0, 1))
    replayed = [kernel(STAGE1, 50, **{"graph node id": 3, "correlation": 9}), kernel(MERGE, 70, correlation=9)]
    found = groups_of([*eager, *replayed])
    assert sorted((g.graph, g.launches) for g in found) == [(False, 1), (True, 1)]


def test_clocks_that_run_backwards_do_not_count_as_time(kernel: Any, groups_of: Any) -> None:
    """A launch that ends before it starts is counted but not timed."""
    (group,) = groups_of([kernel(STAGE1, 0, 10.0), kernel(STAGE1, 20, -5.0), kernel(STAGE1, 40, 12.0)])
    assert (group.launches, group.stage1_time.timed, group.stage1_time.median_s) == (3, 2, 11e-6)


def test_a_trace_without_attention_has_no_groups(kernel: Any, groups_of: Any) -> None:
    """Nothing kept, nothing paired."""
    assert groups_of([kernel(OTHER, 0)]) == []
    assert groups_of([]) == []
