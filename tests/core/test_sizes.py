"""What a command is asked for is counted before any of it is built."""

from __future__ import annotations

from typing import Any

import pytest

import decodecalc as dc
from decodecalc.errors import InputError
from decodecalc.sizes import MAX_PLANNED_REQUESTS, MAX_PLANS, MAX_RAGGED, check_plans, check_ragged, check_steps


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("grid", "--batch", "1:9999:1"), "49995000 requests"),
        (("grid", "--batch", "1:65536:1"), "requests"),
        (("grid", "--batch", "1m"), "1048576 requests"),
        (("grid", "--seq-lens", "1:99999:1"), "99999 requests"),
        (("segments", "--context", "1g", "--engine", "paged-attention-v2"), "2097152 splits"),
        (("paging", "--page-ids", "0:99", "--page-size", "16", "--allocator-page-size", "16777216"), "kernel pages"),
        (("verify", "--dry-run", "--claims", "1-99999999999"), "claims are numbered"),
        (("sweep", "--page-size", "1:2000:1", "--splits", "1:2000:1"), "combinations"),
        (("plot", "occupancy", "--batch", "1:5000:1"), "requests"),
    ],
)
def test_too_much_is_refused_with_the_number_at_once(call: Any, argv: tuple[str, ...], said: str) -> None:
    """The message names what is asked for, and nothing was built."""
    result = call(*argv)
    assert result.code == 2
    assert said in result.err, result.err
    assert result.out == ""


def test_the_limits_themselves_pass() -> None:
    """Each limit is the last number that is accepted."""
    check_ragged(MAX_RAGGED)
    check_plans(MAX_PLANS, MAX_PLANS, 1, ragged=False)
    check_steps([MAX_PLANNED_REQUESTS], 1, 1)
    for check in (
        lambda: check_ragged(MAX_RAGGED + 1),
        lambda: check_plans(MAX_PLANS + 1, MAX_PLANS, 1, ragged=False),
        lambda: check_steps([MAX_PLANNED_REQUESTS + 1], 1, 1),
    ):
        with pytest.raises(InputError):
            check()


def test_segments_are_counted_before_they_are_made() -> None:
    """The generator of a billion keys in partitions of 512 stops before its first row."""
    plan = dc.plan("paged-attention-v2", dc.Geometry(32, 8, 128), dc.Batch([1 << 30]))
    from decodecalc.analysis.segments import segments

    with pytest.raises(InputError, match="splits are more than"):
        next(segments(plan))
