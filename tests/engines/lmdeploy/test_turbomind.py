"""turbomind: hand values, the choice of a kernel, the split count's definition, key ranges, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.lmdeploy.kernels import find, registered
from decodecalc.engines.lmdeploy.turbomind import split_count

A100 = dc.load_gpu("a100-sxm")
PAGES = dc.KvCache(page_size=64)


def plan(geo=None, batch=None, gpu=A100, kv=PAGES, **options):
    return dc.plan("turbomind", geo or dc.Geometry(32, 8, 128), batch or dc.Batch([8192]), kv=kv, gpu=gpu, **options)


def test_an_a100_launches_27_splits_of_which_26_live():
    """27 splits fill one wave of 216 blocks; 128 tiles in splits of 5 leave 26 of them with keys."""
    found = plan(max_active_ctas=2)
    assert (found.stage1.grid, found.splits.launched, found.splits.live) == ((8, 1, 27), 27, (26,))
    assert found.merge.grid == (32, 1, 1)
    assert found.splits.keys[0][-1] == (8000, 8192)


def test_more_than_32_splits_are_reduced_twice():
    """The reduction takes 32 splits a block and runs again on its own results while there are more."""
    found = plan(geo=dc.Geometry(2, 1, 128), batch=dc.Batch([131072]), max_active_ctas=2)
    assert found.splits.launched > 32
    assert [k.grid for k in found.kernels if k.role == "merge"] == [(2, 1, -(-found.splits.launched // 32)), (2, 1, 1)]


def test_a_request_with_one_live_split_writes_its_output_itself():
    """A short request beside a long one has one live split: no partial state and no block of the reduction."""
    found = plan(batch=dc.Batch([8192, 60]), max_active_ctas=2)
    assert found.splits.live[1] == 1
    assert found.partial_splits == (found.splits.live[0], 0)
    assert found.merge.live_blocks == 32


def test_context_parallel_ranks_share_the_keys_and_always_merge():
    """Two ranks hold half of the keys each, and even an unsplit launch leaves states for the exchange."""
    found = plan(batch=dc.Batch([101] * 64), cp_size=2, max_active_ctas=2)
    assert found.splits.keys[0] == [(0, 51)]
    assert found.splits.launched == 1
    assert found.is_split
    assert found.partial_splits == (1,) * 64


@pytest.mark.parametrize(
    ("head_dim", "bits", "group", "cta_h"),
    [
        (128, 0, 1, 1),
        (128, 0, 2, 2),
        (128, 0, 3, 2),
        (128, 0, 4, 8),
        (128, 0, 8, 8),
        (128, 0, 9, 16),
        (128, 8, 1, 8),
        (192, 8, 5, 1),
    ],
)
def test_heads_of_a_block_on_ampere(head_dim, bits, group, cta_h):
    """Few heads take CUDA-core kernels, more of them the tensor cores; quantised caches have only the latter."""
    assert find(registered(80, head_dim, bits), group).cta_h == cta_h


def test_a_kernel_that_wastes_more_rows_than_it_uses_is_the_last_choice():
    """Registry::Find: with 8 and 16 heads registered, one query head takes 8, although both need one block."""
    assert find(registered(75, 128, 0), 1).cta_h == 8
    assert find(registered(75, 256, 0), 2).cta_h == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 128), st.integers(1, 5000), st.integers(1, 10), st.integers(1, 200))
def test_the_split_count_is_the_cheapest_within_four_waves(most, blocks, active, sms):
    """One count after the other in float32, as GetSplitCount does: the cheapest, and of equals the smaller load."""
    scale, best = np.float32(blocks) / np.float32(sms * active), (np.float32(np.inf), np.float32(0), 0)
    for s in range(1, most + 1):
        waves = np.ceil(scale * np.float32(s))
        if s > 1 and waves > 4:
            break
        best = min(best, ((np.float32(1) / np.float32(s) + np.float32(1e-3)) * waves, scale * np.float32(s), s))
    assert split_count(np.array([most]), np.array([blocks]), active, sms)[0] == best[2]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kv": dc.KvCache(page_size=16)}, "page_size"),
        ({"kv": dc.KvCache("fp8", 64)}, "kv_dtype"),
        ({"kv": dc.KvCache("int4", 64), "geo": dc.Geometry(8, 8, 192)}, "head_dim"),
        ({"geo": dc.Geometry(32, 8, 80)}, "head_dim"),
        ({"batch": dc.Batch([64], 2)}, "q_len"),
        ({"gpu": dc.load_gpu("mi300x")}, "not_nvidia"),
        ({"gpu": dc.Gpu(name="pascal", sm_count=30, compute_capability=(6, 1))}, "compute_capability"),
        ({"cp_size": 3}, "cp_size"),
    ],
)
def test_refusals(change, code):
    """Head sizes, caches, devices and pages without a registered kernel have a code each."""
    with pytest.raises(dc.GateError) as refused:
        plan(**change)
    assert refused.value.code == code


def test_an_assumed_occupancy_is_said():
    """Without max_active_ctas the plan reckons with 2 blocks and its gate says that this is assumed."""
    assert not plan().gate("occupancy_given").passed
    assert plan().stage1.grid == plan(max_active_ctas=2).stage1.grid
    assert plan(max_active_ctas=2).gate("occupancy_given").passed
