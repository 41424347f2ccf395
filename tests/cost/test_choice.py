"""`choose`: what each engine's rule costs against S_opt."""

from __future__ import annotations

import pytest

import decodecalc as dc
from decodecalc.engines import load_policies


def test_regret_is_one_for_our_own_rule_and_at_least_that_for_fixed_16() -> None:
    """8/1 (Llama-3-70B on TP 8) at 128k keys: vLLM's 16 splits leave 116 SMs idle."""
    found = dc.choose(
        dc.Geometry(8, 1, 128),
        dc.Batch.uniform(1, 131_072),
        gpu="h200",
        engines=load_policies(["bundled", "vllm-triton"]),
    )
    own, vllm = found.regrets
    assert own.regret == pytest.approx(1.0, abs=0.02)
    assert found.s_star == 132
    assert found.s_opt > 16
    assert vllm.splits == 16
    assert vllm.regret is not None
    assert vllm.regret > 1.2
    assert vllm.own_s is not None
    assert vllm.rule_s is not None
    assert vllm.own_s > vllm.rule_s


def test_s_opt_is_where_the_curve_is_least() -> None:
    """Of equal times the fewest splits. Taking fewer within one per cent cost 6 to 12 % in two of 24 swept cells on the
    device (reports/h200/accuracy.md)."""
    found = dc.choose(dc.Geometry(32, 8, 128), dc.Batch.uniform(1, 32_768), gpu="h200", engines=[])
    assert found.regrets == ()
    near = [p.splits for p in found.curve if p.total_s <= 1.001 * min(q.total_s for q in found.curve)]
    assert found.s_opt == min(near)
    assert found.time_at(found.s_opt) == pytest.approx(found.total_s)
    assert found.total_s <= 1.01 * min(found.s_star_s, found.unsplit_s)


def test_sglang_is_told_to_raise_its_cap_where_that_pays() -> None:
    """Its default cap of 8 starves one long request of one KV head; the flag is its own."""
    found = dc.choose(
        dc.Geometry(8, 1, 128), dc.Batch.uniform(1, 131_072), gpu="h200", engines=load_policies(["sglang-triton"])
    )
    (sglang,) = found.regrets
    assert sglang.splits == 8
    assert sglang.flag is not None
    assert sglang.flag.startswith("--triton-attention-num-kv-splits ")
    assert sglang.flag_s is not None
    assert sglang.own_s is not None
    assert sglang.flag_s < sglang.own_s


def test_refusing_engines_say_why() -> None:
    """FlashMLA does not serve GQA."""
    found = dc.choose(
        dc.Geometry(32, 8, 128), dc.Batch.uniform(1, 2560), gpu="h200", engines=load_policies(["flashmla"])
    )
    assert found.regrets[0].refused
    assert found.regrets[0].regret is None


def test_a_choice_is_plain_values_for_json() -> None:
    """to_dict holds the curve and the regrets."""
    found = dc.choose(
        dc.Geometry(32, 8, 128), dc.Batch([100, 9000]), gpu="h200", engines=load_policies(["vllm-triton"])
    )
    out = found.to_dict()
    assert out["s_opt"] == found.s_opt
    assert out["regrets"][0]["engine"] == "vllm-triton"
    assert out["curve"][0]["splits"] == 1


def test_engines_are_named_in_words_or_given_as_policies() -> None:
    """A name, a name with a version and a policy give the same regrets; a wrong name says what is near."""
    geo, step = dc.Geometry(8, 1, 128), dc.Batch.uniform(1, 8192)
    named = dc.choose(geo, step, gpu="h200", engines=["sglang-triton", "vllm-triton@0.20"])
    given = dc.choose(geo, step, gpu="h200", engines=load_policies(["sglang-triton", "vllm-triton@0.20"]))
    assert named.regrets == given.regrets
    assert [r.engine for r in named.regrets] == ["sglang-triton", "vllm-triton"]
    with pytest.raises(dc.UnknownNameError, match="sglang-triton"):
        dc.choose(geo, step, gpu="h200", engines=["sglang-tritn"])


def test_a_choice_and_a_prediction_are_tables_in_a_notebook() -> None:
    """One row for the whole, one for each split count and engine, and HTML that names its fields."""
    geo, step = dc.Geometry(8, 1, 128), dc.Batch.uniform(1, 8192)
    found = dc.choose(geo, step, gpu="h200", engines=["sglang-triton", "flashmla"])
    assert found.to_frame()["s_opt"].tolist() == [found.s_opt]
    assert found.curve_frame()["splits"].tolist() == [p.splits for p in found.curve]
    assert found.regrets_frame()["engine"].tolist() == ["sglang-triton", "flashmla"]
    said = dc.predict(dc.plan("sglang-triton", geo, step, gpu="h200"))
    assert said.to_frame()["total_s"].tolist() == [said.total_s]
    assert "s_opt" in found._repr_html_()
    assert "total_s" in said._repr_html_()


def test_regret_compares_rules_on_one_kernel() -> None:
    """Latents with many heads have a faster kernel on Hopper that runs whole tiles only: a rule that the other kernel
    runs is held against that kernel's own best."""
    geo, step, kv = dc.Geometry(128, 1, 576, 512, mla=True), dc.Batch.uniform(16, 8192), dc.KvCache("bf16", 64)
    found = dc.choose(geo, step, kv=kv, gpu="h200", engines=["bundled", "flashmla"])
    ours, flashmla = found.regrets
    assert ours.regret == 1.0
    assert ours.rule_s == found.total_s
    assert flashmla.rule_s is not None
    assert flashmla.rule_s > 2 * found.total_s
    assert 1.0 <= (flashmla.regret or 0.0) < 1.1
