"""FlashAttention 3's policy: known launches, bound against actual counts, the two code bases, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from decodecalc.batch import Batch
from decodecalc.engines import plan
from decodecalc.engines.flash_attention.fa3 import POLICY
from decodecalc.engines.flash_attention.fa3_tiles import kernel_tile_dims, sm8x_tile, sm90_tile
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, at, row

LLAMA3_8B = Geometry(32, 8, 128)
ONE_KV_HEAD = Geometry(8, 1, 128)
UPSTREAM = "flash-attention-3@3.0.0"
DENSE = {"paged": False, "cache_seqlens": False, "cu_seqlens_q": False}


def fa3(geo=LLAMA3_8B, lens=(2560,), q_lens=1, engine="flash-attention-3", kv=None, gpu="h100-sxm", **options):
    return plan(engine, geo, Batch(lens, q_lens), kv=kv, gpu=gpu, **options)


@pytest.mark.parametrize(
    ("geo", "lens", "gpu", "options", "splits"),
    [
        (LLAMA3_8B, (32_768,), 132, {}, 15),
        (ONE_KV_HEAD, (131_072,), 132, {}, 109),
        (LLAMA3_8B, (500,), 132, {}, 1),
        (Geometry(16, 16, 128, window=1024), (32_768,), 132, {}, 7),
        (Geometry(32, 32, 128), (4000,) * 16, 132, DENSE, 1),
        (Geometry(16, 1, 128), (16_384,) * 4, 114, DENSE, 25),
    ],
)
def test_known_counts_of_the_rule(geo, lens, gpu, options, splits):
    """hopper/heuristics.h worked by hand; the last is Dao-AILab/flash-attention issue 1236, which printed 22 for older
    code."""
    device = Gpu(name="hopper", sm_count=gpu, compute_capability=(9, 0))
    assert fa3(geo, lens, engine=UPSTREAM, gpu=device, **options).splits.launched == splits


def test_four_key_blocks_are_never_split():
    """n <= 4: 512 keys of tile 128 stay whole, 513 are cut."""
    assert "4 key blocks; up to 4 are never split" in fa3(lens=(512,)).gate("split").reason
    assert (fa3(lens=(512,)).path, fa3(lens=(513,)).path) == ("unsplit", "split")


@pytest.mark.parametrize(
    ("heads", "lens", "combine"),
    [
        ((32, 8), (2560,), (4, 1, 1)),
        ((8, 1), (32_768,), (1, 1, 1)),
        (
            (32, 8),
            (2048, 1865, 2026, 1907, 1478, 1121, 1855, 1118, 1760, 1463, 1975, 1999, 1965, 1602, 1525, 1748),
            (80, 1, 1),
        ),
        (
            (32, 8),
            (2048, 902, 1163, 1263, 1308, 746, 741, 1668, 1138, 1593, 1585, 1608, 835, 715, 890, 1538, 827),
            (85, 1, 1),
        ),
        ((28, 4), (5000, 3972, 3901), (14, 1, 1)),
        ((6, 1), (640, 359), (1, 1, 2)),
    ],
)
def test_grids_that_an_h200_showed(heads, lens, combine):
    """vLLM's FlashAttention 3 under a profiler on an H200: a one-block scheduler, a persistent main kernel of 256
    threads (one warp group of 64 rows and the producer), and a combine grid flattened over requests where it is
    sparse."""
    scheduler, main, merge = fa3(Geometry(*heads, 128), lens, gpu="h200").kernels
    assert (scheduler.role, scheduler.grid, scheduler.threads) == ("scheduler", (1, 1, 1), 32)
    assert (main.name, main.grid, main.threads, main.tile_keys) == ("FlashAttnFwdSm90", (132, 1, 1), 256, 128)
    assert (merge.grid, merge.threads) == (combine, 256)


def test_the_bound_is_not_what_runs():
    """One number sizes the buffers, another is picked per request on the device, a third has keys."""
    p = fa3(lens=(131_072, 1000, 200, 4000))
    assert (p.splits.launched, p.splits.requested, p.splits.live) == (15, (15, 1, 1, 1), (15, 1, 1, 1))
    assert p.detail.requests_combined == 1
    assert p.scratch_bytes == 15 * 4 * 32 * (128 + 1) * 4
    assert (p.detail.live_work_tiles, p.live_blocks) == (8 * 18, 132)
    assert p.merge.live_blocks == 4


def test_cuda_graphs_bound_the_splits():
    """vLLM issue 35899: the rule wants 109 splits for one KV head and 128 K keys, the bound of 32 leaves 32 of 132 SMs
    busy (24 %); 16 before pull requests 25274 and 25495."""
    eager, graph = fa3(ONE_KV_HEAD, (131_072,)), fa3(ONE_KV_HEAD, (131_072,), cuda_graph=True)
    assert (eager.splits.launched, graph.splits.launched) == (109, 32)
    assert (graph.live_blocks, graph.detail.heuristic_splits) == (32, 109)
    assert not graph.gate("cuda_graph_bound").passed
    assert eager.gate("cuda_graph_bound").passed
    assert fa3(ONE_KV_HEAD, (131_072,), engine="flash-attention-3@vllm-0.10", cuda_graph=True).live_blocks == 16
    assert fa3(ONE_KV_HEAD, (131_072,), cuda_graph=True, max_num_splits_for_cuda_graph=64).live_blocks == 64


def test_a_graphs_bound_is_fixed_and_its_counts_are_not():
    """Captured once, replayed for any lengths: bound and buffers stay, the device's counts follow the lengths."""
    replays = [fa3(ONE_KV_HEAD, (n,), cuda_graph=True) for n in (600, 3000, 131_072)]
    assert {p.splits.launched for p in replays} == {32}
    assert {p.scratch_bytes for p in replays} == {32 * 8 * 129 * 4}
    assert [p.splits.requested for p in replays] == [(5,), (24,), (32,)]


def test_plan_and_launch_share_one_bound():
    """vLLM issues 20301 and 25490: metadata for one bound and a launch with another read out of bounds; here every
    request's count stays within the bound that sized the buffers."""
    for options in ({}, {"cuda_graph": True}, {"num_splits_arg": 3}, {"batch_invariant": True}):
        p = fa3(lens=(70_000, 600, 9000), **options)
        assert max(p.splits.requested) <= p.splits.launched


def test_batch_invariant_mode_is_one_split():
    """vLLM issue 50603: VLLM_BATCH_INVARIANT gives FlashAttention one split: 8 blocks for 132 SMs."""
    p = fa3(batch_invariant=True, cuda_graph=True)
    assert (p.path, p.live_blocks, p.determinism, p.splits.launched) == ("unsplit", 8, "tile-dependent", 1)
    assert p.merge is None
    assert "leaves 8 of 80 work tiles" in fa3().gate("batch_invariant").reason


def test_a_fixed_number_of_splits_is_not_invariant_with_lengths():
    """Dao-AILab/flash-attention issue 1897: with per-request lengths num_splits is a bound and the count depends on the
    batch; without them it is a fixed count."""
    alone, among = fa3(num_splits_arg=8), fa3(lens=(2560,) * 12, num_splits_arg=8)
    assert (alone.splits.requested[0], among.splits.requested[0]) == (8, 2)
    assert alone.determinism == "batch-dependent"
    assert fa3(engine=UPSTREAM, num_splits_arg=8, **DENSE).determinism == "fixed count"


def test_more_than_992_requests_are_not_split():
    """The scheduler kernel takes 992 requests a block; above that every count is 1."""
    few, many = fa3(ONE_KV_HEAD, (8000, *(16,) * 991)), fa3(ONE_KV_HEAD, (8000, *(16,) * 992))
    assert few.splits.requested[0] > 1
    assert set(many.splits.requested) == {1}
    assert (many.kernels[0].grid, many.splits.launched) == ((2, 1, 1), 1)
    assert fa3(ONE_KV_HEAD, (8000, *(16,) * 992), engine=UPSTREAM).splits.launched > 1


def test_the_device_ignores_windows():
    """A window of 1024 keys holds 9 tiles, but the counts are picked for 100 K keys: fewer splits are live."""
    geo = Geometry(8, 1, 128, window=1024)
    for engine, first in ((UPSTREAM, (100_000 - 1024) // 128 * 128), ("flash-attention-3", 100_000 - 1024)):
        p = fa3(geo, (100_000,), engine=engine, num_splits_arg=64)
        assert p.splits.requested == (64,)
        assert 8 <= p.splits.live[0] <= 9
        assert p.splits.keys[0][0][0] == first
        assert p.keys_read == (100_000 - first,)


def test_upstream_tiles_are_wider_than_vllms():
    """Decode in the fork runs one warp group of 64 rows; upstream 128 rows, 384 threads, or 192 rows for D 64."""
    fork, upstream, narrow = fa3(), fa3(engine=UPSTREAM), fa3(Geometry(32, 8, 64), engine=UPSTREAM)
    assert [(p.block_rows, p.stage1.threads) for p in (fork, upstream, narrow)] == [(64, 256), (128, 384), (192, 512)]


def test_mla_runs_the_64_by_512_kernel():
    """The positional 64 are the keys, the latent 512 the values: 64 x 64 tiles, two warp groups for the values."""
    p = fa3(Geometry(128, 1, 576, 512, mla=True), (8192,), kv=KvCache(page_size=64), engine=UPSTREAM)
    assert (p.block_rows, p.tile_keys, p.stage1.threads) == (64, 64, 384)
    assert (p.splits.launched, p.splits.requested, p.state_values) == (57, (43,), 513)


def test_pages_of_whole_tiles_are_loaded_by_tma_when_rows_need_several_tiles():
    """get_pagedkv_tma: page % tile == 0 and more rows than one tile."""
    geo = Geometry(64, 1, 128)
    many_rows = {"lens": (9000,), "q_lens": 4, "kv": KvCache(page_size=128)}
    assert fa3(geo, **many_rows).detail.paged_kv_tma
    assert not fa3(geo, **{**many_rows, "kv": KvCache(page_size=16)}).detail.paged_kv_tma
    assert not fa3(geo, **{**many_rows, "q_lens": 1}).detail.paged_kv_tma


def test_unpacked_dense_calls_read_keys_per_query_head():
    """pack_gqa off and nothing split: every query head has tiles of its own (upstream only)."""
    p = fa3(lens=(400,) * 4, engine=UPSTREAM, pack_gqa_arg=False, **DENSE)
    assert (p.blocks_per_split[0], p.detail.pack_gqa_in_kernel) == (32, False)
    assert "read 4 times" in p.gate("pack_gqa").reason


def test_ampere_kernels_exist_upstream_only():
    """FlashAttention 3 has sm80 and sm86 kernels upstream; vLLM builds Hopper's; nobody has Blackwell's."""
    assert fa3(gpu="a100-sxm", engine=UPSTREAM).stage1.name == "FlashAttnFwdSm80"
    for engine, gpu in (("flash-attention-3", "a100-sxm"), (UPSTREAM, "b200"), (UPSTREAM, "mi300x")):
        with pytest.raises(GateError) as refusal:
            fa3(gpu=gpu, engine=engine)
        assert refusal.value.code == "arch"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"geo": Geometry(8, 8, 512)}, "head_dim_too_large"),
        ({"geo": Geometry(8, 8, 128, 64)}, "v_head_dim_unsupported"),
        ({"geo": Geometry(8, 8, 64, 512), "kv": KvCache(dtype="fp8")}, "v_head_dim_unsupported"),
        ({"geo": Geometry(8, 8, 100)}, "head_dim_not_multiple_of_8"),
        ({"geo": Geometry(8, 8, 72), "kv": KvCache(dtype="fp8")}, "head_dim_not_multiple_of_16"),
        ({"geo": Geometry(8, 8, 128, sinks=True), "engine": UPSTREAM}, "sinks"),
        ({"kv": KvCache(dtype="int8")}, "dtype"),
        ({"kv": KvCache(dtype="fp8"), "gpu": "a100-sxm", "engine": UPSTREAM}, "fp8_needs_hopper"),
        ({"kv": KvCache(page_size=8)}, "page_size_not_multiple_of_16"),
        ({"num_splits_arg": 257}, "too_many_splits"),
    ],
)
def test_refusals_have_a_code(changes, code):
    """What the entry point or the build refuses is a start-up error with a machine word."""
    with pytest.raises(GateError) as refusal:
        fa3(**changes)
    assert refusal.value.code == code


def test_impossible_inputs_are_refused():
    """A capacity below the longest request, ragged lengths without lengths, vLLM's bound upstream."""
    with pytest.raises(InputError, match="less than the longest request"):
        fa3(seqlen_k_capacity=100)
    with pytest.raises(InputError, match="equal lengths"):
        fa3(lens=(100, 200), engine=UPSTREAM, **DENSE)
    with pytest.raises(InputError, match="is vLLM's bound"):
        fa3(engine=UPSTREAM, cuda_graph=True)


def test_vllm_versions_cover_their_releases():
    """0.10.1 takes the bound of 16, 0.27 the bound of 32."""
    assert fa3(ONE_KV_HEAD, (131_072,), engine="flash-attention-3@0.10.1", cuda_graph=True).splits.launched == 16
    assert fa3(ONE_KV_HEAD, (131_072,), engine="flash-attention-3@0.27", cuda_graph=True).splits.launched == 32


def test_tiles_of_one_table_line_each():
    """hopper/tile_size.h, read by hand: one line of each table, and the kernel that runs for odd V widths."""
    yes, no = np.array([True]), np.array([False])

    def tile(dims, fork, local=no, causal=no, non_tma=no, element_bytes=2, one=no, softcap=False):
        return tuple(x.item() for x in sm90_tile(dims, causal, local, element_bytes, non_tma, softcap, one, fork))

    assert tile((64, 64), False) == (192, 192)
    assert tile((64, 64), True, local=yes) == (192, 160)
    assert tile((64, 64), True, one=yes) == (64, 192)
    assert tile((96, 96), False, non_tma=yes) == (192, 128)
    assert tile((128, 128), False) == (128, 176)
    assert tile((128, 128), True) == (128, 160)
    assert tile((192, 128), False) == (128, 128)
    assert tile((256, 256), False, local=yes) == (128, 64)
    assert tile((128, 128), False, element_bytes=1) == (128, 224)
    assert tile((128, 128), True, element_bytes=1, one=yes) == (64, 96)
    assert [x.item() for x in sm8x_tile(128, True, no, True, yes)] == [112, 8]
    assert [x.item() for x in sm8x_tile(192, False, no, False, no)] == [96, 8]
    assert kernel_tile_dims(64, 96, 90, 2) == (64, 256)
    assert kernel_tile_dims(160, 128, 90, 2) == (192, 128)
    assert kernel_tile_dims(160, 160, 80, 2) == (192, 192)


def test_a_sweep_is_one_array():
    """Batches 1 to 40 planned at once: counts, tiles and gates of each as if planned alone."""
    sweep = Batches.uniform(np.arange(1, 41), 4096)
    _, found = POLICY.on_layer(
        LLAMA3_8B, sweep, KvCache(), load_gpu("h100-sxm"), POLICY.options_type(), POLICY.version()
    )
    for n in (0, 7, 39):
        alone = fa3(lens=(4096,) * (n + 1))
        assert at(found.launched, n) == alone.splits.launched
        assert row(found.requested, n, n + 1) == alone.splits.requested
        assert [g.reason(n) for g in found.gates] == [g.reason for g in alone.gates]
