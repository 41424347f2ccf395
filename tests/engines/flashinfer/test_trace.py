"""FlashInfer's launches in a trace: names taken apart, whose a launch is, what grids say, settings."""

from __future__ import annotations

import pytest
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launches import launch_of, make_launch

import decodecalc as dc
from decodecalc.engines.flashinfer import trace
from decodecalc.trace.attribution import DECODE_STEP, PROMPT, Strength, Surroundings
from decodecalc.trace.candidates import GIVEN, Candidate
from decodecalc.trace.kernel_names import NameFacts
from decodecalc.trace.load import knowledge

MERGE = "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u>(P)"
DECODE = "void flashinfer::BatchDecodeWithPagedKVCacheKernel<{}, Variant, P>(P)"
PREFILL = "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<{}>, P>(P)"
quick = settings(max_examples=40, deadline=None)


def tensor_cores(rows: int) -> str:
    """The kernel with tiles of this many query rows."""
    return PREFILL.format(f"(flashinfer::MaskMode)0, {rows}u, 1u, 2u, 8u, 4u, 1u, 4u, (flashinfer::PosEncodingMode)0")


def test_flashinfer() -> None:
    """Tensor cores: 16 times the MMA counts; CUDA cores: vec size times bdx, and bdy is the group."""
    traits = (
        "flashinfer::KernelTraits<(flashinfer::MaskMode)0, 16u, 1u, 2u, 8u, 4u, 1u, 4u, (flashinfer::PosEncodingMode)0>"
    )
    found = trace.tensor_core_facts(f"void flashinfer::BatchPrefillWithPagedKVCacheKernel<{traits}, P>(P)")
    assert (found.tile_rows, found.tile_keys, found.head_dim, found.head_dim_v) == (16, 128, 128, 64)
    numbers = "(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 4u, 2u"
    name = f"void flashinfer::BatchDecodeWithPagedKVCacheKernel<{numbers}, Variant, P>(P)"
    found = trace.cuda_core_facts(name)
    assert (found.head_dim, found.group, found.tile_keys) == (128, 4, 32)
    for facts in (trace.tensor_core_facts, trace.cuda_core_facts):
        assert facts("BatchDecodeWithPagedKVCacheKernel") == NameFacts()


@pytest.mark.parametrize(("rows", "what"), [(16, DECODE_STEP), (64, DECODE_STEP), (127, DECODE_STEP), (128, PROMPT)])
def test_tiles_of_128_rows_are_a_prompts(rows: int, what: str) -> None:
    """Decode packs a group into 16 or 64 rows."""
    assert knowledge().attribute(make_launch(tensor_cores(rows)), Surroundings()).what == what


@pytest.mark.parametrize(
    ("vendors", "engines"),
    [
        ((), ("flashinfer-xqa", "tensorrt-llm-xqa")),
        (("vllm",), ("flashinfer-xqa", "tensorrt-llm-xqa")),
        (("tensorrt-llm",), ("tensorrt-llm-xqa", "flashinfer-xqa")),
        (("tensorrt-llm", "sglang"), ("flashinfer-xqa", "tensorrt-llm-xqa")),
    ],
)
def test_xqa_is_told_by_its_company(vendors: tuple[str, ...], engines: tuple[str, ...]) -> None:
    """TensorRT-LLM compiles the same source: only its other kernels, without another server's, make it likelier."""
    group = make_launch("kernel_mha", (16, 8, 1), (128, 1, 2))
    found = knowledge().attribute(group, Surroundings(vendors=frozenset(vendors)))
    assert found.engines == engines
    assert found.path_split is True
    assert knowledge().attribute(make_launch("kernel_mha", (1, 8, 1)), Surroundings()).path_split is False


@given(geo=strategies.geometries(), seq_lens=st.lists(st.integers(1, 70_000), min_size=1, max_size=30),
       path=st.sampled_from(["tensor_cores", "cuda_cores"]))  # fmt: skip
@quick
def test_the_layer_comes_back_from_both_kernels(geo: dc.Geometry, seq_lens: list[int], path: str) -> None:
    """KV heads stand in the third extent on tensor cores, in the second on CUDA cores, whose template has the group."""
    try:
        plan = dc.plan("flashinfer", geo, dc.Batch(seq_lens), gpu="h200-sxm", path=path)
    except dc.InputError:
        assume(False)
        return
    vec = geo.head_dim // 16
    cuda = DECODE.format(f"(flashinfer::PosEncodingMode)0, 2u, 4u, {vec}u, 16u, {geo.group}u, 2u")
    names = {"BatchDecodeWithPagedKVCacheKernel": cuda, "BatchPrefillWithPagedKVCacheKernel": tensor_cores(16)}
    seen = knowledge().infer(launch_of(plan, names), "flashinfer", geo.q_heads)
    assert (seen.q_heads, seen.kv_heads) == (geo.q_heads, geo.kv_heads)
    assert seen.batch == (None if plan.merge is not None else plan.stage1.grid[0])
    assert seen.group == (geo.group if path == "cuda_cores" else None)
    assert knowledge().infer(launch_of(plan, names, graph=True), "flashinfer").batch is None


@pytest.mark.parametrize(
    ("grid", "block", "batch", "kv_heads", "splits"),
    [
        ((16, 8, 1), (128, 1, 2), 1, 8, 16),
        ((32, 1, 4), (128, 1, 2), 4, 1, 32),
        ((1, 25, 4), (128, 1, 3), None, None, 25),
    ],
)
def test_xqa_grids(
    grid: tuple[int, int, int], block: tuple[int, int, int], batch: int | None, kv_heads: int | None, splits: int
) -> None:
    """Recorded launches: the generic kernel shows all three, Hopper's FP8 kernel only the splits."""
    seen = knowledge().infer(make_launch("kernel_mha", grid, block), "flashinfer-xqa", 8)
    assert (seen.batch, seen.kv_heads, seen.splits_launched) == (batch, kv_heads, splits)


def test_settings() -> None:
    """The kernel's name says on which cores to plan, a replay that it was for a graph."""
    candidate = Candidate(dc.load_model("llama3-8b").layer_groups[0], dc.Batch([4096]), GIVEN, ())
    engine = knowledge().engine("flashinfer")
    for name, cores in ((tensor_cores(16), "tensor_cores"), (DECODE.format("1"), "cuda_cores")):
        for graph, more in ((False, {}), (True, {"cuda_graph": True})):
            group = make_launch(name, (9, 8, 1), graph=graph)
            seen = knowledge().infer(group, "flashinfer")
            assert [dict(s.options) for s in engine.shown(group, seen, candidate)] == [{"path": cores, **more}]
            assert [dict(s.options) for s in engine.explanations(group, seen, candidate)] == [
                {"disable_split_kv": True}, {"cuda_graph": True},
            ]  # fmt: skip


def test_a_vote_for_xqa_is_weak_among_foreign_kernels() -> None:
    """Strengths, not only their order: nobody is sure of a shared name."""
    rule = knowledge().engine("flashinfer-xqa").attribute
    group = make_launch("kernel_mha")
    for vendors, strength in (((), Strength.LIKELY), (("tensorrt-llm",), Strength.WEAK)):
        vote = rule(group, Surroundings(vendors=frozenset(vendors)))
        assert vote is not None
        assert vote.strength == strength


@given(geo=strategies.mla_geometries(), seq_lens=st.lists(st.integers(1, 70_000), min_size=1, max_size=30))
@settings(max_examples=20, deadline=None)
def test_the_mla_kernel_shows_its_clusters_only(geo: dc.Geometry, seq_lens: list[int]) -> None:
    """Work is listed by the host, the merge runs inside: whether keys were split is not in the launch."""
    plan = dc.plan("flashinfer-mla", geo, dc.Batch(seq_lens), kv=dc.KvCache(page_size=64), gpu="h200-sxm")
    group = launch_of(plan)
    found = knowledge().attribute(group, Surroundings())
    assert (found.engines, found.path_split) == (("flashinfer-mla",), None)
    seen = knowledge().infer(group, "flashinfer-mla", geo.q_heads)
    assert (seen.splits_launched, seen.kv_heads, seen.batch) == (plan.splits.launched, 1, None)
