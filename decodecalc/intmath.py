"""Integer arithmetic that all launch rules use. The functions take Python ints or NumPy integer arrays."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@overload
def cdiv(a: int, b: int) -> int: ...
@overload
def cdiv(a: Any, b: Any) -> IntArray: ...
def cdiv(a: Any, b: Any) -> Any:
    """Ceiling of a / b for b > 0, exact.

    >>> cdiv(257, 16), cdiv(256, 16), cdiv(0, 16)
    (17, 16, 0)
    """
    return -(-a // b)


@overload
def round_up(a: int, multiple: int) -> int: ...
@overload
def round_up(a: Any, multiple: Any) -> IntArray: ...
def round_up(a: Any, multiple: Any) -> Any:
    """The smallest multiple of `multiple` that is at least a.

    >>> round_up(257, 32)
    288
    """
    return cdiv(a, multiple) * multiple


@overload
def next_power_of_2(n: int) -> int: ...
@overload
def next_power_of_2(n: IntArray) -> IntArray: ...
def next_power_of_2(n: Any) -> Any:
    """The smallest power of two that is at least n; 1 for n <= 1.

    >>> [next_power_of_2(n) for n in (0, 1, 2, 3, 71)]
    [1, 1, 2, 4, 128]
    """
    if isinstance(n, np.ndarray):
        v = np.maximum(n, 1) - 1
        for shift in (1, 2, 4, 8, 16, 32):
            v = v | (v >> shift)
        return v + 1
    return 1 << (max(int(n), 1) - 1).bit_length()


def distinct(values: Any) -> list[int]:
    """The distinct whole numbers of an array, ascending. (`np.unique` alone would import numpy.ma at start-up.)

    >>> distinct(np.array([[3, 1], [1, 2]]))
    [1, 2, 3]
    """
    ordered = np.sort(np.asarray(values), axis=None)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first].tolist()
