"""FlexAttention's launches in a trace: names that inductor makes up, and reductions that it generates."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launches import launch_of, make_launch

import decodecalc as dc
from decodecalc.trace.attribution import DECODE_STEP, UNATTRIBUTED, Surroundings
from decodecalc.trace.load import knowledge

TEMPLATE = "triton_tem_fused__to_copy_flex_attention_ones_slice_sort_sum_transpose_zeros_2"
REDUCTION = "triton_per_fused__to_copy_flex_attention_ones_slice_sort_sum_transpose_zeros_3"
NAMES = {"flex_decoding": TEMPLATE, "inductor reduction": REDUCTION}


def test_only_a_merged_launch_is_taken_for_decode() -> None:
    """Prefill and the unsplit decode kernel have the same name and no reduction."""
    merged = make_launch(TEMPLATE, (1, 8, 32), merge=(REDUCTION, (4, 1, 1)))
    found = knowledge().attribute(merged, Surroundings())
    assert (found.what, found.engines, found.path_split) == (DECODE_STEP, ("flex-decoding",), True)
    assert merged.kind.kernel == "flex_decoding"
    assert knowledge().attribute(make_launch(TEMPLATE, (4, 8, 1)), Surroundings()).what == UNATTRIBUTED


@pytest.mark.parametrize("version", ["2.14", "2.13", "2.10", "2.8", "2.6"])
@given(kv_heads=st.sampled_from([1, 2, 8]), batch=st.integers(1, 9), length=st.integers(1, 40_000))
@settings(max_examples=15, deadline=None)
def test_the_split_count_comes_back(version: str, kv_heads: int, batch: int, length: int) -> None:
    """It is the last extent of three axes and the second of two."""
    geo = dc.Geometry(4 * kv_heads, kv_heads, 128)
    plan = dc.plan(f"flex-decoding@{version}", geo, dc.Batch.uniform(batch, length), gpu="h200-sxm")
    assume(plan.splits.launched > 1)
    seen = knowledge().infer(launch_of(plan, NAMES), "flex-decoding", geo.q_heads)
    assert (seen.splits_launched, seen.q_heads) == (plan.splits.launched, geo.q_heads)
