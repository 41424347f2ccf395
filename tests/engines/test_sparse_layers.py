"""Sparse layers: dense policies refuse them, sparse ones plan the list, and traffic counts all that is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lawful import laws

import decodecalc as dc
from decodecalc.analysis.traffic import traffic_arrays
from decodecalc.engines import engine_names, load_policy
from decodecalc.engines.registry import sparse_engines
from decodecalc.geometry import Gather, Geometry, Indexer
from decodecalc.launch.arrays import Batches

DSA = Gather(topk=2048, indexer=Indexer(heads=64, head_dim=128))
LATENT = Geometry(128, 1, 576, 512, mla=True)
BLOCKS = Gather(
    topk=2048, block=128, per_kv_head=True, indexer=Indexer(heads=4, head_dim=128, dtype="bf16", scale_bytes=0)
)
GQA = Geometry(64, 4, 128)
LAYERS = (replace(LATENT, gather=DSA), replace(GQA, gather=BLOCKS))
DENSE = [name for name in engine_names() if not load_policy(name).traits.sparse]


def device(name: str) -> str:
    """A GPU that runs the engine."""
    return laws()[name].gpus[0]


@pytest.mark.parametrize("layer", LAYERS, ids=["latent", "gqa"])
@pytest.mark.parametrize("name", DENSE)
def test_no_dense_policy_plans_a_sparse_layer(name: str, layer: Geometry) -> None:
    """The refusal has its own code, through both doors, and names engines that plan the layer."""
    with pytest.raises(dc.GateError) as refused:
        dc.plan(name, layer, dc.Batch([9000]), gpu=device(name))
    assert refused.value.code == "sparse_layer"
    assert all(engine in str(refused.value) for engine in sparse_engines())
    policy, gpu = load_policy(name), dc.load_gpu(device(name))
    with pytest.raises(dc.GateError) as refused:
        policy.on_layer(layer, Batches.uniform(1, 9000), dc.KvCache(), gpu, policy.options_type(), policy.version())
    assert refused.value.code == "sparse_layer"


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(engine_names()), st.sampled_from(LAYERS), st.integers(1, 60_000))
def test_as_dense_plans_the_dense_layer(name: str, layer: Geometry, context: int) -> None:
    """On request the plan is that of the same layer without its list, whatever the engine."""
    try:
        dense = dc.plan(name, layer.as_dense(), dc.Batch([context]), gpu=device(name))
    except dc.InputError:
        assume(False)
    assert dc.plan(name, layer, dc.Batch([context]), gpu=device(name), as_dense=True).to_dict() == dense.to_dict()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(LAYERS),
    st.lists(st.integers(1, 400_000), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_traffic_is_indexer_plus_gathered_plus_list(layer: Geometry, lens: list[int], q_len: int) -> None:
    """A sparse layer reads its index keys once a request, the gathered keys and the list once a query token."""
    found = dc.plan("flash-decoding", layer, dc.Batch(lens, q_len))
    moved, gather = dc.traffic(found), layer.gather
    assert gather is not None
    assert gather.indexer is not None
    assert found.batch.contexts == tuple(lens)
    entry = gather.indexer.head_dim * (1 if gather.indexer.dtype == "fp8" else 2) + gather.indexer.scale_bytes
    index = sum(lens) * entry
    gathered = sum(min(q_len * min(n, 2048), n) for n in lens) * found.kv.bytes_per_key(layer)
    indices = q_len * sum(min(n, 2048) if gather is DSA else 4 * -(-min(n, 2048) // 128) for n in lens)
    assert (moved.indexer_read_bytes, moved.kv_read_bytes, moved.index_list_bytes) == (index, gathered, 4 * indices)
    assert moved.cache_read_bytes == index + gathered + 4 * indices


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(LAYERS), st.lists(st.tuples(st.integers(1, 60), st.integers(1, 300_000)), min_size=1, max_size=5)
)
def test_sweeps_count_what_plans_count(layer: Geometry, steps: list[tuple[int, int]]) -> None:
    """Step n of the array door gathers, splits and moves what its plan does."""
    policy, gpu, kv = load_policy("flash-decoding"), dc.load_gpu("h100-sxm"), dc.KvCache()
    sizes, contexts = np.array(steps).T
    seen, found = policy.on_layer(
        layer, Batches.uniform(sizes, contexts), kv, gpu, policy.options_type(), policy.version()
    )
    moved = traffic_arrays(layer, kv, seen, found)
    for n, (size, context) in enumerate(steps):
        one = dc.plan("flash-decoding", layer, dc.Batch.uniform(size, context), kv=kv, gpu=gpu)
        assert found.launched[n] == one.splits.launched
        assert moved.cache_read_bytes[n] == dc.traffic(one).cache_read_bytes


def test_compressed_layers_are_not_cut_twice() -> None:
    """DeepSeek-V4's window is part of what is gathered: 640 and 8320 entries of 1024 bytes at a million keys."""
    groups = {group.name: group.geometry for group in dc.load_model("deepseek-v4-flash").layer_groups}
    kv = dc.KvCache(page_size=64)
    for name, entries in (("compressed-4", 640), ("compressed-128", 8320)):
        found = dc.plan("flash-decoding", groups[name], dc.Batch([1 << 20]), kv=kv)
        assert dc.traffic(found).kv_read_bytes == entries * 1024


def test_flashmla_walks_the_layers_list() -> None:
    """DeepSeek-V3.2's list is walked in its whole width whatever the context; V4's window is a list of its own."""
    kv, layer = dc.KvCache("fp8", 64), replace(LATENT, gather=DSA)
    short = dc.plan("flashmla-sparse", layer, dc.Batch([100]), kv=kv)
    long = dc.plan("flashmla-sparse", layer, dc.Batch([100_000]), kv=kv)
    assert short.detail.gathered_keys == long.detail.gathered_keys == (2048,)
    assert dc.plan("flashmla-sparse", LATENT, dc.Batch([2048]), kv=kv).splits.keys == long.splits.keys
    compressed = Geometry(64, 1, 512, mla=True, gather=Gather(topk=512, compress=4, window=128))
    found = dc.plan("flashmla-sparse", compressed, dc.Batch([1 << 20]), kv=kv)
    assert found.detail.gathered_keys == (640,)
    with pytest.raises(dc.GateError) as refused:
        dc.plan(
            "flashmla-sparse", layer, dc.Batch([100]), kv=dc.KvCache("fp8", 64, query_dtype="fp8"), path="dense_fp8"
        )
    assert refused.value.code == "sparse_layer"


SAME_AS_OPTION = [
    ("flash-attention-4", "b200-sxm", dc.KvCache(page_size=64), {"sparse_topk": 2048, "paged": False}),
    ("flash-attention-4@vllm-0.33", "b200-sxm", dc.KvCache(page_size=64), {"sparse_topk": 2048, "paged": False}),
    ("trtllm-gen", "b200-sxm", dc.KvCache("fp8", 64, query_dtype="fp8"), {"sparse_mla_top_k": 2048}),
    ("trtllm-gen@0.6.13", "b300-sxm", dc.KvCache(page_size=64), {"sparse_mla_top_k": 2048}),
]


@pytest.mark.parametrize(("engine", "gpu", "kv", "options"), SAME_AS_OPTION, ids=[case[0] for case in SAME_AS_OPTION])
@settings(max_examples=20, deadline=None)
@given(lens=st.lists(st.integers(1, 200_000), min_size=1, max_size=9), heads=st.sampled_from([16, 64, 128]))
def test_a_layers_list_is_the_engines_own_option(
    engine: str, gpu: str, kv: dc.KvCache, options: dict[str, Any], lens: list[int], heads: int
) -> None:
    """DeepSeek-V3.2's layer launches what the same layer does with the width of its list given as the option."""
    latent = Geometry(heads, 1, 576, 512, mla=True)
    by_layer = dc.plan(engine, replace(latent, gather=DSA), dc.Batch(lens), kv=kv, gpu=gpu)
    by_option = dc.plan(engine, latent, dc.Batch(lens), kv=kv, gpu=gpu, **options)
    assert by_layer.kernels == by_option.kernels
    assert by_layer.splits.to_dict(with_keys=True) == by_option.splits.to_dict(with_keys=True)
    assert (by_layer.scratch_bytes, by_layer.keys_read) == (by_option.scratch_bytes, by_option.keys_read)
    assert by_layer.batch.contexts == tuple(lens)


@given(lens=st.lists(st.integers(1, 200_000), min_size=1, max_size=9), mode=st.sampled_from(["persistent", "split_kv"]))
@settings(max_examples=20, deadline=None)
def test_aiter_reads_a_list_as_pages_of_one_key(lens: list[int], mode: str) -> None:
    """The decode kernel takes the list as its page table; several query tokens are requests of their own."""
    layer, kv = replace(LATENT, gather=DSA), dc.KvCache(page_size=64)
    found = dc.plan("aiter-mla", layer, dc.Batch(lens), kv=kv, gpu="mi355x", mode=mode)
    listed = dc.Batch([min(n, 2048) for n in lens])
    same = dc.plan("aiter-mla", LATENT, listed, kv=dc.KvCache(page_size=1), gpu="mi355x", mode=mode)
    assert (found.kernels, found.keys_read) == (same.kernels, same.keys_read)
    with pytest.raises(dc.GateError) as refused:
        dc.plan("aiter-mla", layer, dc.Batch([9000], 2), kv=kv, gpu="mi355x", mode=mode)
    assert refused.value.code == "q_len"


@pytest.mark.parametrize(
    ("model", "engine", "gpu", "kv"),
    [
        (model, *served)
        for model in ("deepseek-v3.2", "glm-5")
        for served in (
            ("flashmla-sparse", "h200-sxm", dc.KvCache("fp8", 64)),
            ("flashmla-sparse", "b200-sxm", dc.KvCache("fp8", 64)),
            ("flash-attention-4", "b200-sxm", dc.KvCache(page_size=64)),
            ("trtllm-gen", "b200-sxm", dc.KvCache("fp8", 64, query_dtype="fp8")),
            ("aiter-mla", "mi355x", dc.KvCache(page_size=64)),
            ("bundled", "h200-sxm", dc.KvCache("fp8", 64)),
        )
    ],
)
def test_sparse_models_plan_with_the_engines_that_serve_them(model: str, engine: str, gpu: str, kv: dc.KvCache) -> None:
    """A rank of eight reads 2048 keys a request at any longer context, and the plan keeps the sequences' lengths."""
    layer = dc.load_model(model).shard(tp=8).layer_groups[0].geometry
    found = dc.plan(engine, layer, dc.Batch([30_000] * 4), kv=kv, gpu=gpu)
    assert found.keys_read == (2048,) * 4
    assert found.batch.contexts == (30_000,) * 4
    assert dc.traffic(found).kv_read_bytes == 4 * 2048 * kv.bytes_per_key(layer)


@pytest.mark.parametrize("engine", ["flash-attention-4", "trtllm-gen"])
def test_two_lists_are_refused_where_a_kernel_reads_one(engine: str) -> None:
    """A window beside the list would need a second one, and every entry of a compressed copy has no fixed width."""
    kv = dc.KvCache(page_size=64)
    for gather in (Gather(topk=512, window=128), Gather(compress=128)):
        with pytest.raises(dc.GateError) as refused:
            dc.plan(engine, replace(LATENT, gather=gather), dc.Batch([9000]), kv=kv, gpu="b200-sxm")
        assert refused.value.code == "sparse_layer"


def test_the_command_line_refuses_and_plans_on_request(call: Any) -> None:
    """`grid` exits with 2 and says how to go on; `--as-dense` plans every key and warns."""
    words = ["grid", "--model", "deepseek-v3.2", "--tp", "8", "--engine", "vllm-triton-mla", "-c", "32k"]
    refused = call(*words)
    assert refused.code == 2
    assert "--as-dense" in refused.err
    planned = call(*words, "--as-dense")
    assert planned.code == 0
    assert "as if they read every key" in planned.out


def test_models_shows_what_is_gathered(call: Any) -> None:
    """`models NAME` has columns for the top-k, the compression and the indexer."""
    shown = call("models", "deepseek-v4-flash", "--format", "csv").out
    assert "topk,compress_ratio,indexer" in shown
    assert "512,4,64x128" in shown
