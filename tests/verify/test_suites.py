"""What the suites hold, and how they are dealt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc import load_gpu
from decodecalc.errors import InputError, UnknownNameError
from decodecalc.sizes import MAX_PLANS
from decodecalc.units import parse_shard
from decodecalc.verify.session.suites import cases, deal, suite_scenarios

GPU = load_gpu("h200")


@pytest.fixture(scope="module")
def standard():
    return cases(suite_scenarios("standard"), GPU)


def test_standard_holds_sixty_cases_of_every_family_and_none_is_refused(standard):
    assert len(standard) >= 60
    assert not [c.id for c in standard if c.plan is None]
    geometries = [c.scenario.geometry for c in standard]
    assert {g.kind for g in geometries} == {"GQA", "MQA", "MHA", "MLA"}
    assert {g.group for g in geometries} >= {1, 4, 7, 71}
    assert {g.head_dim for g in geometries} >= {64, 80, 128, 256, 576}
    assert any(not c.scenario.batch.is_uniform for c in standard)
    assert {c.scenario.kv.dtype for c in standard} == {"bf16", "fp8"}
    assert {c.scenario.label for c in standard} >= {"llama3-8b/tp1", "llama3-8b/tp8"}


def test_case_ids_are_unique(standard):
    assert len({c.id for c in standard}) == len(standard)


@given(st.integers(1, 9))
def test_parts_deal_whole_scenarios_and_lose_none(parts):
    everything = cases(suite_scenarios("quick"), GPU)
    dealt = [deal(everything, i + 1, parts) for i in range(parts)]
    assert sorted(c.id for part in dealt for c in part) == sorted(c.id for c in everything)
    for part in dealt:
        for other in dealt:
            shared = {c.scenario.id for c in part} & {c.scenario.id for c in other}
            assert part is other or not shared


def test_an_engine_that_refuses_leaves_a_case_with_its_reason():
    found = cases(suite_scenarios("tiny", ["flashmla", "flash-decoding"]), GPU)
    refused = [c for c in found if c.plan is None]
    assert refused
    assert all("flashmla" in c.refusal for c in refused)


def test_options_reach_the_engines_that_have_them_and_unknown_ones_are_named():
    found = cases(suite_scenarios("tiny", ["flash-decoding"]), GPU, {"num_splits": 2})
    assert max(c.plan.splits.launched for c in found) == 2
    with pytest.raises(UnknownNameError, match="num_split"):
        cases(suite_scenarios("tiny", ["flash-decoding"]), GPU, {"num_split": 2})


def test_a_run_of_more_cases_than_anybody_waits_for_is_refused_before_it_is_planned() -> None:
    """Half an hour of cases is the most; how many were asked for is counted without a plan."""
    scenarios = suite_scenarios("tiny", ["flash-decoding"]) * (MAX_PLANS // 2)
    assert len(scenarios) > MAX_PLANS
    with pytest.raises(InputError, match=f"{len(scenarios)} cases .* more than the {MAX_PLANS}"):
        cases(scenarios, GPU)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_shards_that_do_not_exist_are_refused(text):
    with pytest.raises(InputError, match="--shard"):
        parse_shard(text)


def test_unknown_suites_are_refused():
    with pytest.raises(UnknownNameError, match="quick"):
        suite_scenarios("quik")
