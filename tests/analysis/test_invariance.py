"""What reproducible modes cost in blocks, per engine."""

from __future__ import annotations

from typing import Any

import pytest

import decodecalc as dc
from decodecalc.analysis.invariance import invariant_option, invariant_plan

LLAMA_8B = dc.Geometry(32, 8, 128)


@pytest.mark.parametrize(
    ("engine", "option", "before", "after", "determinism"),
    [
        ("vllm-triton", "batch_invariant", 128, 8, "invariant"),
        ("flash-attention-3", "batch_invariant", 120, 8, "tile-dependent"),
        ("flashinfer", "disable_split_kv", 264, 8, "tile-dependent"),
        ("sglang-triton", "deterministic", 64, 1024, "fixed size"),
    ],
)
def test_the_mode_and_its_price(engine: str, option: str, before: int, after: int, determinism: str) -> None:
    """Llama-3-8B, one request of 32 768 keys on an H100: most modes leave 8 blocks, SGLang's makes more."""
    found = dc.plan(engine, LLAMA_8B, dc.Batch([32_768]))
    other = invariant_plan(found)
    assert other is not None
    assert (found.live_blocks, other.live_blocks) == (before, after)
    assert other.determinism == determinism
    assert invariant_option(found, invariant_plan(found)) == option


def test_a_version_without_the_mode_has_none() -> None:
    """vLLM 0.15 does not look at VLLM_BATCH_INVARIANT; FlashInfer 0.3 has no disable_split_kv; FlashMLA has nothing."""
    step = dc.Batch([32_768])
    for engine in ("vllm-triton@0.15.1", "flashinfer@0.3.1"):
        found = dc.plan(engine, LLAMA_8B, step)
        assert (invariant_plan(found), invariant_option(found, invariant_plan(found))) == (None, None)
    mla = dc.plan("flashmla", dc.Geometry(16, 1, 576, 512, mla=True), step, kv=dc.KvCache(page_size=64))
    assert (invariant_plan(mla), invariant_option(mla, invariant_plan(mla))) == (None, None)


def test_what_does_not_depend_on_the_batch_is_its_own_answer() -> None:
    """Partitions of 512 keys are the same in any batch."""
    found = dc.plan("paged-attention-v2", LLAMA_8B, dc.Batch([32_768]))
    assert invariant_plan(found) is found


def test_a_count_by_hand_is_an_option_too() -> None:
    """FlexAttention has no mode, but SPLIT_KV."""
    found = dc.plan("flex-decoding", LLAMA_8B, dc.Batch([32_768]))
    assert (invariant_plan(found), invariant_option(found, invariant_plan(found))) == (None, "split_kv")


def test_grid_says_so(call: Any) -> None:
    """Notes under the table of one scenario, and keys in every row."""
    step = ("--model", "llama3-70b", "--tp", "8", "--context", "128k", "--engine", "all")
    result = call("grid", *step, "--format", "json")
    rows = {row["engine"]: row for row in result.rows}
    assert (rows["vllm-triton"]["invariant_option"], rows["vllm-triton"]["invariant_live_blocks"]) == (
        "batch_invariant",
        1,
    )
    assert rows["paged-attention-v2"]["kv_reads_per_key"] == 8
    assert rows["vllm-triton"]["kv_reads_per_key"] == 1
    shown = call("grid", *step, "-v").out
    assert "paged-attention-v2 8 times" in shown
    assert "vllm-triton 16 to 1" in shown
    assert "these engines first run a scheduler kernel: flash-attention-3, sglang-triton" in shown
