"""FlashInfer's plan half: values from real issues, laws, and equality of the scalar and the whole-array door."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.flashinfer.decode import POLICY
from decodecalc.engines.flashinfer.options import FlashInferOptions
from decodecalc.engines.flashinfer.rules import key_tile, query_tile, smallest_chunk
from decodecalc.launch.arrays import Batches, at

H100 = dc.load_gpu("h100-sxm")
LLAMA_8B = dc.Geometry(32, 8, 128)


def plan(geo, batch, page_size=16, gpu=H100, version="", **options):
    return dc.plan(f"flashinfer{version}", geo, batch, kv=dc.KvCache("bf16", page_size), gpu=gpu, **options)


@pytest.mark.parametrize(
    ("geo", "batch", "context", "page_size", "chunk_keys", "chunks", "blocks"),
    [
        (LLAMA_8B, 1, 32768, 16, 1008, 33, 264),
        (LLAMA_8B, 1, 32768, 1, 993, 33, 264),
        (LLAMA_8B, 1, 32768, 64, 1024, 32, 256),
        (LLAMA_8B, 16, 4096, 16, 2048, 2, 256),
        (LLAMA_8B, 17, 4096, 16, 4096, 1, 136),
        (dc.Geometry(28, 4, 128), 1, 32768, 16, 512, 64, 256),
    ],
)
def test_plan_values_of_the_tensor_core_planner(geo, batch, context, page_size, chunk_keys, chunks, blocks):
    """scheduler.cuh on an H100: chunk, chunks per request and blocks; 17 requests are not split."""
    found = plan(geo, dc.Batch.uniform(batch, context), page_size)
    assert found.detail.kv_chunk_tokens == chunk_keys
    assert found.splits.requested == (chunks,) * batch
    assert found.stage1.launched_blocks == blocks
    assert found.path == ("split" if chunks > 1 else "unsplit")


def test_the_window_shortens_the_plan_before_chunks_are_chosen():
    """FlashInfer #4825: window_left 1023 plans 1039 keys in chunks of 128: 9, of which 8 own keys."""
    geo = dc.Geometry(32, 8, 128, window=1024)
    found = plan(geo, dc.Batch([20000]))
    assert found.detail.kv_chunk_tokens == 128
    assert found.splits.requested == (9,)
    assert found.splits.live == (8,)
    assert found.splits.keys[0][0] == (20000 - 1024, 20000 - 1024 + 128)
    assert found.keys_read == (1024,)


def test_before_the_clamp_chunks_cover_the_whole_length_and_most_see_nothing():
    """version 0.3.1 cuts all 20000 keys; only chunks that touch the window have work."""
    geo = dc.Geometry(32, 8, 128, window=1024)
    found = plan(geo, dc.Batch([20000]), version="@0.3.1")
    assert sum(end - start for start, end in found.splits.keys[0]) == 20000
    assert found.splits.live == (33,)
    assert found.splits.working == (2,)


def test_output_depends_on_the_batch_unless_the_split_size_is_fixed():
    """FlashInfer #1675: the chunk of one request changes with its neighbours; a fixed size does not."""
    alone, crowd = dc.Batch([32768]), dc.Batch([32768] + [4096] * 9)
    assert plan(LLAMA_8B, alone).splits.keys[0] != plan(LLAMA_8B, crowd).splits.keys[0]
    fixed = [plan(LLAMA_8B, b, fixed_split_size_pages=128) for b in (alone, crowd)]
    assert fixed[0].splits.keys[0] == fixed[1].splits.keys[0]
    assert {p.determinism for p in fixed} == {"fixed size"}
    assert plan(LLAMA_8B, alone).determinism == "batch-dependent"


def test_batch_invariant_vllm_costs_the_split():
    """disable_split_kv leaves 8 blocks for 132 SMs, and wins over a fixed split size given with it."""
    found = plan(LLAMA_8B, dc.Batch([32768]), disable_split_kv=True, fixed_split_size_pages=2048)
    assert (found.path, found.stage1.launched_blocks, found.determinism) == ("unsplit", 8, "tile-dependent")
    assert found.scratch_bytes == 0


def test_a_cuda_graph_always_splits_on_a_padded_grid():
    """Captured and filled work items are told apart: 33 per KV head captured, 1 filled by a request of 100 keys."""
    found = plan(LLAMA_8B, dc.Batch([100]), cuda_graph=True)
    assert (found.path, found.stage1.grid, found.stage1.live_blocks) == ("split", (33, 1, 8), 8)
    assert "captured at 33" in found.gate("cuda_graph").reason
    assert found.scratch_bytes == (33 * 16 // 4) * 32 * (128 + 1) * 4


@pytest.mark.parametrize(
    ("version", "batch", "blocks", "split"),
    [
        ("0.7.2.post1", 33, 41, True),
        ("0.7.4", 33, 33, True),
        ("0.7.2.post1", 34, 42, True),
        ("0.7.4", 34, 34, False),
        ("0.7.2.post1", 64, 79, True),
        ("0.7.4", 64, 64, False),
    ],
)
def test_a_graph_beyond_the_split_budget_is_unsplit_since_0_7_4(version, batch, blocks, split):
    """scheduler.cuh, fixed_uniform_q_len: 33 work items per KV head fit 132 SMs; more requests need no merge since."""
    found = plan(LLAMA_8B, dc.Batch.uniform(batch, 8192), version=f"@{version}", cuda_graph=True)
    assert found.stage1.grid == (blocks, 1, 8)
    assert (found.is_split, found.scratch_bytes > 0) == (split, split)
    assert ("planned unsplit" in found.gate("split").reason) is not split


def test_eager_plans_of_0_7_differ_in_nothing():
    """Only CUDA graphs changed between 0.7.2 and 0.7.4: the same eager step has the same kernels and splits."""
    old, new = (plan(LLAMA_8B, dc.Batch([5000, 70]), version=f"@{v}") for v in ("0.7.2.post1", "0.7.4"))
    assert (old.kernels, old.splits, old.scratch_bytes) == (new.kernels, new.splits, new.scratch_bytes)


@pytest.mark.parametrize(
    ("asked", "resolved"),
    [
        ("0.7.4", "0.7.4"),
        ("0.7.2.post1", "0.7.2.post1"),
        ("0.7.2", "0.7.2.post1"),
        ("0.7.1", "0.7.1"),
        ("0.7.0.post1", "0.6.18"),
        ("0.6.18.post1", "0.6.18"),
        ("0.6.15.post1", "0.6.15"),
    ],
)
def test_releases_resolve_to_the_rule_that_was_read_for_them(asked, resolved):
    """Post releases belong to their base: the wheels' planners were compared file by file."""
    assert POLICY.version(asked).name == resolved


@pytest.mark.parametrize("asked", ["0.7.3", "0.7.5", "0.7.4.post1", "0.3.2", "0.1.0"])
def test_a_release_that_nobody_read_has_no_plan(asked):
    """A version between or beyond the covered ranges is an error with the known ones, never the nearest."""
    with pytest.raises(dc.DecodecalcError, match=asked):
        POLICY.version(asked)


@pytest.mark.parametrize(("version", "compiled"), [("", True), ("@0.7.1", True), ("@0.7.0", False), ("@0.6.18", False)])
def test_groups_of_sixteen_on_cuda_cores_came_with_0_7_1(version, compiled):
    """utils.cuh, DISPATCH_GQA_GROUP_SIZE: 16 joined in 0.7.1; 7 and 12 are not compiled in any version."""
    if compiled:
        assert plan(dc.Geometry(128, 8, 128), dc.Batch([4096]), version=version, path="cuda_cores").is_split
    else:
        with pytest.raises(dc.GateError, match="groups of"):
            plan(dc.Geometry(128, 8, 128), dc.Batch([4096]), version=version, path="cuda_cores")
    for group in (7, 12):
        with pytest.raises(dc.GateError, match="groups of"):
            plan(dc.Geometry(8 * group, 8, 128), dc.Batch([4096]), version=version, path="cuda_cores")


def test_the_graph_of_a_longer_fixed_batch_refuses_too_many_chunks():
    """scheduler.cuh: a fixed split size may make more work items than the padded grid holds, which is an error."""
    with pytest.raises(dc.GateError) as refused:
        plan(LLAMA_8B, dc.Batch([131072]), cuda_graph=True, fixed_split_size_pages=8)
    assert refused.value.code == "work_items_exceed_padded_batch_size"


@pytest.mark.parametrize(("version", "compiled"), [("", True), ("@0.6.17", False), ("@0.2.5", False)])
def test_groups_of_six_on_cuda_cores_came_late(version, compiled):
    """utils.cuh, DISPATCH_GQA_GROUP_SIZE: 6 joined 1, 2, 3, 4, 8 in 0.6.18; 5 is not compiled in any version."""
    geo = dc.Geometry(48, 8, 128)
    if compiled:
        assert plan(geo, dc.Batch([4096]), version=version, path="cuda_cores").is_split
    else:
        with pytest.raises(dc.GateError, match="path=tensor_cores"):
            plan(geo, dc.Batch([4096]), version=version, path="cuda_cores")
    with pytest.raises(dc.GateError):
        plan(dc.Geometry(40, 8, 128), dc.Batch([4096]), version=version, path="cuda_cores")


@pytest.mark.parametrize(
    ("geo", "kv_dtype", "kernel"),
    [
        (dc.Geometry(32, 8, 128), "bf16", "tensor_cores"),
        (dc.Geometry(16, 8, 128), "bf16", "cuda_cores"),
        (dc.Geometry(16, 8, 128), "fp8", "tensor_cores"),
    ],
)
def test_auto_is_sglangs_choice(geo, kv_dtype, kernel):
    """SGLang, should_use_tensor_core: FP8 keys or at least four query heads per KV head."""
    found = dc.plan("flashinfer", geo, dc.Batch([4096]), kv=dc.KvCache(kv_dtype), gpu=H100, path="auto")
    assert found.detail.kernel_path == kernel


@pytest.mark.parametrize(
    ("options", "batch", "code"),
    [
        ({"path": "cuda_cores"}, dc.Batch([100], 2), "q_len_needs_tensor_cores"),
        ({"path": "cuda_cores", "fixed_split_size_pages": 4}, dc.Batch([100]), "fixed_split_needs_tensor_cores"),
        ({}, dc.Batch([100, 3], 4), "kv_shorter_than_q_len"),
    ],
)
def test_what_the_wrapper_refuses(options, batch, code):
    """flashinfer/decode.py raises for several query tokens or a fixed split size on CUDA cores."""
    with pytest.raises(dc.GateError) as refused:
        plan(LLAMA_8B, batch, **options)
    assert refused.value.code == code


def test_other_kernels_and_vendors_are_refused():
    """MLA has another kernel in FlashInfer, and there is none for AMD."""
    with pytest.raises(dc.GateError):
        plan(dc.Geometry(16, 1, 576, 512, mla=True), dc.Batch([100]))
    with pytest.raises(dc.GateError):
        plan(LLAMA_8B, dc.Batch([100]), gpu=dc.load_gpu("mi300x"))
    with pytest.raises(dc.GateError, match=r"7\.5 or newer"):
        plan(LLAMA_8B, dc.Batch([100]), gpu=H100.with_(compute_capability=(7, 0)))
    with pytest.raises(dc.GateError):
        plan(LLAMA_8B, dc.Batch([100]), version="@0.3.1", disable_split_kv=True)


@pytest.mark.parametrize(
    ("geo", "kv", "code"),
    [
        (dc.Geometry(32, 8, 72), dc.KvCache(), "head_dim"),
        (LLAMA_8B, dc.KvCache("int8"), "kv_dtype"),
        (LLAMA_8B, dc.KvCache("fp8", query_dtype="fp8"), "query_dtype"),
    ],
)
def test_what_no_kernel_is_compiled_for(geo, kv, code):
    """Head dims in steps of 16, 16-bit, FP8 and NVFP4 keys, 16-bit queries."""
    with pytest.raises(dc.GateError) as refused:
        dc.plan("flashinfer", geo, dc.Batch([100]), kv=kv, gpu=H100)
    assert refused.value.code == code


def test_occupancy_is_computed_when_not_given():
    """A block of 128 threads with 56 registers each: 9 fit the 65536 registers of an H100 SM."""
    found = plan(LLAMA_8B, dc.Batch([8192]), path="cuda_cores")
    assert found.detail.blocks_per_sm == 9
    assert found.detail.max_grid_size == 9 * 132


def test_query_tile_follows_rows_head_dim_and_device():
    """utils.cuh, FA2DetermineCtaTileQ: Turing has no 16-row tile, wide heads no 128-row tile."""
    rules, kv = POLICY.versions[0].rules, dc.KvCache()
    rows = np.array([4, 16, 17, 64, 65])
    turing = dc.load_gpu("t4")
    assert query_tile(rows, LLAMA_8B, kv, H100, rules).tolist() == [16, 16, 64, 64, 128]
    assert query_tile(rows, LLAMA_8B, kv, turing, rules).tolist() == [64, 64, 64, 64, 128]
    assert query_tile(rows, dc.Geometry(32, 8, 256), kv, H100, rules).tolist() == [16, 16, 64, 64, 64]
    assert query_tile(rows, dc.Geometry(32, 8, 512), kv, H100, rules).tolist() == [16, 16, 16, 32, 32]
    assert query_tile(rows, dc.Geometry(32, 8, 576, 256), kv, H100, rules).tolist() == [16] * 5


def test_key_tile_shrinks_with_head_dim_and_shared_memory():
    """prefill.cuh: 4 warps of 16 keys times what two blocks per SM leave; never more than the registers allow."""
    kv = dc.KvCache()
    assert key_tile(16, LLAMA_8B, kv, H100) == 4 * 16 * 2
    assert key_tile(16, dc.Geometry(32, 8, 64), kv, H100) == 4 * 16 * 4
    assert key_tile(16, LLAMA_8B, kv, dc.load_gpu("rtx-4090")) == 4 * 16 * 1
    assert key_tile(128, LLAMA_8B, kv, H100) == 16 * 4


@st.composite
def scenarios(draw):
    group = draw(st.sampled_from([1, 2, 3, 4, 8, 5, 16, 71]))
    kv_heads = draw(st.sampled_from([1, 2, 4, 8, 40, 300]))
    window = draw(st.none() | st.integers(1, 3000))
    geo = dc.Geometry(group * kv_heads, kv_heads, draw(st.sampled_from([64, 128, 256, 512])), window=window)
    options = {"cuda_graph": draw(st.booleans())}
    if group in (1, 2, 3, 4, 8, 16) and draw(st.booleans()):
        options["path"] = "cuda_cores"
        q_len = 1
    else:
        q_len = draw(st.sampled_from([1, 1, 2, 5]))
        mode = draw(st.sampled_from(["", "fixed", "disabled"]))
        if mode == "fixed":
            options |= {"fixed_split_size_pages": draw(st.integers(1, 300)), "cuda_graph": False}
        elif mode == "disabled":
            options["disable_split_kv"] = True
    kv = dc.KvCache(draw(st.sampled_from(["bf16", "fp8"])), draw(st.sampled_from([1, 8, 16, 24, 64, 528])))
    return geo, kv, options, q_len


@settings(max_examples=80, deadline=None)
@given(scenarios(), st.lists(st.integers(0, 60000), min_size=1, max_size=9))
def test_live_chunks_tile_the_visible_keys_exactly_once(scenario, seq_lens):
    """Every key from the first planned one to the last belongs to exactly one live chunk; counts match the ranges."""
    geo, kv, options, q_len = scenario
    batch = dc.Batch([n + q_len for n in seq_lens] + [0 if q_len == 1 else q_len], q_len)
    found = dc.plan("flashinfer", geo, batch, kv=kv, gpu=H100, **options)
    for r, length in enumerate(batch.seq_lens):
        ranges = found.splits.keys[r]
        assert len(ranges) == found.splits.live[r]
        assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
        assert all(start < end for start, end in ranges)
        if length:
            assert ranges[0][0] == length - found.keys_read[r]
            assert ranges[-1][1] == length
            assert ranges[0][0] <= max(length - q_len - (geo.window or length) + 1, 0)
        assert 0 <= found.splits.working[r] <= found.splits.live[r] <= found.splits.requested[r]
    assert found.stage1.live_blocks <= found.stage1.launched_blocks


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.lists(st.tuples(st.integers(1, 300), st.integers(5, 200000)), min_size=1, max_size=6))
def test_whole_array_and_scalar_planning_agree(scenario, steps):
    """A sweep's step n is the plan of its uniform batch."""
    geo, kv, options, q_len = scenario
    sizes, contexts = np.array(steps).T
    opts = FlashInferOptions.from_mapping("flashinfer", options)
    _, swept = POLICY.on_layer(geo, Batches.uniform(sizes, contexts, q_len), kv, H100, opts, POLICY.version())
    for n, (size, context) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(size, context, q_len), kv, H100, options)
        assert at(swept.is_split, n) == one.is_split
        assert tuple(at(extent, n) for extent in swept.kernels[0].grid) == one.stage1.grid
        assert at(swept.kernels[0].live_blocks, n) == one.stage1.live_blocks
        assert (at(swept.launched, n), at(swept.scratch_bytes, n)) == (one.splits.launched, one.scratch_bytes)
        assert (swept.requested[n, 0], swept.live[n, 0]) == (one.splits.requested[0], one.splits.live[0])
        assert swept.keys_read[n, 0] == one.keys_read[0]
        assert [bool(at(g.passed, n)) for g in swept.gates] == [g.passed for g in one.gates]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 4)), min_size=1, max_size=8),
    st.integers(0, 400),
    st.integers(1, 200),
)
def test_the_chunk_is_the_smallest_that_fits(requests, slots, least):
    """Against a linear search: the narrowed bisection finds the same chunk."""
    pages, columns = np.array(requests).T[:, None, :]
    batches = Batches(pages, columns, np.ones_like(pages))
    longest = int(pages.max())
    expected = max(least, longest)
    for c in range(least, longest + 1):
        if int((columns * -(-pages // c)).sum()) <= slots:
            expected = c
            break
    assert smallest_chunk(batches, pages, columns, slots, least).tolist() == [expected]
