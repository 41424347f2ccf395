"""vLLM's launches in a trace: names taken apart, whose a launch is, what grids say, settings, annotations."""

from __future__ import annotations

import pytest
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launches import launch_of, make_launch

import decodecalc as dc
from decodecalc.engines.vllm import trace
from decodecalc.trace.attribution import Strength, Surroundings
from decodecalc.trace.candidates import GIVEN, Candidate
from decodecalc.trace.events import TraceDevice
from decodecalc.trace.kernel_names import NameFacts
from decodecalc.trace.load import knowledge
from decodecalc.trace.pairing import LaunchGroup

MI300X = Surroundings(device=TraceDevice(0, "AMD Instinct MI300X"))
H200 = Surroundings(device=TraceDevice(0, "NVIDIA H200"))
PLAIN = "(vllm::Fp8KVCacheDataType)0"
quick = settings(max_examples=40, deadline=None)
lens = st.lists(st.integers(1, 70_000), min_size=1, max_size=40)


def engines(group: LaunchGroup, around: Surroundings) -> tuple[str, ...]:
    """Who may have launched the group."""
    return knowledge().attribute(group, around).engines


# -- names ------------------------------------------------------------------------------------------------------------


def test_paged_attention_names() -> None:
    """Head size, block size and partition stand in the template arguments; version 1 has no partition."""
    v2 = f"void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 96, 32, 128, {PLAIN}, false, 512>(X)"
    assert trace.paged_attention_facts(v2) == NameFacts(head_dim=96, page_size=32, partition_keys=512, split=True)
    v1 = f"void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 64, 16, 128, {PLAIN}, false>(X)"
    assert trace.paged_attention_facts(v1) == NameFacts(head_dim=64, page_size=16, split=False)
    assert trace.paged_attention_facts("paged_attention_v1_kernel") == NameFacts()


def test_rocm_names() -> None:
    """Block, head size and group are found among types of any number."""
    types = f"0, __hip_bfloat16, __hip_bfloat16, {PLAIN}"
    rocm = f"void paged_attention_ll4mi_QKV_mfma16_kernel<{types}, 16, 128, 256, false, 8, 1, V>(int)"
    assert trace.rocm_paged_facts(rocm) == NameFacts(page_size=16, head_dim=128, group=8, split=True)
    assert trace.rocm_paged_facts("paged_attention_ll4mi_QKV_mfma4_kernel") == NameFacts(split=True)


# -- whose launch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "grid", "around", "expected"),
    [
        ("kernel_unified_attention", (5, 8, 16), MI300X, ("vllm-triton",)),
        ("kernel_unified_attention_2d", (8, 48, 1), H200, ("vllm-triton",)),
        ("kernel_unified_attention_2d", (8, 48, 1), MI300X, ("aiter-unified", "vllm-triton")),
        ("kernel_unified_attention_2d", (48, 8, 1), MI300X, ("vllm-triton", "aiter-unified")),
        ("kernel_unified_attention_2d", (8, 8, 1), MI300X, ("vllm-triton", "aiter-unified")),
        ("kernel_unified_attention_2d", None, MI300X, ("aiter-unified", "vllm-triton")),
        ("kernel_unified_attention_3d", (32, 8, 16), MI300X, ("aiter-unified", "vllm-triton")),
        ("kernel_unified_attention_3d", (32, 8, 15), MI300X, ("aiter-unified",)),
        ("kernel_unified_attention_3d", (32, 8, 17), MI300X, ("aiter-unified",)),
        ("kernel_unified_attention_3d", (32, 8, 5), H200, ("vllm-triton",)),
    ],
)
def test_unified_attention(
    name: str, grid: tuple[int, int, int] | None, around: Surroundings, expected: tuple[str, ...]
) -> None:
    """Name, GPU, order of the axes and number of segments say whose the unified kernel is."""
    assert engines(make_launch(name, grid), around) == expected


@pytest.mark.parametrize(
    ("grid", "merge", "split"),
    [((5, 8, 16), None, True), ((5, 8, 1), None, False), (None, "reduce_segments", True), (None, None, False)],
)
def test_the_path_of_the_single_kernel(grid: tuple[int, int, int] | None, merge: str | None, split: bool) -> None:
    """The grid's last extent says whether it split; without a grid, the merge does."""
    group = make_launch("kernel_unified_attention", grid, merge=None if merge is None else (merge, None))
    assert knowledge().attribute(group, H200).path_split is split


@pytest.mark.parametrize(
    ("vendors", "scheduled", "strength"),
    [
        ((), False, Strength.POSSIBLE),
        (("vllm",), False, Strength.LIKELY),
        (("vllm", "sglang"), False, Strength.POSSIBLE),
        (("vllm",), True, None),
    ],
)
def test_triton_mla(vendors: tuple[str, ...], scheduled: bool, strength: Strength | None) -> None:
    """vLLM's kernels around it make it likely, a split-count kernel rules it out."""
    around = Surroundings(vendors=frozenset(vendors), scheduled=frozenset(["triton-decode"] if scheduled else []))
    rule = knowledge().engine("vllm-triton-mla").attribute
    vote = rule(make_launch("_fwd_grouped_kernel_stage1", (3, 1, 4)), around)
    assert (None if vote is None else vote.strength) == strength
    assert vote is None or vote.split


def test_paged_attention_versions_are_told_by_name() -> None:
    """Each version takes its own kernel only, on its own path."""
    for version, split in (("v1", False), ("v2", True)):
        found = knowledge().attribute(make_launch(f"paged_attention_{version}_kernel"), H200)
        assert (found.engines, found.path_split) == ((f"paged-attention-{version}",), split)


# -- what grids say ---------------------------------------------------------------------------------------------------


@given(
    geo=strategies.geometries(),
    batch=strategies.batches(max_q_len=8),
    version=st.sampled_from(["0.33", "0.19", "0.13"]),
)
@quick
def test_a_split_launch_gives_the_layer_and_the_batch_back(geo: dc.Geometry, batch: dc.Batch, version: str) -> None:
    """Merge and grid hold heads, tokens and, however long the queries are, the number of requests."""
    plan = dc.plan(f"vllm-triton@{version}", geo, batch, gpu="h200-sxm", num_speculative_tokens=7)
    assume(plan.is_split)
    seen = knowledge().infer(launch_of(plan), "vllm-triton")
    assert (seen.q_heads, seen.kv_heads, seen.group) == (geo.q_heads, geo.kv_heads, geo.group)
    assert (seen.batch, seen.query_tokens) == (batch.size, batch.query_tokens)
    assert seen.splits_launched == plan.splits.launched


@given(geo=strategies.geometries(), seq_lens=lens)
@quick
def test_an_unsplit_launch_gives_the_batch_back_where_the_heads_are_known(
    geo: dc.Geometry, seq_lens: list[int]
) -> None:
    """Query blocks of one-token requests say how many there are."""
    plan = dc.plan("vllm-triton", geo, dc.Batch(seq_lens), gpu="h200-sxm", batch_invariant=True)
    seen = knowledge().infer(launch_of(plan), "vllm-triton", geo.q_heads)
    assert (seen.batch, seen.kv_heads, seen.splits_launched) == (len(seq_lens), geo.kv_heads, 1)
    unknown = knowledge().infer(launch_of(plan), "vllm-triton")
    assert (unknown.batch, unknown.q_heads, unknown.kv_heads) == (None, None, geo.kv_heads)


def test_query_blocks_that_no_batch_has_give_none() -> None:
    """B // 4 + B skips every fifth number."""
    seen = {n: knowledge().infer(make_launch("kernel_unified_attention", (n, 8, 1)), "vllm-triton", 32).batch
            for n in range(1, 11)}  # fmt: skip
    assert seen == {1: 1, 2: 2, 3: 3, 4: None, 5: 4, 6: 5, 7: 6, 8: 7, 9: None, 10: 8}


@given(geo=strategies.mla_geometries(), seq_lens=lens)
@quick
def test_triton_mla_gives_heads_batch_and_the_longest_request(geo: dc.Geometry, seq_lens: list[int]) -> None:
    """Splits are the next power of two of L // 512: the longest request lies in the range that they leave."""
    plan = dc.plan("vllm-triton-mla", geo, dc.Batch(seq_lens), gpu="h200-sxm")
    group = launch_of(plan)
    seen = knowledge().infer(group, "vllm-triton-mla")
    assert (seen.q_heads, seen.kv_heads, seen.batch, seen.mla) == (geo.q_heads, 1, len(seq_lens), True)
    assert seen.head_dim == geo.head_dim
    if seen.context_range is not None:
        assert seen.context_range[0] <= max(seq_lens) <= seen.context_range[1]
    else:  # the bound of two splits for each SM, which is no power of two
        assert plan.splits.launched == 2 * 132
    assert knowledge().infer(launch_of(plan, graph=True), "vllm-triton-mla").context_range is None


@pytest.mark.parametrize(("splits", "bound"), [(1, (1, 1023)), (2, (1024, 1535)), (4, (1536, 2559)), (3, None)])
def test_ranges_of_triton_mla(splits: int, bound: tuple[int, int] | None) -> None:
    """The ranges meet: what is one key longer has twice the splits, and what is no power of two is a bound."""
    group = make_launch("_fwd_grouped_kernel_stage1", (1, 1, splits), merge=("_fwd_kernel_stage2", (1, 16, 1)))
    assert knowledge().infer(group, "vllm-triton-mla").context_range == bound


@given(geo=strategies.geometries(), seq_lens=lens, v2=st.booleans())
@quick
def test_paged_attention_gives_heads_batch_and_the_longest_request(
    geo: dc.Geometry, seq_lens: list[int], v2: bool
) -> None:
    """Grid (query heads, requests, partitions of 512 keys)."""
    engine = f"paged-attention-v{1 + v2}"
    try:
        plan = dc.plan(engine, geo, dc.Batch(seq_lens), gpu="h200-sxm")
    except dc.InputError:
        assume(False)
        return
    seen = knowledge().infer(launch_of(plan), engine)
    assert (seen.q_heads, seen.batch, seen.splits_launched) == (geo.q_heads, len(seq_lens), plan.splits.launched)
    if v2:
        assert seen.context_range is not None
        assert seen.context_range[1] - seen.context_range[0] == 511
        assert seen.context_range[0] <= max(seq_lens) <= seen.context_range[1]
    else:
        assert seen.context_range is None


@given(group=st.sampled_from([1, 2, 4, 8, 16]), seq_lens=lens)
@quick
def test_rocm_gives_heads_batch_and_the_longest_request(group: int, seq_lens: list[int]) -> None:
    """Grid (requests, partitions of 256 keys, KV heads); the merge has the query heads, the template the group."""
    geo = dc.Geometry(8 * group, 8, 128)
    plan = dc.plan("rocm-paged", geo, dc.Batch(seq_lens), gpu="mi300x")
    assume(plan.detail.custom)
    seen = knowledge().infer(launch_of(plan), "rocm-paged")
    assert (seen.kv_heads, seen.batch) == (8, len(seq_lens))
    assert seen.q_heads in (None, geo.q_heads)
    assert seen.context_range is not None
    assert seen.context_range[1] - seen.context_range[0] == 255
    assert seen.context_range[0] <= max(seq_lens) <= seen.context_range[1]
    types = f"0, __hip_bfloat16, __hip_bfloat16, {PLAIN}"
    name = plan.stage1.name
    whole = {name: f"void {name}<{types}, 16, 128, 256, false, {group}, 1, V>(int)"}
    seen = knowledge().infer(launch_of(plan, whole), "rocm-paged")
    assert (seen.q_heads, seen.group, seen.head_dim) == (geo.q_heads, group, 128)


def test_rocm_falls_back_to_triton() -> None:
    """The fallback's grid is (requests, KV heads), unsplit."""
    plan = dc.plan("rocm-paged", dc.Geometry(34, 2, 128), dc.Batch([100, 4000]), gpu="mi300x")
    assert not plan.detail.custom
    seen = knowledge().infer(launch_of(plan), "rocm-paged", 34)
    assert (seen.q_heads, seen.kv_heads, seen.batch, seen.splits_launched) == (34, 2, 2, 1)


# -- settings and annotations -----------------------------------------------------------------------------------------


def test_a_graph_of_more_requests_is_tried_first() -> None:
    """Padding shows in the grid; eager launches and full graphs have none."""
    engine = knowledge().engine("vllm-triton")
    geo, batch = dc.Geometry(32, 8, 128), dc.Batch([4096] * 9)
    plan = dc.plan("vllm-triton", geo, batch, gpu="h200-sxm", padded_num_seqs=16)
    candidate = Candidate(dc.load_model("llama3-8b").layer_groups[0], batch, GIVEN, ())
    seen = knowledge().infer(launch_of(plan), "vllm-triton")
    shown = [list(engine.shown(launch_of(plan, graph=graph), seen, candidate)) for graph in (True, False)]
    assert [dict(s.options) for s in shown[0]] == [{"padded_num_seqs": 16}, {}, {"capture_sizes": None}]
    assert shown[0][1:] == shown[1]
    assert {"batch_invariant": True} in [dict(s.options) for s in engine.explanations(launch_of(plan), seen, candidate)]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk34489sqsq37sqsk34489)", (9, 37, 34489)),
        ("execute_context_0(0)_generation_4(4)", (0, 4, None)),
        ("step[DECODE bs=4]", None),
        ("execute_1_context_99999999(a)_generation_1(b)", None),
        (f"execute_1_context_{'9' * 5000}(a)_generation_1(b)", None),
        (f"execute_1_context_0(a)_generation_1(sq1sk{'9' * 5000}sq)", (0, 1, None)),
    ],
)
def test_annotations_of_the_model_runner(text: str, note: tuple[int, int, int | None] | None) -> None:
    """Requests of both kinds and the keys of those that decode, in the newer format and in the older one."""
    found = trace.read_step(text)
    assert (None if found is None else (found.prefills, found.decodes, found.decode_keys)) == note
