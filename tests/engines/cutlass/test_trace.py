"""CUTLASS's MLA decode in a trace."""

from __future__ import annotations

import pytest
from launches import make_launch

from decodecalc.trace.attribution import Surroundings
from decodecalc.trace.load import knowledge

KERNEL = "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<X> >(P)"
REDUCTION = "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaReductionKernel<X> >(P)"


@pytest.mark.parametrize(
    ("grid", "reduction", "batch", "splits"),
    [
        ((66, 1, 1), None, None, 1),
        ((128, 1, 1), (128, 1, 1), 1, None),
        ((148, 1, 1), (128, 1, 48), 48, None),
        ((2, 33, 4), (128, 1, 33), 33, 4),
        ((2, 1, 1), None, None, 1),
    ],
)
def test_grids(
    grid: tuple[int, int, int], reduction: tuple[int, int, int] | None, batch: int | None, splits: int | None
) -> None:
    """A persistent grid shows nothing, the reduction the batch, a count that was set everything."""
    group = make_launch(KERNEL, grid, merge=None if reduction is None else (REDUCTION, reduction))
    seen = knowledge().infer(group, "cutlass-mla")
    assert (seen.batch, seen.splits_launched, seen.kv_heads, seen.mla) == (batch, splits, 1, True)
    found = knowledge().attribute(group, Surroundings())
    assert (found.engines, found.path_split) == (("cutlass-mla",), reduction is not None)
