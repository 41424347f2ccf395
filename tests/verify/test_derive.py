"""Parameters from microbenchmark times: times made by known curves give the curves back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.calibrate.derive import (
    TILES,
    StageTimes,
    derive_exponent,
    derive_merge,
    derive_stage,
    jumps,
    knots,
    wave_points,
)
from decodecalc.cost.parameters import START_TILES, STARTS

LAUNCH_S, SLOTS, REFILL_S = 5e-7, 528, 1.5e-6
COUNTS = sorted({*knots(132, 4), *(n + 4 for n in jumps(132, 4))})


def tau(blocks: int) -> float:
    """One microsecond, and more beyond 264 blocks."""
    return 1e-6 * max(1.0, blocks / 264)


def start(blocks: int, tiles: int) -> float:
    """Grows with blocks and tiles."""
    return 1e-6 + 1e-9 * blocks * (1 + np.log2(min(tiles, 16)))


def stage_times() -> StageTimes:
    """The probes' times by those."""

    def seconds(blocks: int, tiles: int) -> float:
        return LAUNCH_S + start(blocks, tiles) + tiles * tau(blocks)

    waves = {
        (n, t): LAUNCH_S + start(SLOTS, t) + n // SLOTS * t * tau(SLOTS) + (n // SLOTS - 1) * REFILL_S
        for n, t in wave_points(SLOTS)
    }
    return StageTimes(SLOTS, {(n, t): seconds(n, t) for n in COUNTS for t in TILES}, waves)


def test_known_curves_come_back() -> None:
    """Tile times, starts at each tile count, and the refill, without noise."""
    found = derive_stage(stage_times(), LAUNCH_S)
    assert found["blocks"] == [float(n) for n in COUNTS]
    assert found["tau_s"] == pytest.approx([tau(n) for n in COUNTS])
    for name, t in zip(STARTS, START_TILES):
        assert found[name] == pytest.approx([start(n, t) for n in COUNTS]), name
    assert found["refill_s"] == pytest.approx(REFILL_S)


@given(st.lists(st.floats(0.9, 1.1), min_size=len(COUNTS) * len(TILES), max_size=len(COUNTS) * len(TILES)))
def test_noise_never_makes_more_blocks_or_tiles_cheaper(noise: list[float]) -> None:
    """Times that scatter by a tenth still give curves under which time does not fall."""
    clean = stage_times()
    noisy = {point: time * noise[i % len(noise)] for i, (point, time) in enumerate(clean.by_blocks.items())}
    found = derive_stage(StageTimes(SLOTS, noisy, clean.waves), LAUNCH_S)
    assert (np.diff(found["tau_s"]) >= 0).all()
    assert min(min(np.atleast_1d(values)) for values in found.values()) >= 0


def test_the_exponent_that_joins_latency_and_bandwidth_comes_back() -> None:
    """Keys of their own take (shared**p + transfer**p)**(1/p)."""
    for p in (2.0, 4.0, 7.5):
        own = (1.6e-6**p + 1.8e-6**p) ** (1 / p)
        assert derive_exponent(own, 1.6e-6, 1.8e-6) == pytest.approx(p, rel=1e-6)
    assert derive_exponent(1.7e-6, 1.6e-6, 1.8e-6) == 12.0  # faster than the plain stream: nothing is lost


def test_a_merge_table_is_whole_and_does_not_fall() -> None:
    """A pair that was not measured goes on along the last two splits; a dip is noise, and the mean is taken."""
    times = {(8, 2): 1e-6, (8, 16): 0.9e-6, (8, 64): 1.5e-6, (512, 2): 2e-6, (512, 16): 3.4e-6}
    found = derive_merge(times)
    assert found["merge_rows"] == [8.0, 512.0]
    assert found["merge_splits"] == [2.0, 16.0, 64.0]
    assert found["merge_s"] == pytest.approx([0.95e-6, 0.95e-6, 1.5e-6, 2e-6, 3.4e-6, 3.4e-6 + 1e-7 * 48])
