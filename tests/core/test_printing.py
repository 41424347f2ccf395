"""What people print is one line; everything is in repr and to_dict."""

from __future__ import annotations

import decodecalc as dc

GEOMETRY, STEP = dc.Geometry(q_heads=32, kv_heads=8, head_dim=128), dc.Batch.uniform(batch=1, context=257)


def test_a_plan_prints_its_launch_in_one_line() -> None:
    """Grid, blocks and the three split counts."""
    text = str(dc.plan("vllm-triton", GEOMETRY, STEP))
    assert "\n" not in text
    assert "3d, grid (1, 8, 16), 72 of 128 blocks live" in text
    assert "splits requested 16, launched 16, live 9, merge (1, 32)" in text


def test_a_prediction_prints_time_interval_and_origin() -> None:
    """A number is never without its calibration and L2 mode."""
    predicted = dc.predict(dc.plan("vllm-triton", GEOMETRY, STEP, gpu="a100"))
    text = str(predicted)
    assert len(text) < 300
    assert all(part in text for part in ("a layer (", "L2 cold", "extrapolated to a100-sxm", "bound by"))


def test_a_choice_prints_both_counts() -> None:
    """S_opt and S* stand side by side."""
    found = dc.choose(GEOMETRY, STEP, gpu="h200", engines=[])
    assert str(found).startswith(f"S_opt {found.s_opt} (")
    assert f"S* {found.s_star} (" in str(found)
