"""aiter's paged decode: hand values, the persistent slices, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.aiter.pa_decode import recommended_splits

MI300X = dc.load_gpu("mi300x")
LLAMA = dc.Geometry(32, 8, 128)


def plan(batch, geo=LLAMA, page=16, gpu=MI300X, dtype="bf16", **options):
    return dc.plan("aiter-pa-decode", geo, batch, kv=dc.KvCache(dtype, page, query_dtype=dtype), gpu=gpu, **options)


@pytest.mark.parametrize(("batch", "splits"), [(16, 5), (64, 2), (1, 8), (512, 1)])
def test_recommended_splits_fill_the_device_twice(batch, splits):
    """get_recommended_splits on 304 compute units with 8 KV heads: ceil(608 / (B * 8)), at most 8."""
    assert plan(dc.Batch.uniform(batch, 4096)).splits.launched == splits
    assert recommended_splits(batch, 8, 1, 304) == splits


def test_the_recommendation_is_blind_to_the_length():
    """A request of 300 keys and one of 300000 get the same 8 slices in persistent mode, not without it."""
    assert plan(dc.Batch([300])).splits.launched == plan(dc.Batch([300_000])).splits.launched == 8
    assert plan(dc.Batch([300]), ps=False).splits.launched == 2
    assert plan(dc.Batch([300_000]), ps=False).splits.launched == 1172


def test_neighbours_walk_the_partition_where_they_meet():
    """Slices of ceil(21231 / 8) = 2654 keys end inside partitions, which both neighbours load."""
    ranges = plan(dc.Batch([21231])).detail.partition_ranges_longest
    assert ranges[:3] == ((0, 11), (10, 21), (20, 32))


def test_one_partition_is_one_shot():
    """One context partition writes the output itself, and the persistent kernel serves it whatever `ps` says."""
    found = plan(dc.Batch.uniform(4, 200), ps=False)
    assert found.merge is None
    assert found.stage1.name == "paged_attention_decode_sliding_window"
    assert found.path == "unsplit"


@pytest.mark.parametrize(
    ("queries", "group", "columns"), [(4, 4, 1), (4, 8, 2), (3, 8, 2), (4, 16, 4), (2, 32, 2), (4, 1, 1)]
)
def test_one_kv_head_spreads_query_tokens_over_blocks(queries, group, columns):
    """With one KV head the second grid extent counts blocks of 16 query rows: q * pow2(g) / 16, q from g = 9 on."""
    found = plan(dc.Batch.uniform(2, 5000, queries), dc.Geometry(group, 1, 128))
    assert found.stage1.name.endswith("_head_1")
    assert found.stage1.grid[1] == columns


def test_large_blocks_without_the_persistent_kernels_divide_by_zero():
    """Blocks of 1024 keys hold 4 partitions: one partition for the launch leaves 1 // 4 = 0 slices on the device."""
    found = plan(dc.Batch([100]), page=1024, ps=False)
    assert not found.gate("whole_blocks").passed
    assert plan(dc.Batch([300]), page=1024, ps=False).gate("whole_blocks").passed


def test_a_window_in_large_blocks_takes_its_own_kernel():
    """Window 4096 in blocks of 1024: ceil(4096 / 256) + 1 = 17 partitions and the persistent reduction."""
    found = plan(dc.Batch([100_000]), dc.Geometry(32, 8, 128, window=4096), page=1024)
    assert found.stage1.name == "paged_attention_decode_v2_gluon_large_block_dot_kernel"
    assert found.splits.launched == 17
    assert found.merge.name == "paged_attention_decode_ps_reduce_kernel"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpu": dc.load_gpu("h100-sxm")}, "not_amd"),
        ({"gpu": MI300X.with_(gfx="gfx1201")}, "arch"),
        ({"geo": dc.Geometry(16, 1, 576, 512, mla=True)}, "mla"),
        ({"geo": dc.Geometry(16, 2, 192, 128)}, "head_dim"),
        ({"geo": dc.Geometry(65, 1, 128)}, "group"),
        ({"dtype": "int8"}, "dtype"),
        ({"page": 32}, "page_size"),
        ({"batch": dc.Batch([1000], 5)}, "q_len"),
        ({"batch": dc.Batch([1000, 1000], [1, 2])}, "ragged_q_len"),
    ],
)
def test_refusals(change, code):
    """What pa_decode_gluon asserts: architecture, widths, query rows, element types and block sizes."""
    with pytest.raises(dc.GateError) as refused:
        plan(**({"batch": dc.Batch([1000])} | change))
    assert refused.value.code == code


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 60_000), min_size=1, max_size=6),
    st.sampled_from([16, 64, 1024]),
    st.sampled_from([None, 128, 1023, 4096]),
    st.booleans(),
    st.sampled_from([1, 4]),
)
def test_live_splits_tile_what_is_read_exactly_once(lens, page, window, ps, kv_heads):
    """Ranges of live splits are not empty, follow each other from the first partition read and end with the request,
    in every cache block size."""
    found = plan(dc.Batch(lens), dc.Geometry(4 * kv_heads, kv_heads, 64, window=window), page=page, ps=ps)
    for r, length in enumerate(lens):
        ranges = found.splits.keys[r]
        assert len(ranges) == found.splits.live[r] <= found.splits.launched
        assert all(start < end for start, end in ranges)
        assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
        assert (ranges[0][0], ranges[-1][1]) == (length - found.keys_read[r], length)
        assert ranges[0][0] <= max(length - (window or length), 0)
