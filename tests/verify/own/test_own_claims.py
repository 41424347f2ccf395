"""The claims about engines' own kernels catch a library, or a policy, that does something else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from own_engine import FakeEngine

from decodecalc import Batch, Geometry, KvCache, load_gpu
from decodecalc.engines.registry import load_policy
from decodecalc.verify.own.claims import settings_to_try

pytestmark = pytest.mark.interpreter
FA3 = "flash-attention-3"


def policy_with(name, **changes):
    """The engine's policy with something changed in what it says it launches."""
    policy = load_policy(name)

    class Altered(type(policy)):
        def launches(self, *args):
            found = super().launches(*args)
            return replace(found, **{field: change(found) for field, change in changes.items()})

    return Altered()


def test_a_library_that_does_what_the_policy_says_passes(own_case, own_check):
    """Output, kernel names, grids and blocks agree, and every claim says so."""
    case = own_case(load_policy("vllm-triton"))
    found = own_check(case, FakeEngine(case.plan), claims=(1, 2))
    assert {n: f.verdict for n, f in found.items()} == {1: "pass", 2: "pass"}
    assert [q.name for q in found[2].quantities] == [
        "kernels", "stage1 grid", "stage1 threads", "merge grid", "merge threads",
    ]  # fmt: skip


def test_a_library_with_one_split_too_many_is_caught_by_its_grid(own_case, own_check):
    """The grid that the profiler saw differs from the plan's in its last extent."""
    case = own_case(load_policy("vllm-triton"))
    found = own_check(case, FakeEngine(case.plan, extra_splits=1), claims=(1, 2))
    assert found[1].verdict == "pass"  # the output alone does not show it
    assert found[2].verdict == "fail"
    assert "stage1 grid: predicted [2, 1, 16], observed [2, 1, 17]" in found[2].reason


def test_a_policy_that_is_off_by_one_is_caught_by_the_grid(own_case, own_check):
    """The same comparison fails where the plan and not the library has one split more."""

    def one_more(found):
        stage1, *rest = found.kernels
        return (replace(stage1, grid=(*stage1.grid[:2], stage1.grid[2] + 1)), *rest)

    right = own_case(load_policy("vllm-triton"))
    wrong = replace(right, plan=replace(right.plan, kernels=tuple(
        replace(k, grid=(*k.grid[:2], k.grid[2] + 1)) if k.role == "stage1" else k for k in right.plan.kernels
    )))  # fmt: skip
    found = own_check(wrong, FakeEngine(right.plan), claims=(2,))
    assert "stage1 grid: predicted [2, 1, 17], observed [2, 1, 16]" in found[2].reason


def test_another_block_and_another_kernel_are_caught(own_case, own_check):
    """Threads of a block and the kernels' names are held to equality too."""
    case = own_case(load_policy("vllm-triton"))
    assert "stage1 threads" in own_check(case, FakeEngine(case.plan, threads=64), claims=(2,))[2].reason
    other = FakeEngine(case.plan, names={"kernel_unified_attention": "kernel_unified_attention_2d"})
    assert "kernels" in own_check(case, other, claims=(2,))[2].reason


def test_a_missing_merge_is_caught(own_case, own_check):
    """A library that launches no merge where the plan has one fails the claim on its kernels."""
    case = own_case(load_policy("vllm-triton"))
    engine = FakeEngine(replace(case.plan, kernels=case.plan.kernels[:1]))
    assert own_check(case, engine, claims=(2,))[2].verdict == "fail"


def test_kernels_that_no_plan_speaks_of_are_named_and_do_not_fail(own_case, own_check):
    """A copy that the library launches beside its kernels is told in the row."""
    case = own_case(load_policy("vllm-triton"))
    engine = FakeEngine(case.plan)
    plain = engine.events
    engine.events = lambda: [{**plain()[0], "name": "vectorized_elementwise_kernel"}, *plain()]
    found = own_check(case, engine, claims=(2,))[2]
    assert found.verdict == "pass"
    assert "vectorized_elementwise_kernel" in found.how


def test_a_wrong_output_is_caught_against_float64(own_case, own_check):
    """An output that is 2 % too large fails the first claim; a runner's own bound can allow it."""
    case = own_case(load_policy("vllm-triton"))
    found = own_check(case, FakeEngine(case.plan, error=0.02), claims=(1,))[1]
    assert found.verdict == "fail"
    assert found.quantities[0].observed == pytest.approx(0.02, rel=0.2)


def test_a_time_is_held_against_the_predicted_interval(own_case, own_check):
    """A time inside passes, a time far outside is off, and the row says which."""
    case = own_case(load_policy("vllm-triton"))
    from decodecalc.cost import predict

    said = predict(case.plan)
    inside = own_check(case, FakeEngine(case.plan, seconds={None: said.total_s}), claims=(10,))[10]
    outside = own_check(case, FakeEngine(case.plan, seconds={None: 5 * said.high_s}), claims=(10,))[10]
    assert (inside.verdict, inside.facts["inside_interval"]) == ("pass", True)
    assert (outside.verdict, outside.facts["inside_interval"]) == ("off", False)
    assert "outside the interval" in outside.reason


def test_a_sweep_over_the_engines_setting_finds_the_regret_of_the_advice(own_case, own_check):
    """With one value twice as fast as all others, the advice is off unless it is that value."""
    case = own_case(load_policy(FA3), Geometry(8, 1, 64), Batch([2048]))
    values = settings_to_try(case.plan, in_pages=False)
    assert values[0] == 1
    assert len(values) > 2
    flat = FakeEngine(case.plan, setting="num_splits_arg", seconds=dict.fromkeys([*values, None], 1e-5))
    assert own_check(case, flat, claims=(11,))[11].verdict == "pass"
    advised = own_check(case, flat, claims=(11,))[11].facts["advised"]
    spoiled = {value: 1e-5 if value == advised else 5e-6 for value in values} | {None: 1e-5}
    found = own_check(case, FakeEngine(case.plan, setting="num_splits_arg", seconds=spoiled), claims=(11,))[11]
    assert found.verdict == "off"
    assert found.quantities[1].observed == pytest.approx(2.0)


def test_an_engine_without_a_split_setting_skips_the_sweep(own_case, own_check):
    """There is nothing to sweep, and the row says so."""
    case = own_case(load_policy("vllm-triton"))
    found = own_check(case, FakeEngine(case.plan), claims=(11,))[11]
    assert found.verdict == "skip"
    assert "no setting" in found.reason


def test_the_settings_of_a_sweep_are_counts_or_the_pages_that_they_come_to():
    """Counts go up in powers of two to one tile a split; pages fall with them."""
    plan = load_policy("flashinfer").plan(
        Geometry(32, 8, 128), Batch([2560]), KvCache("bf16", 16), load_gpu("h200"), {}, None
    )
    counts = settings_to_try(plan, in_pages=False)
    pages = settings_to_try(plan, in_pages=True)
    assert counts == [1 << i for i in range(len(counts))]
    assert pages[-1] == 160
    assert all(-(-2560 // (16 * p)) in range(1, 161) for p in pages)


def test_the_merges_that_a_compiler_makes_count_as_one(own_case, own_check):
    """FlexAttention's two inductor reductions stand for the one merge of its plan."""
    case = own_case(load_policy("flex-decoding"), Geometry(4, 1, 64), Batch([512]))
    engine = FakeEngine(case.plan, names={"flex_decoding": "triton_tem_fused_flex_attention_0",
                                          "inductor reduction": "triton_per_fused_flex_attention_1"})  # fmt: skip
    plain = engine.events
    engine.events = lambda: [*plain(), {**plain()[1], "name": "triton_per_fused_flex_attention_2", "ts": 9}]
    assert own_check(case, engine, claims=(2,))[2].verdict == "pass"
