"""How keys are dealt to ranks: laws for numbers and arrays, models, gates, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches

import decodecalc as dc
from decodecalc.engines.registry import engine_names, load_policy
from decodecalc.keyshare import KeyShare
from decodecalc.launch.arrays import Batches

shares = st.builds(KeyShare, st.integers(2, 72), st.sampled_from([1, 2, 7, 16, 64, 256]))


@given(shares, st.integers(0, 1 << 22))
def test_the_ranks_hold_every_key_once(share: KeyShare, keys: int) -> None:
    """Local lengths sum up to the context, differ by at most a run, and rank 0 has the most."""
    local = share.all_ranks(keys)
    assert sum(local) == keys
    assert max(local) - min(local) <= share.interleave
    assert list(local) == sorted(local, reverse=True)


@given(shares, st.integers(0, 600))
def test_a_key_lies_where_its_owner_counts_it(share: KeyShare, keys: int) -> None:
    """Owner and place name every slot of every rank exactly once, in the order of the keys."""
    seen: list[list[int]] = [[] for _ in range(share.ranks)]
    for key in range(keys):
        seen[share.owner(key)].append(share.place(key))
    assert [len(places) for places in seen] == list(share.all_ranks(keys))
    assert all(places == list(range(len(places))) for places in seen)


@given(shares, st.lists(st.integers(0, 1 << 20), min_size=1, max_size=8))
def test_arrays_count_what_numbers_count(share: KeyShare, keys: list[int]) -> None:
    """One rule serves ints and NumPy arrays."""
    array = np.array(keys)
    assert share.local(array).tolist() == [share.local(n) for n in keys]
    assert share.local(array, share.ranks - 1).tolist() == [share.local(n, share.ranks - 1) for n in keys]
    assert share.owner(array).tolist() == [share.owner(n) for n in keys]
    assert share.place(array).tolist() == [share.place(n) for n in keys]


@given(batches(), st.sampled_from([2, 4, 8]), st.sampled_from([1, 64]))
def test_a_rank_sees_its_share(batch: dc.Batch, ranks: int, interleave: int) -> None:
    """Batches of all ranks sum up to the whole, one by one and as arrays, and the lengths of the sequences stay
    known."""
    geo = dc.Geometry(16 * ranks, 1, 576, 512, mla=True, share=KeyShare(ranks, interleave))
    seen = [batch.seen_by(geo, rank) for rank in range(ranks)]
    assert tuple(map(sum, zip(*(one.seq_lens for one in seen)))) == batch.seq_lens
    assert seen[0].contexts == batch.seq_lens
    assert seen[0].seen_by(geo) is seen[0]
    assert tuple(Batches.single(batch).seen_by(geo).seq_lens[0].tolist()) == seen[0].seq_lens


def test_a_deepseek_rank_runs_all_heads_over_an_eighth_of_the_keys() -> None:
    """DeepSeek-V3 at TP 8: DCP 8 changes FlashMLA's grid from one head block on all SMs to two on half of them."""
    model, kv, batch = dc.load_model("deepseek-v3"), dc.KvCache(page_size=64), dc.Batch.uniform(1, 65536)
    grids = {}
    for dcp in (1, 8):
        group = model.shard(8, dcp).layer_groups[0]
        plan = dc.plan("flashmla", group.geometry, group.seen_batch(batch), kv=kv, gpu=dc.load_gpu("h200"))
        grids[dcp] = (group.geometry.q_heads, plan.batch.seq_lens[0], plan.stage1.grid)
    assert grids == {1: (16, 65536, (1, 1, 132)), 8: (128, 8192, (2, 1, 66))}


def test_one_rank_is_no_context_parallelism() -> None:
    """DCP 1 gives the very groups of a model without it."""
    model = dc.load_model("deepseek-v3")
    assert model.shard(8, 1) == model.shard(8)


@pytest.mark.parametrize(
    ("model", "tp", "dcp", "says"),
    [
        ("llama3-8b", 8, 2, "no two ranks hold the same KV heads"),
        ("llama3-8b", 16, 4, "valid: 1, 2"),
        ("deepseek-v3", 8, 3, "valid: 1, 2, 4, 8"),
        ("gpt-oss-20b", 16, 2, "do not read every key"),
        ("deepseek-v3.2", 8, 2, "do not read every key"),
    ],
)
def test_a_degree_that_does_not_fit_says_why(model: str, tp: int, dcp: int, says: str) -> None:
    """Ranks of a group hold the same KV heads, and layers read every key."""
    with pytest.raises(dc.ShardingError, match=says):
        dc.load_model(model).shard(tp, dcp)


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeyShare(1),
        lambda: KeyShare(2, 0),
        lambda: KeyShare(True),
        lambda: KeyShare(1 << 11),
        lambda: KeyShare(2, exchange="ring"),
        lambda: dc.Geometry(4, 1, 128, window=8, share=KeyShare(2)),
        lambda: dc.Geometry(3, 1, 128, share=KeyShare(2)),
    ],
)
def test_bad_shares_are_refused(make: object) -> None:
    """Each is an InputError."""
    with pytest.raises(dc.InputError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("engine", engine_names())
def test_a_kernel_that_keeps_its_log_sum_exp_refuses(engine: str) -> None:
    """What cannot be merged is refused with its own code, by plan and by arrays; the others plan or refuse
    otherwise."""
    policy = load_policy(engine)
    geo = dc.Geometry(8, 1, 128, share=KeyShare(2))
    for version in policy.versions:
        try:
            policy.plan(geo, dc.Batch([4096]), dc.KvCache(), dc.load_gpu("h200"), version=version.name)
            code = ""
        except dc.GateError as refused:
            code = refused.code
        assert (code == "context_parallel") == (not policy.returns_lse(version)) or code in ("other_vendor", "not_mla")


def test_sglangs_kernel_merges_from_the_release_with_the_flag_on() -> None:
    """0.5.14 has no --dcp-size, and 0.5.15 has."""
    policy = load_policy("sglang-triton")
    assert policy.returns_lse(policy.version("0.5.15"))
    assert not policy.returns_lse(policy.version("0.5.14"))


def test_bytes_of_the_ranks_sum_up() -> None:
    """What every rank reads of its own keys is what one rank reads without context parallelism."""
    share, batch = KeyShare(4, 16), dc.Batch([1000, 4097, 33])
    whole = dc.Geometry(64, 1, 576, 512, mla=True)
    from dataclasses import replace

    local = replace(whole, share=share)
    read = 0
    for rank in range(4):
        plan = dc.plan("flash-decoding", local, batch.seen_by(local, rank), gpu="h200")
        read += dc.traffic(plan).kv_read_bytes
    assert read == dc.traffic(dc.plan("flash-decoding", whole, batch, gpu="h200")).kv_read_bytes
