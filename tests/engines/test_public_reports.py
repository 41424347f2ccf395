"""Real-world cases that no other test file holds, each with its source and the answer derived from it.

Cases about one engine's rule stand in that engine's folder (tests/engines/FOLDER), those about configurations in
tests/models, the value table of a first example in tests/cli/test_analysis_commands.py.
"""

from __future__ import annotations

from typing import Any

import pytest

import decodecalc as dc
from decodecalc.errors import GateError

LLAMA_8B = dc.Geometry(32, 8, 128)
DEEPSEEK_TP8 = dc.Geometry(16, 1, 576, 512, mla=True)


def unsplit(geo: dc.Geometry, batch: dc.Batch, gpu: str, **kv: Any) -> dc.LaunchPlan:
    """The launch with one split, whatever the engine: what a kernel without a split axis does."""
    return dc.plan("flash-decoding", geo, batch, gpu=gpu, kv=dc.KvCache(**kv), num_splits=1)


def bytes_read(plan: dc.LaunchPlan) -> int:
    """KV bytes of one layer."""
    found: int = dc.traffic(plan).kv_read_bytes
    return found


# -- a) split count, grid and threshold --------------------------------------------------------------------------------


def test_cap_of_eight_costs_a_third_of_a_millisecond_a_layer() -> None:
    """sgl-project/sglang PR 21775: 48.35 against 113.23 tok/s over 36 layers is 329 µs a layer; at 32 K the
    cap of 8 leaves 64 blocks on 132 SMs, the proposed max(8, np2(SMs // 4)) = 64 gives 512."""
    step = dc.Batch.uniform(1, 32_768)
    capped = dc.plan("sglang-triton", LLAMA_8B, step, gpu="h100-sxm")
    raised = dc.plan("sglang-triton", LLAMA_8B, step, gpu="h100-sxm", max_kv_splits_arg=64)
    assert (capped.live_blocks, raised.live_blocks) == (64, 512)
    layers = dc.load_model("qwen3-8b").shard(1).layer_groups[0].layers
    assert (1 / 48.35 - 1 / 113.23) / layers * 1e6 == pytest.approx(329, abs=0.5)


def test_sparse_mla_of_one_token_is_one_block() -> None:
    """vLLM PR 54929: GLM-5.2 with 8 heads per rank over its top 2048 keys launches one block of 170 SMs; 16
    to 32 splits of 64 to 128 keys are what the fix measured as fastest, and a 2048-key step has that many tiles."""
    layer = dc.Geometry(8, 1, 576, 512, mla=True)
    alone = unsplit(layer, dc.Batch.uniform(1, 2048), "rtx5090")
    assert (alone.stage1.grid, alone.s_star) == ((1, 1, 1), 170)
    split = dc.plan("flash-decoding", layer, dc.Batch.uniform(1, 2048), gpu="rtx5090", tile_keys=64)
    assert split.splits.live == (32,)
    assert unsplit(layer, dc.Batch.uniform(4, 2048), "rtx5090").live_blocks == 4


def test_one_workgroup_walks_all_keys_at_a_tenth_of_a_terabyte() -> None:
    """ROCm/aiter PR 4794: grid (KV heads, batch) = (1, 1) on 256 compute units reads 16.8 MB in 169 µs."""
    found = unsplit(dc.Geometry(8, 1, 128), dc.Batch.uniform(1, 32_768), "mi355x")
    assert (found.live_blocks, found.gpu.sm_count, found.s_star) == (1, 256, 256)
    assert bytes_read(found) == 16_777_216
    assert bytes_read(found) / 169e-6 / 1e12 == pytest.approx(0.099, abs=0.0005)


def test_a_cap_of_eight_splits_at_one_request() -> None:
    """facebookexperimental/triton PR 2288: 64/8/64 at 8192 keys reads 16.8 MB: 34.7 µs is 0.483 TB/s, 55.9 µs
    0.300; capped at 8 splits, 64 blocks stand against 256 compute units, which want 32."""
    layer, step = dc.Geometry(64, 8, 64), dc.Batch.uniform(1, 8192)
    found = dc.plan(
        "flash-decoding", layer, step, gpu="mi355x", kv=dc.KvCache(page_size=64), num_splits=8, tile_keys=64
    )
    assert (found.live_blocks, found.s_star) == (64, 32)
    assert bytes_read(found) == 16_777_216
    assert bytes_read(found) / 34.7e-6 / 1e12 == pytest.approx(0.483, abs=0.0005)
    assert bytes_read(found) / 55.9e-6 / 1e12 == pytest.approx(0.300, abs=0.0005)


def test_the_cliff_is_found_from_the_plan() -> None:
    """vLLM issue 48076, PR 47520: 16 KV heads split 8 requests into 2048 blocks and leave 9 at 144."""
    layer = dc.Geometry(64, 16, 128)
    below, above = (dc.plan("vllm-triton", layer, dc.Batch.uniform(b, 100_000)) for b in (8, 9))
    assert (below.path, below.live_blocks) == ("3d", 2048)
    assert (above.path, above.live_blocks) == ("2d", 144)


# -- b) odd geometries, tensor parallelism, configurations -------------------------------------------------------------


def test_tensor_parallel_mla_stores_the_latent_on_every_rank() -> None:
    """vLLM issue 51454: 8 ranks keep 8 copies of 1152 bytes a key and layer; a model of 8 KV heads keeps one.
    A key has 576 elements, because the value is a view of the key's first 512 (LMCache 688 counted 2 x 512)."""
    cache = dc.KvCache()
    whole, shard = dc.load_model("deepseek-v3").shard(1), dc.load_model("deepseek-v3").shard(8)
    a_key = cache.bytes_per_key(shard.layer_groups[0].geometry)
    assert a_key == cache.bytes_per_key(whole.layer_groups[0].geometry) == 1152
    dense = [dc.load_model("llama3-8b").shard(tp).layer_groups[0].geometry for tp in (1, 8)]
    assert 8 * cache.bytes_per_key(dense[1]) == cache.bytes_per_key(dense[0])


def test_hybrid_models_read_less_than_they_allocate() -> None:
    """hf-mem 60, 61, 70, a vLLM log of 5.38 GiB for 78 384 tokens: gpt-oss-120b allocates 73 728 bytes a
    token, and reads 18 full layers of L keys and 18 of at most 128; gpt-oss-20b reads 3.0 GiB at 131 072 keys, not 6.0.
    The case's 983 040 bytes of gemma-4-31B are 60 layers alike; its 10 full layers have 4 heads of 512."""
    cache = dc.KvCache()

    def allocated(name: str) -> float:
        return sum(g.layers * cache.bytes_per_key(g.geometry) for g in dc.load_model(name).layer_groups)

    def read(name: str, context: int) -> float:
        groups = dc.load_model(name).layer_groups
        return sum(g.layers * g.keys_read(context) * cache.bytes_per_key(g.geometry) for g in groups)

    assert allocated("gpt-oss-120b") == 73_728
    assert allocated("gpt-oss-120b") * 78_384 / 2**30 == pytest.approx(5.38, abs=0.005)
    assert read("gpt-oss-120b", 8192) == 2048 * (18 * 8192 + 18 * 128)
    assert read("gpt-oss-20b", 131_072) / 2**30 == pytest.approx(3.0, abs=0.01)
    assert allocated("gpt-oss-20b") * 131_072 / 2**30 == pytest.approx(6.0, abs=0.01)
    sliding, full = dc.load_model("gemma4-31b").layer_groups
    assert (sliding.layers + full.layers) * cache.bytes_per_key(sliding.geometry) == 983_040
    assert allocated("gemma4-31b") == 983_040 - 10 * (16 * 256 - 4 * 512) * 2 * 2


@pytest.mark.parametrize("engine", ["flash-attention-2", "flashinfer", "rocm-paged"])
def test_kernels_without_sinks_do_not_ignore_them(engine: str) -> None:
    """ROCm/rocm-libraries 12227: a sink may be counted once only. The ROCm kernel's gate turns such layers
    away, FlashAttention 2 refuses them; FlashInfer takes them in another kernel variant, with the same plan."""
    layer, step = dc.Geometry(64, 8, 64, sinks=True), dc.Batch.uniform(1, 4096)
    if engine == "flash-attention-2":
        with pytest.raises(GateError, match="sinks") as refused:
            dc.plan("flash-attention-2@vllm-0.33", layer, step)
        assert refused.value.code == "sinks"
    elif engine == "rocm-paged":
        found = dc.plan(engine, layer, step, gpu="mi300x")
        assert (found.gate("sinks").passed, found.path) == (False, "unsplit")
    else:
        plain = dc.plan(engine, dc.Geometry(64, 8, 64), step)
        assert dc.plan(engine, layer, step).splits == plain.splits


@pytest.mark.parametrize("head_dim", [72, 80, 88, 96, 224, 512])
def test_unusual_head_dims(head_dim: int) -> None:
    """vLLM 12656, 16808, 3359, 17219, 40677: the Triton backend takes any head dim from 32 on, padded to a
    power of two; the 2023 kernels a fixed list (80 and 96 are on it); FlashAttention stops at 256."""
    layer, step = dc.Geometry(32, 32, head_dim), dc.Batch.uniform(1, 1000)
    found = dc.plan("vllm-triton", layer, step)
    assert found.detail.head_dim_padded == 1 << (head_dim - 1).bit_length()
    assert dc.plan("paged-attention-v2", layer, step).gate("head_dim_compiled").passed == (head_dim in (80, 96))
    if head_dim > 256:
        for engine in ("flash-attention-2@vllm-0.33", "flash-attention-3"):
            with pytest.raises(GateError, match="up to 256"):
                dc.plan(engine, layer, step)


def test_mla_in_flashinfer_is_another_kernel() -> None:
    """FlashInfer 2745: its MLA kernels serve fixed head counts; this policy refuses instead of
    guessing."""
    with pytest.raises(GateError, match="another kernel") as refused:
        dc.plan("flashinfer", DEEPSEEK_TP8, dc.Batch.uniform(1, 4096))
    assert refused.value.code == "mla"


def test_fp8_caches_on_a_gpu_without_fp8_units() -> None:
    """vLLM 49077, SGLang 18882: half the bytes did not make an A100 faster (301.8 to 483.9 µs). Half the
    bytes is what we say; vLLM refuses the combination from 0.24 on, and before it runs with the same split rule."""
    step, cache = dc.Batch.uniform(1, 32_768), dc.KvCache("fp8")
    old = dc.plan("vllm-triton@0.23.0", LLAMA_8B, step, kv=cache, gpu="a100-sxm")
    assert bytes_read(old) * 2 == bytes_read(dc.plan("vllm-triton@0.23.0", LLAMA_8B, step, gpu="a100-sxm"))
    with pytest.raises(GateError, match=r"needs compute capability 8\.9"):
        dc.plan("vllm-triton@0.24.0", LLAMA_8B, step, kv=cache, gpu="a100-sxm")


# -- c) block and page size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allocator", "kernel"), [(4192, 32), (2112, 64), (2112, 32)])
def test_block_tables_are_as_wide_as_kernel_pages(allocator: int, kernel: int) -> None:
    """vLLM 41037, 24486: Nemotron-3-Nano's allocator blocks hold 4192 (TP 1, 2) or 2112 keys (TP 4), the
    kernel reads pages of 32 or 64: the table has one entry for each of those."""
    cache = dc.KvCache(page_size=kernel, allocator_page_size=allocator)
    found = dc.paging(dc.plan("vllm-triton", dc.Geometry(32, 2, 128), dc.Batch.uniform(1, 2 * allocator), kv=cache))
    assert (found.allocator_ratio, found.allocator_entries) == (allocator // kernel, 2)
    assert found.table_entries == 2 * allocator // kernel


@pytest.mark.parametrize(
    ("engine", "good", "bad"),
    [("flashmla", 64, 128), ("vllm-triton-mla", 16, 24), ("vllm-triton-mla", 64, 8)],
)
def test_mla_page_sizes(engine: str, good: int, bad: int) -> None:
    """FlashMLA, vLLM PR 14824: FlashMLA takes pages of 64 only, Triton MLA multiples of 16."""
    step = dc.Batch.uniform(1, 4096)
    assert dc.plan(engine, DEEPSEEK_TP8, step, kv=dc.KvCache(page_size=good)).is_split
    with pytest.raises(GateError) as refused:
        dc.plan(engine, DEEPSEEK_TP8, step, kv=dc.KvCache(page_size=bad))
    assert refused.value.code == "page_size"


# -- d) determinism and batch invariance -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "options", "blocks"),
    [
        ("vllm-triton", {"batch_invariant": True}, 8),
        ("flash-attention-2@vllm-0.33", {"batch_invariant": True}, 8),
        ("flash-attention-3", {"batch_invariant": True}, 8),
        ("flashinfer", {"disable_split_kv": True}, 8),
    ],
)
def test_invariance_costs_most_of_the_gpu(engine: str, options: dict[str, Any], blocks: int) -> None:
    """vLLM issue 50603: batch-invariant modes leave 8 blocks for the 132 SMs of an H100 at batch 1 of
    Llama-3-8B, and make a request's split the same in any batch."""
    alone = dc.plan(engine, LLAMA_8B, dc.Batch([8192]), **options)
    crowd = dc.plan(engine, LLAMA_8B, dc.Batch([8192, 300, 70_000, 8192]), **options)
    assert alone.live_blocks == blocks
    assert alone.determinism == crowd.determinism
    assert alone.determinism in ("invariant", "tile-dependent")
    assert alone.splits.keys[0] == crowd.splits.keys[0] == [(0, 8192)]
    assert dc.plan(engine, LLAMA_8B, dc.Batch([8192])).determinism == "batch-dependent"


def test_fixed_tiles_of_deterministic_sglang() -> None:
    """sglang 0.5.10 and 0.5.23 sources: 256 keys a split in the Triton backend, 2048 in
    FlashInfer's decode; the count grows with the request, the batch does not matter."""
    alone, crowd = dc.Batch([5000]), dc.Batch([5000, 90_000, 17])
    triton = [dc.plan("sglang-triton", LLAMA_8B, b, deterministic=True) for b in (alone, crowd)]
    assert triton[0].splits.requested[0] == triton[1].splits.requested[0] == 20
    assert triton[0].splits.keys[0] == triton[1].splits.keys[0]
    cache = dc.KvCache(page_size=1)
    chunks = [dc.plan("flashinfer", LLAMA_8B, b, kv=cache, fixed_split_size_pages=2048) for b in (alone, crowd)]
    assert chunks[0].splits.keys[0] == chunks[1].splits.keys[0] == [(0, 2048), (2048, 4096), (4096, 5000)]
    assert {p.determinism for p in (*triton, *chunks)} == {"fixed size"}
