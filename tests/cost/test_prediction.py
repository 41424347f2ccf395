"""Predictions: both doors, every engine, the engine's kernel against ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.calibration import parse_calibration
from decodecalc.cost.model import Terms
from decodecalc.cost.prediction import predict, predict_arrays, predict_policy
from decodecalc.engines import load_policy
from decodecalc.errors import DecodecalcError, InputError
from decodecalc.launch.arrays import Batches

GEO = dc.Geometry(32, 8, 128)
KV = dc.KvCache()
ENGINES = (
    "vllm-triton", "sglang-triton", "flash-attention-3", "flashinfer", "flashinfer-xqa", "paged-attention-v2",
    "flash-decoding", "bundled",
)  # fmt: skip


def doors(engine: str, geo: Any, batch: Any, kernel: str = "own") -> tuple[Any, Any]:
    """The same step through the scalar and the array door."""
    gpu, policy = dc.load_gpu("h200"), load_policy(engine)
    scalar = predict(policy.plan(geo, batch, KV, gpu), kernel=kernel, stand_in=True)
    opts, version = policy.options_type(), policy.version()
    steps = (
        Batches.uniform(batch.size, batch.seq_lens[0], batch.q_lens[0]) if batch.is_uniform else Batches.single(batch)
    )
    found = policy.launches(geo, steps, KV, gpu, opts, version)
    return scalar, predict_arrays(engine, geo, steps, KV, gpu, found, kernel=kernel, stand_in=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kernel", ["own", "bundled"])
@given(batch=st.integers(1, 300), context=st.integers(1, 70_000), kv_heads=st.sampled_from([1, 2, 8, 32]))
@settings(max_examples=15, deadline=None)
def test_both_doors_predict_the_same_for_equal_requests(
    engine: str, kernel: str, batch: int, context: int, kv_heads: int
) -> None:
    """A sweep's number is predict's number, term by term."""
    scalar, array = doors(engine, dc.Geometry(32, kv_heads, 128), dc.Batch.uniform(batch, context), kernel)
    for name in Terms._fields:
        assert float(getattr(array, name)[0]) == pytest.approx(scalar.terms[name], rel=1e-12, abs=1e-18), name


@pytest.mark.parametrize("engine", ENGINES)
@given(lens=st.lists(st.integers(1, 40_000), min_size=2, max_size=40))
@settings(max_examples=15, deadline=None)
def test_both_doors_predict_the_same_for_ragged_batches(engine: str, lens: list[int]) -> None:
    """A list schedule on either side."""
    scalar, array = doors(engine, GEO, dc.Batch([*lens, lens[0] + 1]))
    assert float(array.total_s[0]) == pytest.approx(scalar.total_s, rel=1e-12)


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 30),
    st.sampled_from([1, 8, 32]),
)
@settings(max_examples=60, deadline=None)
def test_time_does_not_fall_with_keys_batch_or_context_at_a_fixed_count(
    batch: int, more: int, splits: int, tiles: int, kv_heads: int
) -> None:
    """Through plans, not arrays: `splits` slices of whole tiles; more requests, or longer slices, never cost less."""
    geo = dc.Geometry(32, kv_heads, 128)

    def time(requests: int, slice_tiles: int) -> float:
        step = dc.Batch.uniform(requests, splits * slice_tiles * 64)
        return predict(dc.plan("bundled", geo, step, gpu="h200", num_splits=splits)).total_s

    assert time(batch + more, tiles) >= time(batch, tiles) * (1 - 1e-9)
    assert time(batch, tiles + more) >= time(batch, tiles) * (1 - 1e-9)


@pytest.mark.parametrize("engine", dc.engine_names())
@pytest.mark.parametrize("geo", [GEO, dc.Geometry(8, 1, 128, window=1024), dc.Geometry(16, 1, 576, 512, mla=True)])
def test_every_engine_that_plans_is_predicted(engine: str, geo: Any) -> None:
    """Positive, finite, above its own stream time, inside its interval; unknown kernels are named in the notes."""
    try:
        plan = dc.plan(engine, geo, dc.Batch([1, 5000, 129, 0, 40_000]), gpu="h200")
    except DecodecalcError:
        pytest.skip("the engine refuses this shape")
    p = predict(plan, stand_in=True)
    assert 0 < p.low_s < p.total_s < p.high_s < 1
    assert p.total_s >= p.terms["stream_s"] > 0
    assert p.total_s == pytest.approx(sum(p.terms.values()))
    assert p.kernel.startswith(engine) or p.kernel == "bundled"
    assert p.kernel != "bundled" or engine == "bundled" or (p.stand_in and "stands in" in p.notes[0])
    alone = predict(plan)
    assert alone.floor_s <= p.total_s
    assert (alone.total_s is None) == p.stand_in


def test_an_uncalibrated_kernel_has_a_floor_and_no_time() -> None:
    """No total, no interval, no rank; only launches and bytes, in both doors, and a note that says why."""
    plan = dc.plan("flash-decoding", GEO, dc.Batch.uniform(4, 10_000), gpu="h200")
    p = predict(plan)
    assert (p.total_s, p.low_s, p.high_s, p.bound, p.interval) == (None,) * 5
    assert p.floor_s == pytest.approx(sum(p.terms.values()))
    assert "not calibrated" in p.notes[0]
    assert "not calibrated" in str(p)
    with pytest.raises(dc.InputError, match="not calibrated"):
        _ = p.known_s
    array = predict_policy(load_policy("flash-decoding"), GEO, Batches.uniform(4, 10_000), KV, dc.load_gpu("h200"))
    assert np.isnan(array.total_s).all()
    assert float(array.stream_s[0]) == pytest.approx(p.terms["stream_s"])


def test_a_stand_in_has_the_wide_interval_of_stand_ins() -> None:
    """Marked, from the bundled kernel on the engine's own blocks, and as wide as engines' own kernels were seen to lie
    from it."""
    plan = dc.plan("flash-decoding", GEO, dc.Batch.uniform(4, 10_000), gpu="h200")
    p, ours = predict(plan, stand_in=True), predict(plan, kernel="bundled")
    assert p.stand_in
    assert not ours.stand_in
    assert p.total_s == pytest.approx(ours.total_s, rel=0.05)  # these blocks share KV heads as the bundled kernel's do
    assert p.high_s / p.total_s > 2 > 1.2 > ours.high_s / ours.total_s


def test_the_engine_s_kernel_and_ours_under_its_rule_are_two_predictions(calibration_file: dict[str, Any]) -> None:
    """vLLM's 16-key tile waits 1.25 us each in a lone block; ours, on the same 16 splits, does not."""
    calibration = parse_calibration(calibration_file)
    plan = dc.plan("vllm-triton", GEO, dc.Batch.uniform(1, 32_768), gpu="h200")
    theirs, ours = predict(plan, calibration=calibration), predict(plan, calibration=calibration, kernel="bundled")
    assert (theirs.kernel, ours.kernel) == ("vllm-triton-3d", "bundled")
    assert theirs.terms["latency_s"] + theirs.terms["stream_s"] >= 128 * 1.25e-6
    assert ours.total_s < theirs.total_s / 2
    assert ours.terms["stream_s"] == pytest.approx(theirs.terms["stream_s"])


def test_bundled_under_a_split_policy_is_the_same_prediction(calibration_file: dict[str, Any]) -> None:
    """`plan("bundled", split_policy=…)` and `predict(…, kernel="bundled")` are two ways to ask one thing."""
    calibration = parse_calibration(calibration_file)
    step = dc.Batch.uniform(4, 10_000)
    asked = predict(dc.plan("vllm-triton", GEO, step, gpu="h200"), calibration=calibration, kernel="bundled")
    planned = predict(dc.plan("bundled", GEO, step, gpu="h200", split_policy="vllm-triton"), calibration=calibration)
    assert asked.total_s == pytest.approx(planned.total_s)


def test_warm_is_faster_than_cold_and_stream_launches_slower_than_graphs() -> None:
    """33 MB of KV."""
    plan = dc.plan("flash-attention-3", GEO, dc.Batch.uniform(1, 8192), gpu="h200")
    cold, warm = predict(plan), predict(plan, l2="warm")
    assert warm.total_s < cold.total_s
    assert predict(plan, launch="stream").terms["launch_s"] > cold.terms["launch_s"]


def test_baselines_stand_beside_the_prediction() -> None:
    """At batch 1 and 2560 keys the roofline is off by more than half: that is why there is a model."""
    p = predict(dc.plan("vllm-triton", GEO, dc.Batch.uniform(1, 2560), gpu="h200"))
    assert p.roofline_s == pytest.approx(10_485_760 / 4.8e12)
    assert p.roofline_s < p.overhead_plus_bytes_s < p.total_s


def test_an_uncalibrated_gpu_is_marked() -> None:
    """Every parameter extrapolated, a wider interval, and the words say from where."""
    plan = dc.plan("bundled", GEO, dc.Batch.uniform(1, 2560), gpu="h100-sxm", num_splits=8)
    far = predict(plan)
    near = predict(dc.plan("bundled", GEO, dc.Batch.uniform(1, 2560), gpu="h200", num_splits=8))
    assert set(far.extrapolated) == set(far.provenance)
    assert "extrapolated" in far.calibration
    assert far.high_s / far.low_s > near.high_s / near.low_s


def test_impossible_requests_are_input_errors(calibration_file: dict[str, Any]) -> None:
    """Unknown kernel, L2 or launch mode."""
    plan = dc.plan("bundled", GEO, dc.Batch.uniform(1, 2560), gpu="h200", num_splits=8)
    for wrong in ({"kernel": "theirs"}, {"l2": "tepid"}, {"launch": "eager"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            predict(plan, calibration=parse_calibration(calibration_file), **wrong)


def test_a_sweep_crosses_the_engine_s_path() -> None:
    """One array with both of vLLM's kernels in it equals its two halves."""
    policy, gpu = load_policy("vllm-triton"), dc.load_gpu("h200")
    batches = np.array([1, 64, 16, 17, 200])
    whole = predict_policy(policy, GEO, Batches.uniform(batches, 4096), KV, gpu).total_s
    for i, b in enumerate(batches.tolist()):
        one = predict_policy(policy, GEO, Batches.uniform(b, 4096), KV, gpu).total_s
        assert whole[i] == pytest.approx(float(one[0]))


@pytest.mark.parametrize(
    ("engine", "geo"),
    [
        ("vllm-triton", dc.Geometry(32, 8, 128, window=1024)),
        ("paged-attention-v2", dc.Geometry(32, 8, 128, window=1024)),
        ("flex-decoding", dc.Geometry(32, 16, 128, window=1024)),
        ("flashmla", dc.Geometry(16, 1, 576, 512, mla=True)),
    ],
)
@pytest.mark.parametrize("batch", [dc.Batch.uniform(40, 2102), dc.Batch([13, 15_169, 1000, 9000])])
def test_windows_and_irregular_partitions_are_timed_alike_in_plans_and_arrays(
    engine: str, geo: Any, batch: Any
) -> None:
    """A window that begins inside a split, and work that is dealt to the SMs in turn, are walked block by block."""
    policy, gpu = load_policy(engine), dc.load_gpu("h200")
    kv = dc.KvCache(page_size=64 if engine == "flashmla" else 16)
    steps = Batches.uniform(40, 2102) if batch.is_uniform else Batches.single(batch)
    scalar = predict(policy.plan(geo, batch, kv, gpu), stand_in=True)
    array = predict_policy(policy, geo, steps, kv, gpu, stand_in=True)
    assert float(array.total_s[0]) == pytest.approx(scalar.total_s, rel=1e-12)


def test_steps_of_one_array_with_drafts_of_several_lengths_keep_their_own_rows() -> None:
    """The rows of a block follow each step's draft, not the longest draft of the whole sweep."""
    policy, gpu, geo = load_policy("flash-decoding"), dc.load_gpu("h200"), dc.Geometry(32, 2, 128)
    q_lens = (1, 2, 4)
    whole = predict_policy(policy, geo, Batches.uniform(8, 4096, np.array(q_lens)), KV, gpu, kernel="bundled")
    for n, q_len in enumerate(q_lens):
        one = predict(policy.plan(geo, dc.Batch.uniform(8, 4096, q_len), KV, gpu), kernel="bundled")
        assert float(whole.total_s[n]) == pytest.approx(one.total_s, rel=1e-12)


def test_a_scheduler_that_runs_once_a_step_is_no_part_of_a_layers_time() -> None:
    """FlashAttention 3 as vLLM captures it: the same splits take less time, by the scheduler and its launch."""
    geo, batch, kv = dc.Geometry(8, 1, 128), dc.Batch([16_384]), dc.KvCache()
    plain, graph = (
        dc.plan("flash-attention-3", geo, batch, kv=kv, gpu="h200", **options)
        for options in ({"num_splits_arg": 32}, {"cuda_graph": True})
    )
    assert plain.splits == graph.splits
    assert (plain.scheduled_once, graph.scheduled_once) == (False, True)
    slow, fast = dc.predict(plain), dc.predict(graph)
    scheduler = slow.provenance["scheduler_s"].number
    assert slow.terms["launch_s"] - fast.terms["launch_s"] == pytest.approx(
        scheduler + slow.provenance["launch_graph_s"].number
    )
    assert slow.known_s - fast.known_s == pytest.approx(slow.terms["launch_s"] - fast.terms["launch_s"])


def test_ragged_steps_have_intervals_of_their_own() -> None:
    """The same kernel, with equal and with different requests."""
    geo, kv = dc.Geometry(32, 8, 128), dc.KvCache()
    for lens, name in (((5000, 5000), "residual_p90"), ((5000, 800), "residual_ragged_p90")):
        said = dc.predict(dc.plan("sglang-triton", geo, dc.Batch(lens), kv=kv, gpu="h200"))
        assert said.high_s is not None
        assert said.high_s / said.known_s - 1 == pytest.approx(said.provenance[name].number)


def test_a_step_beyond_the_timed_ones_is_predicted_and_says_so() -> None:
    """A window was never timed: the time stays, with a note."""
    plan = dc.plan("flash-attention-3", dc.Geometry(32, 8, 128, window=512), dc.Batch([4096]), gpu="h200")
    said = dc.predict(plan)
    assert said.total_s is not None
    assert said.beyond == "a sliding window"
    assert "the kernel was not timed with a sliding window" in said.notes
    assert dc.predict(dc.plan("flash-attention-3", dc.Geometry(32, 8, 128), dc.Batch([4096]), gpu="h200")).beyond == ""
