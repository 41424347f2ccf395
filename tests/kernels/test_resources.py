"""The report of registers and stacks: what it reads, and that it points at every kernel that has a stack."""

from __future__ import annotations

import pytest

from benchmarks.kernels_resources import Compiled, page, read_product, read_usage


def test_registers_and_stack_are_read_and_other_text_is_refused() -> None:
    """The two numbers come from cuobjdump's line; text without them is an error and not a kernel without a stack."""
    assert read_usage("Function f:\n  REG:168 STACK:336 SHARED:0 LOCAL:0") == (168, 336)
    with pytest.raises(ValueError, match="no registers"):
        read_usage("cuobjdump fatal: no device code")


def test_the_first_product_is_read() -> None:
    """A kernel is told from others by the shape of its first matrix product."""
    ttir = (
        "%a = tt.dot %q, %k, %z, inputPrecision = tf32 : tensor<64x512xf16> * tensor<512x32xf16> -> tensor<64x32xf32>"
    )
    assert read_product(ttir) == "64 x 512 x 32 f16"
    assert read_product("tt.reduce") == ""


def test_the_page_lists_every_kernel_with_a_stack() -> None:
    """Kernels without a stack are counted, and each kind with one has a row of its own."""
    good = Compiled("merge_kernel", 4, 1024, 40, 0, "")
    bad = Compiled("stage1_kernel", 4, 65536, 255, 336, "64 x 512 x 32 bf16")
    text = page([good, bad, bad])
    assert "3 compiled kernels, of which 2 have a stack" in text
    assert "| `merge_kernel` | 4 | 1 | 40 to 40 | 1024 bytes | 0 |" in text
    assert text.count("336 bytes") == 1
    assert "Kernels with a stack" not in page([good])
