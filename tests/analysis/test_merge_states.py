"""Merging states of different launches and ranks: bytes by hand, laws, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.analysis.merge_states import METHODS, cascade, context_parallel, local_seq_lens, pair_merge

LLAMA_8B = dc.Geometry(32, 8, 128)
MLA = dc.Geometry(128, 1, 576, 512, mla=True)


def test_a_pair_merge_reads_two_states_and_writes_one():
    """Per (token, head): 2 x (128 x 2 + 4) read, 128 x 2 written, 4 more where another merge follows."""
    one = pair_merge(LLAMA_8B, tokens=3)
    assert (one.launches, one.grid) == (1, (3, 32))
    assert (one.read_bytes, one.written_bytes) == (96 * 520, 96 * 256)
    assert pair_merge(LLAMA_8B, tokens=3, writes_lse=True).written_bytes == 96 * 260
    assert pair_merge(LLAMA_8B, tokens=3, launches=5).total_bytes == 5 * one.total_bytes


def test_the_measured_merge_is_bound_by_its_launch():
    """cases.md 113 (vLLM #16173, L20): 256 x 16 x 128 in fp32 took 56 us, while its 6.3 MB need 7.3 us at 864 GB/s."""
    found = pair_merge(dc.Geometry(16, 16, 128), tokens=256, element_bytes=4, hbm_bytes_per_s=864e9)
    assert found.total_bytes == 256 * 16 * (3 * 128 * 4 + 2 * 4)
    assert found.merge_s == pytest.approx(7.32e-6, rel=1e-2)


def test_cascade_reads_the_shared_prefix_once():
    """16 requests of 4096 shared and 100 own keys read 5 696 keys instead of 67 136."""
    found = cascade(LLAMA_8B, dc.Batch.uniform(16, 4196), 4096, hbm_bytes_per_s=1e12)
    assert found.kv_read_bytes == (4096 + 1600) * 4096
    assert found.kv_read_bytes_without == 16 * 4196 * 4096
    assert found.launches == 3
    assert found.saved_bytes == found.kv_read_bytes_without - found.kv_read_bytes - found.merge.total_bytes
    assert found.saved_s == pytest.approx(found.saved_bytes / 1e12)


def test_cascade_of_one_request_only_costs():
    """Nothing is shared by a single request: the merge is all there is to it."""
    found = cascade(LLAMA_8B, dc.Batch([4096]), 2048)
    assert found.saved_bytes == -found.merge.total_bytes
    assert found.saved_s is None


def test_all_gathered_states_are_d_plus_one_floats_per_head():
    """engines.md 11: (D + 1) * 4 * q_heads bytes per token from every other rank, L / R keys on each."""
    found = context_parallel(LLAMA_8B, dc.Batch([65536]), 8, gather_queries=False, interconnect_bytes_per_s=450e9)
    assert found.state_bytes_per_token == 129 * 4 * 32
    assert found.received_bytes == 7 * 129 * 4 * 32
    assert found.kv_read_bytes == 65536 // 8 * 4096
    assert found.interconnect_s == pytest.approx(found.received_bytes / 450e9)
    assert (found.collectives, found.merge_launches) == (1, 1)


def test_pairwise_merges_take_a_launch_for_every_other_rank():
    """R - 1 merges, each reading two fp32 states and writing one."""
    found = context_parallel(LLAMA_8B, dc.Batch([65536]), 4, method="pairwise")
    assert found.merge_launches == 3
    assert found.merge_bytes == 3 * 3 * 32 * 129 * 4


def test_vllms_methods_move_less_than_whole_states():
    """vLLM 0.33 dcp.py: log-sum-exps and a reduce-scatter, or one all-to-all of 16-bit outputs, of 128 MLA heads."""
    batch = dc.Batch.uniform(8, 131072)
    by = {m: context_parallel(MLA, batch, 8, method=m) for m in METHODS}
    rows = 8 * 128
    assert by["lse-all-gather"].received_bytes == 7 * rows * 4 + 7 * rows * 1024 // 8
    assert by["all-to-all"].received_bytes == 7 * rows * 1028 // 8
    assert by["all-gather"].received_bytes == by["pairwise"].received_bytes == 7 * rows * 513 * 4
    assert {f.query_gather_bytes for f in by.values()} == {7 * 8 * 128 * 576 * 2 // 8}
    assert [by[m].collectives for m in METHODS] == [2, 2, 3, 2]


def test_latency_is_paid_for_every_step_of_every_collective():
    """Small steps are latency, not bytes: 3 collectives of 7 steps each."""
    found = context_parallel(
        MLA, dc.Batch([4096]), 8, method="lse-all-gather", interconnect_bytes_per_s=1e18, step_latency_s=1e-6
    )
    assert found.interconnect_s == pytest.approx(21e-6, rel=1e-3)


@given(st.lists(st.integers(0, 100000), min_size=1, max_size=6), st.integers(1, 16), st.integers(1, 300))
def test_every_key_is_on_one_rank(seq_lens, ranks, interleave):
    """Shares add up to the request and no rank holds more than one run beyond another."""
    shares = local_seq_lens(tuple(seq_lens), ranks, interleave)
    assert [sum(keys) for keys in zip(*shares)] == seq_lens
    for keys in zip(*shares):
        assert max(keys) - min(keys) <= interleave


def test_interleaved_runs_follow_the_positions():
    """Key p lies on rank p // interleave % ranks."""
    for n in range(40):
        expected = tuple((sum(1 for p in range(n) if p // 3 % 4 == rank),) for rank in range(4))
        assert local_seq_lens((n,), 4, 3) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cascade(LLAMA_8B, dc.Batch([100, 50]), 50), "less than the shortest request"),
        (lambda: cascade(dc.Geometry(32, 8, 128, window=64), dc.Batch([100]), 50), "sliding window"),
        (lambda: context_parallel(LLAMA_8B, dc.Batch([100]), 1), "between 2 and"),
        (lambda: context_parallel(LLAMA_8B, dc.Batch([100]), 3, method="all-to-all"), "cannot be spread"),
        (lambda: context_parallel(LLAMA_8B, dc.Batch([100]), 2, method="ring"), "unknown context-parallel method"),
        (lambda: context_parallel(dc.Geometry(32, 8, 128, window=64), dc.Batch([100]), 2), "sliding-window"),
        (lambda: pair_merge(LLAMA_8B, 0), "tokens must be"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    """Every refusal names the value that is wrong."""
    with pytest.raises(dc.InputError, match=message):
        call()


def test_results_are_plain_data():
    """`to_dict` holds lists and numbers only."""
    found = cascade(LLAMA_8B, dc.Batch.uniform(2, 100), 50).to_dict()
    assert found["suffix_keys"] == [50, 50]
    assert found["merge"]["grid"] == [2, 32]
    assert context_parallel(LLAMA_8B, dc.Batch([10]), 2).to_dict()["local_keys"] == [[5], [5]]
