"""Advice: one setting for a workload, only where measurements stand behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import decodecalc as dc
from decodecalc.cost.advice import Adviser, ServedStep
from decodecalc.cost.load import load_calibration
from decodecalc.engines import load_policy

LONG = ServedStep(geometry=dc.Geometry(8, 1, 128), batch=dc.Batch.uniform(1, 131_072))
SHORT = ServedStep(geometry=dc.Geometry(8, 1, 128), batch=dc.Batch.uniform(64, 256))


def adviser(gpu: str = "h200", **values: Any) -> Adviser:
    """On one GPU with its shipped calibration."""
    device = dc.load_gpu(gpu)
    base = Adviser(kv=dc.KvCache(), gpu=device, calibration=load_calibration(gpu=device), options={})
    return replace(base, **values)


def test_a_setting_is_advised_in_words_that_can_be_typed() -> None:
    """SGLang's default cap starves one long request of one KV head."""
    advice = adviser().setting(load_policy("sglang-triton"), None, [LONG])
    assert advice.setting is not None
    assert advice.setting.startswith("--triton-attention-num-kv-splits ")
    assert advice.server == "SGLang"
    assert f"start SGLang with {advice.setting}" in advice.sentence
    assert advice.then_s is not None
    assert advice.now_s is not None
    assert advice.needed is not None
    assert advice.then_s * (1 + advice.needed) < advice.now_s


def test_the_default_stays_where_no_gain_exceeds_the_error_of_a_ratio() -> None:
    """64 short requests fill the GPU without more splits."""
    advice = adviser().setting(load_policy("sglang-triton"), None, [SHORT])
    assert advice.setting is None
    assert "keep the default" in advice.sentence
    assert len(advice.tried) == 5


def test_one_setting_for_a_workload_is_the_one_of_least_total_time() -> None:
    """A workload gets the value whose weighted sum is least, and its worst step is shown."""
    steps = [replace(LONG, weight=0.5), replace(SHORT, weight=0.5)]
    both = adviser().setting(load_policy("sglang-triton"), None, steps)
    parts = [adviser().setting(load_policy("sglang-triton"), None, [step]) for step in steps]
    sums = {text: a + b for (text, a), (_, b) in zip(parts[0].tried, parts[1].tried)}
    assert dict(both.tried) == pytest.approx(sums)
    assert both.setting == min(sums, key=lambda text: sums[text])
    assert both.worst_step == SHORT.label
    assert both.worst == pytest.approx(dict(parts[1].tried)[both.setting] / parts[1].now_s)


def test_a_setting_that_no_server_takes_needs_a_caller_of_the_library() -> None:
    """num_splits of FlashAttention-3 is an argument of a function: no server has a flag for it."""
    policy = load_policy("flash-attention-3")
    assert "no server setting" in adviser().setting(policy, None, [LONG]).sentence
    step = ServedStep(geometry=dc.Geometry(28, 4, 128), batch=dc.Batch.uniform(4, 265))
    assert adviser(library=True).setting(policy, None, [step]).tried
    assert "no server setting" in adviser().setting(load_policy("vllm-triton"), None, [LONG]).sentence


def test_no_advice_beyond_what_was_calibrated() -> None:
    """A width, a GPU or a kernel without times of its own gets a reason and no setting."""
    width = ServedStep(geometry=dc.Geometry(8, 1, 96), batch=dc.Batch.uniform(1, 131_072))
    for found in (
        adviser().setting(load_policy("sglang-triton"), None, [width]),
        adviser("a100-80gb").setting(load_policy("sglang-triton"), None, [LONG]),
        adviser().setting(load_policy("flash-decoding"), None, [LONG]),
    ):
        assert found.setting is None
        assert "no advice" in found.sentence


def test_no_advice_beyond_the_steps_that_were_timed() -> None:
    """More requests, longer contexts, other pages, drafts and windows than any that were timed get a reason."""
    geo, policy = dc.Geometry(8, 1, 128), load_policy("sglang-triton")
    assert adviser().setting(policy, None, [LONG]).setting is not None
    for step, pages, why in (
        (ServedStep(geometry=geo, batch=dc.Batch.uniform(1, 900_000)), 16, "900000 keys"),
        (ServedStep(geometry=geo, batch=dc.Batch.uniform(900, 4096)), 16, "900 requests"),
        (LONG, 32, "pages of 32 keys"),
        (replace(LONG, geometry=replace(geo, window=4096)), 16, "a sliding window"),
    ):
        found = adviser(kv=dc.KvCache(page_size=pages)).setting(policy, None, [step])
        assert found.setting is None
        assert "was not timed on this GPU with" in found.sentence
        assert why in found.sentence
        assert found.now_s is not None, "the time itself is still predicted"


def test_the_type_of_the_cache_is_advised_with_both_errors_in_mind() -> None:
    """Half the bytes of a large step are faster in FlashAttention-3; an uncalibrated type is not mentioned."""
    big = ServedStep(geometry=dc.Geometry(32, 8, 128), batch=dc.Batch.uniform(16, 30_000))
    said = adviser().cache(load_policy("flash-attention-3"), None, [big])
    assert said is not None
    assert "fp8 is predicted to be faster" in said
    assert adviser().cache(load_policy("flashinfer"), None, [big]) is None
