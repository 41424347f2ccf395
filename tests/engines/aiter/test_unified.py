"""aiter's unified attention: the gate that differs from vLLM's, real traces, laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.aiter.unified import POLICY
from decodecalc.launch.arrays import Batches, at

MI300X = dc.load_gpu("mi300x")
GPT_OSS = dc.Geometry(64, 8, 64, sinks=True)


def plan(batch, geo=GPT_OSS, kv=None, gpu=MI300X, version="", **options):
    return dc.plan(f"aiter-unified{version}", geo, batch, kv=kv or dc.KvCache(), gpu=gpu, **options)


def test_gpt_oss_decode_of_tracelens():
    """cases.md 122 (TraceLens vllm_decode_full, MI300X, B 32): full layers 3D since 48 x 8 = 384 <= 1216, windows 2D.

    vLLM's own gate would have kept 32 requests of 8 KV heads (threshold 16) in 2D.
    """
    batch = dc.Batch([1722] * 31 + [1704])
    assert batch.total_keys == 55086
    found = plan(batch, version="@0.1.11")
    assert found.stage1.name == "kernel_unified_attention_3d"
    assert found.stage1.grid == (48, 8, 16)
    assert "48 query blocks x 8 KV heads = 384 of 4 x 304 = 1216" in found.gate("underfilled").reason
    assert found.merge.name == "reduce_segments"
    sliding = dc.Geometry(64, 8, 64, window=128, sinks=True)
    assert plan(batch, sliding, version="@0.1.11").stage1.name == "kernel_unified_attention_2d"


def test_mixed_step_of_tracelens_swaps_the_axes():
    """cases.md 124 (TraceLens vllm_prefilldecode_piecewise): grid (8, 558) = (KV heads, 8192 // 16 + 46)."""
    batch = dc.Batch([8192] + [1000] * 45, [8192 - 45] + [1] * 45)
    assert plan(batch, version="@0.1.11").stage1.grid == (8, 558)
    assert plan(batch).stage1.grid == (8, 558)


@pytest.mark.parametrize(
    ("batch", "context", "split"), [(1, 512, False), (1, 513, True), (152, 4096, True), (153, 4096, False)]
)
def test_the_gate(batch, context, split):
    """engines table: 2D up to 512 keys or past 4 blocks per compute unit (152 x 8 = 1216 = 4 x 304)."""
    assert plan(dc.Batch.uniform(batch, context)).is_split is split


def test_decode_no_longer_launches_an_upper_bound():
    """From 0.1.16 on a pure decode step has exactly B query blocks; before, tokens // BLOCK_Q + B."""
    batch = dc.Batch.uniform(32, 4096)
    assert plan(batch).stage1.grid[0] == 32
    assert plan(batch, version="@0.1.15").stage1.grid[0] == 48


@pytest.mark.parametrize(
    ("version", "batch", "page_size", "segments"),
    [
        ("", 1, 16, 128),
        ("", 32, 16, 32),
        ("", 128, 16, 8),
        ("@0.1.15", 1, 16, 128),
        ("@0.1.15", 32, 16, 16),
        ("@0.1.15", 32, 64, 8),
        ("@0.1.11", 32, 64, 8),
    ],
)
def test_segments_adapt_to_the_grid(version, batch, page_size, segments):
    """select_3d_config: ceil(target / programs) to a power of two between its bounds."""
    found = plan(dc.Batch.uniform(batch, 32768), kv=dc.KvCache(page_size=page_size), version=version)
    assert found.splits.launched == segments


def test_short_requests_have_fewer_segments_than_the_floor():
    """No more segments than tiles of the longest request: 600 keys in tiles of 64 make 10, a power of two 16."""
    found = plan(dc.Batch([600]), kv=dc.KvCache(page_size=64))
    assert (found.splits.launched, found.splits.live) == (16, (10,))


def test_wide_heads_never_split_several_query_tokens():
    """use_2d_kernel (0.1.19.post1 on): head dim 512 on CDNA takes 2D unless every request has one query token."""
    geo = dc.Geometry(32, 4, 512)
    assert plan(dc.Batch([8192]), geo).is_split
    assert not plan(dc.Batch([8192], 2), geo).is_split
    assert plan(dc.Batch([8192], 2), geo, version="@0.1.18").is_split


def test_a_window_is_read_from_its_first_tile():
    """The 2D kernel starts at the tile of the first visible key."""
    found = plan(dc.Batch([20000]), dc.Geometry(64, 8, 64, window=128), kv=dc.KvCache(page_size=64))
    assert found.splits.keys[0] == [(19840, 20000)]
    assert found.keys_read == (160,)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpu": dc.load_gpu("h100-sxm")}, "not_amd"),
        ({"gpu": MI300X.with_(gfx="gfx1250")}, "gfx1250"),
        ({"geo": dc.Geometry(16, 1, 576, 512, mla=True)}, "mla"),
        ({"kv": dc.KvCache("int8")}, "kv_dtype"),
    ],
)
def test_refusals(change, code):
    """AMD only, no gfx1250, no MLA, no integer caches."""
    with pytest.raises(dc.GateError) as refused:
        plan(**({"batch": dc.Batch([1000])} | change))
    assert refused.value.code == code


@st.composite
def scenarios(draw):
    group = draw(st.sampled_from([1, 4, 7, 8, 16, 71]))
    kv_heads = draw(st.sampled_from([1, 2, 8]))
    geo = dc.Geometry(
        group * kv_heads,
        kv_heads,
        draw(st.sampled_from([64, 128, 256, 512])),
        window=draw(st.none() | st.integers(1, 3000)),
    )
    kv = draw(st.sampled_from([dc.KvCache(), dc.KvCache("fp8", 16, query_dtype="fp8"), dc.KvCache(page_size=128)]))
    gpu = draw(st.sampled_from([MI300X, MI300X.with_(gfx="gfx1201", sm_count=64), MI300X.with_(gfx="gfx1151")]))
    return geo, kv, gpu, draw(st.sampled_from(POLICY.versions)).name, draw(st.sampled_from([1, 1, 3, 300]))


@settings(max_examples=80, deadline=None)
@given(scenarios(), st.lists(st.integers(0, 60000), min_size=1, max_size=8))
def test_live_segments_tile_the_visible_keys_exactly_once(scenario, seq_lens):
    """Segments are contiguous from the first tile that is read to the last key, and none is empty."""
    geo, kv, gpu, version, q_len = scenario
    batch = dc.Batch([n + q_len for n in seq_lens], q_len)
    found = plan(batch, geo, kv, gpu, f"@{version}")
    for r, length in enumerate(batch.seq_lens):
        ranges = found.splits.keys[r]
        assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
        assert all(start < end for start, end in ranges)
        assert (ranges[0][0], ranges[-1][1]) == (length - found.keys_read[r], length)
        assert ranges[0][0] <= max(length - q_len - (geo.window or length) + 1, 0)
        assert len(ranges) == found.splits.live[r] <= found.splits.launched
    assert found.stage1.live_blocks <= found.stage1.launched_blocks


@settings(max_examples=50, deadline=None)
@given(scenarios(), st.lists(st.tuples(st.integers(1, 300), st.integers(300, 140000)), min_size=1, max_size=6))
def test_whole_array_and_scalar_planning_agree(scenario, steps):
    """A sweep's step n is the plan of its uniform batch."""
    geo, kv, gpu, version, q_len = scenario
    sizes, contexts = np.array(steps).T
    _, swept = POLICY.on_layer(
        geo, Batches.uniform(sizes, contexts, q_len), kv, gpu, POLICY.options_type(), POLICY.version(version)
    )
    for n, (size, context) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(size, context, q_len), kv, gpu, version=version)
        kernels = [k for k in swept.kernels if at(k.when, n)]
        assert [tuple(at(x, n) for x in k.grid) for k in kernels] == [k.grid for k in one.kernels]
        assert [at(k.live_blocks, n) for k in kernels] == [k.live_blocks for k in one.kernels]
        assert (at(swept.launched, n), at(swept.scratch_bytes, n)) == (one.splits.launched, one.scratch_bytes)
        assert (swept.live[n, 0], swept.keys_read[n, 0]) == (one.splits.live[0], one.keys_read[0])
        assert [bool(at(g.passed, n)) for g in swept.gates] == [g.passed for g in one.gates]
