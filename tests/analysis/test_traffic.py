"""Traffic counts what moves, engine by engine."""

from __future__ import annotations

import decodecalc as dc


def test_requests_that_one_block_finishes_write_no_partial_state() -> None:
    """FA3 gives short requests one split each: their blocks write the output, only the long one's states move."""
    geo = dc.Geometry(32, 8, 128)
    plan = dc.plan("flash-attention-3", geo, dc.Batch([64, 64, 64, 100_000]), gpu="h200-sxm")
    assert plan.splits.live[0] == 1
    assert plan.partial_splits[:3] == (0, 0, 0)
    states = plan.splits.live[3] * 32
    assert dc.traffic(plan).partial_written_bytes == states * 129 * 4


def test_slots_shared_by_the_batch_are_not_splits_of_each_request() -> None:
    """FlashMLA's SM parts and FlashInfer's work items serve all requests: allocated is the engine's own buffer."""
    mla = dc.plan("flashmla", dc.Geometry(16, 1, 576, 512, mla=True), dc.Batch.uniform(64, 4096),
                  kv=dc.KvCache(page_size=64), gpu="h200-sxm")  # fmt: skip
    assert mla.shared_slots
    assert dc.traffic(mla).partial_allocated_bytes == mla.scratch_bytes
    flashinfer = dc.plan("flashinfer", dc.Geometry(32, 8, 128), dc.Batch.uniform(8, 16384), gpu="h200-sxm")
    assert dc.traffic(flashinfer).partial_allocated_bytes == flashinfer.scratch_bytes
