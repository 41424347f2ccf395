"""What becomes of a launch group: statuses, attribution where names are shared, inference, warnings, verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import decodecalc as dc
from decodecalc.models import LayerGroup
from decodecalc.trace.against_model import l2_state
from decodecalc.trace.audit import Audit, audit_traces
from decodecalc.trace.candidates import Known

LLAMA = dc.Geometry(32, 8, 128)
LAYER = (LayerGroup("all", 32, LLAMA),)
MI300X = {"id": 0, "name": "", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64,
          "numSms": 304}  # fmt: skip
UNIFIED, REDUCE = "kernel_unified_attention", "reduce_segments"


@pytest.fixture
def judge(kineto: Callable[..., str]) -> Callable[..., Audit]:
    """judge(events, known…) audits one trace of these events."""

    def run(events: Any, device: Any = None, **known: Any) -> Audit:
        path = kineto(events) if device is None else kineto(events, device=device)
        return audit_traces([path], Known(**known))

    return run


def codes(audit: Audit) -> set[str]:
    """Codes of all warnings."""
    return {w.code for g in audit.groups for w in g.warnings}


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_no_kernels_no_attention_and_prefill_only_are_nothing_checked(judge: Any, kernel: Any) -> None:
    """A trace with nothing to check says what it holds instead and does not pass."""
    for events, words in (
        ([], "no GPU kernels"),
        ([kernel("void at::native::elementwise_kernel<4>(int)", 0)], "none of the 1 kernels is an attention kernel"),
        ([kernel("void pytorch_flash::flash_fwd_kernel<T>(P)", 0, grid=(5, 16, 16))], "prefill"),
        ([kernel("brand_new_attention_decode", 0)], "not modelled"),
    ):
        audit = judge(events)
        assert not audit.passed
        assert audit.verdict.startswith("NOTHING CHECKED")
        assert words in audit.verdict


def test_a_replay_without_grids_is_timed_and_not_verified(judge: Any, kernel: Any) -> None:
    """ROCm's graph replays carry no launch arguments: times and bandwidth, but no match."""
    events = [kernel("kernel_unified_attention_3d", 0, 40.0, None, None), kernel(REDUCE, 50, 5.0, None, None)]
    geo = dc.Geometry(64, 8, 64)
    audit = judge(events, MI300X, layer_groups=(LayerGroup("full", 12, geo),), ragged=dc.Batch.uniform(32, 1721))
    (group,) = audit.groups
    assert (group.status, group.engine, group.claims) == ("no grid", "aiter-unified", ())
    assert group.group.stage1_time.median_s == 40e-6
    assert group.achieved_bytes_per_s == pytest.approx(32 * 1721 * 8 * 64 * 2 * 2 / 40e-6)
    assert not audit.passed
    assert "timed and not verified" in audit.verdict


def test_a_mismatch_fails_whatever_else_matches(judge: Any, events_of: Any) -> None:
    """One wrong group among right ones fails the audit and is counted."""
    plan = dc.plan("vllm-triton", LLAMA, dc.Batch([4096] * 4), gpu="h200-sxm")
    events = events_of(plan, rounds=3)
    events[0]["args"]["grid"] = [9, 8, 16]
    audit = judge(events, layer_groups=LAYER, ragged=dc.Batch([4096] * 4))
    assert not audit.passed
    assert "1 of 2 checked launch groups (1 launch) differs" in audit.verdict
    (wrong,) = audit.with_status("mismatch")
    assert [(c.what, c.predicted, c.observed) for c in wrong.failed] == [("stage-1 grid", (5, 8, 16), (9, 8, 16))]
    assert wrong.group.total_s < max(g.group.total_s for g in audit.groups)
    assert [g.status for g in audit.worst_first] == ["mismatch", "match"]
    assert wrong.sm_coverage is None


def test_what_is_missing_is_named(judge: Any, kernel: Any) -> None:
    """A persistent grid shows neither heads nor batch: the audit says what to give."""
    stage1 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<A> > >(P)"
    events = [kernel(stage1, 0, grid=(132, 1, 1))]
    assert "--model" in judge(events).verdict
    assert "--batch" in judge(events, layer_groups=LAYER).verdict


def test_a_model_that_the_engine_refuses_is_not_a_match(judge: Any, events_of: Any) -> None:
    """A page size that the engine does not start with is reported as such."""
    plan = dc.plan("vllm-triton", LLAMA, dc.Batch([4096]), gpu="h200-sxm")
    audit = judge(events_of(plan), layer_groups=LAYER, ragged=dc.Batch([4096]), kv=dc.KvCache(page_size=8))
    assert [g.status for g in audit.groups] == ["refused"]
    assert not audit.passed
    assert "16" in audit.groups[0].note


def test_only_the_engines_asked_for_are_judged(judge: Any, events_of: Any) -> None:
    """Others are listed, not held against anything."""
    batch = dc.Batch([4096])
    events = events_of(dc.plan("vllm-triton", LLAMA, batch, gpu="h200-sxm"))
    events += events_of(dc.plan("sglang-triton", LLAMA, dc.Batch([4096] * 3), gpu="h200-sxm"))
    audit = judge(events, layer_groups=LAYER, ragged=batch, engines=(("vllm-triton", None),))
    assert {g.engine: g.status for g in audit.groups} == {"vllm-triton": "match", "sglang-triton": "not asked for"}
    assert audit.passed


def test_a_gpu_that_is_not_the_traces_is_noted(judge: Any, events_of: Any) -> None:
    """--gpu wins and the difference is told."""
    events = events_of(dc.plan("vllm-triton", LLAMA, dc.Batch([4096]), gpu="a100-sxm-80gb"))
    audit = judge(events, layer_groups=LAYER, ragged=dc.Batch([4096]), gpu=dc.load_gpu("a100-sxm-80gb"))
    assert audit.passed
    assert any("132" in note and "108" in note for note in audit.notes)


# -- names that are shared --------------------------------------------------------------------------------------------


def test_axes_tell_aiter_from_vllm(judge: Any, kernel: Any) -> None:
    """aiter's 2D grid has KV heads first, vLLM's query blocks first; 3D grids of vLLM always have 16 segments."""
    geo = (LayerGroup("all", 1, dc.Geometry(64, 8, 64)),)
    for name, grid, merge, engine in (
        ("kernel_unified_attention_2d", (8, 32, 1), None, "aiter-unified"),
        ("kernel_unified_attention_2d", (48, 8, 1), None, "vllm-triton"),
        ("kernel_unified_attention_3d", (32, 8, 5), (32, 64, 1), "aiter-unified"),
    ):
        events = [kernel(name, 0, grid=grid, block=(256, 1, 1))]
        events += [kernel(REDUCE, 20, grid=merge)] if merge else []
        audit = judge(events, MI300X, layer_groups=geo)
        assert audit.groups[0].engine == engine, audit.groups[0].attribution.why
    # On NVIDIA the same name is vLLM's.
    assert judge([kernel("kernel_unified_attention_2d", 0, grid=(8, 48, 1))]).groups[0].engine == "vllm-triton"


def test_the_kernel_name_bounds_the_version(judge: Any, events_of: Any) -> None:
    """One name for both paths is vLLM 0.20 and later, one for each is 0.19 and earlier."""
    batch = dc.Batch([4096] * 2)
    for asked, agree, not_agree in (("0.33", "0.33.0", "0.19.1"), ("0.19", "0.19.1", "0.33.0")):
        plan = dc.plan(f"vllm-triton@{asked}", LLAMA, batch, gpu="h200-sxm")
        (group,) = judge(events_of(plan), layer_groups=LAYER, ragged=batch).groups
        assert group.status == "match"
        assert agree in group.versions
        assert not_agree not in group.versions


def test_the_split_count_kernel_tells_sglang_from_vllm(judge: Any, kernel: Any) -> None:
    """_fwd_grouped_kernel_stage1 is SGLang's where get_num_kv_splits_triton runs, vLLM's MLA among vLLM's kernels."""
    stage1, merge = "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"
    decode = [kernel(stage1, 10, grid=(2, 1, 8)), kernel(merge, 30, grid=(2, 16, 1))]
    assert judge([kernel("get_num_kv_splits_triton", 0), *decode]).groups[0].engine == "sglang-triton"
    vllm = kernel("void vllm::rms_norm_kernel<float>(int)", 0)
    mla = (LayerGroup("all", 1, dc.Geometry(16, 1, 576, 512, mla=True)),)
    found = judge([vllm, *decode], layer_groups=mla, ragged=dc.Batch([4096, 100])).groups[0]
    assert (found.engine, found.status) == ("vllm-triton-mla", "match")


def test_prefill_launches_are_set_apart(judge: Any, kernel: Any, events_of: Any) -> None:
    """The unified kernel serves prompts too; so do FlashAttention-2's, -3's and FlashInfer's."""
    batch = dc.Batch([2048] * 4)
    events = events_of(dc.plan("vllm-triton", LLAMA, batch, gpu="h200-sxm"))
    events.append(kernel(UNIFIED, 9000, 900.0, (2053, 8, 1)))
    audit = judge(events, layer_groups=LAYER, ragged=batch)
    assert sorted(g.status for g in audit.groups) == ["match", "prefill"]
    assert audit.passed
    traits = "flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128u, 2u, 4u, 8u, 8u, 4u, 1u, X>"
    for name, grid in (
        ("void flash::flash_fwd_splitkv_kernel<T>(P)", (9, 2, 16)),
        (f"void flashinfer::BatchPrefillWithPagedKVCacheKernel<{traits}, P>(P)", (64, 1, 8)),
    ):
        assert [g.status for g in judge([kernel(name, 0, grid=grid)]).groups] == ["prefill"]


def test_a_2d_launch_that_would_be_split_as_decode_is_taken_for_a_mixed_batch(judge: Any, kernel: Any) -> None:
    """Without a batch to hold it against, 2D at four requests' blocks is a prefill in the batch, not an error."""
    audit = judge([kernel(UNIFIED, 0, grid=(5, 8, 1))], layer_groups=LAYER)
    assert [g.status for g in audit.groups] == ["prefill"]
    assert "mixed batch" in audit.groups[0].note


# -- graphs and annotations -------------------------------------------------------------------------------------------


def test_a_padded_graph_is_recognised(judge: Any, events_of: Any) -> None:
    """Nine requests in a graph of sixteen: the grid of sixteen is right, and the padding is named."""
    for engine, option in (("vllm-triton", "padded_num_seqs"), ("sglang-triton", "padded_batch")):
        batch = dc.Batch([4096] * 9)
        events = events_of(dc.plan(engine, LLAMA, batch, gpu="h200-sxm", **{option: 16}))
        for e in events:
            e["args"].update({"graph node id": 7, "correlation": 11})
        (group,) = judge(events, layer_groups=LAYER, ragged=batch).groups
        assert group.status == "match"
        assert "graph of 16 requests" in group.setting
        assert "frozen_grid" in {w.code for w in group.warnings}
        # The same grid, launched eagerly, is not what nine requests launch.
        eager = [
            {**e, "args": {k: v for k, v in e["args"].items() if k not in ("graph node id", "correlation")}}
            for e in events
        ]
        (group,) = judge(eager, layer_groups=LAYER, ragged=batch).groups
        assert group.status == "mismatch"
        assert "batch is 16" in group.explanation


def test_annotations_give_batch_and_keys(judge: Any, kernel: Any) -> None:
    """vLLM writes requests and keys of a step into the trace: enough for the bandwidth, not for live splits."""
    note = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"
    events = [
        {"ph": "X", "cat": "user_annotation", "name": note, "ts": 0, "dur": 100, "args": {}},
        kernel("kernel_unified_attention_3d", 10, 41.2, None, None),
        kernel(REDUCE, 60, 5.9, None, None),
    ]
    audit = judge(events, MI300X, layer_groups=(LayerGroup("full", 12, dc.Geometry(64, 8, 64)),))
    (group,) = audit.groups
    assert group.lengths == "annotated"
    assert group.plan is not None
    assert (group.plan.batch.size, group.plan.batch.total_keys) == (32, 55086)
    assert group.achieved_bytes_per_s == pytest.approx(2.74e12, rel=0.01)
    assert group.live_blocks is None


def test_mixed_steps_are_warned_about(judge: Any, kernel: Any) -> None:
    """A step with prefill and decode requests takes the unsplit path as a whole."""
    note = "execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk34489sqsq37sqsk34489)"
    events = [{"ph": "X", "cat": "user_annotation", "name": note, "ts": 0, "dur": 100, "args": {}}]
    events.append(kernel(UNIFIED, 10, grid=(558, 8, 1)))
    assert "mixed_batch" in codes(judge(events))


# -- warnings ---------------------------------------------------------------------------------------------------------


def test_threshold_cliff(judge: Any, events_of: Any) -> None:
    """17 requests of 8 KV heads are one over the threshold."""
    batch = dc.Batch([2048] * 17)
    audit = judge(events_of(dc.plan("vllm-triton", LLAMA, batch, gpu="h200-sxm")), layer_groups=LAYER, ragged=batch)
    assert audit.passed
    (warning,) = [w for w in audit.groups[0].warnings if w.code == "threshold_cliff"]
    assert "batch 17 is over the threshold 16" in warning.text


def test_fixed_splits_and_caps_leave_sms_idle(judge: Any, events_of: Any) -> None:
    """One KV head: 16 blocks of vLLM and 8 of SGLang on 132 SMs; S* of 132 is named."""
    geo, batch = dc.Geometry(8, 1, 128), dc.Batch([32768])
    layer = (LayerGroup("all", 80, geo),)
    for engine, code, idle in (("vllm-triton", "fixed_splits", 116), ("sglang-triton", "split_cap", 124)):
        audit = judge(events_of(dc.plan(engine, geo, batch, gpu="h200-sxm")), layer_groups=layer, ragged=batch)
        (warning,) = [w for w in audit.groups[0].warnings if w.code == code]
        assert f"{idle} SMs are idle" in warning.text
        assert "132" in warning.text


def test_batch_invariant_mode_is_found_out(judge: Any, events_of: Any) -> None:
    """An unsplit launch where the default splits: refuted, with the mode that explains it."""
    batch = dc.Batch([4096] * 2)
    events = events_of(dc.plan("vllm-triton", LLAMA, batch, gpu="h200-sxm", batch_invariant=True))
    audit = judge(events, layer_groups=LAYER, ragged=batch)
    assert not audit.passed
    assert "batch-invariant mode is on" in audit.groups[0].explanation
    assert "unsplit_in_spite" in codes(audit)
    assert judge(events, layer_groups=LAYER, ragged=batch, options={"batch_invariant": True}).passed


def test_a_cap_of_its_own_is_found_out(judge: Any, events_of: Any) -> None:
    """16 splits of SGLang are refuted by default and name the flag; with the option they are right."""
    batch = dc.Batch([30000])
    events = events_of(dc.plan("sglang-triton", LLAMA, batch, gpu="h200-sxm", max_kv_splits_arg=16))
    audit = judge(events, layer_groups=LAYER, ragged=batch)
    assert not audit.passed
    assert "--triton-attention-num-kv-splits 16" in audit.groups[0].explanation
    assert judge(events, layer_groups=LAYER, ragged=batch, options={"max_kv_splits_arg": 16}).passed


def test_wrong_kv_heads_of_sglang(judge: Any, events_of: Any) -> None:
    """Group 20 with two KV heads reads wrong heads; the audit says so although the launch is as predicted."""
    geo, batch = dc.Geometry(40, 2, 128), dc.Batch([4096])
    audit = judge(
        events_of(dc.plan("sglang-triton", geo, batch, gpu="h200-sxm")),
        layer_groups=(LayerGroup("all", 1, geo),), ragged=batch,
    )  # fmt: skip
    assert audit.passed
    assert "wrong_kv_heads" in codes(audit)


@pytest.mark.parametrize(("batch", "warned"), [(16, False), (17, True)])
def test_the_cliff_is_exactly_above_the_threshold(judge: Any, events_of: Any, batch: int, warned: bool) -> None:
    """16 requests of 8 KV heads are at the threshold, in a launch that batch-invariant mode left unsplit."""
    seq_lens = dc.Batch([2048] * batch)
    plan = dc.plan("vllm-triton", LLAMA, seq_lens, gpu="h200-sxm", batch_invariant=True)
    audit = judge(events_of(plan), layer_groups=LAYER, ragged=seq_lens, options={"batch_invariant": True})
    assert audit.passed
    assert ("threshold_cliff" in codes(audit)) == warned


@pytest.mark.parametrize(("batch", "warned"), [(8, True), (9, False)])
def test_a_grid_that_covers_the_sms_is_not_warned_about(judge: Any, events_of: Any, batch: int, warned: bool) -> None:
    """8 requests of one KV head make 128 blocks for 132 SMs, 9 make 144."""
    geo, seq_lens = dc.Geometry(1, 1, 128), dc.Batch([32768] * batch)
    plan = dc.plan("vllm-triton", geo, seq_lens, gpu="h200-sxm")
    assert plan.stage1.launched_blocks == 16 * batch
    audit = judge(events_of(plan), layer_groups=(LayerGroup("all", 1, geo),), ragged=seq_lens)
    assert ("fixed_splits" in codes(audit)) == warned


@pytest.mark.parametrize(("sms", "warned"), [(128, False), (129, True)])
@pytest.mark.parametrize(
    ("engine", "batch", "code"), [("vllm-triton", 8, "fixed_splits"), ("sglang-triton", 16, "split_cap")]
)
def test_a_grid_of_as_many_blocks_as_sms_is_not_warned_about(
    judge: Any, events_of: Any, engine: str, batch: int, code: str, sms: int, warned: bool
) -> None:
    """16 splits of 8 requests, or 8 of 16, fill 128 SMs; of 129 one is idle."""
    gpu = dc.load_gpu("h200-sxm").with_(sm_count=sms)
    geo, seq_lens = dc.Geometry(1, 1, 128), dc.Batch([32768] * batch)
    plan = dc.plan(engine, geo, seq_lens, gpu=gpu)
    assert plan.stage1.launched_blocks == 128
    audit = judge(events_of(plan), layer_groups=(LayerGroup("all", 1, geo),), ragged=seq_lens, gpu=gpu)
    assert (code in codes(audit)) == warned


@pytest.mark.parametrize(("cap", "warned"), [(8, True), (16, True), (17, False)])
def test_a_cap_that_was_raised_is_not_warned_about(judge: Any, events_of: Any, cap: int, warned: bool) -> None:
    """Above 16 someone has raised it already, for one KV head and one request."""
    geo, batch = dc.Geometry(8, 1, 128), dc.Batch([32768])
    plan = dc.plan("sglang-triton", geo, batch, gpu="h200-sxm", max_kv_splits_arg=cap)
    options = {"max_kv_splits_arg": cap}
    audit = judge(events_of(plan), layer_groups=(LayerGroup("all", 1, geo),), ragged=batch, options=options)
    assert audit.passed
    assert ("split_cap" in codes(audit)) == warned


@pytest.mark.parametrize(("blocks", "status"), [(83, "mismatch"), (84, "prefill")])
def test_a_prefill_has_four_times_the_blocks_of_the_decode_step(
    judge: Any, kernel: Any, blocks: int, status: str
) -> None:
    """17 requests have 21 query blocks: from 84 on the launch is another kind of step, below it is a wrong grid."""
    audit = judge([kernel(UNIFIED, 0, grid=(blocks, 8, 1))], layer_groups=LAYER, ragged=dc.Batch([2048] * 17))
    assert [g.status for g in audit.groups] == [status]


@pytest.mark.parametrize(("requests", "status"), [(1024, "consistent"), (1025, "prefill")])
def test_an_inferred_batch_of_more_requests_than_servers_allow_is_a_prefill(
    judge: Any, kernel: Any, requests: int, status: str
) -> None:
    """Up to 1024 requests can be a decode step of one query token each."""
    audit = judge([kernel(UNIFIED, 0, grid=(requests // 4 + requests, 8, 1))], layer_groups=LAYER)
    assert audit.groups[0].seen.batch == requests
    assert [g.status for g in audit.groups] == [status]


@pytest.mark.parametrize("engine", ["sglang-triton", "flash-attention-2"])
def test_an_unsplit_launch_is_explained_for_other_engines_too(judge: Any, kernel: Any, engine: str) -> None:
    """No split although the rule would split: a mode or an argument forbids it."""
    if engine == "sglang-triton":
        events = [kernel("get_num_kv_splits_triton", 0), kernel("_fwd_grouped_kernel_stage1", 10, grid=(1, 8, 1))]
        events.append(kernel("_fwd_kernel_stage2", 30, grid=(1, 32, 1)))
    else:
        events = [kernel("void flash::flash_fwd_splitkv_kernel<T>(P)", 0, grid=(1, 1, 8))]
    audit = judge(events, layer_groups=LAYER, ragged=dc.Batch([30000]), kv=dc.KvCache(page_size=256))
    assert [(g.engine, g.status) for g in audit.groups] == [(engine, "mismatch")]
    assert "unsplit_in_spite" in codes(audit)


def test_a_replay_without_grids_is_warned_about(judge: Any, kernel: Any) -> None:
    """Timed, but nothing to verify."""
    events = [kernel("kernel_unified_attention_3d", 0, 40.0, None, None), kernel(REDUCE, 50, 5.0, None, None)]
    for event in events:
        event["args"].update({"graph node id": 7, "correlation": 11})
    assert "graph_replay" in codes(judge(events, MI300X))


def test_an_engine_without_a_policy_is_named(judge: Any, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are recognised and read; nothing is held against a plan that nobody can make."""
    monkeypatch.setattr("decodecalc.trace.judge.engine_names", lambda: ("vllm-triton",))
    name = "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<X> >(P)"
    (group,) = judge([kernel(name, 0, grid=(2, 33, 4))]).groups
    assert (group.engine, group.status, group.seen.batch) == ("cutlass-mla", "not modelled", 33)
    assert "no policy plans such a launch" in group.note


def test_codes_of_warnings_are_snake_case() -> None:
    """Codes are keys of the JSON rows."""
    import re
    from pathlib import Path

    import decodecalc

    package = Path(decodecalc.__file__).parent
    found = [c for path in package.rglob("*.py") for c in re.findall(r'code="([^"]+)"', path.read_text())]
    assert "threshold_cliff" in found
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", code) for code in found)


@pytest.mark.parametrize("length", [8192, 300])
def test_flash_attention_3_is_held_against_a_long_and_a_short_length(judge: Any, events_of: Any, length: int) -> None:
    """Without lengths a split and an unsplit launch of a known batch are both right for some length."""
    batch = dc.Batch([length] * 2)
    events = events_of(dc.plan("flash-attention-3", LLAMA, batch, gpu="h200-sxm"))
    (group,) = judge(events, layer_groups=LAYER, requests=(2,)).groups
    assert (group.status, group.lengths) == ("match", "unknown")


# -- what is to be gained -------------------------------------------------------------------------------------------


IDLE = dc.Geometry(8, 1, 128)
LONG = dc.Batch([32768])


def sglang(kernel: Any, us: float, between: bool = True) -> list[dict[str, Any]]:
    """Three launches of 8 splits that leave 124 of 132 SMs idle, each of so many µs; with another kernel between."""
    plan = dc.plan("sglang-triton", IDLE, LONG, gpu="h200-sxm")
    order = sorted(plan.kernels, key=lambda k: ("scheduler", "stage1", "merge").index(k.role))
    events = []
    for n in range(3):
        for i, launch in enumerate(order):
            took = us if launch.role == "stage1" else 2.0
            events.append(kernel(launch.name, 1000.0 * n + 300.0 * i, took, [*launch.grid, 1, 1][:3]))
        if between:
            events += [kernel(name, 1000.0 * n + 900.0 + i, 1.0) for i, name in enumerate(("gemm",) * 4)]
    return events


def test_an_idle_launch_that_is_as_planned_passes_and_says_what_to_set(judge: Any, kernel: Any) -> None:
    """The verdict passes, counts the SMs that had work, and names a setting of that very server with both times."""
    audit = judge(sglang(kernel, 350.0), layer_groups=(LayerGroup("all", 80, IDLE),), ragged=LONG)
    assert audit.passed
    (group,) = audit.groups
    assert group.use == "8 of 132 SMs (6 % of the GPU)"
    assert audit.verdict.startswith("passed: the one checked launch group (3 launches)")
    assert "but sglang-triton's launch used 8 of 132 SMs (6 % of the GPU): start SGLang with --" in audit.verdict
    assert group.against_model.advice.setting in audit.verdict
    assert "352 µs were measured" in audit.verdict
    assert (group.l2, group.compared) == ("cold", "as predicted")


@pytest.mark.parametrize(("us", "words"), [(30.0, "faster"), (900.0, "slower")])
def test_a_setting_is_advised_only_where_it_beats_what_was_measured(
    judge: Any, kernel: Any, us: float, words: str
) -> None:
    """A launch that is already faster than the setting's predicted time shows that the model is wrong about it."""
    (group,) = judge(sglang(kernel, us), layer_groups=(LayerGroup("all", 80, IDLE),), ragged=LONG).groups
    assert group.compared.endswith(words)
    assert bool(group.to_set) == (words == "slower")


def test_l2_is_cold_where_other_kernels_ran_or_the_cache_is_larger(judge: Any, kernel: Any) -> None:
    """Only back-to-back launches of a small cache can have found it in L2, and the audit says why it thinks so."""
    layers = (LayerGroup("all", 80, IDLE),)
    (cold,) = judge(sglang(kernel, 350.0), layer_groups=layers, ragged=LONG).groups
    (warm,) = judge(sglang(kernel, 350.0, between=False), layer_groups=layers, ragged=LONG).groups
    assert (cold.l2, warm.l2) == ("cold", "warm")
    assert "other kernels ran" in cold.l2_why
    assert "nothing else ran" in warm.l2_why
    big, why = l2_state(1 << 30, dc.load_gpu("h200"), 3, 0)
    assert big == "cold"
    assert "1074 MB" in why


def test_advice_needs_lengths_and_a_calibrated_gpu(judge: Any, kernel: Any) -> None:
    """Without the lengths nothing is known of the time, and a GPU without measurements gives no setting."""
    (group,) = judge(sglang(kernel, 350.0), layer_groups=(LayerGroup("all", 80, IDLE),), requests=(1,)).groups
    assert group.to_set == ""
    other = {"id": 0, "name": "NVIDIA A40", "totalGlobalMem": 48 << 30, "computeMajor": 8, "computeMinor": 6,
             "numSms": 84, "warpSize": 32}  # fmt: skip
    (group,) = judge(sglang(kernel, 350.0), other, layer_groups=(LayerGroup("all", 80, IDLE),), ragged=LONG).groups
    assert group.to_set == ""
