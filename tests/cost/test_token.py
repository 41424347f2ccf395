"""A token's time: all layers of a model."""

from __future__ import annotations

import pytest

import decodecalc as dc
from decodecalc.cost.token import sum_layers


def test_layers_count_as_often_as_the_model_has_them() -> None:
    """Gemma-3's sliding and full layers have times of their own, each weighted by how many there are."""
    rank, step = dc.load_model("gemma3-27b").shard(2), dc.Batch.uniform(4, 20_000)
    found = dc.token_time("gemma3-27b", step, engine="flash-attention-3", tp=2, gpu="h200")
    assert [n for n, _ in found.layers] == [group.layers for group in rank.layer_groups]
    assert len(found.layers) == 2
    plans = [dc.plan("flash-attention-3", group.geometry, step, gpu="h200") for group in rank.layer_groups]
    times = [dc.predict(plan).total_s for plan in plans]
    expected = sum(group.layers * time for group, time in zip(rank.layer_groups, times))
    assert found.total_s == pytest.approx(expected)
    assert found.low_s < found.total_s < found.high_s
    assert found.roofline_s is not None
    assert found.roofline_s < found.total_s


def test_chunked_layers_read_their_own_chunk() -> None:
    """Llama-4's chunked layers see the last chunk of a long request only."""
    model = next(name for name in dc.zoo_names() if name.startswith("llama4"))
    groups = dc.load_model(model).shard(8).layer_groups
    found = dc.token_time(model, dc.Batch.uniform(1, 8192 * 4 + 100), tp=8, gpu="h200")
    by_name = {group.name: p.total_s for group, (_, p) in zip(groups, found.layers)}
    short = next(name for name, group in zip(by_name, groups) if group.chunk)
    assert by_name[short] == min(by_name.values())


def test_the_predict_command_says_the_same(call) -> None:  # type: ignore[no-untyped-def]
    """The column `token` of `decodecalc predict` is `token_time`."""
    rows = call(
        "predict", "--model", "gemma3-27b", "--engine", "flash-attention-3", "--context", "4096", "--gpu", "h200",
        "--format", "json",
    ).rows  # fmt: skip
    found = dc.token_time(
        "gemma3-27b", dc.Batch.uniform(1, 4096), engine="flash-attention-3", gpu="h200", options={"cuda_graph": True}
    )
    assert rows[0]["token_s"] == pytest.approx(found.total_s)


def test_a_token_time_is_plain_values() -> None:
    """One row with the layer groups nested, and a line for people."""
    found = dc.token_time("llama3-8b", dc.Batch.uniform(1, 4096), gpu="h200", options={"batch_invariant": True})
    assert found.to_dict()["layer_groups"][0]["layers"] == 32
    assert found.to_frame()["total_s"].tolist() == [found.total_s]
    assert "32 layers" in str(found)
    assert sum_layers([]) == 0.0
