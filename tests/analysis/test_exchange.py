"""What ranks exchange: bytes, launches, and the arithmetic of merging partial states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.analysis.exchange import exchange, exchange_arrays
from decodecalc.analysis.explain import explain
from decodecalc.keyshare import A2A, AG_RS, KeyShare

WHOLE = dc.Geometry(128, 1, 576, 512, mla=True)


def _divided(ranks: int, way: str = AG_RS) -> dc.Geometry:
    return replace(WHOLE, share=KeyShare(ranks, exchange=way))


def test_bytes_of_one_layer_by_hand() -> None:
    """128 heads of 576 and 512 bf16 elements on 8 ranks: seven eighths of each buffer are received."""
    found = exchange_arrays(_divided(8), dc.KvCache(), 1)
    assert found is not None
    assert [(c.kind, c.what, c.buffer_bytes) for c in found.collectives] == [
        ("all_gather", "queries", 128 * 576 * 2),
        ("all_gather", "log-sum-exps", 8 * 128 * 4),
        ("reduce_scatter", "outputs", 128 * 512 * 2),
    ]
    assert [c.received_bytes for c in found.collectives] == [129024, 3584, 114688]
    assert (found.own_heads, found.gathered_heads, found.launches) == (16, 128, 4)


def test_an_all_to_all_moves_outputs_and_sums_at_once() -> None:
    """One collective less, and one kernel more."""
    found = exchange_arrays(_divided(8, A2A), dc.KvCache(), 1)
    assert found is not None
    assert [c.kind for c in found.collectives] == ["all_gather", "all_to_all"]
    assert found.collectives[1].buffer_bytes == 128 * (512 * 2 + 4)
    assert found.launches == 4


@given(
    st.sampled_from([2, 4, 8, 72 // 9 * 2]), st.sampled_from([AG_RS, A2A]), st.lists(st.integers(1, 512), min_size=1)
)
def test_arrays_count_what_numbers_count(ranks: int, way: str, tokens: list[int]) -> None:
    """One formula serves a step and an array of steps, and nothing falls when tokens are added."""
    geo = replace(WHOLE, share=KeyShare(ranks, exchange=way))
    many = exchange_arrays(geo, dc.KvCache(), np.array(tokens))
    assert many is not None
    for i, n in enumerate(tokens):
        one, more = exchange_arrays(geo, dc.KvCache(), n), exchange_arrays(geo, dc.KvCache(), n + 1)
        assert one is not None
        assert more is not None
        assert (one.received_bytes, one.launches) == (many.received_bytes[i], many.launches[i])
        assert more.received_bytes >= one.received_bytes
        assert more.launches >= one.launches


def test_a_plan_without_context_parallelism_exchanges_nothing() -> None:
    """None, and no step of the explanation."""
    plan = dc.plan("flash-decoding", dc.Geometry(8, 1, 128), dc.Batch([4096]), gpu="h200")
    assert exchange(plan) is None
    assert all("ranks" not in step.title for step in explain(plan))


def test_the_explanation_says_what_is_exchanged() -> None:
    """The numbers of `exchange` stand in it."""
    plan = dc.plan("flash-decoding", _divided(8), dc.Batch([4097, 10]), gpu="h200")
    (step,) = (step for step in explain(plan) if step.title == "What the ranks exchange")
    text = "\n".join(step.lines)
    assert "513, 512, 512" in text
    assert "147456 B, of which" not in text  # two tokens
    assert "294912 B" in text


def test_flash_attention_attends_a_steps_own_keys_apart() -> None:
    """Two launches more for ordinary layers, none for latent ones, whose keys are stored before."""
    plain = dc.plan("flash-attention-3", dc.Geometry(16, 1, 128, share=KeyShare(2)), dc.Batch([4096]), gpu="h200")
    latent = dc.plan("flash-attention-3", _divided(2), dc.Batch([4096]), gpu="h200", kv=dc.KvCache(page_size=64))
    one, two = exchange(plain), exchange(latent)
    assert one is not None
    assert two is not None
    assert one.launches == two.launches + 2


@given(
    st.integers(1, 40).flatmap(
        lambda keys: st.tuples(
            st.lists(st.floats(-30, 30), min_size=keys, max_size=keys),
            st.lists(st.floats(-4, 4), min_size=keys, max_size=keys),
        )
    ),
    st.integers(2, 9),
    st.integers(1, 5),
)
def test_the_merge_of_any_split_over_ranks_is_the_whole(
    scores_values: tuple[list[float], list[float]], ranks: int, run: int
) -> None:
    """Outputs weighted by exp(lse_r - lse) add up to the softmax over all keys, whichever rank holds which key."""
    scores, values = np.array(scores_values[0]), np.array(scores_values[1])
    share = KeyShare(ranks, run)
    owner = np.array([share.owner(i) for i in range(len(scores))])
    outputs, sums = np.zeros(ranks), np.full(ranks, -np.inf)
    for rank in range(ranks):
        mine = scores[owner == rank]
        if len(mine):
            sums[rank] = mine.max() + np.log(np.exp(mine - mine.max()).sum())
            outputs[rank] = (np.exp(mine - sums[rank]) * values[owner == rank]).sum()
    lse = sums.max() + np.log(np.exp(sums - sums.max()).sum())
    merged = (np.exp(sums - lse) * outputs).sum()
    weights = np.exp(scores - scores.max())
    assert merged == pytest.approx((weights * values).sum() / weights.sum(), abs=1e-9)
