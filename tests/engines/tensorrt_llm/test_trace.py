"""TensorRT-LLM's XQA and MMHA kernels in a trace."""

from __future__ import annotations

import pytest
from launches import make_launch

from decodecalc.engines.tensorrt_llm import trace
from decodecalc.trace.attribution import Surroundings
from decodecalc.trace.kernel_names import NameFacts
from decodecalc.trace.load import knowledge

MMHA = (
    "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<unsigned short, unsigned short, "
    "unsigned short, KVBlockArray, KVBlockArray, 128, 256, false, false, {}, false>(Params)"
)


@pytest.mark.parametrize("split", [True, False])
def test_mmha_names(split: bool) -> None:
    """The template has the head dim and whether it runs several blocks a head."""
    name = MMHA.format(str(split).lower())
    assert trace.mmha_facts(name) == NameFacts(head_dim=128, split=split)
    assert trace.mmha_facts("masked_multihead_attention_kernel") == NameFacts()
    found = knowledge().attribute(make_launch(name, (32, 1, 4)), Surroundings())
    assert (found.engines, found.path_split) == (("tensorrt-llm-mmha",), split)


@pytest.mark.parametrize(("grid", "split"), [((32, 1, 4), True), ((32, 1, 1), False), (None, None)])
def test_mmha_without_arguments_is_told_by_its_grid(grid: tuple[int, int, int] | None, split: bool | None) -> None:
    """A name cut short leaves the number of tiles."""
    group = make_launch("masked_multihead_attention_kernel", grid)
    assert knowledge().attribute(group, Surroundings()).path_split is split


@pytest.mark.parametrize("grid", [(40, 2, 3), (12, 96, 1), (32, 15, 2)])
def test_mmha_grids(grid: tuple[int, int, int]) -> None:
    """Recorded launches: query heads, requests and tiles."""
    seen = knowledge().infer(make_launch(MMHA.format("true"), grid), "tensorrt-llm-mmha")
    assert (seen.q_heads, seen.batch, seen.splits_launched) == grid


@pytest.mark.parametrize(
    ("block", "kernel", "grid", "batch", "kv_heads", "splits"),
    [
        ((128, 1, 2), "kernel_mha_ampere_hmma", (30, 5, 1), 1, 5, 30),
        ((128, 1, 3), "kernel_mha_hopper_gmma", (1, 23, 8), None, None, 23),
        ((384, 1, 1), "kernel_mha_sm120_mla", (4, 64, 1), 1, 1, 64),
    ],
)
def test_xqa_kernels_are_told_by_their_blocks(
    block: tuple[int, int, int],
    kernel: str,
    grid: tuple[int, int, int],
    batch: int | None,
    kv_heads: int | None,
    splits: int,
) -> None:
    """One name, three kernels: two or three warp groups in the third extent, or three in a row for MLA."""
    group = make_launch("kernel_mha", grid, block)
    assert knowledge().engine("tensorrt-llm-xqa").kernel(group) == kernel
    seen = knowledge().infer(group, "tensorrt-llm-xqa")
    assert (seen.batch, seen.kv_heads, seen.splits_launched) == (batch, kv_heads, splits)
