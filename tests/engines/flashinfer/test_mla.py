"""FlashInfer's MLA planner: values of the source, laws of its lists, refusals, and both doors."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.flashinfer.mla import POLICY, work_lists
from decodecalc.engines.flashinfer.options import FlashInferMlaOptions
from decodecalc.launch.arrays import Batches, at, row

H100 = dc.load_gpu("h100-sxm")
B200 = dc.load_gpu("b200-sxm")
A10G = H100.with_(compute_capability=(8, 6), smem_bytes_per_sm=102400, max_smem_bytes_per_block=101376)


def mla(heads, v_dim=512, rope=64):
    return dc.Geometry(heads, 1, v_dim + rope, v_dim, mla=True)


def plan(heads, batch, version="", gpu=H100, kv=None, **options):
    kv = dc.KvCache(page_size=64) if kv is None else kv
    return dc.plan(f"flashinfer-mla{version}", mla(heads), batch, kv=kv, gpu=gpu, **options)


@pytest.mark.parametrize(
    ("heads", "batch", "keys", "grid", "limit", "items", "idle", "merges"),
    [
        (128, 1, 8000, (2, 66, 1), 256, 32, 34, 43),
        (16, 1, 8000, (1, 132, 1), 192, 42, 90, 16),
        (16, 64, 4096, (1, 132, 1), 2048, 128, 4, 128),
    ],
)
def test_schedules_of_an_h100(heads, batch, keys, grid, limit, items, idle, merges):
    """scheduler.cuh, MLAPlan: clusters, chunk limit, items, clusters without one and merging CTAs of 132 SMs."""
    found = plan(heads, dc.Batch.uniform(batch, keys))
    detail = found.detail
    assert found.stage1.grid == grid
    assert (detail.kv_len_limit, detail.work_items, detail.idle_clusters) == (limit, items, idle)
    assert (detail.merge_ctas, len(work_lists(found).merges)) == (merges, merges)
    assert found.live_blocks == grid[0] * (grid[1] - idle)


@pytest.mark.parametrize(
    ("keys", "limit"), [(8, 32), (9, 64), (16, 64), (17, 128), (33, 192), (64, 192), (65, 256), (257, 512)]
)
def test_the_chunk_limit_is_a_step_function_of_the_mean(keys, limit):
    """MLAPlan: 32, 64, 128, 192, then multiples of 256, by the keys of a cluster."""
    assert plan(16, dc.Batch.uniform(132, keys)).detail.kv_len_limit == limit


def test_partial_states_are_merged_in_the_same_launch():
    """One cooperative kernel: split, no merge kernel, the whole grid meets before rows are merged."""
    found = plan(128, dc.Batch([8000]))
    assert (found.is_split, found.merge, found.merge_in, len(found.kernels)) == (True, None, "grid", 1)
    assert found.gate("merge_in_kernel").passed
    assert found.state_values == 512 // 2 + 1
    assert found.scratch_bytes == 2 * 66 * 128 * (512 * 2 + 4)


def test_short_requests_are_unsplit():
    """A request no longer than the chunk limit writes its output itself, next to one that is cut."""
    found = plan(16, dc.Batch([100, 60000]))
    assert found.partial_splits[0] == 0
    assert found.partial_splits[1] == found.splits.live[1] > 1
    alone = plan(16, dc.Batch([30]))
    assert (alone.path, alone.merge_in, alone.splits.live) == ("unsplit", None, (1,))


def test_causal_query_tiles_see_fewer_keys():
    """8 tokens of 128 heads are 8 tiles; under a causal mask the first of them ends 7 keys earlier."""
    batch = dc.Batch([1000], 8)
    ends = [{item.end for c in work_lists(plan(128, batch, causal=causal)).clusters for item in c} for causal in (0, 1)]
    assert max(ends[0]) == max(ends[1]) == 1000
    assert 993 in ends[1]
    assert 993 not in ends[0]


@pytest.mark.parametrize(
    ("gpu", "version", "options", "kernel", "passed"),
    [
        (H100, "@0.7.4", {}, "BatchMLAPageAttentionHopperKernel", True),
        (H100, "@0.7.4", {"backend": "fa2"}, "BatchMLAPagedAttentionKernel", True),
        (A10G, "@0.7.4", {}, "BatchMLAPagedAttentionKernel", True),
        (B200, "@0.6.18.post1", {}, "BatchMLAPagedAttentionKernel", True),
        (B200, "@0.7.4", {}, "BatchMLAPagedAttentionKernel", False),
        (B200, "@0.7.4", {"cuda_graph": True}, "BatchMLAPagedAttentionKernel", False),
        (B200, "@0.7.4", {"backend": "fa2"}, "BatchMLAPagedAttentionKernel", True),
    ],
)
def test_the_backend_that_auto_takes(gpu, version, options, kernel, passed):
    """fa3 on SM90, else fa2; on SM100 the policy of 0.7.1 and later ranks other kernels first, and a gate says so."""
    found = plan(128, dc.Batch.uniform(64, 8192), version, gpu, **options)
    assert found.stage1.name == kernel
    assert found.gate("backend_is_planned").passed is passed


def test_little_work_stays_on_fa2_on_sm100():
    """`ordered_sm100_backends`: outside CUDA graphs a few short requests name fa2 first."""
    assert plan(16, dc.Batch.uniform(2, 1000), gpu=B200).gate("backend_is_planned").passed


@pytest.mark.parametrize(
    ("gpu", "options", "dtype", "tile"),
    [(H100, {}, "bf16", 64), (H100, {"backend": "fa2"}, "bf16", 64), (H100, {"backend": "fa2"}, "fp8", 32),
     (A10G, {}, "bf16", 16), (dc.load_gpu("a100-sxm"), {}, "bf16", 32)],
)  # fmt: skip
def test_key_tile_follows_shared_memory(gpu, options, dtype, tile):
    """mla.cuh, DISPATCH_SMEM_CONFIG: 64, 32 or 16 keys by the shared memory of an SM; FP8 keys take 32."""
    assert plan(16, dc.Batch([5000]), gpu=gpu, kv=dc.KvCache(dtype, 64), **options).tile_keys == tile


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": dc.Geometry(32, 8, 128)}, "not_mla"),
        ({"geo": dc.Geometry(32, 2, 576, 512, mla=True)}, "kv_heads"),
        ({"geo": mla(16, 448)}, "head_dim"),
        ({"geo": mla(16, 512, 32)}, "head_dim"),
        ({"geo": mla(16, 384), "options": {"backend": "fa3"}}, "head_dim"),
        ({"geo": dc.Geometry(16, 1, 576, 512, window=128, mla=True)}, "window_sinks_or_softcap"),
        ({"kv": dc.KvCache("int8")}, "dtype"),
        ({"kv": dc.KvCache("fp16")}, "dtype"),
        ({"kv": dc.KvCache("fp8", query_dtype="fp16")}, "fp8_keys"),
        ({"kv": dc.KvCache("fp8"), "gpu": B200}, "fp8_keys"),
        ({"gpu": dc.load_gpu("mi300x")}, "not_nvidia"),
        ({"gpu": dc.load_gpu("t4")}, "compute_capability"),
        ({"gpu": B200, "options": {"backend": "fa3"}}, "not_sm90"),
        ({"gpu": A10G.with_(smem_bytes_per_sm=65536, max_smem_bytes_per_block=64512)}, "shared_memory"),
        ({"gpu": A10G.with_(max_smem_bytes_per_block=90000)}, "shared_memory"),
        ({"gpu": H100.with_(sm_count=1), "geo": mla(128)}, "too_few_sms"),
        ({"batch": dc.Batch.uniform(16385, 10)}, "too_many_work_items"),
    ],
)
def test_what_the_wrapper_refuses(change, code):
    """Layers, latents, element types and devices without a kernel, and more items than the plan holds."""
    given = {"geo": mla(16), "batch": dc.Batch([4096]), "kv": dc.KvCache(), "gpu": H100, "options": {}} | change
    with pytest.raises(dc.GateError) as refused:
        dc.plan("flashinfer-mla", given["geo"], given["batch"], kv=given["kv"], gpu=given["gpu"], **given["options"])
    assert refused.value.code == code


def test_the_old_wrapper_does_not_count_the_work():
    """0.6.18 writes past the plan's arrays where later wrappers refuse: the gate shows it."""
    assert not plan(16, dc.Batch.uniform(16385, 10), "@0.6.18").gate("work_items_fit").passed
    assert plan(16, dc.Batch.uniform(16384, 10), "@0.6.18").gate("work_items_fit").passed


def test_a_token_cut_by_a_tile_may_lose_a_key():
    """20 heads and 8 tokens: token 6 lies across the end of the first 128 rows, and its last key begins a key tile."""
    assert not plan(20, dc.Batch([66], 8), backend="fa2").gate("causal_tile_bound").passed
    assert plan(20, dc.Batch([67], 8), backend="fa2").gate("causal_tile_bound").passed
    assert plan(20, dc.Batch([66], 8), backend="fa2", causal=False).gate("causal_tile_bound").passed
    assert plan(16, dc.Batch([66], 8), backend="fa2").gate("causal_tile_bound").passed


BATCHES = st.lists(st.tuples(st.integers(0, 30000), st.integers(1, 6)), min_size=1, max_size=9).map(
    lambda rows: dc.Batch([keys + q for keys, q in rows], [q for _, q in rows])
)
HEADS = st.sampled_from([1, 8, 16, 20, 64, 96, 128])
SMS = st.sampled_from([2, 7, 30, 132])


@settings(max_examples=80, deadline=None)
@given(HEADS, BATCHES, SMS, st.booleans())
def test_items_tile_what_each_query_tile_sees(heads, batch, sms, causal):
    """The chunks of a query tile follow each other from key 0 to its last visible key, none longer than the limit; the
    counts of the plan are those of the lists, and no cluster is idle while another has two items."""
    found = plan(heads, batch, gpu=H100.with_(sm_count=sms), causal=causal)
    detail, lists = found.detail, work_lists(found)
    chunks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for cluster in lists.clusters:
        for item in cluster:
            chunks.setdefault((item.request, item.packed_row), []).append((item.start, item.end, item.partial_row))
    for (request, first_row), parts in chunks.items():
        parts.sort()
        q_len, keys = batch.q_lens[request], batch.seq_lens[request]
        last_token = min(q_len, -(-(first_row + detail.cluster_tile_q) // heads))
        assert parts[0][0] == 0
        assert parts[-1][1] == (keys - q_len + last_token if causal else keys)
        assert [start for start, _, _ in parts[1:]] == [end for _, end, _ in parts[:-1]]
        assert all(end - start <= detail.kv_len_limit for start, end, _ in parts)
        assert all((partial >= 0) == (len(parts) > 1) for _, _, partial in parts)
    assert sum(map(len, chunks.values())) == detail.work_items
    assert sum(len(parts) for parts in chunks.values() if len(parts) > 1) == detail.split_work_items
    assert sum(len(cluster) == 0 for cluster in lists.clusters) == detail.idle_clusters
    assert detail.idle_clusters == 0 or max(map(len, lists.clusters)) == 1
    for r, length in enumerate(batch.seq_lens):
        last = max(first_row for request, first_row in chunks if request == r)
        assert [(start, end) for start, end, _ in chunks[r, last]] == list(found.splits.keys[r])
        assert sum(found.splits.key_counts(r)) == length


@settings(max_examples=60, deadline=None)
@given(HEADS, BATCHES, SMS)
def test_merging_ctas_cover_each_split_row_once(heads, batch, sms):
    """Every output row of a split tile is merged by one CTA, from all of its partial rows; they fit the SMs."""
    found = plan(heads, batch, gpu=H100.with_(sm_count=sms))
    detail, lists = found.detail, work_lists(found)
    assert len(lists.merges) == detail.merge_ctas <= sms
    rows = [output for share in lists.merges for output in range(share.start, share.end)]
    assert len(rows) == len(set(rows))
    merged = [
        partial
        for share in lists.merges
        for i in range(share.end - share.start)
        for partial in range(share.partial_start + i, share.partial_end, share.stride)
    ]
    assert sorted(merged) == list(range(detail.partial_rows))
    assert detail.partial_rows <= detail.partial_rows_allocated


@settings(max_examples=60, deadline=None)
@given(HEADS, BATCHES, SMS)
def test_each_item_goes_to_a_cluster_of_least_cost(heads, batch, sms):
    """Against a plain priority queue: the costs at the end are the same, whichever of equal clusters took an item."""
    found = plan(heads, batch, gpu=H100.with_(sm_count=sms))
    detail, lists = found.detail, work_lists(found)
    fixed = 2 * detail.cluster_tile_q
    items = sorted(
        (item.request, -item.packed_row, item.start, item.end) for cluster in lists.clusters for item in cluster
    )
    costs = [0] * detail.clusters
    for _, _, start, end in items:
        heapq.heapreplace(costs, costs[0] + fixed + end - start)
    ours = [sum(fixed + item.end - item.start for item in cluster) for cluster in lists.clusters]
    assert sorted(ours) == sorted(costs)


@settings(max_examples=40, deadline=None)
@given(
    HEADS,
    st.lists(st.tuples(st.integers(1, 70), st.integers(6, 90000), st.integers(1, 6)), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([H100, B200]),
)
def test_whole_array_and_scalar_planning_agree(heads, steps, causal, gpu):
    """A sweep's step n is the plan of its uniform batch, in the engine's own quantities and gates too."""
    geo, kv, options = mla(heads), dc.KvCache(), FlashInferMlaOptions(causal=causal)
    _, swept = POLICY.on_layer(geo, Batches.uniform(*np.array(steps).T), kv, gpu, options, POLICY.version())
    for n, (size, context, q_len) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(size, context, q_len), kv, gpu, options)
        assert bool(at(swept.is_split, n)) == one.is_split
        assert tuple(at(extent, n) for extent in swept.kernels[0].grid) == one.stage1.grid
        assert at(swept.kernels[0].live_blocks, n) == one.stage1.live_blocks
        assert row(swept.live, n, size) == one.splits.live
        assert row(swept.partial_splits, n, size) == one.partial_splits
        for name in ("kv_len_limit", "work_items", "partial_rows", "merge_ctas", "idle_clusters", "split_work_items"):
            assert at(getattr(swept.detail, name), n) == getattr(one.detail, name), name
        assert [(bool(at(g.passed, n)), g.reason(n)) for g in swept.gates] == [(g.passed, g.reason) for g in one.gates]
