"""FlashAttention's launches in a trace: names taken apart, whose a launch is, what grids say, settings."""

from __future__ import annotations

import pytest
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launches import launch_of, make_launch

import decodecalc as dc
from decodecalc.engines.flash_attention import trace
from decodecalc.trace.attribution import DECODE_STEP, PROMPT, UNATTRIBUTED, Surroundings
from decodecalc.trace.candidates import GIVEN, Candidate
from decodecalc.trace.kernel_names import NameFacts
from decodecalc.trace.load import knowledge
from decodecalc.trace.recognise import STAGE1

# As the profilers of torch 2.x print them.
FA3 = (
    "void "
    "cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<128>, cute::C<192> >, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, {local}, false, true, true, false, false, false, true, "
    "true, true, true, false, cutlass::bfloat16_t, 1>, flash::CollectiveEpilogueFwd<cute::tuple<cute::C<64>, "
    "cute::C<128>, cute::C<128> >, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cutlass::bfloat16_t, "
    "cutlass::arch::Sm90, 128, true, true, {split}, false, 1>, flash::VarlenDynamicPersistentTileScheduler<64, "
    "128, 128, 128, true, true, true, true, false, true> > > >(flash::FlashAttnFwdSm90<int>::Params)"
)
TRAITS = (
    "Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 4> >"
)
FLAGS = "true, false, false, false, true, false, {}, false"
COMBINE = "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 5, 256> >(P)"
ALONE = Surroundings()
quick = settings(max_examples=40, deadline=None)


def fa2(split: bool) -> str:
    """The name of FlashAttention-2's split-KV kernel."""
    return f"void flash::flash_fwd_splitkv_kernel<{TRAITS}, {FLAGS.format(str(split).lower())}>(Flash_fwd_params)"


def fa3(split: bool, rows: int = 64) -> str:
    """The name of FlashAttention-3's kernel with tiles of this many rows."""
    return FA3.format(split=str(split).lower(), local="false").replace("cute::C<64>", f"cute::C<{rows}>")


# -- names ------------------------------------------------------------------------------------------------------------


def test_flash_attention_3() -> None:
    """The epilogue has the split flag; the mainloop tile, widths and the window flag."""
    found = trace.fa3_facts(FA3.format(split="true", local="false"))
    assert found == NameFacts(
        split=True, tile_rows=64, tile_keys=128, head_dim=192, head_dim_v=128, windowed=False,
    )  # fmt: skip
    found = trace.fa3_facts(FA3.format(split="false", local="true"))
    assert (found.split, found.windowed) == (False, True)


@pytest.mark.parametrize(("log", "served"), [(5, (2, 32)), (6, (33, 64)), (7, (65, 128)), (8, (129, 256))])
def test_flash_attention_3_combine_serves_a_range_of_splits(log: int, served: tuple[int, int]) -> None:
    """kLogMaxSplits bounds the split count from both sides; 5 is the smallest with tiles of 8 rows."""
    combine = f"flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, {log}, 256>"
    name = f"void cutlass::device_kernel<{combine} >({combine}::Params)"
    assert trace.fa3_combine_facts(name).split_range == served


def test_flash_attention_2() -> None:
    """The traits have head dim and tile; the seventh flag is Split, and the combine's logarithm bounds the count."""
    flags = "true, false, false, false, true, false, {}, false"
    name = f"void flash::flash_fwd_splitkv_kernel<{TRAITS}, {flags.format('true')}>(Flash_fwd_params)"
    found = trace.fa2_facts(name)
    assert (found.split, found.head_dim, found.tile_rows, found.tile_keys) == (True, 128, 64, 128)
    assert trace.fa2_facts(name.replace(flags.format("true"), flags.format("false"))).split is False
    combine = f"void flash::flash_fwd_splitkv_combine_kernel<{TRAITS}, 4, 5, true>(Flash_fwd_params)"
    assert trace.fa2_combine_facts(combine).split_range == (17, 32)


def test_a_combine_of_larger_tiles_has_a_smaller_smallest() -> None:
    """With 16 rows the smallest instantiation serves up to 16 splits."""
    name = COMBINE.replace("cute::C<8>", "cute::C<16>").replace(", 5,", ", {},")
    assert trace.fa3_combine_facts(name.format(4)).split_range == (2, 16)
    assert trace.fa3_combine_facts(name.format(5)).split_range == (17, 32)


@pytest.mark.parametrize(
    ("class_name", "architecture"),
    [("FlashAttentionForwardSm100", "sm100"), ("FlashAttentionMLAForward1CtaKb64Sm100", "mla_sm100"),
     ("FlashAttentionMLADecodeSm100", "mla_sm100"), ("FlashAttentionForwardSm90", "sm90"),
     ("BlackwellFusedMultiHeadAttentionForward", "sm100")],
)  # fmt: skip
def test_flash_attention_4_names(class_name: str, architecture: str) -> None:
    """The class stands inside the name that the CuTe DSL makes up; plans call the kernel by it."""
    name = f"kernel_cutlass_kernel_flash_attncuteflash_fwd_{architecture}{class_name}_object_at__tensor000o1110_None_0"
    found = knowledge().recognise(name)
    assert found is not None
    assert (found.family, found.role, found.kernel) == ("flash-attention-4", STAGE1, class_name)
    assert knowledge().attribute(make_launch(name), ALONE).engines == ("flash-attention-4",)


# -- whose launch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "grid", "what", "split"),
    [
        (fa2(True), (1, 7, 16), DECODE_STEP, True),
        (fa2(False), (1, 2, 16), DECODE_STEP, False),
        (fa2(True), (2, 7, 16), PROMPT, None),
        (fa2(True), None, DECODE_STEP, True),
        ("void flash::flash_fwd_kernel<T>(P)", (1, 7, 16), UNATTRIBUTED, None),
        ("void flash::flash_fwd_kernel<T>(P)", (2, 7, 16), PROMPT, None),
        ("void flash::flash_fwd_kernel<T>(P)", None, PROMPT, None),
    ],
)
def test_flash_attention_2_tells_prefill_by_its_row_tiles(
    name: str, grid: tuple[int, int, int] | None, what: str, split: bool | None
) -> None:
    """One tile of 64 rows is a decode step on the split-KV kernel; the other kernel serves short prompts as well."""
    found = knowledge().attribute(make_launch(name, grid), ALONE)
    assert found.what == what
    if what == DECODE_STEP:
        assert (found.engines, found.path_split) == (("flash-attention-2",), split)


@pytest.mark.parametrize(
    ("rows", "beside", "merge", "what"),
    [
        (64, frozenset([64]), False, DECODE_STEP),
        (128, frozenset([64, 128]), False, PROMPT),
        (128, frozenset([64, 128]), True, DECODE_STEP),
        (128, frozenset([128]), False, DECODE_STEP),
        (65, frozenset([64]), False, PROMPT),
    ],
)
def test_flash_attention_3_tells_prefill_by_the_company_of_smaller_tiles(
    rows: int, beside: frozenset[int], merge: bool, what: str
) -> None:
    """Larger tiles beside decode's tiles of 64 rows are a prompt's, unless a combine follows."""
    group = make_launch(fa3(merge, rows), (132, 1, 1), merge=(COMBINE, (1, 1, 1)) if merge else None)
    assert group.kind.facts.tile_rows == rows
    found = knowledge().attribute(group, Surroundings(tile_rows={"flash-attention-3": beside}))
    assert found.what == what
    assert found.path_split is (merge if what == DECODE_STEP else None)


# -- what grids say ---------------------------------------------------------------------------------------------------


@given(geo=strategies.geometries(), seq_lens=st.lists(st.integers(1, 70_000), min_size=1, max_size=30))
@quick
def test_flash_attention_2_gives_splits_or_the_batch_back(geo: dc.Geometry, seq_lens: list[int]) -> None:
    """The second extent counts splits on the split path and requests on the other."""
    kv = dc.KvCache(page_size=256)
    plan = dc.plan("flash-attention-2", geo, dc.Batch(seq_lens), kv=kv, gpu="h200-sxm")
    assume(plan.stage1.name == "flash_fwd_splitkv_kernel")
    group = launch_of(plan, {"flash_fwd_splitkv_kernel": fa2(plan.is_split)})
    seen = knowledge().infer(group, "flash-attention-2", geo.q_heads)
    assert seen.splits_launched == plan.splits.launched
    assert seen.batch == (None if plan.is_split else len(seq_lens))
    assert (seen.q_heads, seen.head_dim) == (geo.q_heads, 128)


@given(seq_lens=st.lists(st.integers(1, 70_000), min_size=1, max_size=30), kv_heads=st.sampled_from([1, 2, 8]))
@quick
def test_flash_attention_3_gives_the_batch_back_where_a_combine_shows_it(seq_lens: list[int], kv_heads: int) -> None:
    """The combine's third extent is the batch, where it is not flattened; the main grid is persistent."""
    plan = dc.plan("flash-attention-3", dc.Geometry(8 * kv_heads, kv_heads, 128), dc.Batch(seq_lens), gpu="h200-sxm")
    names = {plan.stage1.name: fa3(plan.is_split), "FlashAttnFwdCombine": COMBINE}
    seen = knowledge().infer(launch_of(plan, names), "flash-attention-3")
    combined = plan.merge is not None and plan.merge.grid[2] > 1
    assert seen.batch == (len(seq_lens) if combined else None)
    assert (seen.kv_heads, seen.splits_launched, seen.head_dim) == (None, None, 192)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_of_both_versions() -> None:
    """A replayed FlashAttention-3 launch was planned for a graph; modes and counts explain the rest."""
    batch = dc.Batch([4096])
    candidate = Candidate(dc.load_model("llama3-8b").layer_groups[0], batch, GIVEN, ())
    for engine, name, graph, shown, explained in (
        (
            "flash-attention-3",
            fa3(True),
            True,
            [{"cuda_graph": True}, {}],
            [{"batch_invariant": True}, {"cuda_graph": True}],
        ),
        ("flash-attention-3", fa3(True), False, [{}], [{"batch_invariant": True}, {"cuda_graph": True}]),
        ("flash-attention-2", fa2(True), True, [{}], [{"batch_invariant": True}, {"num_splits_arg": 7}]),
    ):
        group = make_launch(name, (1, 7, 16), graph=graph)
        seen, known = knowledge().infer(group, engine), knowledge().engine(engine)
        assert [dict(s.options) for s in known.shown(group, seen, candidate)] == shown
        assert [dict(s.options) for s in known.explanations(group, seen, candidate)] == explained


def test_names_without_arguments_say_nothing() -> None:
    """A profiler that cuts names short leaves what the grid and the merge show."""
    for facts in (trace.fa2_facts, trace.fa2_combine_facts, trace.fa3_facts, trace.fa3_combine_facts):
        assert facts("flash_fwd_splitkv_kernel") == NameFacts()
