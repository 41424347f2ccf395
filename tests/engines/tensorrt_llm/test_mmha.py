"""tensorrt-llm-mmha: hand values, thread counts, shared memory that forces tiles, the environment, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc

A100, H100 = dc.load_gpu("a100-sxm"), dc.load_gpu("h100-sxm")
FP16 = dc.KvCache("fp16", 32, query_dtype="fp16")
MHA = dc.Geometry(32, 32, 128)


def plan(geo=MHA, batch=None, kv=FP16, gpu=A100, **options):
    return dc.plan("tensorrt-llm-mmha", geo, batch or dc.Batch([4096]), kv=kv, gpu=gpu, **options)


def test_32_heads_on_an_a100():
    """Occupancies 4, 2 and 1 give 1024 threads and ceil(108 / 32) = 4 tiles of ceil(4097 / 4) = 1025 keys."""
    found = plan(register_limited_blocks_per_sm=[4, 2, 1])
    assert (found.stage1.grid, found.stage1.threads, found.detail.timesteps_per_block) == ((32, 1, 4), 1024, 1025)
    assert found.splits.keys[0] == [(0, 1025), (1025, 2050), (2050, 3075), (3075, 4096)]
    assert (found.merge, found.merge_in) == (None, "last_block")


def test_scores_of_a_long_context_need_four_tiles():
    """131072 keys on an H100: their scores need 4 tiles, five fill the SMs, of 26215 keys each."""
    found = plan(batch=dc.Batch([131072]), gpu=H100)
    assert (found.detail.min_seq_len_tile, found.splits.launched, found.detail.timesteps_per_block) == (4, 5, 26215)


def test_long_contexts_split_although_multi_block_mode_is_off():
    """Shared memory decides: switched off, a short context has one block and a long one still has several."""
    assert plan(multi_block_mode=False).path == "unsplit"
    assert plan(batch=dc.Batch([131072]), gpu=H100, multi_block_mode=False).splits.launched == 4


def test_a_group_reads_its_keys_once_for_each_query_head():
    """The grid has query heads: 8 KV heads launch what 32 launch."""
    assert plan(geo=dc.Geometry(32, 8, 128)).stage1.grid == plan().stage1.grid
    assert plan(geo=dc.Geometry(32, 8, 128)).blocks_per_split == (32,)


@pytest.mark.parametrize(
    ("occupancy", "threads"), [((4, 2, 1), 1024), ((4, 2, 0), 512), ((4, 0, 0), 256), ((1, 1, 1), 256)]
)
def test_a_block_size_that_does_not_fit_gives_way_to_the_next(occupancy, threads):
    """256 threads times the free occupancy, and the next smaller size where none of the wanted size fits."""
    assert plan(register_limited_blocks_per_sm=list(occupancy)).stage1.threads == threads


def test_many_heads_keep_256_threads_without_multi_block():
    """From 4 blocks for each SM on, the single-block launch is not tuned."""
    found = plan(batch=dc.Batch.uniform(14, 2000), multi_block_mode=False)
    assert (found.stage1.threads, found.stage1.grid) == (256, (32, 14, 1))


def test_a_window_bounds_keys_and_tiles():
    """A cyclic cache of 512 keys holds the last 512: tiles are cut from them, and only they are read."""
    found = plan(
        geo=dc.Geometry(32, 32, 128, window=512), batch=dc.Batch([100_000]), register_limited_blocks_per_sm=[4, 2, 1]
    )
    assert found.detail.timesteps_per_block == 129
    assert found.splits.keys[0][0] == (99_488, 99_617)
    assert found.keys_read == (512,)


def test_the_environment_fixes_tiles_and_threads():
    """Debug mode takes the tile count as it is given; the block size can be set on its own."""
    found = plan(env_multi_block_debug=True, env_blocks_per_sequence=9, env_kernel_block_size=256)
    assert (found.splits.launched, found.stage1.threads, found.detail.max_seq_len_tile) == (9, 256, 64)
    assert plan(env_blocks_per_sequence=9).splits.launched == 4


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": dc.Geometry(16, 1, 576, 512, mla=True)}, "mla"),
        ({"geo": dc.Geometry(32, 32, 72)}, "head_dim"),
        ({"batch": dc.Batch([64], 2)}, "q_len"),
        ({"kv": dc.KvCache("int4", 32)}, "kv_dtype"),
        ({"kv": dc.KvCache("fp8", 32, query_dtype="fp8")}, "dtype"),
        ({"kv": dc.KvCache("fp16", 24, query_dtype="fp16")}, "page_size"),
        ({"gpu": dc.load_gpu("mi300x")}, "not_nvidia"),
        ({"gpu": dc.Gpu(name="unknown", sm_count=100)}, "shared_memory_unknown"),
        ({"env_kernel_block_size": 128}, "block_size"),
        (
            {"env_multi_block_debug": True, "env_blocks_per_sequence": 300, "env_kernel_block_size": 256},
            "too_many_tiles",
        ),
        ({"register_limited_blocks_per_sm": [4, 2]}, "occupancy"),
    ],
)
def test_refusals(change, code):
    """What the launcher throws on and what has no kernel carries a code."""
    with pytest.raises(dc.GateError) as refused:
        plan(**change)
    assert refused.value.code == code


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=6), st.integers(1, 64), st.booleans())
def test_scores_always_fit_shared_memory(lengths, heads, multi):
    """Whatever the lengths, dynamic shared memory stays within a block's, and tiles have one size for all requests."""
    found = plan(geo=dc.Geometry(heads, heads, 128), batch=dc.Batch(lengths), gpu=H100, multi_block_mode=multi)
    assert found.detail.dynamic_smem <= H100.max_smem_bytes_per_block
    sizes = {end - start for ranges in found.splits.keys for start, end in ranges[:-1]}
    assert len(sizes) <= 1
