"""Names taken apart: the function's own name, template arguments, numbers, and the splits that a merge serves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.trace.kernel_names import function_name, split_range, template_arguments

FA3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1> > > > > >(flash::FlashAttnFwdSm90<int>::Params)"
)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("kernel_unified_attention_2d", "kernel_unified_attention_2d"),
        ("_fwd_grouped_kernel_stage1_0d1d2d3de4", "_fwd_grouped_kernel_stage1"),
        ("void flash::flash_fwd_splitkv_kernel<A<1>, true>(int)", "flash_fwd_splitkv_kernel"),
        ("void at::native::(anonymous namespace)::f<int>(int)", "f"),
        (FA3, "FlashAttnFwdSm90"),
        ("", ""),
        ("void cutlass::device_kernel<", ""),
    ],
)
def test_function_name(name: str, own: str) -> None:
    """Return type, namespaces, arguments, Triton's specialisation and CUTLASS wrappers go."""
    assert function_name(name) == own


@given(st.text(alphabet="ab_1:<>(), Zvoid", max_size=120))
def test_any_text_is_taken_apart_without_harm(name: str) -> None:
    """Unbalanced brackets and nonsense give some name and some arguments, never an error."""
    assert isinstance(function_name(name), str)
    assert isinstance(template_arguments(name, "a"), list)


@given(log=st.integers(0, 10), smallest=st.integers(0, 5))
def test_a_merge_serves_the_splits_between_the_next_smaller_one_and_its_own_size(log: int, smallest: int) -> None:
    """Each count from 2 up is served by exactly one instantiation: the smallest that is large enough."""
    served = split_range(log, smallest)
    assert served is not None
    for splits in range(2, 1025):
        needed = max((splits - 1).bit_length(), smallest)
        assert (served[0] <= splits <= served[1]) == (needed == log) or log < smallest


def test_an_absurd_or_missing_logarithm_bounds_nothing() -> None:
    """No merge is compiled for more than 1024 splits, and a name without the number says nothing."""
    assert split_range(11, 5) is None
    assert split_range(None, 5) is None
