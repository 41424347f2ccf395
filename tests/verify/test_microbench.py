"""What the probes launch, as far as it can be said without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from decodecalc.calibrate.derive import jumps, knots, wave_points
from decodecalc.calibrate.measure import all_variants, heads_of, merge_values
from decodecalc.cost.variants import SPLIT

pytest.importorskip("torch")
pytest.importorskip("triton")

from decodecalc.calibrate.microbench import FULL_CUTS, PROBE_SPLITS, Probe, merge_probes, split_config


@pytest.mark.parametrize("slots", [1, 3, 6])
def test_every_knot_is_launched_with_about_as_many_blocks(slots):
    """Never more than asked (but for the least there can be), a tenth less at most from one block an SM on."""
    for variant in all_variants():
        pool = SimpleNamespace(kv_heads=heads_of(variant), v_dim=variant.head_dim_v or 512)
        probe = Probe(pool, variant)
        for n in [*knots(132, slots), *(n for n, _ in wave_points(132 * slots))]:
            requests, splits = probe.cuts(n)[0]
            found = requests * splits * pool.kv_heads
            assert found == probe.blocks(n)
            assert found <= max(n, 2 * pool.kv_heads)
            assert splits <= PROBE_SPLITS
            assert splits >= 2 if variant.path == SPLIT else splits == 1
            if n >= 132:
                assert found >= 0.9 * n
            if variant.path == SPLIT:
                split_config(variant, splits, variant.tile_keys, requests * probe.heads, pool.v_dim)  # a valid launch


@pytest.mark.parametrize("slots", [1, 3, 6])
def test_whole_sm_fulls_are_launched_exactly_and_just_past(slots):
    """132, 264 … blocks on a device of 132 SMs, and within a tenth of an SM-full above all but the last."""
    for variant in all_variants():
        probe = Probe(SimpleNamespace(kv_heads=heads_of(variant), v_dim=variant.head_dim_v or 512), variant)
        found = probe.counts(132, slots)
        assert set(range(132, 132 * slots + 1, 132)) <= set(found)
        for full in jumps(132, slots):
            assert any(full < n <= full + 13 for n in found)
        assert max(found) == 132 * slots
        for n in range(264, 132 * slots + 1, 132):
            cuts = probe.cuts(n, FULL_CUTS)
            assert {c.units * probe.pool.kv_heads for c in cuts} == {n}
            assert len(cuts) > 1 or variant.path != SPLIT


def test_merges_are_looked_up_by_padded_value_width():
    """80 computes on 128, a latent of 576 on values of 512."""
    merges = {str(width): {"merge_s": [float(width)]} for width in (64, 128, 256, 512)}
    for variant in all_variants():
        width = {64: 64, 80: 128, 128: 128, 256: 256, 0: 512}[variant.head_dim_v]
        assert merge_values(variant, merges) == {"merge_s": [float(width)]}


def test_merge_probes_cover_small_and_many_rows_within_memory(monkeypatch):
    """Every row count with at least two split counts, so that the table can be carried on."""
    from decodecalc.calibrate import microbench

    monkeypatch.setattr(microbench, "kernel_calls", lambda *args: None)
    monkeypatch.setattr(microbench, "time_calls", lambda calls: SimpleNamespace(seconds=1.0))
    for v_dim in (64, 128, 256, 512):
        found = merge_probes(SimpleNamespace(v_dim=v_dim, page=16))
        for rows in microbench.MERGE_ROWS:
            assert sum(r == rows for r, _ in found) >= 2
