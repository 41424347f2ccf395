"""trtllm-gen's kernels in a trace: their names spell the parameters, their grids show requests and heads."""

from __future__ import annotations

import pytest
from launches import make_launch

from decodecalc.trace.attribution import PROMPT, Surroundings
from decodecalc.trace.kernel_names import NameFacts
from decodecalc.trace.load import knowledge

GQA = "fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvCausalP64MultiCtasKvCgaVarSeqQ32Kv128StaticKeepsAbForGen"
WINDOWED = "fmhaSm100fKernel_QkvE4m3OBfloat16H256PagedKvSlidingOrChunkedCausalP16VarSeqQ16Kv128PersistentSwapsAbForGen"
MLA = (
    "fmhaSm100fKernel_QkvBfloat16OBfloat16HQk576HV512HVPerCta128PagedKvDenseP32MultiCtasKvVarSeqQ16Kv128Static"
    "SwapsAbForGen"
)
CONTEXT = "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (GQA, NameFacts(split=True, tile_rows=32, head_dim=128, windowed=False, page_size=64)),
        (WINDOWED, NameFacts(split=False, tile_rows=16, head_dim=256, windowed=True, page_size=16)),
        (MLA, NameFacts(split=True, tile_rows=16, head_dim=576, head_dim_v=512, windowed=False,
                        page_size=32)),
    ],
)  # fmt: skip
def test_the_name_spells_the_parameters(name: str, facts: NameFacts) -> None:
    """Head dims, page, tile, splits and window of recorded kernels."""
    group = make_launch(name)
    assert group.kind.facts == facts
    assert group.kind.kernel == name
    found = knowledge().attribute(group, Surroundings())
    assert (found.engines, found.path_split) == (("trtllm-gen",), facts.split)


def test_numbers_that_nobody_generates_are_not_read() -> None:
    """A name of thousands of digits is a name like any other."""
    facts = make_launch(f"fmhaSm100fKernel_QkvE4m3H{'9' * 6000}VarSeqQ{'8' * 5000}Kv1ForGen").kind.facts
    assert facts.tile_rows is None
    assert facts.head_dim is None or facts.head_dim < 10**6


def test_the_context_phase_is_a_prefill() -> None:
    """Only names of the generation phase are decode kernels."""
    assert knowledge().attribute(make_launch(CONTEXT), Surroundings()).what == PROMPT


@pytest.mark.parametrize(
    ("name", "grid", "q_heads", "batch", "kv_heads", "splits"),
    [
        (MLA, (2, 4, 15), 16, 15, 1, 2),
        (WINDOWED, (1, 8, 16), 32, 16, 8, 1),
        (GQA, (16, 8, 1), 32, 1, 8, 16),
        (GQA, (16, 8, 1), 256, 1, None, 16),  # 32 heads a block fill the tile: the group may be larger
        (GQA, (16, 8, 1), 248, 1, 8, 16),
        (GQA, (16, 8, 1), None, 1, None, 16),
    ],
)
def test_grids(
    name: str, grid: tuple[int, int, int], q_heads: int | None, batch: int, kv_heads: int | None, splits: int
) -> None:
    """Splits, KV heads where a block's heads leave room in its tile, and requests."""
    seen = knowledge().infer(make_launch(name, grid), "trtllm-gen", q_heads)
    assert (seen.batch, seen.kv_heads, seen.splits_launched) == (batch, kv_heads, splits)
    assert seen.mla is (True if name is MLA else None)
