"""tensorrt-llm-xqa: hand values, the rule's bounds, the choice against MMHA, pieces, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.tensorrt_llm.choice import GMMA, HMMA, XqaCall, decide
from decodecalc.engines.tensorrt_llm.xqa import sub_sequences, sub_sequences_mla, sub_sequences_speculative
from decodecalc.launch.arrays import Batches

H100 = dc.load_gpu("h100-sxm")
SM120 = dc.load_gpu("rtx-pro-6000-server")
GQA, FP8 = dc.Geometry(32, 8, 128), dc.KvCache("fp8", 32)
MLA = dc.Geometry(128, 1, 576, 512, mla=True)
MLA_CACHE = dc.KvCache("fp8", 32, query_dtype="fp8")


def plan(geo=GQA, batch=None, kv=None, gpu=H100, version="", **options):
    return dc.plan(
        f"tensorrt-llm-xqa{version}",
        geo,
        batch or dc.Batch([8192]),
        kv=kv or dc.KvCache(page_size=32),
        gpu=gpu,
        **options,
    )


def test_the_count_grows_with_the_square_root():
    """8192 keys are 64 pieces of 128: min(64, round(sqrt(512))) = 23, in each kernel's own grid."""
    assert plan().stage1.grid == (23, 8, 1)
    assert plan(kv=FP8).stage1.grid == (1, 23, 8)
    assert (plan().detail.kernel, plan(kv=FP8).detail.kernel) == (HMMA, GMMA)


def test_eight_waves_are_the_most():
    """64 requests of 23 sub-sequences are 89.2 waves of 132 SMs: 23 * 8 / 89.2 leaves 2."""
    assert plan(batch=dc.Batch.uniform(64, 8192)).stage1.grid == (2, 8, 64)


def test_one_long_request_leaves_most_sms_idle():
    """131072 keys of one KV head get sqrt(8192) = 91 sub-sequences, fewer than the 132 SMs."""
    assert plan(geo=dc.Geometry(8, 1, 128), batch=dc.Batch([131072])).stage1.grid == (91, 1, 1)


def test_mla_on_sm120_fills_one_wave():
    """min(188 SMs, 8192 / 128, 500) = 64 clusters of 4 blocks; the earlier revision never cut a sequence."""
    found = plan(geo=MLA, kv=MLA_CACHE, gpu=SM120)
    assert (found.stage1.grid, found.stage1.threads) == ((4, 64, 1), 384)
    assert plan(geo=MLA, kv=MLA_CACHE, gpu=SM120, version="@2026-early").stage1.grid == (4, 1, 1)


def test_speculative_decoding_on_hopper_takes_a_power_of_two():
    """4 requests of 4 drafts are 32 blocks; 132 / 32 = 4 sub-sequences keep them in one wave."""
    assert plan(batch=dc.Batch.uniform(4, 16384, 4), kv=FP8).stage1.grid == (1, 4, 32)


def test_the_ampere_kernel_never_cuts_drafts():
    """Without an FP8 cache, speculative decoding runs one sub-sequence and tiles of 16 or 32 query rows."""
    found = plan(batch=dc.Batch.uniform(2, 16384, 8))
    assert (found.stage1.grid, found.path) == ((1, 16, 2), "unsplit")
    assert plan(batch=dc.Batch.uniform(2, 16384, 17)).stage1.grid == (1, 24, 2)


def test_switches_and_the_environment():
    """Multi-block mode off gives one sub-sequence, except for MLA; the variable replaces the count unchecked."""
    assert plan(multi_block_mode=False).splits.launched == 1
    assert plan(geo=MLA, kv=MLA_CACHE, gpu=SM120, multi_block_mode=False).splits.launched == 64
    assert plan(env_blocks_per_sequence=7).splits.launched == 7
    assert plan(env_blocks_per_sequence=7, multi_block_mode=False).splits.launched == 1


def test_little_work_is_left_to_mmha():
    """8 KV heads of 128 keys are 8 pieces; times 4 they do not reach 132 SMs, so that MMHA would run."""
    short = dc.Batch([128])
    assert not plan(batch=short).gate("engine_picks_it").passed
    assert plan(batch=dc.Batch([1024])).gate("engine_picks_it").passed
    assert plan(batch=short, kv=FP8).gate("engine_picks_it").passed  # MMHA has no kernel for it
    assert plan(batch=short, force_xqa=True).gate("engine_picks_it").passed
    mmha = dc.plan("tensorrt-llm-mmha", GQA, short, kv=dc.KvCache(page_size=32), gpu=H100)
    assert mmha.gate("engine_picks_it").passed
    assert not dc.plan("tensorrt-llm-mmha", GQA, dc.Batch([8192]), gpu=H100).gate("engine_picks_it").passed


def test_the_choice_is_made_for_every_step_of_a_sweep():
    """One call decides a whole array: little work first, then enough."""
    steps = Batches.uniform(np.array([1, 1, 64]), np.array([100, 4096, 100]))
    decision = decide(GQA, steps, dc.KvCache(page_size=32), H100, XqaCall())
    assert decision.used.tolist() == [False, True, True]
    assert decision.kernel == HMMA
    mha = decide(dc.Geometry(32, 32, 128), steps, dc.KvCache(page_size=32), H100, XqaCall())
    assert (mha.kernel, mha.used.any(), mha.refusal[0]) == (None, False, "mha")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": dc.Geometry(8, 8, 128)}, "mha"),
        ({"geo": dc.Geometry(32, 8, 512)}, None),
        ({"geo": dc.Geometry(32, 8, 512), "gpu": dc.load_gpu("a100-sxm")}, "head_dim"),
        ({"geo": dc.Geometry(32, 8, 72)}, "head_dim"),
        ({"geo": dc.Geometry(64, 1, 128)}, "group"),
        ({"geo": MLA}, "mla"),
        ({"geo": MLA, "gpu": SM120}, "kv_dtype"),
        ({"kv": dc.KvCache(page_size=8)}, "page_size"),
        ({"kv": dc.KvCache("fp8", 8)}, None),
        ({"kv": dc.KvCache("int4", 32)}, "kv_dtype"),
        ({"kv": dc.KvCache("fp32", 32, query_dtype="fp32")}, "dtype"),
        ({"gpu": dc.load_gpu("b200")}, "trtllm_gen"),
        ({"gpu": dc.load_gpu("t4")}, "compute_capability"),
        ({"gpu": dc.load_gpu("mi300x")}, "not_nvidia"),
        ({"beam_width": 2}, "beam_width"),
        ({"beam_width": 4}, None),
        ({"beam_width": 4, "geo": dc.Geometry(32, 8, 128, window=4096)}, "window"),
        ({"position_embedding_type": "alibi"}, "position_embedding"),
        ({"chunked_attention": True}, "chunked_attention"),
        ({"spec_decoding": False, "batch": dc.Batch([64], 2)}, "q_len"),
    ],
)
def test_what_xqa_serves(change, code):
    """Every condition of the support checks has a code; what they let through is planned."""
    if code is None:
        assert plan(**change).stage1.grid
        return
    with pytest.raises(dc.GateError) as refused:
        plan(**change)
    assert refused.value.code == code


def test_tiles_are_dealt_to_the_sub_sequences_in_turn():
    """The Ampere-style kernel gives sub-sequence i the tiles of 256 keys i, i + n, …; a window skips whole tiles."""
    found = plan(batch=dc.Batch([1000]), env_blocks_per_sequence=3)
    assert found.splits.pieces(0) == [[(0, 256), (768, 1000)], [(256, 512)], [(512, 768)]]
    assert (found.merge, found.merge_in) == (None, "last_block")
    late = plan(geo=dc.Geometry(32, 8, 128, window=300), batch=dc.Batch([1000]), env_blocks_per_sequence=3)
    assert late.splits.pieces(0) == [[(512, 768)], [(768, 1000)]]


def test_sub_sequences_without_keys_differ_between_the_kernels():
    """Every sub-sequence of the Ampere-style kernel leaves a state; Hopper's and MLA's leave those without work out."""
    short = dc.Batch([100, 8192])
    assert plan(batch=short).partial_splits == (23, 23)
    assert plan(batch=short, kv=FP8).partial_splits == (2, 23)
    assert plan(geo=MLA, batch=short, kv=MLA_CACHE, gpu=SM120).partial_splits == (0, 64)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 2_000_000), st.integers(1, 7000), st.integers(1, 64), st.integers(1, 200))
def test_the_count_obeys_its_bounds(keys, batch, heads, sms):
    """At least one, at most one for 128 keys, near the square root, at most eight waves and 6000 sub-sequences."""
    count = int(sub_sequences(np.array([keys]), np.array([batch]), heads, sms)[0])
    assert 1 <= count <= max(keys // 128, 1)
    assert count <= math.sqrt(8 * (keys // 128)) + 0.51 or count == 1
    assert count == 1 or (count * batch * heads <= 8 * sms and count * batch <= 6000)
    mla = int(sub_sequences_mla(np.array([keys]), np.array([batch]), sms)[0])
    assert 1 <= mla <= max(-(-keys // 128), 1)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 200_000), st.integers(1, 40), st.integers(1, 400), st.sampled_from([78, 114, 132]))
def test_drafts_keep_to_one_wave(keys, batch, blocks, sms):
    """Sub-sequences of a speculative launch are a power of two up to 64, and their blocks fit one wave."""
    count = int(sub_sequences_speculative(np.array([keys]), np.array([batch]), np.array([blocks]), sms)[0])
    assert count in (1, 2, 4, 8, 16, 32, 64)
    assert count == 1 or (count * blocks <= sms and batch <= 32 and keys >= 2048)
