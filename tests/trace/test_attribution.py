"""Votes are counted: the surest first, sure ones alone, and kernels without a decode step of their own set apart."""

from __future__ import annotations

import itertools

import pytest
from launches import make_launch

from decodecalc.trace.attribution import (
    DECODE_STEP,
    PROMPT,
    UNATTRIBUTED,
    AttributionRule,
    Strength,
    Surroundings,
    Vote,
    attribute,
    by_name,
)
from decodecalc.trace.events import TraceDevice

LAUNCH = make_launch("kernel_mha")
ALONE = Surroundings()


def says(strength: Strength | None, what: str = DECODE_STEP) -> AttributionRule:
    """An engine that always answers with this vote, or with none."""
    vote = None if strength is None else Vote(strength=strength, why=strength.name, split=strength > 2, what=what)
    return lambda group, around: vote


@pytest.mark.parametrize("order", list(itertools.permutations(["weak", "possible", "likely"])))
def test_the_likeliest_engine_is_first_whatever_the_order(order: tuple[str, ...]) -> None:
    """Engines follow their strength; the reason and the path are the strongest vote's."""
    found = attribute(LAUNCH, ALONE, [(name, says(Strength[name.upper()])) for name in order])
    assert found.engines == ("likely", "possible", "weak")
    assert (found.what, found.why, found.path_split) == (DECODE_STEP, "LIKELY", True)


def test_a_sure_vote_leaves_out_the_others() -> None:
    """Who is sure is alone, whoever else would take the launch."""
    rules = [("a", says(Strength.LIKELY)), ("b", says(Strength.SURE)), ("c", says(None))]
    assert attribute(LAUNCH, ALONE, rules).engines == ("b",)


def test_a_launch_that_nobody_wants_belongs_to_no_engine() -> None:
    """No vote: attention of no engine that is modelled, or a prefill by its name."""
    assert attribute(LAUNCH, ALONE, [("a", says(None))]).what == UNATTRIBUTED
    prefill = make_launch("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext")
    assert attribute(prefill, ALONE, []).what == PROMPT


def test_a_prefill_vote_names_no_engine() -> None:
    """Only decode launches are held against an engine's plans."""
    found = attribute(LAUNCH, ALONE, [("a", says(Strength.LIKELY, PROMPT))])
    assert (found.what, found.engines) == (PROMPT, ())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("_fwd_kernel_stage2", "the kernel whose states it merges is not in the trace"),
        ("get_num_kv_splits_triton", "the kernel that it serves is not in the trace"),
        ("some_new_attention_decode", "of an engine that is not modelled"),
    ],
)
def test_stray_kernels_are_said_to_be_stray(name: str, words: str) -> None:
    """A merge or a scheduler alone, and attention that nobody has a rule for."""
    found = attribute(make_launch(name), ALONE, [("a", says(Strength.SURE))])
    assert (found.what, found.engines) == (UNATTRIBUTED, ())
    assert words in found.why


def test_a_name_of_its_own_is_enough_where_nothing_else_is_said() -> None:
    """The default rule: split if the template says so, else if a merge follows."""
    name = "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<X> >(P)"
    merge = "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaReductionKernel<X> >(P)"
    for launch, split in ((make_launch(name), False), (make_launch(name, merge=(merge, (128, 1, 1))), True)):
        vote = by_name(launch, ALONE)
        assert vote is not None
        assert (vote.what, vote.split) == (DECODE_STEP, split)
    fmha = "fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvCausalP64MultiCtasKvCgaVarSeqQ32Kv128StaticKeepsAbForGen"
    for split in (True, False):
        vote = by_name(make_launch(fmha if split else fmha.replace("MultiCtasKvCga", "")), ALONE)
        assert vote is not None
        assert vote.split is split


@pytest.mark.parametrize(
    ("device", "amd"),
    [
        (None, False),
        (TraceDevice(0, "NVIDIA H200", 132, None, (9, 0), 32), False),
        (TraceDevice(0, "AMD Instinct MI300X"), True),
        (TraceDevice(0, "", 304, None, (9, 4), 64), True),
        (TraceDevice(0, "", 304, None, None, 64), True),
    ],
)
def test_amd_is_told_by_name_or_by_wavefront(device: TraceDevice | None, amd: bool) -> None:
    """ROCm's traces name the device or give 64-wide warps."""
    assert Surroundings(device=device).is_amd is amd


def test_surroundings_are_what_the_launches_show() -> None:
    """Schedulers count for their family wherever they stand, tiles for theirs."""
    groups = [
        make_launch("_fwd_kernel_stage1", scheduler="get_num_kv_splits_triton"),
        make_launch("void flash_attn_ext_vec<128, 2, a, b, false>(P)"),
        make_launch("get_mla_metadata_kernel"),
    ]
    found = Surroundings.of(groups, ["vllm"])
    assert found.scheduled == {"triton-decode", "flashmla"}
    assert found.tile_rows == {"ggml-flash-attention": {2}}
    assert found.vendors == {"vllm"}
