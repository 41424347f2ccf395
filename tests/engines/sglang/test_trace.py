"""SGLang's Triton launches in a trace: whose a launch is, what grids say, settings, annotations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import launch_of, make_launch

import decodecalc as dc
from decodecalc.engines.sglang import trace
from decodecalc.trace.attribution import Strength, Surroundings
from decodecalc.trace.candidates import GIVEN, Candidate
from decodecalc.trace.events import TraceDevice
from decodecalc.trace.load import knowledge

GROUPED, SINGLE = "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage1"
COUNTED = frozenset(["triton-decode"])
AMD = TraceDevice(0, "AMD Instinct MI300X")
quick = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize(
    ("name", "splits", "around", "strength"),
    [
        (GROUPED, 5, Surroundings(scheduled=COUNTED), Strength.SURE),
        (GROUPED, 5, Surroundings(scheduled=COUNTED, vendors=frozenset(["vllm"])), Strength.SURE),
        (GROUPED, 8, Surroundings(), Strength.LIKELY),
        (GROUPED, 7, Surroundings(), Strength.WEAK),
        (GROUPED, 9, Surroundings(), Strength.WEAK),
        (GROUPED, 16, Surroundings(), Strength.WEAK),
        (GROUPED, 16, Surroundings(device=AMD), Strength.LIKELY),
        (GROUPED, 8, Surroundings(device=AMD), Strength.WEAK),
        (SINGLE, 16, Surroundings(), Strength.LIKELY),
        (GROUPED, 8, Surroundings(vendors=frozenset(["vllm"])), Strength.WEAK),
        (GROUPED, 8, Surroundings(vendors=frozenset(["vllm", "sglang"])), Strength.LIKELY),
        ("_lean_attention_decode_kernel", 1, Surroundings(), Strength.SURE),
    ],
)
def test_whose_triton_decode_it_is(name: str, splits: int, around: Surroundings, strength: Strength) -> None:
    """The split-count kernel settles it; without one, the default cap, the kernel and the company speak."""
    vote = knowledge().engine("sglang-triton").attribute(make_launch(name, (3, 1, splits)), around)
    assert vote is not None
    assert vote.strength == strength


@pytest.mark.parametrize(
    ("splits", "around", "first"),
    [
        (8, Surroundings(), "sglang-triton"),
        (16, Surroundings(), "vllm-triton-mla"),
        (8, Surroundings(vendors=frozenset(["vllm"])), "vllm-triton-mla"),
    ],
)
def test_the_two_engines_of_the_shared_kernel_are_weighed(splits: int, around: Surroundings, first: str) -> None:
    """Both stay possible; the likelier one is first."""
    found = knowledge().attribute(make_launch(GROUPED, (3, 1, splits)), around)
    assert found.engines[0] == first
    assert set(found.engines) == {"sglang-triton", "vllm-triton-mla"}


@given(
    kv_heads=st.sampled_from([1, 2, 4, 8, 16]),
    group=st.sampled_from([1, 2, 3, 4, 7, 8, 12, 15, 16, 32]),
    seq_lens=st.lists(st.integers(1, 70_000), min_size=1, max_size=40),
)
@quick
def test_a_launch_gives_the_layer_and_the_batch_back(kv_heads: int, group: int, seq_lens: list[int]) -> None:
    """Heads, batch and splits; the KV heads only while a block of 16 query heads is more than their group."""
    geo = dc.Geometry(kv_heads * group, kv_heads, 128)
    plan = dc.plan("sglang-triton", geo, dc.Batch(seq_lens), gpu="h200-sxm")
    seen = knowledge().infer(launch_of(plan), "sglang-triton")
    assert (seen.q_heads, seen.batch, seen.splits_launched) == (geo.q_heads, len(seq_lens), plan.splits.launched)
    assert seen.kv_heads == (kv_heads if group < 16 else None)
    assert seen.group == (group if group < 16 else None)


def test_the_lean_kernel_shows_neither_heads_nor_splits() -> None:
    """Its grid is persistent."""
    seen = knowledge().infer(make_launch("_lean_attention_decode_kernel", (304, 1, 1)), "sglang-triton", 64)
    assert (seen.q_heads, seen.kv_heads, seen.batch, seen.splits_launched) == (64, None, None, None)


def test_settings_that_explain_another_launch() -> None:
    """A cap of its own, or deterministic mode; a graph of more requests is tried without being told."""
    batch = dc.Batch([4096] * 9)
    candidate = Candidate(dc.load_model("llama3-8b").layer_groups[0], batch, GIVEN, ())
    plan = dc.plan("sglang-triton", dc.Geometry(32, 8, 128), batch, gpu="h200-sxm", padded_batch=16)
    engine, seen = knowledge().engine("sglang-triton"), knowledge().infer(launch_of(plan), "sglang-triton")
    shown = [dict(s.options) for s in engine.shown(launch_of(plan, graph=True), seen, candidate)]
    assert shown == [{"padded_batch": 16}, {}]
    explained = [dict(s.options) for s in engine.explanations(launch_of(plan), seen, candidate)]
    assert explained == [{"max_kv_splits_arg": 8}, {"deterministic": True}]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("step[DECODE bs=12]", (0, 12)),
        ("step[EXTEND bs=3 toks=900]", (3, 0)),
        ("step[MIXED bs=3", (3, 0)),
        ("step[IDLE bs=3", None),
        ("step[DECODE bs=99999999]", None),
    ],
)
def test_annotations_of_the_scheduler(text: str, note: tuple[int, int] | None) -> None:
    """Requests of one kind; keys are not said."""
    found = trace.read_step(text)
    assert (None if found is None else (found.prefills, found.decodes)) == note
    assert found is None or found.decode_keys is None
