"""One law for every kind of wrong answer that was found, by its letter (A to R).

A law states the kind, not the example that showed it. Where a law stands elsewhere in the suite, `ELSEWHERE` names it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines import load_policy
from decodecalc.engines.registry import engine_names
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.load import knowledge

TESTS = Path(__file__).parents[1]
LATENT = dc.Geometry(16, 1, 576, 512, mla=True)
ELSEWHERE = {
    "B": ["analysis/test_occupancy.py::test_the_change_of_path_is_the_plans_own"],
    "C": ["core/test_sanity.py::test_the_command_line_refuses_kv_heads_of_a_latent"],
    "D": ["engines/test_takes.py::test_a_plan_is_made_exactly_where_the_version_takes_the_layer"],
    "E": ["engines/test_sparse_layers.py::test_no_dense_policy_plans_a_sparse_layer"],
    "F": ["engines/test_sparse_layers.py::test_compressed_layers_are_not_cut_twice"],
    "G": ["models/test_declared.py::test_a_setting_of_attention_that_is_not_known_is_named"],
    "J": ["trace/test_junk.py::", "trace/test_recognise.py::"],
    "K": ["engines/test_versions.py::test_what_a_server_pins_has_a_version_or_a_refusal_that_names_the_nearest"],
    "M": ["models/test_declared.py::test_a_command_takes_the_declared_type_unless_told_otherwise"],
    "N": ["analysis/test_occupancy.py::test_working_blocks_are_live_and_live_blocks_launched"],
    "Q": [
        "core/test_sanity.py::test_a_context_beyond_the_models_longest_is_said_and_the_longest_is_not",
        "core/test_sanity.py::test_a_cache_is_named_exactly_when_it_does_not_fit_beside_the_weights",
        "core/test_sanity.py::test_no_servers_kernel_is_planned_for_a_device_it_does_not_exist_on",
    ],
    "R": [
        "sweeps/test_safety.py::test_every_column_is_written_once",
        "cli/test_surroundings.py::test_the_figure_over_gpus_takes_a_list",
        "models/test_declared.py::test_learned_sinks_are_read_under_their_names",
        "core/test_sanity.py::test_copies_of_kv_heads_are_said",
        "core/test_sanity.py::test_a_latent_or_sparse_model_needs_no_engine_to_be_named",
        "cli/test_surroundings.py::test_a_pattern_of_another_length_names_the_missing_field",
    ],
}


def test_every_letter_has_a_law() -> None:
    """Every letter is in `ELSEWHERE`, whose tests exist, or in the name of a test here."""
    here = {match.upper() for match in re.findall(r"def test_([a-r])_", Path(__file__).read_text("utf-8"))}
    assert here | set(ELSEWHERE) == set("ABCDEFGHIJKLMNOPQR")
    for places in ELSEWHERE.values():
        for place in places:
            file, name = place.split("::")
            assert f"def {name}" in (TESTS / file).read_text("utf-8"), place


@settings(max_examples=25, deadline=None)
@given(
    engine=st.sampled_from(["paged-attention-v1", "paged-attention-v2", "llama-cpp", "flex-decoding", "turbomind"]),
    batch=st.integers(1, 8),
    keys=st.integers(64, 20_000),
    group=st.sampled_from([2, 4, 8]),
)
def test_a_stand_in_keeps_the_engines_blocks_and_bytes(engine: str, batch: int, keys: int, group: int) -> None:
    """A. A kernel that asks for every key once per query head is never as fast as the L2 can serve fewer requests."""
    geo = dc.Geometry(8 * group, 8, 128)
    try:
        plan = dc.plan(engine, geo, dc.Batch.uniform(batch, keys), kv=dc.KvCache(page_size=64), gpu="a100-pcie-40gb")
    except dc.DecodecalcError:
        return
    asked = dc.traffic(plan).kv_requested_bytes
    instead = dc.predict(plan, stand_in=True)
    ours = dc.predict(plan, kernel="bundled")
    assert instead.total_s is not None
    assert ours.total_s is not None
    l2 = instead.provenance["l2_bytes_per_s"].number
    assert instead.total_s >= asked / l2
    assert instead.floor_s >= asked / l2 * (1 - 1e-9)


def test_a_public_timing_of_paged_attention_lies_in_the_interval_of_the_stand_in() -> None:
    """A. vLLM's v1 kernel took 68.6 and 71.4 us for four requests of 1024 keys on an A100, where 256 blocks read every
    key eight times."""
    plan = dc.plan("paged-attention-v1", dc.Geometry(64, 8, 128), dc.Batch.uniform(4, 1024), gpu="a100-pcie-40gb")
    p = dc.predict(plan, stand_in=True)
    assert p.low_s is not None
    assert p.high_s is not None
    assert all(p.low_s <= seconds <= p.high_s for seconds in (68.6e-6, 71.4e-6))


SERVED = [name for name in engine_names() if not load_policy(name).takes()[0].bf16_anywhere]


@pytest.mark.parametrize("gpu", ["v100-sxm", "t4"])
@pytest.mark.parametrize("name", SERVED)
def test_d_nobody_serves_bf16_before_ampere(name: str, gpu: str) -> None:
    """D. The element type of queries and cache is one that the device computes with; FP16 is planned where BF16 is
    not."""
    for geo in (dc.Geometry(32, 8, 128), LATENT):
        for page in (16, 64, 256):
            with pytest.raises(dc.DecodecalcError):
                dc.plan(name, geo, dc.Batch([4096]), kv=dc.KvCache("bf16", page, query_dtype="bf16"), gpu=gpu)


@pytest.mark.parametrize("command", ["grid", "predict", "kv", "step", "choose"])
def test_d_a_command_takes_the_type_that_the_device_computes_with(call: Any, command: str) -> None:
    """D. Without --kv-dtype a model runs in FP16 there, as servers run it, and the defaults say so."""
    said = call(command, "--model", "llama3-8b", "--gpu", "t4", "--context", "1k")
    assert said.code == 0, said.err
    assert "fp16" in said.out


@pytest.mark.parametrize("name", ["paged-attention-v1", "paged-attention-v2", "rocm-paged", "aiter-unified"])
@pytest.mark.parametrize("value_dim", [64, 192, 256])
def test_h_a_kernel_of_one_head_size_takes_keys_and_values_of_one_width(name: str, value_dim: int) -> None:
    """H. A kernel that is compiled for one head size never plans values of another width."""
    gpu = "h100" if name.startswith("paged") else "mi300x"
    assert dc.plan(name, dc.Geometry(32, 8, 128), dc.Batch([4096]), gpu=gpu)
    with pytest.raises(dc.GateError, match=f"values of {value_dim} with keys of 128"):
        dc.plan(name, dc.Geometry(32, 8, 128, value_dim), dc.Batch([4096]), gpu=gpu)


@pytest.mark.parametrize(
    ("engine", "widths", "loads"),
    [
        ("sglang-triton@0.5.23", (320, 256), None),
        ("vllm-triton-mla@0.20.1", (320, 256), None),
        ("vllm-triton-mla@0.33.0", (320, 256), 1.0),
        ("vllm-triton-mla@0.19.1", (320, 256), 1.8),
        ("sglang-triton@0.5.10", (576, 512), 17 / 9),
        ("vllm-triton-mla@0.19.1", (576, 512), 17 / 9),
        ("sglang-triton@0.5.23", (576, 512), 1.0),
        ("vllm-triton-mla@0.20.1", (288, 256), 1.0),
    ],
)
def test_h_widths_of_keys_and_values_are_a_releases_own(engine: str, widths: tuple[int, int], loads: Any) -> None:
    """H. A release that loads the value part apart asks for it twice; one whose tiles differ does not compile."""
    geo = dc.Geometry(16, 1, *widths, mla=True)
    if loads is None:
        with pytest.raises(dc.GateError, match="does not compile"):
            dc.plan(engine, geo, dc.Batch([4096]))
    else:
        assert dc.traffic(dc.plan(engine, geo, dc.Batch([4096]))).kv_reads_per_key == pytest.approx(loads)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 40),
    keys=st.integers(1, 9000),
    unsplit=st.booleans(),
    version=st.sampled_from(["0.6.17", "0.7.4", "0.5.3"]),
)
def test_i_a_claim_of_a_path_is_printed_on_that_path(batch: int, keys: int, unsplit: bool, version: str) -> None:
    """I. Padding returns at once in split plans only; where nothing masks it, it is counted, and it takes time."""
    geo, step = dc.Geometry(16, 2, 128), dc.Batch.uniform(batch, keys)
    plan = dc.plan(f"flashinfer@{version}", geo, step, gpu="h100", cuda_graph=True, disable_split_kv=unsplit)
    said = "return at once" in plan.gate("cuda_graph").reason
    idle = plan.stage1.launched_blocks - plan.live_blocks - plan.repeating_blocks
    assert not (said and not plan.is_split)
    assert plan.is_split or idle == 0
    if plan.repeating_blocks:
        exact = dc.plan(f"flashinfer@{version}", geo, step, gpu="h100", disable_split_kv=True)
        assert (exact.live_blocks, exact.repeating_blocks) == (plan.live_blocks, 0)
        assert dc.predict(plan).known_s > dc.predict(exact).known_s


@pytest.mark.parametrize(
    "name",
    [
        "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdSplitKVKernel<ck_tile::Pipeline<Quant>>>(ck_tile::Args)",
        "void ck_tile::kentry<256, 1, ck_tile::FmhaBatchPrefillWithPagedKVCacheKernel<Quant>>(ck_tile::Args)",
        "void ck_tile::kentry<256, 1, ck_tile::BatchedPagedPrefillQuantKernel<x>>(y)",
        "_ZN5aiter41pa_bf16_pertokenFp8_gqa8_2tg_4wE",
        "pa_decode_gluon",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
        "kernel_mha_xqa_of_tomorrow",
        "triton_tem_fused__to_copy_flex_attention_1",
        "nsa_decode_fwd",
        "fa4_decode_sm100",
        "fused_recurrent_kda_fwd_kernel",
        "batch_decode_with_kv_cache_kernel",
        "batch_decode_with_paged_kv_cache_kernel",
    ],
)
def test_j_every_decode_attention_kernel_is_recognised_or_listed(name: str) -> None:
    """J. A word of the template arguments is no reason to call an attention kernel none."""
    assert knowledge().name_book().recognise(name) is not None, function_name(name)


@pytest.mark.parametrize(("loops", "least", "most"), [(1, 1, 64), (3, 129, 192), (8, 449, 512)])
def test_j_what_a_name_tells_contradicts_what_was_given(loops: int, least: int, most: int) -> None:
    """J. The loops that AMD's reduction is compiled with say how many partitions it serves."""
    name = f"void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, __hip_bfloat16, 128, 128, 256, {loops}>(float*)"
    found = knowledge().name_book().recognise(name)
    assert found is not None
    assert found.facts.split_range == (least, most)


@pytest.mark.parametrize(
    "spec",
    [
        "flashinfer@0.6.18.post1", "flashinfer@0.7.0", "flashinfer@0.7.1", "flashinfer@0.7.2", "flashinfer@0.7.2.post1",
        "flashinfer@0.7.4", "flex-decoding@2.9.0", "flex-decoding@2.15.0", "flash-attention-2@2.8.3.post1",
        "flash-attention-2@2.8.3.post2", "flash-attention-2@2.7.4.post1", "flash-attention-2@2.6.3",
    ],
)  # fmt: skip
def test_k_releases_that_people_run_have_a_version(spec: str) -> None:
    """K. Post releases and the holes between ranges resolve."""
    assert dc.plan(spec, dc.Geometry(32, 8, 128), dc.Batch([4096]), kv=dc.KvCache(page_size=256)).version


def test_k_two_versions_of_one_engine_do_not_look_alike(call: Any) -> None:
    """K. A table with two versions of one engine says which row is which, and so do its notes."""
    both = "flashinfer@0.6.17,flashinfer@0.7.2"
    said = call("grid", "--q-heads", "32", "--kv-heads", "8", "-e", both, "-c", "4096", "-v").out
    assert "flashinfer@0.6.17: condition" in said
    assert "flashinfer@0.7.2.post1: condition" in said
    assert re.search(r"^engine +version", said, re.MULTILINE)


FROZEN = [name for name in engine_names() if load_policy(name).traits.frozen_option]


@pytest.mark.parametrize("name", FROZEN)
def test_l_lengths_beyond_a_capture_fail_a_gate_or_are_refused(name: str) -> None:
    """L. Every rule that follows a length says so, and never passes a step longer than its capture."""
    option = load_policy(name).traits.frozen_option
    assert option is not None
    seen = 0
    for geo in (dc.Geometry(32, 8, 128), LATENT):
        for gpu in ("h100", "b200", "mi300x"):
            for kv in (dc.KvCache(page_size=64), dc.KvCache(page_size=128), dc.KvCache(page_size=16)):
                try:
                    free = dc.plan(name, geo, dc.Batch([100_000]), kv=kv, gpu=gpu)
                except dc.DecodecalcError:
                    continue
                seen += 1
                assert free.gate("within_capture").passed
                assert "capture" in free.gate("within_capture").reason
                try:
                    frozen = dc.plan(name, geo, dc.Batch([100_000]), kv=kv, gpu=gpu, **{option: 1})
                except dc.InputError:
                    continue
                assert not frozen.gate("within_capture").passed
    assert seen


def test_l_a_replay_that_outgrew_its_capture_is_said() -> None:
    """L. vLLM #51119: one split for 100 000 keys, because the graph was captured for one key."""
    plan = dc.plan("vllm-triton-mla", LATENT, dc.Batch([100_000]), captured_max_len=1)
    assert plan.stage1.grid == (1, 1, 1)
    assert not plan.gate("within_capture").passed


def test_m_pages_of_a_hybrid_are_aligned_to_its_state(call: Any) -> None:
    """M. vLLM's page of attention is at least as large as a recurrent layer's state, and every command says so."""
    model = dc.load_model("qwen3.5-27b")
    assert model.states is not None
    state = model.states.bytes_per_sequence(1, layers=1)
    for command in ("grid", "paging", "predict"):
        said = " ".join(call(command, "--model", "qwen3.5-27b", "-e", "vllm-triton").out.split())
        page = int(re.search(r"keeps (\d+) keys in a page here", said)[1])  # type: ignore[index]
        per_key = dc.KvCache().bytes_per_key(model.layer_groups[0].geometry)
        assert page * per_key >= state > (page - 16) * per_key


INVARIANT = [
    dc.Geometry(96, 8, 128), dc.Geometry(32, 8, 128), dc.Geometry(16, 2, 64), dc.Geometry(32, 8, 256), LATENT,
]  # fmt: skip


@pytest.mark.parametrize("name", engine_names())
def test_o_invariant_means_that_no_neighbour_changes_the_tile(name: str) -> None:
    """O. A plan that is invariant has the same kernel, tile, rows and cuts for a request whatever runs beside it."""
    mode = load_policy(name).traits.invariant_option
    for geo in INVARIANT:
        for gpu, kv in (("h100", dc.KvCache()), ("h100", dc.KvCache("fp8", 64)), ("b200", dc.KvCache(page_size=64))):
            for options in ({}, dict([mode]) if mode else {}):
                try:
                    alone = dc.plan(name, geo, dc.Batch([4000]), kv=kv, gpu=gpu, **options)
                except dc.DecodecalcError:
                    continue
                if alone.determinism != "invariant":
                    continue
                for q_len in (1, 5, 6, 17, 300):
                    try:
                        beside = dc.plan(name, geo, dc.Batch([4000, 4000], [1, q_len]), kv=kv, gpu=gpu, **options)
                    except dc.DecodecalcError:
                        continue
                    assert _walk(beside) == _walk(alone), (geo, gpu, kv, options, q_len)


def _walk(plan: dc.LaunchPlan) -> tuple[Any, ...]:
    return plan.stage1.name, plan.tile_keys, plan.block_rows, list(plan.splits.keys[0])


@pytest.mark.parametrize("gpu", ["l40s", "h100", "h200"])
@pytest.mark.parametrize("share", [0.9, 1.0, 1.15, 1.3])
def test_p_at_the_edge_of_the_l2_the_interval_spans_hit_and_miss(gpu: str, share: float) -> None:
    """P. Whether keys as large as a warm L2 survive a replay is not known: both ends are in the interval."""
    geo, keys = dc.Geometry(1, 1, 192), 8192
    plan = dc.plan("vllm-triton", geo, dc.Batch.uniform(32, keys), kv=dc.KvCache("fp8"), gpu=gpu)
    capacity = dc.predict(plan, l2="warm").provenance["l2_capacity_bytes"].number
    batch = max(1, round(share * capacity / (keys * 2 * 192)))
    plan = dc.plan("vllm-triton", geo, dc.Batch.uniform(batch, keys), kv=dc.KvCache("fp8"), gpu=gpu)
    warm, cold = dc.predict(plan, l2="warm"), dc.predict(plan, l2="cold")
    assert warm.low_s is not None
    assert warm.high_s is not None
    assert cold.total_s is not None
    assert warm.low_s < warm.high_s
    assert warm.high_s >= cold.total_s * (1 - 1e-9)
    assert math.isfinite(warm.high_s)


def test_p_a_public_timing_at_the_edge_lies_in_the_interval() -> None:
    """P. 32 requests of 8192 FP8 keys are the 96 MiB of an L40S's L2 to the byte: 68 us were measured."""
    plan = dc.plan("vllm-triton", dc.Geometry(1, 1, 192), dc.Batch.uniform(32, 8192), kv=dc.KvCache("fp8"), gpu="l40s")
    p = dc.predict(plan, l2="warm")
    assert p.low_s is not None
    assert p.high_s is not None
    assert p.low_s <= 68e-6 <= p.high_s
