"""FlashMLA's schedule: values from real issues, laws, and equality of the scalar and the whole-array door."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.flashmla.dense import POLICY
from decodecalc.launch.arrays import Batches, at

H100 = dc.load_gpu("h100-sxm")
PAGES = dc.KvCache(page_size=64)


def mla(heads, kv_heads=1):
    return dc.Geometry(heads, kv_heads, 576, 512, mla=True)


def plan(heads, batch, version="", gpu=H100):
    return dc.plan(f"flashmla{version}", mla(heads), batch, kv=PAGES, gpu=gpu)


@pytest.mark.parametrize(
    ("heads", "batch", "parts", "payload", "used", "most"),
    [
        (128, dc.Batch.uniform(128, 4096), 66, 139, 64, 1),
        (16, dc.Batch([4096]), 132, 6, 64, 64),
        (128, dc.Batch([131072]), 66, 37, 64, 64),
        (128, dc.Batch([64]), 66, 6, 1, 1),
        (128, dc.Batch([131072, 131072] + [4096] * 121), 66, 194, 66, 12),
    ],
)
def test_schedules_of_issue_96(heads, batch, parts, payload, used, most):
    """cases.md 24 (deepseek-ai/FlashMLA #96): parts, payload, parts with work and the most splits of a request."""
    found = plan(heads, batch)
    detail = found.detail
    assert (detail.num_sm_parts, detail.payload_blocks, detail.used_parts) == (parts, payload, used)
    assert max(found.splits.requested) == most


def test_num_splits_is_cumulative():
    """cases.md 24: `num_splits` has B + 1 entries; reading entry r as request r's count overstates it."""
    found = plan(128, dc.Batch.uniform(128, 4096))
    assert found.detail.num_splits == tuple(range(129))
    assert set(found.splits.requested) == {1}
    assert found.path == "unsplit"
    assert found.merge is not None
    assert found.merge.live_blocks == 0


def test_the_schedule_belongs_to_one_batch():
    """cases.md 26 (vLLM #21691, #36611): a request that doubles moves the splits of its neighbours."""
    before, after = plan(128, dc.Batch([8192, 8192, 8192])), plan(128, dc.Batch([16384, 8192, 8192]))
    assert before.splits.keys[2] != after.splits.keys[2]
    assert before.determinism == "batch-dependent"
    assert before.gate("scheduler_metadata").passed


def test_equal_requests_may_get_different_splits():
    """The walk cuts where a part is full: nine equal requests do not all get the same count."""
    assert len(set(plan(16, dc.Batch.uniform(9, 65536)).splits.requested)) > 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": dc.Geometry(32, 8, 128)}, "not_mla"),
        ({"geo": dc.Geometry(16, 1, 320, 256, mla=True)}, "head_dim"),
        ({"geo": dc.Geometry(16, 1, 576, 512, window=128, mla=True)}, "window"),
        ({"kv": dc.KvCache(page_size=16)}, "page_size"),
        ({"kv": dc.KvCache("fp8", 64)}, "dtype"),
        ({"gpu": dc.load_gpu("a100-sxm")}, "not_sm90"),
        ({"gpu": dc.load_gpu("b200")}, "not_sm90"),
        ({"batch": dc.Batch([64, 64], [1, 2])}, "ragged_q_len"),
    ],
)
def test_start_up_refusals(change, code):
    """cases.md 86 and dense_decode.h: pages of 64, latents of 576 or 512, bf16 or fp16, Hopper, equal query lengths."""
    given = {"geo": mla(16), "batch": dc.Batch([4096]), "kv": PAGES, "gpu": H100} | change
    with pytest.raises(dc.GateError) as refused:
        dc.plan("flashmla", given["geo"], given["batch"], kv=given["kv"], gpu=given["gpu"])
    assert refused.value.code == code


def test_the_combine_kernel_stops_at_160_parts():
    """combine.cu, MLA_NUM_SPLITS_SWITCH: a device of 304 SMs would abort, 132 does not."""
    assert plan(16, dc.Batch([4096])).gate("combine_supported").passed
    assert not plan(16, dc.Batch([4096]), gpu=H100.with_(sm_count=304)).gate("combine_supported").passed


def test_the_metadata_kernel_holds_the_batch_in_shared_memory():
    """get_decoding_sched_meta.cu: five ints per request, so that some 11 600 requests fill an H100 block."""
    assert plan(16, dc.Batch.uniform(11000, 64)).gate("metadata_fits").passed
    assert not plan(16, dc.Batch.uniform(12000, 64)).gate("metadata_fits").passed


def test_scratch_holds_a_state_per_request_and_part():
    """dense_decode.h: total_num_splits = B + parts rows of 512 + 1 floats per head and query token."""
    assert plan(16, dc.Batch.uniform(4, 4096, q_len=2)).scratch_bytes == (4 + 132) * 16 * 2 * 513 * 4


def test_versions_differ_in_payload_floor_and_combine_grid():
    """Until 2025-09-23 a part's payload was at least 10 blocks; the combine grid changed its axes twice since."""
    batch = dc.Batch.uniform(2, 4096, q_len=2)
    grids = {v: plan(24, batch, f"@{v}").merge.grid for v in ("2026-04-29", "2026-01-16", "2025-12-24")}
    assert grids == {"2026-04-29": (4, 1, 3), "2026-01-16": (2, 2, 3), "2025-12-24": (2, 6, 1)}
    assert plan(16, dc.Batch([4096]), "@2025-04-22").detail.payload_blocks == 10
    assert plan(16, dc.Batch([4096]), "@2025-04-22").splits.requested == (13,)


def walked(blocks, payload, parts, least_blocks=5):
    """Splits of each request and used parts, dealt block by block: the rule in its plainest words."""
    splits, request, dealt, used = [0] * len(blocks), 0, 0, 0
    for _ in range(parts):
        if request == len(blocks):
            break
        used += 1
        room = payload
        while request < len(blocks):
            todo = blocks[request] - dealt
            if room >= todo + least_blocks:
                room -= todo + least_blocks
                splits[request] += 1
                request, dealt = request + 1, 0
            else:
                if room > least_blocks:
                    dealt += room - least_blocks
                    splits[request] += 1
                break
    return splits, used


HEADS = st.sampled_from([1, 8, 16, 24, 71, 128])
LENGTHS = st.lists(st.integers(0, 40000), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(HEADS, LENGTHS, st.sampled_from([1, 1, 3]), st.sampled_from([1, 20, 78, 132]))
def test_live_splits_tile_the_keys_exactly_once(heads, seq_lens, q_len, sms):
    """Every key belongs to exactly one live split, splits and parts agree with a walk block by block."""
    found = plan(heads, dc.Batch(seq_lens, q_len), gpu=H100.with_(sm_count=sms))
    for r, length in enumerate(seq_lens):
        ranges = found.splits.keys[r]
        assert len(ranges) == found.splits.live[r]
        assert [key for start, end in ranges for key in (start, end)] == sorted(
            key for start, end in ranges for key in (start, end)
        )
        assert sum(end - start for start, end in ranges) == length
        assert all(start < end for start, end in ranges)
        assert all(start % 64 == 0 for start, _ in ranges)
    blocks = [max(-(-n // 64), 1) for n in seq_lens]
    splits, used = walked(blocks, found.detail.payload_blocks, found.detail.num_sm_parts)
    assert (list(found.splits.requested), found.detail.used_parts) == (splits, used)
    assert found.detail.num_splits[-1] == sum(splits)


@settings(max_examples=30, deadline=None)
@given(HEADS, st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60000)), min_size=1, max_size=5))
def test_whole_array_and_scalar_planning_agree(heads, steps):
    """A sweep's step n is the plan of its uniform batch; its one count is the most that a request gets."""
    geo, opts = mla(heads), POLICY.options_type()
    sizes, contexts = np.array(steps).T
    _, swept = POLICY.on_layer(geo, Batches.uniform(sizes, contexts), PAGES, H100, opts, POLICY.version())
    for n, (size, context) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(size, context), PAGES, H100)
        assert at(swept.is_split, n) == (one.path == "split")
        assert [tuple(at(x, n) for x in k.grid) for k in swept.kernels] == [k.grid for k in one.kernels]
        assert [at(k.live_blocks, n) for k in swept.kernels] == [k.live_blocks for k in one.kernels]
        assert swept.requested[n, 0] == max(one.splits.requested)
        assert swept.live[n, 0] == max(one.splits.live)
        assert (at(swept.launched, n), at(swept.scratch_bytes, n)) == (one.splits.launched, one.scratch_bytes)
        assert swept.key_ranges(n) == list(one.splits.keys)


def test_classes_with_counts_are_dealt_like_single_requests():
    """Three equal requests as one class of three, with an absent class before them, give the same schedule."""
    lens = np.array([[100, 5000, 300], [900, 64, 7000]])
    counts = np.array([[0, 3, 2], [1, 40, 2]])
    opts = POLICY.options_type()
    _, swept = POLICY.on_layer(mla(16), Batches(lens, np.ones_like(lens), counts), PAGES, H100, opts, POLICY.version())
    for n in range(2):
        requests = [int(length) for length, count in zip(lens[n], counts[n]) for _ in range(count)]
        one = plan(16, dc.Batch(requests))
        assert at(swept.detail.used_parts, n) == one.detail.used_parts
        assert swept.key_ranges(n) == list(one.splits.keys)
        assert swept.requested[n].max() == max(one.splits.requested)
