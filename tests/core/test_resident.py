"""How many blocks an SM holds, for every GPU that is known."""

from __future__ import annotations

import pytest

from decodecalc.gpus import gpu_names, load_gpu
from decodecalc.launch.resident import blocks_per_sm


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_holds_a_block_and_no_more_of_a_larger_one(name: str) -> None:
    """An SM of any GPU holds a block of any size, and a block that takes more of something never fits more often."""
    gpu = load_gpu(name)
    for threads, shared, registers in ((32, 0, 32), (128, 0, 88), (128, 42_240, 128), (256, 100_000, 255)):
        here = blocks_per_sm(threads, shared, registers, gpu)
        assert here >= 1
        assert blocks_per_sm(threads, shared + 8192, registers, gpu) <= here
        assert blocks_per_sm(threads * 2, shared, registers, gpu) <= here
        assert blocks_per_sm(threads, shared, min(registers * 2, 255), gpu) <= here
