"""What sparse layers gather: counts for numbers and arrays, laws, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.geometry import Gather, Geometry, Indexer
from decodecalc.launch.arrays import Batches

gathers = st.builds(
    Gather,
    topk=st.none() | st.integers(1, 4096),
    compress=st.none() | st.sampled_from([1, 2, 4, 128]),
    window=st.none() | st.sampled_from([1, 128, 4096]),
    block=st.sampled_from([1, 4, 128]),
    tail=st.booleans(),
    per_kv_head=st.booleans(),
    indexer=st.none() | st.builds(Indexer, heads=st.just(4), head_dim=st.just(128), keys_per_entry=st.integers(1, 4)),
)


@given(gathers, st.integers(0, 1 << 21))
def test_a_list_never_holds_more_than_there_is(gather: Gather, context: int) -> None:
    """Listed entries are among the candidates, the nearest keys among the context, and both only grow with it."""
    assert 0 <= gather.listed(context) <= gather.candidates(context) <= context
    assert 0 <= gather.near(context) <= context
    assert gather.keys(context) == gather.listed(context) + gather.near(context)
    if gather.topk is not None and not gather.tail:
        assert gather.listed(context) <= gather.topk
    if gather.compress is None and gather.window is None:
        assert gather.keys(context) <= context
    assert gather.index_entries(context) <= context
    assert gather.indices(context, 4) <= 4 * gather.listed(context) + gather.near(context)


@given(gathers, st.lists(st.integers(0, 1 << 21), min_size=1, max_size=8))
def test_arrays_count_what_numbers_count(gather: Gather, contexts: list[int]) -> None:
    """One rule serves ints and NumPy arrays."""
    array = np.array(contexts)
    for rule in (gather.candidates, gather.listed, gather.near, gather.keys, gather.indices, gather.index_entries):
        assert rule(array).tolist() == [rule(n) for n in contexts]


@pytest.mark.parametrize(
    ("gather", "context", "keys"),
    [
        (Gather(topk=2048), 1000, 1000),
        (Gather(topk=2048), 32768, 2048),
        (Gather(topk=512, compress=4, window=128), 1 << 20, 640),
        (Gather(compress=128, window=128), 1 << 20, 8320),
        (Gather(topk=2048, block=4, tail=True), 32770, 2050),
        (Gather(topk=2048, block=4, tail=True), 2049, 2049),
    ],
)
def test_hand_values(gather: Gather, context: int, keys: int) -> None:
    """DeepSeek-V3.2's and V4's lists, and a budget beside which the incomplete block is read."""
    assert gather.keys(context) == keys


def test_a_batch_is_gathered_once() -> None:
    """The kernel's batch counts list entries, keeps the sequences' lengths, and is not gathered again."""
    geo = Geometry(128, 1, 576, 512, mla=True, gather=Gather(topk=2048))
    seen = dc.Batch([100, 5000]).seen_by(geo)
    assert (seen.seq_lens, seen.contexts) == ((100, 2048), (100, 5000))
    assert seen.seen_by(geo) is seen
    steps = Batches.uniform([1, 2], [100, 5000]).seen_by(geo)
    assert steps.seq_lens.tolist() == [[100], [2048]]
    assert steps.seen_by(geo) is steps
    assert Batches.single(seen).contexts is not None
    assert seen.seen_by(geo.as_dense()) is seen
    assert dc.Batch([5000]).seen_by(geo.as_dense()).contexts is None


def test_a_gathered_list_has_no_window() -> None:
    """A geometry cannot cut a list by a window; the nearest keys belong to the gather."""
    with pytest.raises(dc.InputError, match="no window"):
        Geometry(8, 1, 64, window=128, gather=Gather(topk=64))


@pytest.mark.parametrize("change", [{"topk": 0}, {"compress": 0}, {"block": 0}, {"window": -1}, {"topk": 1.5}])
def test_counts_must_be_positive(change: dict[str, float]) -> None:
    """Budgets, ratios, blocks and windows are positive whole numbers."""
    with pytest.raises(dc.InputError, match="gather"):
        Gather(**change)  # type: ignore[arg-type]
