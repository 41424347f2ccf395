"""aiter's launches in a trace: unified attention, Gluon paged decode, MLA decode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import launch_of, make_launch

import decodecalc as dc
from decodecalc.trace.attribution import Surroundings
from decodecalc.trace.load import knowledge


@given(
    kv_heads=st.sampled_from([1, 2, 8]),
    group=st.sampled_from([1, 4, 8, 16]),
    seq_lens=st.lists(st.integers(1, 70_000), min_size=1, max_size=40),
)
@settings(max_examples=40, deadline=None)
def test_unified_attention_gives_heads_and_segments_back(kv_heads: int, group: int, seq_lens: list[int]) -> None:
    """KV heads stand first in the unsplit grid, second in the split one, whose merge has tokens and query heads."""
    geo = dc.Geometry(kv_heads * group, kv_heads, 64)
    plan = dc.plan("aiter-unified", geo, dc.Batch(seq_lens), gpu="mi300x")
    seen = knowledge().infer(launch_of(plan), "aiter-unified", geo.q_heads)
    assert (seen.q_heads, seen.kv_heads, seen.splits_launched) == (geo.q_heads, kv_heads, plan.splits.launched)
    assert seen.query_tokens == (len(seq_lens) if plan.is_split else None)
    assert seen.group == (group if plan.is_split else None)


# Launches recorded from aiter's own host code: (kernel, grid, query heads, requests, KV heads, splits).
RECORDED = [
    ("paged_attention_decode_sliding_window_head_1", (64, 1, 1), 4, 64, 1, 1),
    ("paged_attention_decode_v2_gluon_large_block_dot_kernel", (4, 8, 2), 32, 4, 8, 2),
    ("paged_attention_decode_sliding_window", (127, 8, 1), 64, 127, 8, 1),
    ("paged_attention_decode_sliding_window_head_1", (33, 3, 8), 10, 33, 1, 8),
]


@pytest.mark.parametrize(("kernel", "grid", "q_heads", "batch", "kv_heads", "splits"), RECORDED)
def test_paged_decode(
    kernel: str, grid: tuple[int, int, int], q_heads: int, batch: int, kv_heads: int, splits: int
) -> None:
    """Requests, KV heads and splits; with one KV head the second extent counts query blocks instead."""
    group = make_launch(kernel, grid)
    assert knowledge().attribute(group, Surroundings()).engines == ("aiter-pa-decode",)
    seen = knowledge().infer(group, "aiter-pa-decode", q_heads)
    assert (seen.batch, seen.kv_heads, seen.splits_launched) == (batch, kv_heads, splits)
    assert seen.group == q_heads // kv_heads


@pytest.mark.parametrize(
    ("name", "scheduler", "kernel"),
    [
        ("aiter::mla_a8w8_qh16_qseqlen1_gqaratio16_ps", None, "mla_decode_stage1_asm_ps"),
        ("aiter::mla_a16w16_qh16_m16x4_n16x1", "kn_get_mla_metadata_v1_2", "mla_decode_stage1_asm_ps"),
        ("_ZN5aiter41mla_dec_stage1_bf16_a16w16_subQ128_mqa128E", None, "mla_decode_stage1_asm"),
    ],
)
def test_mla_kernels_are_told_by_their_work_list(name: str, scheduler: str | None, kernel: str) -> None:
    """Persistent kernels follow a list made on the device; each shape has an assembly kernel of its own."""
    group = make_launch(name, scheduler=scheduler)
    assert knowledge().attribute(group, Surroundings()).engines == ("aiter-mla",)
    assert knowledge().engine("aiter-mla").kernel(group) == kernel
