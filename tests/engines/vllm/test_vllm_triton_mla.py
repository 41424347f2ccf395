"""vllm-triton-mla: reported cases, versions, refusals and laws."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.vllm.triton_mla import POLICY
from decodecalc.launch.arrays import Batches, at, row

H100, A100 = dc.load_gpu("h100-sxm"), dc.load_gpu("a100-sxm-80gb")
DEEPSEEK_TP8 = dc.Geometry(16, 1, 576, 512, mla=True)
DEEPSEEK = dc.Geometry(128, 1, 576, 512, mla=True)


def plan(geo, batch, *, version="0.33.0", gpu=H100, kv=None, **options):
    return dc.plan(f"vllm-triton-mla@{version}", geo, batch, kv=kv or dc.KvCache(), gpu=gpu, **options)


@pytest.mark.parametrize(
    ("gpu", "keys", "splits"),
    [(H100, 1023, 1), (H100, 1024, 2), (H100, 4096, 8), (H100, 65_536, 128), (H100, 131_072, 256),
     (H100, 163_840, 264), (A100, 131_072, 216)],
)  # fmt: skip
def test_split_count_follows_the_length(gpu, keys, splits):
    """vLLM PR 50629: next power of two of L // 512, at most twice the SMs (not a power of two)."""
    found = plan(DEEPSEEK_TP8, dc.Batch.uniform(1, keys), gpu=gpu)
    assert (found.splits.launched, found.splits.requested) == (splits, (splits,))
    assert found.gate("sm_cap").passed == (splits < 2 * gpu.sm_count)


@pytest.mark.parametrize(("keys", "scratch_mb", "kv_mb"), [(8192, 34, 604), (131_072, 538, 9664)])
def test_split_count_ignores_the_batch(keys, scratch_mb, kv_mb):
    """vLLM PR 50629: 64 requests are split like one, so partial states grow to 34 MB and 538 MB."""
    one, many = (plan(DEEPSEEK_TP8, dc.Batch.uniform(batch, keys)) for batch in (1, 64))
    assert many.splits.launched == one.splits.launched
    assert many.scratch_bytes == 64 * 16 * many.splits.launched * 513 * 4
    assert round(many.scratch_bytes / 1e6) == scratch_mb
    assert round(64 * keys * many.kv.bytes_per_key(DEEPSEEK_TP8) / 1e6) == kv_mb


def test_older_versions_always_cut_in_four():
    """ktransformers issue 804: 8 blocks at B 1 with 128 heads become 32, 24 % of an H100's SMs."""
    found = plan(DEEPSEEK, dc.Batch.uniform(1, 8192), version="0.19.1")
    assert (found.unsplit_blocks, found.stage1.grid, found.live_blocks) == (8, (1, 8, 4), 32)
    assert found.live_blocks / H100.sm_count == pytest.approx(0.24, abs=0.005)
    assert found.determinism == "fixed count"
    assert plan(DEEPSEEK, dc.Batch.uniform(1, 8192), version="0.20").splits.launched == 16


def test_batch_invariant_mode_takes_one_split_and_still_merges():
    """vLLM source: one split in batch-invariant mode; the merge kernel runs all the same."""
    found = plan(DEEPSEEK, dc.Batch.uniform(4, 8192), batch_invariant=True)
    assert (found.splits.launched, found.determinism, found.merge.grid) == (1, "invariant", (4, 128))
    assert plan(DEEPSEEK, dc.Batch.uniform(4, 8192), version="0.19.1", batch_invariant=True).splits.launched == 1
    assert plan(DEEPSEEK, dc.Batch.uniform(4, 8192), version="0.11.0", batch_invariant=True).splits.launched == 4


def test_full_graphs_freeze_the_count_of_the_longest_model_length():
    """A graph captured for 163 840 keys launches 264 splits at L 1000 (one eagerly), of which 250 have keys."""
    frozen = plan(DEEPSEEK_TP8, dc.Batch.uniform(1, 1000), captured_max_len=163_840)
    assert (frozen.splits.launched, frozen.splits.live, frozen.determinism) == (264, (250,), "fixed count")
    assert "frozen by the CUDA graph" in frozen.gate("sm_cap").reason
    assert plan(DEEPSEEK_TP8, dc.Batch.uniform(1, 1000)).splits.launched == 1


def test_drafts_are_rows_of_their_own_with_shorter_extents():
    """Row t of q sees L - q + t keys: at L 1026 the rows of 1024, 1025 and 1026 keys have 2 live splits each."""
    found = plan(DEEPSEEK_TP8, dc.Batch.uniform(1, 1026, 3))
    assert (found.stage1.grid, found.live_blocks, found.blocks_per_split) == ((3, 1, 2), 6, (3,))
    short = plan(DEEPSEEK_TP8, dc.Batch([2, 4096], 2))
    assert short.live_blocks == (1 + 2) + (8 + 8)
    with pytest.raises(dc.InputError, match=r"takes one query token per request, not 3"):
        plan(DEEPSEEK_TP8, dc.Batch.uniform(1, 1026, 3), version="0.30.0")


def test_tiles_depend_on_vendor_and_group():
    """32 keys and 16 heads a block on NVIDIA, 16 keys on AMD; a single query head has a kernel of its own."""
    assert plan(DEEPSEEK, dc.Batch.uniform(1, 4096)).tile_keys == 32
    assert plan(DEEPSEEK, dc.Batch.uniform(1, 4096), gpu=dc.load_gpu("mi300x")).tile_keys == 16
    single = plan(dc.Geometry(1, 1, 576, 512, mla=True), dc.Batch.uniform(1, 4096))
    assert (single.stage1.name, single.tile_keys, single.block_rows) == ("_fwd_kernel_stage1", 64, 1)


@pytest.mark.parametrize(
    ("geo", "kv", "code"),
    [
        (dc.Geometry(32, 8, 128), dc.KvCache(), "not_mla"),
        (dc.Geometry(16, 1, 576, 512, mla=True, window=128), dc.KvCache(), "window"),
        (DEEPSEEK, dc.KvCache(page_size=1), "page_size"),
        (DEEPSEEK, dc.KvCache(dtype="int8"), "kv_dtype"),
    ],
)
def test_start_up_refusals_have_codes(geo, kv, code):
    """Layers that are not MLA, windows, odd pages and cache dtypes are refused with a machine word."""
    with pytest.raises(dc.GateError, match="refuses to start") as refused:
        plan(geo, dc.Batch.uniform(1, 128), kv=kv)
    assert refused.value.code == code


def test_versions_cover_every_release_they_name():
    """Each version is found by its own name and by both ends of its range."""
    for version in POLICY.versions:
        assert {POLICY.version(name) for name in (version.name, *version.covers)} == {version}


VERSIONS = st.sampled_from([version.name for version in POLICY.versions])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 400_000), min_size=1, max_size=8), VERSIONS, st.sampled_from([None, 163_840]))
def test_live_splits_tile_the_keys_once(seq_lens, version, captured):
    """Splits follow each other without gap or overlap from the first key to the last; live blocks count them."""
    found = plan(DEEPSEEK, dc.Batch(seq_lens), version=version, captured_max_len=captured)
    for r, keys in enumerate(seq_lens):
        ranges = found.splits.keys[r]
        assert (ranges[0][0], ranges[-1][1]) == (0, keys)
        assert all(start < end for start, end in ranges)
        assert all(one[1] == two[0] for one, two in pairwise(ranges))
        assert len(ranges) == found.splits.live[r] <= found.splits.launched
    assert found.live_blocks == 8 * sum(found.splits.live)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(5, 300_000), st.integers(1, 5)), min_size=1, max_size=10),
    st.sampled_from([1, 16, 20, 128]),
    st.booleans(),
)
def test_array_door_equals_scalar_door(steps, heads, invariant):
    """A whole-array plan of uniform steps says of every step what planning it alone says."""
    geo = dc.Geometry(heads, 1, 576, 512, mla=True)
    options = POLICY.options_type(batch_invariant=invariant)
    _, many = POLICY.on_layer(geo, Batches.uniform(*zip(*steps)), dc.KvCache(), H100, options, POLICY.version())
    for n, (batch, context, q_len) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(batch, context, q_len), dc.KvCache(), H100, options)
        assert [tuple(int(at(x, n)) for x in k.grid) for k in many.kernels] == [k.grid for k in one.kernels]
        assert [at(k.live_blocks, n) for k in many.kernels] == [k.live_blocks for k in one.kernels]
        assert row(many.live, n, 1) == one.splits.live[:1]
        assert row(many.requested, n, 1) == one.splits.requested[:1]
        assert at(many.scratch_bytes, n) == one.scratch_bytes
        assert at(many.unsplit_blocks, n) == one.unsplit_blocks
        assert [(bool(at(g.passed, n)), g.reason(n)) for g in many.gates] == [(g.passed, g.reason) for g in one.gates]
