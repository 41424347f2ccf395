"""All folders' knowledge together: names answer to one rule, engines and families fit, layers are kept."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import decodecalc
from decodecalc.engines import engine_names
from decodecalc.engines.registry import folder_modules
from decodecalc.trace.families import SHARED
from decodecalc.trace.knowledge import EngineTrace, TraceKnowledge
from decodecalc.trace.load import knowledge
from decodecalc.trace.recognise import MERGE, OTHER, PREFILL, SCHEDULER, STAGE1, NameBook, NameRule

RULES = knowledge().names
PACKAGE = Path(decodecalc.__file__).parent
NAMES = st.sampled_from(RULES).flatmap(
    lambda rule: st.tuples(st.just(rule), st.from_regex(re.compile(rule.pattern, re.ASCII), fullmatch=True))
)


@given(NAMES)
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_no_name_answers_to_two_rules(drawn: tuple[NameRule, str]) -> None:
    """A function's name that one rule matches matches no other, so that the order of folders decides nothing.

    Rules that look inside the whole name as well may share a function's name: the next test covers them.
    """
    rule, own = drawn
    others = [r.pattern for r in RULES if r is not rule and not (r.inside and rule.inside) and r.match(own, own)]
    assert others == []


def test_rules_that_share_a_function_name_exclude_each_other() -> None:
    """A decode and a prefill instantiation of one template are told apart by what they hold, never both or neither."""
    same = [(a, b) for a, b in itertools.combinations(RULES, 2) if a.inside and b.inside and a.pattern == b.pattern]
    assert same
    for a, b in same:
        for whole in ("turbomind::f<X, turbomind::DecodingCtaMap>", "turbomind::f<X, turbomind::AttentionCtaMap>"):
            assert (a.match("attention_kernel", whole) is None) != (b.match("attention_kernel", whole) is None)
        assert a.match("attention_kernel", "at::attention_kernel<X>") is None


def test_the_order_of_the_rules_does_not_matter() -> None:
    """A book with the rules turned round says the same about every name that a rule generates literally."""
    turned = NameBook(RULES[::-1])
    for name in ("kernel_unified_attention", "_fwd_kernel_stage2", "kernel_mha", "flash_attn_tile", "reduce_segments"):
        assert turned.recognise(name) == knowledge().recognise(name)


def test_two_rules_for_one_name_would_be_found() -> None:
    """The check above can fail: a second rule for a known name is seen by it."""
    again = NameRule(pattern=r"kernel_\w+", family="x", role=STAGE1, why="x")
    assert [r for r in (*RULES, again) if r.match("kernel_mha", "kernel_mha")] != [again]
    assert len([r for r in (*RULES, again) if r.match("kernel_mha", "kernel_mha")]) == 2


def test_every_rule_has_a_known_role_and_says_why() -> None:
    """Roles are those that launches are paired by."""
    for rule in RULES:
        assert rule.role in (STAGE1, MERGE, SCHEDULER, PREFILL, OTHER)
        assert rule.why


def test_engines_and_families_fit() -> None:
    """Every engine's families have a stage-1 rule, every stage-1 family has an engine, no engine is described twice."""
    whole = knowledge()
    stage1 = {rule.family for rule in RULES if rule.role == STAGE1}
    claimed = {family for engine in whole.engines for family in engine.families}
    assert claimed == stage1
    names = [engine.engine for engine in whole.engines]
    assert len(names) == len(set(names))
    families = [family.name for family in whole.families]
    assert len(families) == len(set(families))
    # A textbook and the bundled kernel leave no kernel of their own name in anybody's trace.
    assert set(engine_names()) - set(names) == {"flash-decoding", "bundled"}


def test_folders_are_found_by_being_there() -> None:
    """Every trace.py and sources.py below engines/ is read, and nothing else is."""
    for name in ("trace", "sources"):
        found = {module.__name__.split(".")[-2] for module in folder_modules(name)}
        assert found == {path.parent.name for path in PACKAGE.glob(f"engines/*/{name}.py")}
        assert found


def test_parts_are_put_together_in_order() -> None:
    """Nothing is lost, and an engine without knowledge is read without any."""
    part = TraceKnowledge(engines=(EngineTrace(engine="toy", families=("toy",)),))
    both = TraceKnowledge.together([SHARED, part])
    assert both.names == SHARED.names
    assert both.engine("toy").families == ("toy",)
    assert both.engine("nobody").families == ()
    assert both.family("nobody").name == "nobody"


MECHANISM = [*PACKAGE.glob("trace/**/*.py"), *PACKAGE.glob("drift/**/*.py")]
WORDS = re.compile(
    r"\b(vllm|sglang|flashinfer|flashmla|aiter|tensorrt|llama\.cpp|turbomind|lmdeploy|flex_?attention|flash_?attention)",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", MECHANISM, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_mechanism_names_no_engine(path: Path) -> None:
    """trace/ and drift/ know kernels' families and files, never whose they are."""
    found = [line for line in path.read_text().splitlines() if WORDS.search(line)]
    assert found == []


@pytest.mark.parametrize("path", MECHANISM, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_mechanism_imports_neither_tables_nor_commands_nor_folders(path: Path) -> None:
    """Arrows point one way: engines' knowledge comes in through the registry."""
    text = path.read_text()
    assert not re.search(r"decodecalc\.(tables|cli|plot|verify|engines\.(?!registry\b))", text)


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("engines/**/*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_trace_and_sources_use_the_mechanism(path: Path) -> None:
    """A policy never imports what audits it."""
    allowed = {"trace": "trace", "sources": "drift"}.get(path.stem)
    for layer in ("trace", "drift"):
        if layer != allowed:
            assert f"decodecalc.{layer}" not in path.read_text()
