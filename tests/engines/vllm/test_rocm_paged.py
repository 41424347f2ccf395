"""vLLM's ROCm paged attention: gates, partitions and the fallback."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.vllm.rocm_paged import POLICY
from decodecalc.launch.arrays import Batches, at

MI300X = dc.load_gpu("mi300x")
LLAMA_8B = dc.Geometry(32, 8, 128)


def plan(batch, geo=LLAMA_8B, kv=None, gpu=MI300X, version="", **options):
    return dc.plan(f"rocm-paged{version}", geo, batch, kv=kv or dc.KvCache(), gpu=gpu, **options)


def test_a_block_serves_a_group_for_one_partition():
    """engines.md 9: grid (B, partitions of the longest, kv_heads), 256 threads, reduced over (q_heads, B)."""
    found = plan(dc.Batch([1000, 300]))
    assert (found.stage1.grid, found.stage1.threads, found.merge.grid) == ((2, 4, 8), 256, (32, 2))
    assert (found.splits.launched, found.splits.live) == (4, (4, 2))
    assert found.splits.keys[1] == [(0, 256), (256, 300)]
    assert found.stage1.live_blocks == 8 * 6
    assert found.determinism == "fixed size"
    assert found.scratch_bytes == 2 * 32 * 4 * (128 * 2 + 8)


def test_one_partition_is_reduced_all_the_same():
    """The reduce kernel is always launched in this version; 0.7.3 wrote the output directly."""
    assert plan(dc.Batch([100])).path == "split"
    assert plan(dc.Batch([100]), version="@0.7.3").path == "unsplit"


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ({"geo": dc.Geometry(64, 8, 64, sinks=True)}, "sinks"),
        ({"geo": dc.Geometry(32, 8, 256)}, "head_dim"),
        ({"geo": dc.Geometry(32, 8, 128, window=4096)}, "window"),
        ({"geo": dc.Geometry(34, 2, 128)}, "group"),
        ({"kv": dc.KvCache(page_size=64)}, "block_size"),
        ({"kv": dc.KvCache(query_dtype="fp32")}, "query_dtype"),
        ({"batch": dc.Batch([131073])}, "max_seq_len"),
        ({"arch": "gfx1x", "geo": dc.Geometry(16, 8, 128)}, "group"),
        ({"arch": "gfx1x", "kv": dc.KvCache(page_size=32)}, "block_size"),
        ({"arch": "gfx1x", "kv": dc.KvCache("fp8")}, "kv_dtype"),
        ({"arch": "gfx1x", "alibi": True}, "alibi"),
        ({"arch": "other"}, "arch"),
    ],
)
def test_a_failed_gate_sends_the_step_to_an_unsplit_triton_kernel(change, gate):
    """cases.md 77, 42 (vLLM #54210, #34741, #50264; platforms/rocm.py): gpt-oss's sinks and head dim 256 fall back."""
    found = plan(**({"batch": dc.Batch([1000])} | change))
    assert not found.gate(gate).passed
    assert (found.path, found.detail.kernel_path) == ("unsplit", "triton_fallback")
    assert found.stage1.name == "kernel_paged_attention_2d"
    assert found.stage1.grid == (1, found.geometry.kv_heads)
    assert (found.merge, found.scratch_bytes, found.determinism) == (None, 0, "invariant")


def test_a_graph_captured_for_a_long_model_bakes_the_fallback_in():
    """The gate sees the length of capture: a short request in a graph sized for 256 K keys never takes the kernel."""
    assert plan(dc.Batch([1000])).detail.custom
    assert not plan(dc.Batch([1000]), max_seq_len=262144).detail.custom


def test_the_fallback_reads_keys_outside_the_window():
    """kernel_paged_attention_2d masks them, it does not skip them."""
    found = plan(dc.Batch([20000]), dc.Geometry(32, 8, 128, window=1024))
    assert found.keys_read == (20000,)


@pytest.mark.parametrize(("page_size", "tile"), [(16, 16), (128, 128), (256, 128), (544, 32)])
def test_tile_of_the_fallback(page_size, tile):
    """chunked_prefill_paged_decode.py: at most 128 keys, 32 where the block size is not a power of two."""
    assert plan(dc.Batch([5000]), dc.Geometry(32, 8, 256), dc.KvCache(page_size=page_size)).tile_keys == tile


def test_architecture_comes_from_the_gfx_name():
    """CDNA is gfx9 and gfx1250, the latter since 0.27; RDNA 3 and 4 are gfx1x; gfx10 has no branch."""
    arch = {name: plan(dc.Batch([100]), gpu=MI300X.with_(gfx=name)).detail.arch for name in ("gfx90a", "gfx1250")}
    assert arch == {"gfx90a": "cdna", "gfx1250": "cdna"}
    assert plan(dc.Batch([100]), gpu=MI300X.with_(gfx="gfx1201")).detail.arch == "gfx1x"
    assert plan(dc.Batch([100]), gpu=MI300X.with_(gfx="gfx1030")).detail.arch == "other"
    assert plan(dc.Batch([100]), gpu=MI300X.with_(gfx="gfx1250"), version="@0.26.0").detail.arch == "gfx1x"


def test_the_reduction_loops_in_waves():
    """512 partitions take 8 loops of 64 lanes on CDNA and 16 of 32 on gfx1x."""
    assert plan(dc.Batch([131072])).detail.npar_loops == 8
    assert plan(dc.Batch([131072]), arch="gfx1x").detail.npar_loops == 16


def test_partition_size_of_other_builds():
    """512 until vLLM 0.7.3 (ROCm/vllm #238 made it 256); 512 and 1024 can be asked for."""
    assert plan(dc.Batch([1025]), version="@0.7.3").splits.live == (3,)
    assert plan(dc.Batch([1025]), partition_tokens=1024).splits.live == (2,)
    with pytest.raises(dc.GateError, match="paged-attention-v1"):
        plan(dc.Batch([32769]), version="@0.7.3")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpu": dc.load_gpu("h100-sxm")}, "not_amd"),
        ({"batch": dc.Batch([100], 2)}, "q_len"),
        ({"geo": dc.Geometry(16, 1, 576, 512, mla=True)}, "mla"),
    ],
)
def test_refusals(change, code):
    """Not on NVIDIA, not for several query tokens, not for MLA."""
    with pytest.raises(dc.GateError) as refused:
        plan(**({"batch": dc.Batch([100])} | change))
    assert refused.value.code == code


@st.composite
def scenarios(draw):
    group = draw(st.sampled_from([1, 4, 8, 16, 17]))
    kv_heads = draw(st.sampled_from([1, 2, 8]))
    window = draw(st.none() | st.none() | st.integers(1, 3000))
    geo = dc.Geometry(group * kv_heads, kv_heads, draw(st.sampled_from([64, 128, 256])), window=window)
    return (
        geo,
        dc.KvCache(page_size=draw(st.sampled_from([16, 32, 544]))),
        {"arch": draw(st.sampled_from(["cdna", "gfx1x"]))},
    )


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.lists(st.integers(0, 140000), min_size=1, max_size=8))
def test_live_partitions_tile_the_keys_exactly_once(scenario, seq_lens):
    """Partitions of a request are contiguous from its first to its last key, on either path."""
    geo, kv, options = scenario
    found = plan(dc.Batch(seq_lens), geo, kv, **options)
    for r, length in enumerate(seq_lens):
        ranges = found.splits.keys[r]
        edges = [0, *(end for _, end in ranges)]
        assert [start for start, _ in ranges] == edges[:-1]
        assert edges[-1] == length
        assert len(ranges) == found.splits.live[r] <= found.splits.launched


@settings(max_examples=40, deadline=None)
@given(scenarios(), st.lists(st.tuples(st.integers(1, 300), st.integers(1, 140000)), min_size=1, max_size=6))
def test_whole_array_and_scalar_planning_agree(scenario, steps):
    """A sweep's step n is the plan of its uniform batch."""
    geo, kv, options = scenario
    opts = POLICY.options_type.from_mapping("rocm-paged", options)
    sizes, contexts = np.array(steps).T
    _, swept = POLICY.on_layer(geo, Batches.uniform(sizes, contexts), kv, MI300X, opts, POLICY.version())
    for n, (size, context) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(size, context), kv, MI300X, options)
        kernels = [k for k in swept.kernels if at(k.when, n)]
        assert [tuple(at(x, n) for x in k.grid) for k in kernels] == [k.grid for k in one.kernels]
        assert [at(k.live_blocks, n) for k in kernels] == [k.live_blocks for k in one.kernels]
        assert (at(swept.launched, n), at(swept.scratch_bytes, n)) == (one.splits.launched, one.scratch_bytes)
        assert [bool(at(g.passed, n)) for g in swept.gates] == [g.passed for g in one.gates]
