"""FlashAttention 4's policy: values worked by hand, bound against actual counts, the two code bases, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.batch import Batch
from decodecalc.engines import load_policy, plan
from decodecalc.engines.flash_attention import fa4_mla
from decodecalc.engines.flash_attention.fa4_tiles import sm90_threads, tile, widths_fit
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, row

B200 = Gpu(name="blackwell", sm_count=148, compute_capability=(10, 0))
H100 = Gpu(name="hopper", sm_count=132, compute_capability=(9, 0))
A100 = Gpu(name="ampere", sm_count=108, compute_capability=(8, 0))
RTX = Gpu(name="geforce", sm_count=170, compute_capability=(12, 0))
LLAMA_70B = Geometry(64, 8, 128)
MLA = Geometry(64, 1, 576, 512, mla=True)
WHEEL, VLLM = "flash-attention-4@4.0.0b36", "flash-attention-4@vllm-0.33"
SPARSE = {"paged": False, "seqused_k": False, "causal": False}
PAGED = KvCache(page_size=128)
FP8 = KvCache(dtype="fp8", page_size=128)
ALL_FP8 = KvCache(dtype="fp8", query_dtype="fp8", page_size=128)


def fa4(engine=WHEEL, geo=LLAMA_70B, lens=(8192,), q_len=1, gpu=B200, kv=PAGED, **options):
    return plan(engine, geo, Batch(lens, q_len), kv=kv, gpu=gpu, **options)


def test_one_long_request_on_blackwell():
    """148 SMs over 8 blocks are 18 splits, a bound: 64 key blocks in pieces of trunc(64 x 1.157 x 8 / 148) = 4 make 16
    splits."""
    for engine in (WHEEL, VLLM):
        p = fa4(engine)
        assert (p.splits.launched, p.splits.requested) == (18, (16,))
        assert [k.role for k in p.kernels] == ["scheduler", "stage1", "merge"]


def test_short_neighbours_leave_the_long_request_its_splits():
    """Lengths 8192, 512, 512, 512: a bound of 4, of which the short requests take 1."""
    p = fa4(lens=(8192, 512, 512, 512))
    assert (p.splits.launched, p.splits.requested) == (4, (4, 1, 1, 1))


def test_a_full_batch_is_not_split():
    """32 requests: 148 SMs over 256 blocks are 0, which the wheel raises to 1 and vLLM's copy runs unsplit."""
    for engine, picked in ((WHEEL, 1), (VLLM, 0)):
        p = fa4(engine, lens=(8192,) * 32)
        assert (p.detail.config_num_splits, p.splits.launched, p.path) == (picked, 1, "unsplit")
        assert p.merge is None


def test_hopper():
    """The wheel asserts where its own rule would split; vLLM's copy takes 132 SMs over 8 blocks, 16, for everyone."""
    with pytest.raises(GateError) as refused:
        fa4(WHEEL, gpu=H100)
    assert refused.value.code == "split_sm90"
    p = fa4(VLLM, gpu=H100)
    assert (p.splits.launched, p.splits.requested) == (16, (16,))
    assert p.stage1.grid == (8, 16, 1)
    assert fa4(WHEEL, gpu=H100, num_splits_arg=1).path == "unsplit"


def test_four_key_blocks_are_never_split():
    """n <= 4: 512 keys of tile 128 stay whole, 513 are cut."""
    assert (fa4(lens=(512,)).path, fa4(lens=(513,)).path) == ("unsplit", "split")


@pytest.mark.parametrize(("topk", "groups", "splits"), [(4096, 4, 32), (2048, 8, 16)])
def test_vllm_sparse_decode(topk, groups, splits):
    """One token, 64 heads, 148 SMs: head groups and splits fill the wave, and share no more than it holds."""
    p = fa4(VLLM, MLA, lens=(9000,), sparse_topk=topk, **SPARSE)
    assert (p.detail.head_groups, p.splits.launched) == (groups, splits)
    assert p.stage1.name == fa4_mla.SPARSE_DECODE
    assert p.stage1.grid == (groups * splits, 1, 1)
    assert p.splits.keys[0][-1][1] == topk


def test_the_wheel_routes_mla():
    """Dense MLA: many splits take the 64-key kernel, few go back to the pairs; gathered keys leave the pairs past one
    wave."""
    assert fa4(WHEEL, MLA, lens=(100_000,)).stage1.name == fa4_mla.SINGLE_KB64
    assert fa4(WHEEL, MLA, lens=(400,)).stage1.name == fa4_mla.PAIRS
    assert fa4(WHEEL, MLA, lens=(100_000,), q_len=2, num_splits_arg=1).stage1.name == fa4_mla.PAIRS
    assert fa4(WHEEL, Geometry(128, 1, 576, 512, mla=True), lens=(90_000,)).stage1.name == fa4_mla.SINGLE
    few, many = (fa4(WHEEL, MLA, lens=(5000,) * n, sparse_topk=2048, **SPARSE) for n in (74, 75))
    assert (few.stage1.name, many.stage1.name) == (fa4_mla.PAIRS, fa4_mla.SINGLE_KB64)


def test_what_the_rule_sees_without_max_seqlen():
    """The wheel takes the page table's width, vLLM's copy the whole pool: 64 against 640 key blocks."""
    options = {"max_seqlen_given": False, "page_table_width": 64, "pages": 640}
    seen = [fa4(e, lens=(300,), **options).detail.num_n_blocks for e in (WHEEL, VLLM)]
    assert seen == [64, 640]


def test_a_right_bound_of_zero():
    """A causal window of 128 keys: 3 key blocks for the wheel, while vLLM's copy counts all of them."""
    geo = Geometry(64, 8, 128, window=128)
    assert [fa4(e, geo).detail.num_n_blocks for e in (WHEEL, VLLM)] == [2, 64]
    p = fa4(VLLM, geo)
    assert p.splits.keys[0][0][0] == (8192 - 128) // 128 * 128


def test_query_heads_that_are_not_packed():
    """Without packing the wheel counts every query head's blocks, vLLM's copy those of the KV heads."""
    blocks = [fa4(e, pack_gqa_arg=False).detail.total_mblocks for e in (WHEEL, VLLM)]
    assert blocks == [64, 8]


def test_widths_192_and_128():
    """K and V of different widths are split from 64 key blocks on, with tiles of 64 keys; a given count is dropped."""
    geo = Geometry(16, 2, 192, 128)
    assert (fa4(geo=geo, lens=(8192,)).tile_keys, fa4(geo=geo, lens=(8064,)).tile_keys) == (64, 128)
    assert fa4(geo=geo, lens=(8064,), num_splits_arg=4).splits.launched == 1
    assert fa4(geo=geo, lens=(8192,), num_splits_arg=4).splits.launched == 74


def test_vllm_hd256():
    """vLLM's own kernel for D 256 on Blackwell never splits and packs no heads; the wheel's generic kernel splits."""
    geo = Geometry(32, 4, 256)
    p = fa4(VLLM, geo, lens=(8000,), num_splits_arg=32)
    assert (p.path, p.detail.pack_gqa, p.determinism) == ("unsplit", False, "tile-dependent")
    assert p.stage1.grid == (2, 32, 1)
    assert fa4(WHEEL, geo, lens=(8000,)).path == "split"


def test_cuda_graphs_bound_vllm():
    """Under full graphs the count is a bound of 32, another one by configuration; the wheel has no such setting."""
    assert fa4(VLLM, cuda_graph=True).splits.launched == 32
    assert fa4(VLLM, cuda_graph=True, max_num_splits_for_cuda_graph=8).splits.requested == (8,)
    with pytest.raises(InputError, match="vLLM's bound"):
        fa4(WHEEL, cuda_graph=True)


def test_more_requests_than_the_scheduler_kernel_takes():
    """993 requests need two blocks of the scheduler kernel, and then nothing is split."""
    p = fa4(lens=(20_000,) * 993, num_splits_arg=4)
    assert (p.kernels[0].grid, set(p.splits.requested)) == ((2, 1, 1), {1})
    assert set(fa4(lens=(20_000,) * 992, num_splits_arg=4).splits.requested) != {4}


@pytest.mark.parametrize(
    ("options", "grid", "blocks"),
    [
        ({"num_splits_arg": 1}, (8, 1, 1), 8),
        ({}, (144, 1, 1), 128),
        ({"varlen": False}, (8, 18, 1), 8 * 16),
        ({"clc_scheduler": True, "varlen": False}, (1, 8, 18), 8 * 16),
    ],
)
def test_grids_of_the_schedulers(options, grid, blocks):
    """One request of 8 KV heads on 148 SMs: persistent and unsplit, tiles dealt at run time, longest first, and under
    cluster launch control."""
    p = fa4(**options)
    assert p.stage1.grid == grid
    assert p.live_blocks <= p.stage1.launched_blocks
    assert p.live_blocks == blocks


@given(
    st.lists(strategies.key_counts, min_size=1, max_size=20),
    st.integers(1, 4),
    st.sampled_from([WHEEL, VLLM]),
    st.sampled_from([0, 1, 3, 32]),
)
def test_counts_stay_within_the_bound(lens, q_len, engine, given_splits):
    """No request takes more splits than the bound or than it has key blocks, and every one takes at least one."""
    p = fa4(engine, lens=[n + q_len for n in lens], q_len=q_len, num_splits_arg=given_splits)
    for requested, live, length in zip(p.splits.requested, p.splits.live, p.batch.seq_lens):
        assert 1 <= live <= requested <= p.splits.launched
        assert p.path == "unsplit" or requested <= max(-(-length // p.tile_keys), 1)
    if given_splits == 1:
        assert p.determinism == "tile-dependent"
        assert p.merge is None


@given(st.integers(1, 600), st.sampled_from([8, 16, 32, 64]), st.sampled_from([512, 1024, 2048, 4096]))
def test_sparse_splits_divide_the_list(tokens, heads, topk):
    """vLLM's sparse decode: the splits divide the list's blocks, head groups are supported, and splitting spends at
    most one wave more than the unsplit grid (none for more than 16 heads)."""
    groups, splits = (int(x[0]) for x in fa4_mla.decode_splits(np.array([tokens]), 1, heads, 148, topk // 128))
    assert (topk // 128) % splits == 0
    assert heads // groups in fa4_mla.DECODE_HEADS
    smallest = 2 if heads == 64 else 1
    waves, unsplit = -(-tokens * groups * splits // 148), -(-tokens * smallest // 148)
    assert waves <= unsplit + (heads <= 16)


def test_a_sweep_of_mla_takes_different_kernels():
    """Steps that the wheel routes to different kernels plan as they do alone, each with its own kernel and grid."""
    policy = load_policy("flash-attention-4")
    contexts = np.array([300, 5000, 100_000, 100_000])
    sizes = np.array([1, 80, 1, 200])
    version = policy.version("4.0.0b36")
    _, found = policy.on_layer(MLA, Batches.uniform(sizes, contexts), PAGED, B200, policy.options_type(), version)
    names = set()
    for n, (size, context) in enumerate(zip(sizes.tolist(), contexts.tolist())):
        p = fa4(WHEEL, MLA, lens=(context,) * size)
        (stage1,) = [k for k in found.kernels if k.role == "stage1" and k.when[n]]
        assert (stage1.name, tuple(int(x[n]) for x in stage1.grid)) == (p.stage1.name, p.stage1.grid)
        assert row(found.live, n, size) == p.splits.live
        names.add(stage1.name)
    assert len(names) > 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpu": Gpu(name="unheard-of", sm_count=7)}, "arch"),
        ({"kv": KvCache(dtype="int8")}, "dtype"),
        ({"kv": FP8}, "dtypes_differ"),
        ({"kv": ALL_FP8, "gpu": H100}, "fp8_arch"),
        ({"geo": Geometry(8, 8, 192)}, "head_dim"),
        ({"geo": Geometry(8, 8, 512), "gpu": H100}, "head_dim"),
        ({"gpu": A100}, "paged_sm80"),
        ({"gpu": A100, "paged": False}, "split_sm80"),
        ({"gpu": RTX, "num_splits_arg": 2}, "split_sm120"),
        ({"gpu": RTX}, "paged_sm120"),
        ({"engine": VLLM, "gpu": RTX, "paged": False}, "split_sm120"),
        ({"engine": VLLM, "gpu": H100, "kv": KvCache(dtype="fp8", page_size=64)}, "dequant_page_size"),
        ({"engine": VLLM, "gpu": H100, "kv": FP8, "paged": False}, "dequant_not_paged"),
        ({"engine": VLLM, "gpu": H100, "kv": ALL_FP8}, "dequant_query_dtype"),
        ({"engine": VLLM, "geo": MLA, "gpu": H100}, "mla_arch"),
        ({"engine": VLLM, "geo": MLA, "kv": ALL_FP8}, "mla_fp8"),
        ({"geo": Geometry(16, 1, 576, 512, mla=True, window=64)}, "mla_window"),
        ({"geo": MLA, "sparse_topk": 2048, "num_splits_arg": 2, **SPARSE}, "sparse_split"),
        ({"geo": MLA, "sparse_topk": 2048}, "sparse_paged"),
        ({"geo": MLA, "sparse_topk": 100, **SPARSE}, "topk_not_multiple_of_128"),
        ({"sparse_topk": 2048}, "sparse_not_mla"),
        ({"num_splits_arg": 300}, "too_many_splits"),
        ({"engine": VLLM, "geo": Geometry(8, 8, 256), "page_table_width": 99}, "hd256_page_table"),
        ({"engine": VLLM, "geo": Geometry(8, 8, 256), "max_seqlen_k": 8200}, "hd256_max_seqlen"),
        ({"geo": Geometry(8, 8, 72), "kv": KvCache(page_size=16)}, "irregular_head_dim"),
    ],
)
def test_refusals(change, code):
    """What the interface or a kernel asserts has a code."""
    with pytest.raises(GateError) as refused:
        fa4(**change)
    assert refused.value.code == code


def test_the_cache_must_hold_every_request():
    """A page table or a max_seqlen_k below the longest request is an error."""
    with pytest.raises(InputError, match="too small"):
        fa4(page_table_width=3)
    with pytest.raises(InputError, match="less than the longest"):
        fa4(max_seqlen_k=8191)


@pytest.mark.parametrize(
    ("arch", "widths", "causal", "local", "expected"),
    [
        (90, (64, 64), True, False, (192, 128)),
        (90, (96, 96), False, False, (192, 144)),
        (90, (128, 128), True, False, (128, 128)),
        (90, (192, 192), True, False, (128, 112)),
        (90, (192, 128), False, True, (128, 96)),
        (90, (256, 256), False, True, (128, 64)),
        (90, (512, 512), True, False, (64, 64)),
        (100, (64, 512), True, False, (128, 128)),
        (80, (128, 128), True, False, (128, 64)),
        (120, (64, 64), True, False, (128, 128)),
        (120, (80, 80), True, False, (128, 64)),
    ],
)
def test_tiles(arch, widths, causal, local, expected):
    """_get_fwd_config and _tile_size_fwd_sm90, one line each."""
    assert tile(arch, *widths, causal, local) == expected


def test_widths_and_threads():
    """Hopper takes up to 256 (512 in vLLM), Blackwell a few pairs; a wide head adds a warp group for 64 rows."""
    assert widths_fit(90, 256, 256, 2, 256)
    assert not widths_fit(90, 512, 512, 2, 256)
    assert widths_fit(90, 512, 512, 2, 512)
    assert not widths_fit(90, 72, 72, 1, 256)
    assert widths_fit(100, 192, 128, 2, 256)
    assert not widths_fit(100, 192, 192, 2, 256)
    assert (sm90_threads(192, 64, 64), sm90_threads(128, 128, 128), sm90_threads(64, 512, 512)) == (512, 384, 384)
