"""S*: how many splits cover the SMs."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from decodecalc.intmath import IntArray, cdiv


@overload
def s_star(sm_count: int, unsplit_blocks: int) -> int: ...
@overload
def s_star(sm_count: int, unsplit_blocks: IntArray) -> IntArray: ...
def s_star(sm_count: int, unsplit_blocks: Any) -> Any:
    """The smallest split count whose first wave covers the SMs: ceil(SMs / blocks of the unsplit launch).

    A count of blocks, not of time: the fastest count (S_opt) may be smaller or larger. Takes numbers or arrays.

    >>> s_star(132, 8), s_star(132, 0), s_star(132, 200)
    (17, 132, 1)
    """
    least = np.maximum(unsplit_blocks, 1) if isinstance(unsplit_blocks, np.ndarray) else max(unsplit_blocks, 1)
    return cdiv(sm_count, least)
