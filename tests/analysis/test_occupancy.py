"""Blocks that are launched, live and working are three counts; coverage counts work; footers follow the plans."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import batches, geometries, key_counts

import decodecalc as dc
from decodecalc.analysis.occupancy import first_split_change, occupancy, occupancy_arrays
from decodecalc.engines.registry import load_policy
from decodecalc.errors import GateError, InputError
from decodecalc.launch.arrays import Batches
from decodecalc.models import LayerGroup

GPU = dc.load_gpu("h200-sxm")
WINDOWED = ("vllm-triton", "flash-attention-2", "paged-attention-v2", "flashinfer", "flash-decoding", "sglang-triton")


@settings(max_examples=60)
@given(st.sampled_from(WINDOWED), geometries(windows=True), batches())
def test_working_blocks_are_live_and_live_blocks_launched(engine: str, geo: dc.Geometry, batch: dc.Batch) -> None:
    """Coverage follows the blocks that compute, and equals live over SMs where every live block does."""
    try:
        plan = dc.plan(engine, geo, batch, kv=dc.KvCache(page_size=256), gpu=GPU)
    except InputError:
        return
    found = occupancy(plan)
    assert 0 <= found.working_blocks <= found.live_blocks <= found.launched_blocks
    assert found.sm_coverage == min(found.working_blocks, found.sm_count) / found.sm_count
    assert plan.splits.working != plan.splits.live or found.working_blocks == found.live_blocks


@settings(max_examples=40)
@given(st.sampled_from(WINDOWED), geometries(windows=True), st.lists(key_counts, min_size=1, max_size=4))
def test_arrays_count_as_single_plans_do(engine: str, geo: dc.Geometry, contexts: list[int]) -> None:
    """One occupancy of many steps is the many steps' own."""
    policy, kv = load_policy(engine), dc.KvCache(page_size=256)
    options = policy.options_type.from_mapping(engine, {})
    steps = Batches.uniform(2, contexts, 1)
    try:
        seen, launches = policy.on_layer(geo, steps, kv, GPU, options, policy.version())
    except GateError:
        return
    found = occupancy_arrays(seen, launches, GPU)
    each = [occupancy(dc.plan(engine, geo, dc.Batch.uniform(2, n), kv=kv, gpu=GPU)) for n in contexts]
    assert found.working_blocks.tolist() == [o.working_blocks for o in each]
    assert found.live_blocks.tolist() == [o.live_blocks for o in each]


def test_a_window_leaves_one_working_block_to_a_kv_head() -> None:
    """Of 16 live splits of 32 768 keys only the one that holds the window of 1024 computes: 16 of 256 blocks."""
    plan = dc.plan("vllm-triton", dc.Geometry(32, 16, 128, window=1024), dc.Batch([32768]), gpu=GPU)
    assert (plan.live_blocks, plan.working_blocks) == (256, 16)


@settings(max_examples=30)
@given(
    st.sampled_from(["vllm-triton", "flash-attention-2", "flash-attention-3", "flash-decoding"]),
    geometries(), st.integers(1, 60_000), st.integers(1, 8), st.data(),
)  # fmt: skip
def test_the_change_of_path_is_the_plans_own(
    engine: str, geo: dc.Geometry, context: int, q_len: int, data: st.DataObject
) -> None:
    """Below the batch named every plan takes the path of batch 1, and at it the other; None means none differs."""
    policy, kv, group = load_policy(engine), dc.KvCache(page_size=256), LayerGroup("all", 1, geo)
    try:
        flip = first_split_change(policy, group, kv, GPU, {}, None, max(context, q_len), q_len, limit=300)
    except GateError:
        return

    def split(size: int) -> bool:
        return dc.plan(engine, geo, dc.Batch.uniform(size, max(context, q_len), q_len), kv=kv, gpu=GPU).is_split

    below = data.draw(st.integers(1, (flip or 301) - 1))
    assert split(below) == split(1)
    assert flip is None or split(flip) != split(1)


def test_a_chunked_layer_changes_path_where_its_plans_do() -> None:
    """Chunked layers see a chunk of the context, and the footer asks about that."""
    group = LayerGroup("chunked", 1, dc.Geometry(40, 8, 128), chunk=8192)
    policy = load_policy("flash-attention-2")
    kv = dc.KvCache(page_size=256)
    context = 3 * 8192 + 40
    assert first_split_change(policy, group, kv, GPU, {}, None, context) == first_split_change(
        policy, LayerGroup("all", 1, dc.Geometry(40, 8, 128)), kv, GPU, {}, None, 40
    )


@pytest.mark.parametrize("engines", ["vllm-triton,flashmla", "vllm-triton,vllm-triton-mla"])
def test_an_engine_that_refuses_does_not_end_the_other_ones_table(call: Any, engines: str) -> None:
    """The one that plans is shown, the other is named below."""
    result = call("grid", "--q-heads", "32", "--kv-heads", "8", "--engine", engines)
    assert result.code == 0
    assert "not shown:" in result.out


def test_the_footer_counts_query_tokens(call: Any) -> None:
    """Rows that flip between batches 4 and 8 have a footer between them."""
    result = call(
        "grid", "--q-heads", "32", "--kv-heads", "8", "--gpu", "h200-sxm", "-b", "4,5", "-c", "16k", "--q-len", "4",
        "--engine", "vllm-triton", "--format", "table",
    )  # fmt: skip
    assert "the path changes from batch 4 to 5" in result.out
    assert [r["path"] for r in call(
        "grid", "--q-heads", "32", "--kv-heads", "8", "--gpu", "h200-sxm", "-b", "4,5", "-c", "16k", "--q-len", "4",
        "--engine", "vllm-triton", "--format", "json",
    ).rows] == ["3d", "2d"]  # fmt: skip
