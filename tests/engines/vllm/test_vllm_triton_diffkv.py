"""vLLM's Triton backend for different key and value widths: hand values from its launcher, versions, refusals."""

from __future__ import annotations

import pytest

import decodecalc as dc

MIMO = dc.Geometry(64, 4, 192, 128)  # MiMo-V2-Flash's full layers
H100 = dc.load_gpu("h100-sxm")


def plan(batch, geo=MIMO, version="", kv=None, **options):
    return dc.plan(f"vllm-triton-diffkv{version}", geo, batch, kv=kv, gpu=H100, **options)


def test_one_token_is_split_up_to_the_threshold():
    """4 KV heads: 128 // 4 = 32 requests, a capture size; 16 segments, partial states as wide as a value."""
    found = plan(dc.Batch.uniform(32, 4096))
    assert (found.path, found.stage1.grid, found.tile_keys) == ("3d", (64, 4, 16), 16)
    assert (found.merge.name, found.merge.grid) == ("kernel_reduce_segments_diffkv", (32, 64))
    assert (found.state_values, found.scratch_bytes) == (130, 32 * 64 * 16 * 130 * 4)
    beyond = plan(dc.Batch.uniform(33, 4096))
    assert (beyond.path, beyond.stage1.grid, beyond.tile_keys) == ("2d", (66, 4), 32)


def test_a_key_moves_its_key_and_its_value():
    """One key of one KV head is 192 + 128 elements."""
    assert dc.traffic(plan(dc.Batch([1000]))).kv_read_bytes == 1000 * 4 * 320 * 2


@pytest.mark.parametrize(
    ("q_len", "rows", "blocks", "threads"), [(2, 32, 4 + 2, 128), (4, 64, 2 + 2, 128), (8, 128, 2 + 2, 256)]
)
def test_speculative_steps_hold_a_request_in_a_block(q_len, rows, blocks, threads):
    """0.33: q x 16 rows, 8 warps from 128 rows on; grid tokens // BLOCK_Q + requests."""
    found = plan(dc.Batch.uniform(2, 8192, q_len), num_speculative_tokens=q_len - 1)
    assert (found.path, found.block_rows, found.stage1.threads) == ("3d", rows, threads)
    assert found.stage1.grid == (2 * q_len // (rows // 16) + 2, 4, 16)


def test_a_speculative_step_needs_scratch_no_window_and_0_32():
    """Without drafts the scratch has a row a request (33 requests of 2 tokens: 2D); a window and 0.31 keep it 2D."""
    batch = dc.Batch.uniform(20, 8192, 2)
    assert plan(batch).path == "2d"
    assert plan(batch, num_speculative_tokens=1).path == "3d"
    windowed = dc.Geometry(64, 4, 192, 128, window=128)
    assert plan(batch, windowed, num_speculative_tokens=1).path == "2d"
    assert plan(dc.Batch.uniform(2, 8192, 2), version="@0.31.0").path == "2d"
    assert plan(dc.Batch.uniform(2, 8192, 2), version="@0.32.0").path == "3d"


def test_batch_invariant_mode_never_splits():
    """VLLM_BATCH_INVARIANT=1 takes the 2D grid."""
    found = plan(dc.Batch([100_000]), batch_invariant=True)
    assert (found.path, found.determinism) == ("2d", "invariant")


def test_all_engines_leave_it_out_where_widths_are_equal(call):
    """vLLM takes this backend for layers of two widths only, so `all` shows it for those."""
    two = call("grid", "--model", "mimo-v2-flash", "--engine", "all", "--format", "json")
    one = call("grid", "--model", "llama3-8b", "--engine", "all", "--format", "json")
    assert "vllm-triton-diffkv" in {row["engine"] for row in two.rows if row["grid"]}
    assert "vllm-triton-diffkv" not in {row["engine"] for row in one.rows if row["grid"]}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": dc.Geometry(16, 1, 576, 512, mla=True)}, "mla"),
        ({"kv": dc.KvCache("int8")}, "kv_dtype"),
        ({"kv": dc.KvCache("fp8"), "version": "@0.31.0"}, "kv_dtype"),
        ({"kv": dc.KvCache(page_size=8)}, "page_size"),
        ({"geo": dc.Geometry(16, 2, 16, 8)}, "head_dim"),
        ({"causal": False}, "causal"),
    ],
)
def test_refusals(change, code):
    """What the backend refuses at start-up; FP8 caches came with 0.32."""
    with pytest.raises(dc.GateError) as refused:
        plan(dc.Batch([1000]), **change)
    assert refused.value.code == code
