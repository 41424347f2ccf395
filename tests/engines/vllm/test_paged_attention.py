"""vLLM's PagedAttention v1 and v2: the rule that picks one, values from real issues, laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.vllm.paged_attention import POLICIES, picks_v1
from decodecalc.launch.arrays import Batches, at

LLAMA_8B = dc.Geometry(32, 8, 128)
NAMES = tuple(POLICIES)


def plan(name, batch, geo=LLAMA_8B, page_size=16, gpu="a100-sxm", version="", **options):
    return dc.plan(f"{name}{version}", geo, batch, kv=dc.KvCache(page_size=page_size), gpu=gpu, **options)


@pytest.mark.parametrize(
    ("batch", "heads", "context", "v1"),
    [
        (16, 32, 4096, False), (17, 32, 4096, True), (64, 32, 8192, True), (64, 32, 8193, False), (1, 32, 513, False),
        (1, 32, 512, True),
    ],
)  # fmt: skip
def test_which_kernel_vllm_picks(batch, heads, context, v1):
    """cases.md 30 (vLLM #1348, #1510; paged_attn.py): v1 up to 8192 keys with one partition or over 512 blocks."""
    assert bool(picks_v1(context, batch, heads)) is v1
    for name in NAMES:
        found = plan(name, dc.Batch.uniform(batch, context), dc.Geometry(heads, heads, 128))
        assert found.gate("engine_picks_it").passed is (v1 == (name == "paged-attention-v1"))


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_read_once_per_query_head(name):
    """engines.md 8, cases.md 118: nothing is shared over the group, 32 heads make 32 blocks for 8 KV heads."""
    found = plan(name, dc.Batch([4096, 100]))
    assert found.blocks_per_split == (32, 32)
    assert found.stage1.grid == (32, 2, 8 if found.is_split else 1)


def test_v2_partitions_hold_512_keys_and_short_requests_leave_theirs_empty():
    """The grid has the longest request's partitions; a block whose partition starts past the end returns."""
    found = plan("paged-attention-v2", dc.Batch([1300, 400]))
    assert found.splits.keys[0] == [(0, 512), (512, 1024), (1024, 1300)]
    assert (found.splits.launched, found.splits.live) == (3, (3, 1))
    assert (found.stage1.launched_blocks, found.stage1.live_blocks) == (32 * 2 * 3, 32 * 4)
    assert found.merge.grid == (32, 2)
    assert found.scratch_bytes == 2 * 32 * 3 * (128 * 2 + 4 + 4)


def test_a_captured_graph_is_sized_for_more_than_its_longest_request():
    """max_seq_len of capture sets the grid and the kernel, not the requests of the step."""
    found = plan("paged-attention-v2", dc.Batch([100]), max_seq_len=8192)
    assert (found.splits.launched, found.splits.live) == (16, (1,))
    with pytest.raises(dc.InputError, match="less than the longest"):
        plan("paged-attention-v2", dc.Batch([8193]), max_seq_len=8192)


def test_v1_keeps_all_scores_in_shared_memory():
    """32 KiB at 8192 keys fit; forced to 64 K keys the scores alone exceed what an A100 block may have."""
    assert plan("paged-attention-v1", dc.Batch([8192])).detail.dynamic_smem_bytes == 32768
    assert not plan("paged-attention-v1", dc.Batch([65536])).gate("shared_memory").passed


def test_head_dims_grew_over_versions():
    """cases.md 68: 120 and 192 joined after 0.2.2; 512 never came."""
    for version, dim, compiled in (("", 120, True), ("@0.2.2", 120, False), ("", 512, False), ("@0.8.5", 192, True)):
        found = plan("paged-attention-v2", dc.Batch([100]), dc.Geometry(32, 8, dim), version=version)
        assert found.gate("head_dim_compiled").passed is compiled


@pytest.mark.parametrize(
    ("geo", "batch", "page_size", "code"),
    [
        (LLAMA_8B, dc.Batch([100]), 64, "block_size"),
        (LLAMA_8B, dc.Batch([100], 2), 16, "q_len"),
        (dc.Geometry(16, 1, 576, 512, mla=True), dc.Batch([100]), 16, "mla"),
    ],
)
def test_refusals(geo, batch, page_size, code):
    """Block sizes of 8, 16 and 32 are compiled; there is no MLA and no multi-token kernel."""
    for name in NAMES:
        with pytest.raises(dc.GateError) as refused:
            plan(name, batch, geo, page_size)
        assert refused.value.code == code


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES), st.lists(st.integers(0, 20000), min_size=1, max_size=8), st.none() | st.integers(1, 3000)
)
def test_live_partitions_tile_the_keys_exactly_once(name, seq_lens, window):
    """Partitions of a request are contiguous from its first to its last key."""
    found = plan(name, dc.Batch(seq_lens), dc.Geometry(32, 8, 128, window=window))
    for r, length in enumerate(seq_lens):
        ranges = found.splits.keys[r]
        edges = [0, *(end for _, end in ranges)]
        assert [start for start, _ in ranges] == edges[:-1]
        assert edges[-1] == length
        assert len(ranges) == found.splits.live[r]
        assert (length > 0) <= found.splits.working[r] <= found.splits.live[r] <= found.splits.launched


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(1, 300), st.integers(1, 70000)), min_size=1, max_size=6))
def test_whole_array_and_scalar_planning_agree(name, steps):
    """A sweep's step n is the plan of its uniform batch."""
    policy, gpu, kv = POLICIES[name], dc.load_gpu("a100-sxm"), dc.KvCache()
    sizes, contexts = np.array(steps).T
    _, swept = policy.on_layer(
        LLAMA_8B, Batches.uniform(sizes, contexts), kv, gpu, policy.options_type(), policy.version()
    )
    for n, (size, context) in enumerate(steps):
        one = policy.plan(LLAMA_8B, dc.Batch.uniform(size, context), kv, gpu)
        assert tuple(at(x, n) for x in swept.kernels[0].grid) == one.stage1.grid
        assert at(swept.kernels[0].live_blocks, n) == one.stage1.live_blocks
        assert (at(swept.launched, n), at(swept.scratch_bytes, n)) == (one.splits.launched, one.scratch_bytes)
        assert swept.live[n, 0] == one.splits.live[0]
        assert [bool(at(g.passed, n)) for g in swept.gates] == [g.passed for g in one.gates]
