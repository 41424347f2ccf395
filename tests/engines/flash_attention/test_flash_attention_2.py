"""FlashAttention 2's policy: known launches, the two code bases, and what the entry points refuse."""

from __future__ import annotations

import numpy as np
import pytest

from decodecalc.batch import Batch
from decodecalc.engines import plan
from decodecalc.engines.flash_attention.fa2 import POLICY
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, at

LLAMA3_8B = Geometry(32, 8, 128)
UPSTREAM = "flash-attention-2@2.8.4"


def fa2(geo=LLAMA3_8B, lens=(2560,), q_lens=1, engine="flash-attention-2", page=256, gpu="h100-sxm", **options):
    return plan(engine, geo, Batch(lens, q_lens), kv=KvCache(page_size=page), gpu=gpu, **options)


def test_llama3_8b_at_2560_keys():
    """8 KV heads, 20 key blocks, 264 slots: 20 splits of one block each; the group fills 4 rows of 64."""
    p = fa2()
    assert (p.path, p.stage1.grid, p.stage1.threads, p.tile_keys) == ("split", (1, 20, 8), 128, 128)
    assert p.splits.keys[0][:2] == [(0, 128), (128, 256)]
    assert (p.block_rows, p.live_rows, p.live_blocks) == (64, 4, 160)
    assert p.merge.grid == (8, 1, 1)
    assert p.scratch_bytes == 20 * 1 * 8 * 4 * (128 + 1) * 4


def split_counts(gpu, last):
    return [
        fa2(Geometry(40, 8, 128), (1024,) * b, engine=UPSTREAM, gpu=gpu).splits.launched for b in range(8, last + 1)
    ]


def test_split_count_is_not_monotone_in_the_batch():
    """Dao-AILab/flash-attention issue 1095 (40/8/128, 1024 keys): waves are quantized, so speed jumps with batch."""
    assert split_counts("a100-sxm", 21) == [3, 3, 8, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 1]
    assert split_counts("h100-sxm", 25) == [4, 3, 3, 3, 8, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 1]


def test_split_count_of_issue_1095_on_an_a100_never_depends_on_the_api():
    """The varlen API gives the same counts: the group is swapped."""
    geo = Geometry(40, 8, 128)
    for b in (8, 10, 14):
        by_api = {api: fa2(geo, (1024,) * b, engine=UPSTREAM, gpu="a100-sxm", api=api) for api in ("kvcache", "varlen")}
        assert by_api["kvcache"].stage1 == by_api["varlen"].stage1


@pytest.mark.parametrize(("head_dim", "splits", "per_split"), [(64, 17, 1), (128, 17, 2), (256, 22, 3)])
def test_capacity_plan_leaves_one_live_split(head_dim, splits, per_split):
    """microsoft/onnxruntime PR 32239: planned for a table of 4097 keys on 108 SMs, 129 of them live: all but one split
    are empty, and the combine kernel pays for all."""
    gpu = Gpu(name="ort", sm_count=108, compute_capability=(8, 0))
    p = fa2(Geometry(8, 8, head_dim), (129,), engine=UPSTREAM, gpu=gpu, seqlen_k=4097, paged=False)
    assert (p.splits.launched, p.splits.requested, p.splits.live) == (splits, (splits,), (1,))
    assert p.detail.n_blocks_per_split == (per_split,)
    assert p.splits.keys[0] == [(0, 129)]
    assert not p.gate("all_splits_live").passed
    assert f"1 of {splits} splits have keys" in p.gate("all_splits_live").reason


def test_vllms_fork_cuts_each_requests_own_length():
    """vllm-project/flash-attention compute_attn_1rowblock_splitkv: the same short request fills two splits there."""
    p = fa2(Geometry(16, 8, 128), (129,), seqlen_k=4097)
    assert (p.splits.launched, p.splits.keys[0]) == (33, [(0, 128), (128, 129)])


def test_page_multiple_is_the_forks():
    """Dao-AILab/flash-attention issue 828: upstream refuses pages that are no multiple of 256, vLLM's fork of 16."""
    with pytest.raises(GateError, match=r"multiple of 256, not 16 .*vLLM's fork.*error at start-up") as refusal:
        fa2(engine=UPSTREAM, page=16)
    assert refusal.value.code == "page_size_not_multiple_of_256"
    assert "page 16 is a multiple of 16" in fa2(page=16).gate("fork").reason
    with pytest.raises(GateError, match="multiple of 16, not 8"):
        fa2(page=8)
    assert fa2(engine=UPSTREAM, page=16, paged=False).splits.launched == 20


def test_without_the_swap_keys_are_read_per_query_head():
    """Several query tokens or a window keep every query head's blocks apart: K and V are read group times."""
    two_tokens = fa2(q_lens=2)
    assert (two_tokens.path, two_tokens.stage1.grid, two_tokens.unsplit_blocks) == ("unsplit", (1, 1, 32), 32)
    assert (two_tokens.detail.kv_reads_per_key, fa2().detail.kv_reads_per_key) == (4, 1)
    assert "2 query tokens" in two_tokens.gate("gqa_swap").reason
    assert "applies the rule only when the group was swapped" in two_tokens.gate("split").reason
    assert fa2(q_lens=2, api="kvcache").splits.launched == 7


def test_a_window_longer_than_the_request_still_prevents_the_swap():
    """flash_api.cpp tests the window before it drops one that reaches past the keys."""
    p = fa2(Geometry(32, 8, 128, window=4096), engine=UPSTREAM)
    assert not p.detail.gqa_swapped
    assert p.stage1.grid[2] == 32
    assert p.keys_read == (2560,)


def test_a_window_leaves_only_its_tiles():
    """The splits cover all keys; those before the window exit early."""
    p = fa2(Geometry(8, 8, 128, window=1000), (20_000,), engine=UPSTREAM)
    start = (20_000 - 1000) // 128 * 128
    assert p.keys_read == (20_000 - start,)
    assert p.splits.live[0] > p.splits.working[0] > 0
    assert p.live_blocks == 8 * p.splits.working[0]
    assert p.splits.keys[0][-p.splits.working[0]][1] > start


@pytest.mark.parametrize(
    ("gpu", "grid", "tile"), [("a100-sxm", (1, 300, 4), (128, 64)), ("rtx-4090", (1, 300, 4), (128, 32))]
)
def test_a_dense_full_grid_takes_the_standard_kernel(gpu, grid, tile):
    """No split and no pages: flash_fwd_kernel, whose tile depends on the device (run_mha_fwd_hdim128)."""
    p = fa2(Geometry(16, 4, 128), (500,) * 300, gpu=gpu, paged=False)
    assert (p.stage1.name, p.stage1.grid, (p.block_rows, p.tile_keys)) == ("flash_fwd_kernel", grid, tile)
    assert p.merge is None
    assert p.scratch_bytes == 0


@pytest.mark.parametrize(("gpu", "rows", "threads"), [("a100-sxm", 128, 256), ("h100-sxm", 64, 128), ("l40s", 64, 128)])
def test_head_dim_256_takes_the_tile_that_shared_memory_allows(gpu, rows, threads):
    """run_mha_fwd_hdim256: 128 rows on an A100, 64 where two blocks fit on an SM or one of 128 does not fit."""
    p = fa2(Geometry(4, 4, 256), (500,) * 100, gpu=gpu, paged=False)
    assert (p.block_rows, p.stage1.threads) == (rows, threads)


def test_smem_of_an_unknown_gpu_follows_its_compute_capability():
    """A GPU given by SMs and compute capability gets the same tile as the table's."""
    for name in ("a100-sxm", "h100-sxm", "l40s"):
        known = load_gpu(name)
        bare = Gpu(name="bare", sm_count=known.sm_count, compute_capability=known.compute_capability)
        geo = Geometry(4, 4, 256)
        assert (
            fa2(geo, (500,) * 100, gpu=bare, paged=False).stage1
            == fa2(geo, (500,) * 100, gpu=known, paged=False).stage1
        )


def test_one_split_is_aligned_with_the_standard_kernel_since_2_8_4():
    """run_mha_fwd_splitkv_align: num_splits 1 takes the standard key tile, 64; 2.8.3 kept 128."""
    assert fa2(num_splits_arg=1).tile_keys == 64
    assert fa2(num_splits_arg=1, engine="flash-attention-2@2.8.3").tile_keys == 128


def test_batch_invariant_mode_is_one_split():
    """vLLM issue 50603: VLLM_BATCH_INVARIANT gives FlashAttention one split: 8 blocks for 132 SMs."""
    p = fa2(batch_invariant=True)
    assert (p.path, p.live_blocks, p.determinism) == ("unsplit", 8, "invariant")
    assert "leaves 8 of 160 blocks" in fa2().gate("batch_invariant").reason
    assert fa2().determinism == "batch-dependent"


def test_a_fixed_number_of_splits_is_no_fixed_size():
    """Dao-AILab/flash-attention issue 1897: with num_splits=8 the pieces still grow with the request."""
    short, long = (fa2(lens=(n,), engine=UPSTREAM, num_splits_arg=8) for n in (4096, 65_536))
    assert short.determinism == "fixed count"
    assert short.splits.keys[0][0] != long.splits.keys[0][0]
    assert fa2(lens=(4096, 300), engine=UPSTREAM, num_splits_arg=8).splits.keys[0] == short.splits.keys[0]


def test_ragged_batches_share_one_count():
    """The longest request sets the count; upstream a short one leaves splits empty, the fork spreads it."""
    lens = (128, 8192)
    upstream, fork = fa2(lens=lens, engine=UPSTREAM), fa2(lens=lens)
    assert upstream.splits.requested == fork.splits.requested
    assert upstream.splits.live[0] == fork.splits.live[0] == 1
    assert fa2(lens=(1000, 8192)).splits.live[0] > fa2(lens=(1000, 8192), engine=UPSTREAM).splits.live[0]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"geo": Geometry(8, 8, 512)}, "head_dim_too_large"),
        ({"geo": Geometry(8, 8, 128, 64)}, "head_dim_v"),
        ({"geo": Geometry(8, 8, 100)}, "head_dim_not_multiple_of_8"),
        ({"geo": Geometry(8, 8, 128, sinks=True)}, "sinks"),
        ({"gpu": "t4"}, "compute_capability"),
        ({"gpu": "mi300x"}, "not_cuda"),
        ({"engine": UPSTREAM, "num_splits_arg": 129}, "too_many_splits"),
        ({"engine": UPSTREAM, "num_splits_arg": 4, "q_lens": 2, "api": "varlen"}, "num_splits_varlen_paged"),
        ({"num_splits_arg": 2}, "num_splits_varlen"),
        ({"engine": "flash-attention-2@2.8.3", "num_splits_arg": 1, "api": "varlen"}, "num_splits_varlen"),
    ],
)
def test_refusals_have_a_code(changes, code):
    """What the entry points refuse is a error at start-up with a machine word."""
    with pytest.raises(GateError) as refusal:
        fa2(**changes)
    assert refusal.value.code == code


def test_impossible_inputs_are_refused():
    """FP8 caches, capacities below the longest request, names that do not exist."""
    with pytest.raises(GateError, match="fp16 and bf16"):
        plan("flash-attention-2", LLAMA3_8B, Batch([100]), kv=KvCache(dtype="fp8"))
    with pytest.raises(InputError, match="less than the longest request"):
        fa2(seqlen_k=100)
    with pytest.raises(InputError, match="api"):
        fa2(api="dense")
    with pytest.raises(UnknownNameError, match="num_splits_arg"):
        fa2(num_split_arg=1)


def test_a_sweep_is_one_array():
    """Batches 1 to 64 planned at once: counts, grids and gates of each as if planned alone."""
    sweep = Batches.uniform(np.arange(1, 65), 4096)
    gpu = load_gpu("h100-sxm")
    _, found = POLICY.on_layer(LLAMA3_8B, sweep, KvCache(page_size=256), gpu, POLICY.options_type(), POLICY.version())
    for n in (0, 7, 63):
        alone = fa2(lens=(4096,) * (n + 1))
        assert at(found.launched, n) == alone.splits.launched
        assert [g.reason(n) for g in found.gates] == [g.reason for g in alone.gates]


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "batch", "copies"), [(32, 8, 2, 2), (32, 8, 1, 0), (8, 1, 2, 0), (32, 32, 2, 0)]
)
def test_swapped_queries_and_outputs_are_copied_unless_a_view_does(q_heads, kv_heads, batch, copies):
    """Moving the group in front of the KV heads is a view for one request or one KV head, and nobody swaps no group."""
    geo = Geometry(q_heads, kv_heads, 128)
    found = plan("flash-attention-2", geo, Batch.uniform(batch, 4096), gpu=load_gpu("h200"))
    assert found.copies == copies
