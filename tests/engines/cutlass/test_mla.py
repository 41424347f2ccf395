"""CUTLASS MLA: values worked by hand, the copies' rules side by side, laws, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.batch import Batch
from decodecalc.engines import plan
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache

MLA = Geometry(128, 1, 576, 512, mla=True)
B200 = Gpu(name="blackwell", sm_count=148, compute_capability=(10, 0))
PAGES = KvCache(page_size=64)
FLASHINFER, VLLM, OLD = (f"cutlass-mla@{v}" for v in ("flashinfer-0.7.4", "vllm-0.33", "vllm-0.11.0"))


def cutlass(engine=VLLM, geo=MLA, lens=(8192,), q_len=1, gpu=B200, kv=PAGES, **options):
    return plan(engine, geo, Batch(lens, q_len), kv=kv, gpu=gpu, **options)


@pytest.mark.parametrize(
    ("engine", "batch", "keys", "splits", "grid"),
    [
        (FLASHINFER, 1, 8192, 64, (128, 1, 1)),
        (FLASHINFER, 1, 131_072, 74, (148, 1, 1)),
        (FLASHINFER, 80, 131_072, 1, (148, 1, 1)),
        (VLLM, 1, 8192, 8, (16, 1, 1)),
        (VLLM, 1, 131_072, 16, (32, 1, 1)),
        (VLLM, 48, 32_768, 2, (148, 1, 1)),
        (VLLM, 49, 32_768, 1, (98, 1, 1)),
        (VLLM, 96, 16_384, 1, (148, 1, 1)),
        (OLD, 1, 8192, 16, (32, 1, 1)),
        (OLD, 1, 300, 3, (6, 1, 1)),
        (OLD, 2, 131_072, 1, (4, 1, 1)),
    ],
)
def test_known_counts(engine, batch, keys, splits, grid):
    """set_split_kv worked by hand: FlashInfer counts clusters against tiles, vLLM caps by batch and table width."""
    p = cutlass(engine, lens=(keys,) * batch)
    assert (p.splits.launched, p.stage1.grid) == (splits, grid)
    assert (p.merge is not None) == (splits > 1)


def test_short_requests_in_a_wide_table():
    """The table's width sets the count, so that a request of 300 keys has 3 live splits of 64."""
    p = cutlass(FLASHINFER, lens=(300,), page_table_width=128)
    assert (p.splits.launched, p.splits.live) == (64, (3,))
    assert p.splits.keys[0] == [(0, 128), (128, 256), (256, 300)]
    assert p.live_blocks == 6


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=40), st.sampled_from([FLASHINFER, VLLM, OLD]))
def test_splits_tile_the_keys(lens, engine):
    """Live splits follow each other up to the request's end, and the wave's clusters bound FlashInfer's count."""
    p = cutlass(engine, lens=lens)
    for ranges, length in zip(p.splits.keys, lens):
        assert (ranges[0][0], ranges[-1][1]) == (0, length)
        assert [a for a, _ in ranges[1:]] == [b for _, b in ranges[:-1]]
    assert p.splits.launched * len(lens) <= max(148 // 2 if engine == FLASHINFER else 148, len(lens))
    assert p.scratch_bytes == 513 * 4 * 128 * p.splits.launched * len(lens)


def test_a_forced_count_has_its_own_scheduler():
    """vLLM: above 1 every (request, split) has a cluster of its own and nothing is persistent; 1 is invariant."""
    p = cutlass(lens=(5000,) * 5, num_kv_splits_arg=8)
    assert (p.stage1.grid, p.detail.persistent, p.determinism) == ((2, 5, 8), False, "fixed count")
    assert cutlass(num_kv_splits_arg=1).determinism == "invariant"
    with pytest.raises(InputError, match="offers no split count"):
        cutlass(FLASHINFER, num_kv_splits_arg=8)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": Geometry(32, 8, 128)}, "not_mla"),
        ({"geo": Geometry(128, 1, 512, 512, mla=True)}, "head_dim"),
        ({"geo": Geometry(256, 1, 576, 512, mla=True)}, "heads"),
        ({"geo": Geometry(128, 1, 576, 512, mla=True, window=9)}, "window_softcap_or_sinks"),
        ({"gpu": Gpu(name="hopper", sm_count=132, compute_capability=(9, 0))}, "not_sm100"),
        ({"kv": KvCache(dtype="fp8", page_size=64)}, "dtype"),
        ({"kv": KvCache(page_size=256)}, "page_size"),
        ({"q_len": 2}, "q_len"),
        ({"num_kv_splits_arg": 300}, "too_many_splits"),
    ],
)
def test_refusals(change, code):
    """What the kernel or its callers refuse has a code."""
    with pytest.raises(GateError) as refused:
        cutlass(**change)
    assert refused.value.code == code


def test_the_table_must_hold_every_request():
    """A table narrower than the longest request is an error."""
    with pytest.raises(InputError, match="too small"):
        cutlass(lens=(300,), page_table_width=4)
