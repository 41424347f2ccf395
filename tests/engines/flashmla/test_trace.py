"""FlashMLA's launches in a trace: the dense and the sparse kernel share scheduler and combine."""

from __future__ import annotations

import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import launch_of, make_launch

import decodecalc as dc
from decodecalc.engines.flashmla import trace
from decodecalc.trace.attribution import Surroundings
from decodecalc.trace.load import knowledge

DENSE = (
    "void sm90::decode::dense::flash_fwd_splitkv_mla_kernel<sm90::decode::dense::Traits<cutlass::bfloat16_t, {}>, X>(P)"
)
SPARSE = "void {}::decode::sparse::flash_fwd_splitkv_mla_fp8_sparse_kernel<X>(P)"
COMBINE = "void smxx::decode::flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, 512, 8, 160, 256>(CombineParams)"


@pytest.mark.parametrize("dim", [576, 512])
def test_the_dense_name_has_the_head_dim(dim: int) -> None:
    """It is the second argument of the traits."""
    assert trace.dense_facts(DENSE.format(dim)).head_dim == dim
    assert knowledge().infer(make_launch(DENSE.format(dim), (1, 1, 132)), "flashmla").head_dim == dim
    assert trace.dense_facts("flash_fwd_splitkv_mla_kernel").head_dim is None


@pytest.mark.parametrize(
    ("name", "engine"), [(DENSE.format(576), "flashmla"), (SPARSE.format("sm90"), "flashmla-sparse")]
)
@pytest.mark.parametrize("merged", [True, False])
def test_each_kernel_is_its_own_engines(name: str, engine: str, merged: bool) -> None:
    """The function's name tells dense from sparse; a combine says that it split."""
    group = make_launch(name, (1, 1, 132), merge=(COMBINE, (3, 1, 2)) if merged else None)
    found = knowledge().attribute(group, Surroundings())
    assert (found.engines, found.path_split) == ((engine,), merged)


@given(geo=strategies.mla_geometries(), seq_lens=st.lists(st.integers(1, 70_000), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_a_dense_launch_gives_tokens_and_parts_back(geo: dc.Geometry, seq_lens: list[int]) -> None:
    """The combine has the requests, the grid the SM parts."""
    plan = dc.plan("flashmla", geo, dc.Batch(seq_lens), kv=dc.KvCache(page_size=64), gpu="h200-sxm")
    names = {"flash_fwd_splitkv_mla_kernel": DENSE.format(576), "flash_fwd_mla_combine_kernel": COMBINE}
    seen = knowledge().infer(launch_of(plan, names), "flashmla", geo.q_heads)
    assert (seen.batch, seen.kv_heads, seen.splits_launched) == (len(seq_lens), 1, plan.splits.launched)
    assert (seen.q_heads, seen.head_dim, seen.mla) == (geo.q_heads, geo.head_dim, True)


@pytest.mark.parametrize(
    ("arch", "grid", "combine", "tokens", "parts"),
    [("sm90", (1, 512, 1), (512, 1, 8), 512, 1), ("sm90", (1, 4, 28), (1732, 1, 8), 1732, 28),
     ("sm100", (2, 76, 1), (7, 1, 16), 7, 76)],
)  # fmt: skip
def test_recorded_sparse_launches(
    arch: str, grid: tuple[int, int, int], combine: tuple[int, int, int], tokens: int, parts: int
) -> None:
    """SM parts stand in the third extent on SM90 and in the second on SM100."""
    seen = knowledge().infer(make_launch(SPARSE.format(arch), grid, merge=(COMBINE, combine)), "flashmla-sparse", 64)
    assert (seen.query_tokens, seen.splits_launched, seen.mla) == (tokens, parts, True)
