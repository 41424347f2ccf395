"""`choose`: what each engine's rule costs against S_opt."""

from __future__ import annotations

import pytest

import decodecalc as dc
from decodecalc.cost.choice import Regret, server_flag
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


def test_one_flag_for_all_layers_is_chosen_by_the_sum() -> None:
    """What is best for the sliding layers alone, or the full ones alone, need not be what the server should get."""
    sliding = Regret("e", "1", own_s=5.0, flag_times=(("s=1", 3.0), ("s=8", 4.0), ("s=64", 9.0)))
    full = Regret("e", "1", own_s=50.0, flag_times=(("s=1", 90.0), ("s=8", 20.0), ("s=64", 18.0)))
    assert server_flag([(10, sliding), (2, full)]) == ("s=8", 10 * 5.0 + 2 * 50.0 - (10 * 4.0 + 2 * 20.0))
    assert server_flag([(10, sliding)]) == ("s=1", 20.0)
    assert server_flag([(10, Regret("e", "1", own_s=5.0, flag_times=(("s=1", 4.99),)))]) is None
    assert server_flag([(1, Regret("e", "1", own_s=5.0))]) is None
