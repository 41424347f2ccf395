"""FlashMLA's sparse decode: values worked by hand, what the schedule does not depend on, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.batch import Batch
from decodecalc.engines import load_policy, plan
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, row

FP8 = KvCache(dtype="fp8", page_size=64)
ALL_FP8 = KvCache(dtype="fp8", query_dtype="fp8", page_size=64)
V32 = Geometry(128, 1, 576, 512, mla=True)
NARROW = Geometry(128, 1, 512, 512, mla=True)
SM90 = Gpu(name="hopper", sm_count=132, compute_capability=(9, 0))
SM100 = Gpu(name="blackwell", sm_count=148, compute_capability=(10, 0))


def sparse(geo=V32, lens=(8000,), q_len=1, gpu=SM90, kv=FP8, **options):
    return plan("flashmla-sparse", geo, Batch(lens, q_len), kv=kv, gpu=gpu, **options)


def test_a_list_of_2048_keys_on_hopper():
    """128 heads are two blocks: 66 parts; ceil((32 + 5) / 66) + 5 = 6 blocks of payload leave one block a part."""
    p = sparse(topk=2048)
    assert (p.detail.num_sm_parts, p.detail.payload_blocks) == (66, 6)
    assert p.splits.requested == (32,)
    assert p.stage1.grid == (2, 1, 66)
    assert p.detail.cluster == (2, 1, 1)
    assert p.splits.keys[0][:2] == [(0, 64), (64, 128)]


@pytest.mark.parametrize(
    ("geo", "gpu", "parts", "grid", "overhead", "launches"),
    [
        (V32, SM100, 148, (1, 148, 1), 5, 2),
        (NARROW, SM100, 74, (2, 74, 1), 3, 1),
        (Geometry(16, 1, 576, 512, mla=True), SM100, 148, (1, 148, 1), 5, 1),
        (Geometry(16, 1, 576, 512, mla=True), SM90, 132, (1, 1, 132), 5, 1),
    ],
)
def test_the_four_implementations(geo, gpu, parts, grid, overhead, launches):
    """128 heads of width 576 are two launches on Blackwell, of width 512 pairs of blocks with a smaller overhead; 16
    heads are padded to 64."""
    p = sparse(geo, gpu=gpu, topk=2048)
    assert (p.splits.launched, p.stage1.grid, p.detail.fixed_overhead_blocks) == (parts, grid, overhead)
    assert [k.role for k in p.kernels] == ["scheduler", *["stage1"] * launches, "merge"]


@given(st.integers(1, 200_000), st.integers(1, 200_000), st.integers(1, 40), st.integers(1, 4))
def test_the_context_plays_no_part(short, long, batch, q_len):
    """With a list of fixed width, contexts of any length get the same splits and grids."""
    a, b = (sparse(lens=(n + q_len,) * batch, q_len=q_len, topk=1024) for n in (short, long))
    assert (a.splits.requested, a.stage1, a.merge) == (b.splits.requested, b.stage1, b.merge)
    assert a.keys_read == (1024,) * batch


@given(st.lists(st.integers(0, 2048), min_size=1, max_size=12), st.integers(0, 1))
def test_lists_are_dealt_once(lengths, extra):
    """Every request's ranges tile its list, the second list behind the first one's last whole block."""
    p = sparse(NARROW, (9000,) * len(lengths), gpu=SM100, topk=2048, topk_lengths=lengths, extra_topk=extra * 512)
    for ranges, length, requested in zip(p.splits.keys, lengths, p.splits.requested):
        end = -(-max(length, 1) // 64) * 64 + 512 if extra else length
        assert [start for start, _ in ranges[1:]] == [stop for _, stop in ranges[:-1]]
        assert (ranges[0][0], ranges[-1][1]) == (0, end) if end else not ranges
        assert len(ranges) <= requested


def test_query_tokens_use_up_the_parts():
    """One request with as many query tokens as there are SMs leaves one part; the batch plays no part in it."""
    assert sparse(lens=(8000,), q_len=132, topk=2048).splits.launched == 1
    assert sparse(lens=(8000,) * 64, topk=2048).splits.launched == sparse(topk=2048).splits.launched


def test_a_sweep_plans_its_steps():
    """Entry n of an array of steps with a list of fixed width is the plan of step n."""
    policy = load_policy("flashmla-sparse")
    sizes = np.array([1, 2, 7, 64, 200])
    options = policy.options_type(topk=2048)
    found = policy.launches(V32, Batches.uniform(sizes, 5000), FP8, SM90, options, policy.version())
    for n, size in enumerate(sizes.tolist()):
        p = sparse(lens=(5000,) * size, topk=2048)
        assert row(found.requested, n, 1)[0] == max(p.splits.requested)
        assert int(found.scratch_bytes[n]) == p.scratch_bytes


def test_dense_fp8_counts_keys():
    """vLLM's dense extension: SMs over row blocks without a lower bound, the overhead of 5, one merge block a row."""
    p = sparse(Geometry(16, 1, 576, 512, mla=True), (8192, 64), q_len=2, kv=ALL_FP8, path="dense_fp8")
    assert p.splits.launched == 132
    assert p.detail.payload_blocks == -(-(128 + 1 + 2 * 5) // 132) + 5
    assert p.merge.grid == (2 * 32, 1, 1)
    with pytest.raises(GateError) as refused:
        sparse(V32, (99,), q_len=99, kv=ALL_FP8, path="dense_fp8")
    assert refused.value.code == "no_sm_parts"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": Geometry(32, 8, 128)}, "not_mla"),
        ({"geo": Geometry(96, 1, 576, 512, mla=True), "pad_heads": False}, "heads"),
        ({"geo": Geometry(129, 1, 576, 512, mla=True)}, "heads"),
        ({"kv": KvCache(page_size=64)}, "dtype"),
        ({"kv": FP8, "path": "dense_fp8"}, "dtype"),
        ({"gpu": Gpu(name="ada", sm_count=142, compute_capability=(8, 9))}, "arch"),
        ({"topk": 100}, "topk_not_multiple_of_64"),
        ({"kv": KvCache(dtype="fp8", query_dtype="fp8"), "path": "dense_fp8"}, "page_size"),
        ({"gpu": SM100, "kv": ALL_FP8, "path": "dense_fp8"}, "arch"),
    ],
)
def test_refusals(change, code):
    """What the entry points refuse has a code."""
    with pytest.raises(GateError) as refused:
        sparse(**change)
    assert refused.value.code == code


def test_lists_must_fit_the_batch():
    """One length for each request, and no list for the dense path."""
    with pytest.raises(InputError, match="one for each request"):
        sparse(topk=2048, topk_lengths=[1, 2])
    with pytest.raises(InputError, match="leave topk out"):
        sparse(kv=ALL_FP8, path="dense_fp8", topk=64)


def test_hopper_rows_of_656_bytes_take_one_list():
    """The launcher of the wide rows asserts that there are no lengths per request and no second list."""
    assert sparse(topk=2048).gate("lists_supported").passed
    assert not sparse(topk=2048, topk_lengths=[7]).gate("lists_supported").passed
    assert sparse(NARROW, topk=2048, topk_lengths=[7], extra_topk=64).gate("lists_supported").passed
