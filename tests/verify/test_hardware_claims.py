"""Coverage where early exits take an SM's turn, checked against SM counts seen on an H200 (132 SMs)."""

from __future__ import annotations

import pytest

from decodecalc import Batch, Geometry, KvCache, load_gpu, plan
from decodecalc.verify.claims.hardware import live_among_first, walked_bytes
from decodecalc.verify.run.execution import execution_of

GPU = load_gpu("h200")
LLAMA = Geometry(32, 8, 128)
RAGGED = Batch([128, 8192, 777, 2560, 1, 4096, 333, 16384])


@pytest.mark.parametrize(
    ("engine", "batch", "seen"),
    [
        ("vllm-triton", Batch.uniform(1, 2560), 128),
        ("sglang-triton", Batch.uniform(1, 2560), 64),
        ("vllm-triton", Batch.uniform(16, 2560), 132),
        ("sglang-triton", RAGGED, 107),
        ("vllm-triton", Batch.uniform(2, 4096, 4), 114),
    ],
)
def test_sms_seen_to_work_lie_between_the_live_blocks_of_the_first_turn_and_all_live_blocks(engine, batch, seen):
    planned = plan(engine, LLAMA, batch, kv=KvCache(), gpu=GPU)
    least = live_among_first(planned, execution_of(planned), GPU.sm_count)
    assert least <= seen <= min(planned.live_blocks, GPU.sm_count)


def test_without_early_exits_the_first_turn_is_exact():
    planned = plan("vllm-triton", LLAMA, Batch.uniform(1, 2560), kv=KvCache(), gpu=GPU)
    assert live_among_first(planned, execution_of(planned), GPU.sm_count) == planned.live_blocks == 128


def test_bytes_walked_count_the_keys_that_blocks_read_once():
    class Seen:
        plan = plan("vllm-triton", LLAMA, Batch([100, 30]), kv=KvCache(), gpu=GPU)

    assert walked_bytes(Seen()) == 130 * 8 * 256 * 2
