"""aiter's MLA decode: hand values of both modes, the walk's laws, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.aiter.mla import POLICY
from decodecalc.launch.arrays import Batches

MI300X, MI355X = dc.load_gpu("mi300x"), dc.load_gpu("mi355x")


def latent(heads=16):
    return dc.Geometry(heads, 1, 576, 512, mla=True)


def plan(batch, heads=16, dtype="bf16", page=1, gpu=MI300X, version="", **options):
    kv = dc.KvCache(dtype, page, query_dtype=dtype)
    return dc.plan(f"aiter-mla{version}", latent(heads), batch, kv=kv, gpu=gpu, **options)


def test_a_step_is_dealt_to_all_compute_units():
    """One request of 9018 keys on 304 CUs: ceil((564 + 16) / 304) + 16 = 18 blocks a part, so 282 works of 2 blocks."""
    found = plan(dc.Batch([9018]))
    assert (found.detail.payload, found.detail.num_works, found.detail.used_parts) == (18, 282, 282)
    assert found.stage1.grid == (304, 1, 1)
    assert found.splits.keys[0][0] == (0, 32)


def test_heads_without_a_kernel_are_folded_to_groups_of_16():
    """128 BF16 heads on gfx942 count as 8 requests of 16 heads; FP8 heads and gfx950 have kernels of their own."""
    assert plan(dc.Batch([8192]), heads=128).detail.fold == 8
    assert plan(dc.Batch([8192]), heads=128, dtype="fp8").detail.fold == 1
    assert plan(dc.Batch([8192]), heads=128, gpu=MI355X).detail.fold == 1


def test_a_rest_shorter_than_the_query_tokens_is_taken_along():
    """Two query tokens in one-page blocks: no work of 1 key is left to the next part, where one token has some."""
    for queries, least in ((1, 1), (2, 2)):
        works = plan(dc.Batch.uniform(8, 200, queries), kv_granularity=1).detail.works
        assert min(end - start for _, _, _, _, start, end in works) >= least


def test_one_shape_drops_its_plan_from_32_requests_on():
    """On gfx950 16 BF16 heads keep the plan for 31 requests of one token; 32 are split evenly by default."""
    assert plan(dc.Batch.uniform(31, 4096), gpu=MI355X).stage1.name == "mla_decode_stage1_asm_ps"
    dropped = plan(dc.Batch.uniform(32, 4096), gpu=MI355X)
    assert dropped.stage1.name == "mla_decode_stage1_asm"
    assert not dropped.gate("persistent_kept").passed
    assert plan(dc.Batch.uniform(32, 4096), gpu=MI355X, persistent_max_batch=0).detail.persistent
    assert plan(dc.Batch.uniform(32, 4096)).detail.persistent


@pytest.mark.parametrize(
    ("batch", "context", "heads", "dtype", "splits"),
    [(1, 38311, 16, "bf16", 16), (80, 24796, 16, "bf16", 15), (48, 1, 8, "bf16", 6), (33, 60, 16, "fp8", 1)],
)
def test_even_splits_fill_waves_at_the_mean_length(batch, context, heads, dtype, splits):
    """get_meta_param on 304 CUs: 80 x 15 = 1200 blocks are 98.7 % of 4 waves; FP8 blocks bound the count."""
    found = plan(dc.Batch.uniform(batch, context), heads=heads, dtype=dtype, mode="split_kv")
    assert found.detail.num_kv_splits == splits


def test_one_split_may_still_be_merged():
    """With one split, BF16 with 16 heads runs the merge kernel all the same; FP8 writes the output itself."""
    batch = dc.Batch.uniform(512, 510)
    assert plan(batch, mode="split_kv").merge.grid == (512, 16)
    assert plan(batch, dtype="fp8", mode="split_kv").merge is None


def test_versions_differ_in_32_fp8_heads():
    """Up to 0.1.19 gfx950 folds 32 FP8 heads with 3 query tokens; since 0.1.20 it takes them as they are."""
    batch = dc.Batch([4096], 3)
    assert plan(batch, 32, "fp8", gpu=MI355X).detail.fold == 1
    assert plan(batch, 32, "fp8", gpu=MI355X, version="@0.1.18").detail.fold == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpu": dc.load_gpu("h100-sxm")}, "not_amd"),
        ({"gpu": MI300X.with_(gfx="gfx90a")}, "arch"),
        ({"heads": 8}, "heads"),
        ({"heads": 12}, "heads"),
        ({"heads": 24, "dtype": "fp8", "mode": "split_kv", "batch": dc.Batch([99], 4)}, "heads"),
        ({"dtype": "int8"}, "dtype"),
        ({"kv_granularity": 12}, "kv_granularity"),
        ({"max_split_per_batch": 0}, "max_split_per_batch"),
        ({"batch": dc.Batch([1000, 1000], [1, 2])}, "ragged_q_len"),
    ],
)
def test_refusals(change, code):
    """What the metadata kernel and mla_decode_fwd refuse has its own code."""
    with pytest.raises(dc.GateError) as refused:
        plan(**({"batch": dc.Batch([1000])} | change))
    assert refused.value.code == code


@st.composite
def steps(draw):
    """A step with the options of the persistent plan."""
    heads, dtype, gpu = draw(
        st.sampled_from([
            (16, "bf16", MI300X), (16, "fp8", MI300X), (128, "fp8", MI300X), (64, "bf16", MI300X), (48, "bf16", MI355X),
            (128, "bf16", MI355X), (32, "fp8", MI355X),
        ])
    )  # fmt: skip
    queries = draw(st.sampled_from([1, 1, 2, 4, 8]))
    lens = draw(st.lists(st.integers(queries, 30_000) | st.integers(queries, 80), min_size=1, max_size=12))
    options = {
        "kv_granularity": draw(st.sampled_from([1, 16, 64])),
        "max_split_per_batch": draw(st.sampled_from([-1, 1, 8])),
    }
    return dc.Batch(lens, queries), heads, dtype, draw(st.sampled_from([1, 64])), gpu, options


@settings(max_examples=80, deadline=None)
@given(steps())
def test_works_cover_every_unit_exactly_once(step):
    """The works of a unit follow each other over all its pages, end with them but for the causal trim, and write
    partial rows of their own iff there are several; parts hold them in order."""
    batch, heads, dtype, page, gpu, options = step
    detail = plan(batch, heads, dtype, page, gpu, persistent_max_batch=0, **options).detail
    units: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for work in detail.works:
        units.setdefault((work[0], work[2]), []).append(work)
    assert len(units) == batch.size * detail.fold * detail.qo_tiles
    begins = np.cumsum([0] + [-(-n // page) for n in batch.seq_lens])
    rows = []
    for (request, _), works in units.items():
        r = request // detail.fold
        assert works[0][4] == begins[r]
        assert [w[4] for w in works[1:]] == [w[5] for w in works[:-1]]
        assert 0 <= begins[r + 1] - works[-1][5] < batch.max_q_len
        assert [w[1] == -1 for w in works] == [len(works) == 1] * len(works)
        rows += [w[1] for w in works if w[1] >= 0]
    assert sorted(rows) == rows
    assert len(set(rows)) == len(rows) == detail.split_works
    assert detail.work_indptr[0] == 0
    assert list(detail.work_indptr) == sorted(detail.work_indptr)
    assert detail.work_indptr[-1] == detail.num_works
    assert len(detail.work_indptr) == detail.num_clusters + 1


@settings(max_examples=40, deadline=None)
@given(steps(), st.lists(st.tuples(st.integers(1, 90), st.integers(8, 90_000)), min_size=1, max_size=5))
def test_a_sweep_counts_the_works_of_single_steps(step, sizes):
    """Parts, works, cut units and the most works of a request are those of each step planned alone, whatever the head
    layout: the array walk skips equal units, the single one lists them."""
    batch, heads, dtype, page, gpu, options = step
    queries, kv = batch.max_q_len, dc.KvCache(dtype, page, query_dtype=dtype)
    sweep = Batches.uniform(*np.array(sizes).T, queries)
    chosen = POLICY.options_type.from_mapping(POLICY.name, options)
    _, found = POLICY.on_layer(latent(heads), sweep, kv, gpu, chosen, POLICY.version())
    for n, (size, context) in enumerate(sizes):
        one = plan(dc.Batch.uniform(size, context, queries), heads, dtype, page, gpu, **options)
        swept = (found.detail.num_works[n], found.detail.used_parts[n], found.detail.split_works[n])
        assert swept == (one.detail.num_works, one.detail.used_parts, one.detail.split_works)
        assert found.live[n, 0] == max(one.splits.live)
        assert found.detail.num_kv_splits[n] == one.detail.num_kv_splits
