"""TurboMind's launches in a trace: common function names inside a namespace of their own."""

from __future__ import annotations

import pytest
from launches import make_launch

from decodecalc.trace.attribution import DECODE_STEP, PROMPT, Surroundings
from decodecalc.trace.load import knowledge

KERNEL = "void turbomind::attention_kernel<turbomind::AttentionUniversal<X, turbomind::attention::{}> >(P)"
REDUCE = "void turbomind::attention::reduce<32, 4, 8, 128, __half>(__half*)"


@pytest.mark.parametrize(("block_map", "what"), [("DecodingCtaMap", DECODE_STEP), ("AttentionCtaMap", PROMPT)])
def test_the_map_of_blocks_tells_decode_from_prefill(block_map: str, what: str) -> None:
    """One template serves both."""
    assert knowledge().attribute(make_launch(KERNEL.format(block_map)), Surroundings()).what == what


def test_kernels_of_the_same_name_elsewhere_are_not_turbominds() -> None:
    """The namespace counts: torch has a reduce_kernel too."""
    assert knowledge().recognise("void at::native::reduce_kernel<512, 1, X>(P)") is None
    found = knowledge().recognise("void other::attention_kernel<X>(P)")
    assert found is not None
    assert found.family == "not modelled"


@pytest.mark.parametrize(
    ("grid", "reduce", "batch", "q_heads", "splits", "split"),
    [((2, 7, 16), (12, 7, 1), 7, 12, 16, True), ((32, 8, 1), None, 8, 384, 1, False)],
)
def test_recorded_launches(
    grid: tuple[int, int, int],
    reduce: tuple[int, int, int] | None,
    batch: int,
    q_heads: int,
    splits: int,
    split: bool,
) -> None:
    """Requests and splits stand in the grid, query heads in the merge's."""
    merge = None if reduce is None else (REDUCE, reduce)
    group = make_launch(KERNEL.format("DecodingCtaMap"), grid, merge=merge)
    seen = knowledge().infer(group, "turbomind", q_heads)
    assert (seen.batch, seen.q_heads, seen.splits_launched) == (batch, q_heads, splits)
    assert knowledge().attribute(group, Surroundings()).path_split is split
    replay = make_launch(KERNEL.format("DecodingCtaMap"), None, merge=None if reduce is None else (REDUCE, None))
    assert knowledge().attribute(replay, Surroundings()).path_split is split
