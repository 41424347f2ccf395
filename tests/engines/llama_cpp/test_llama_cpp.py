"""llama-cpp: hand values, kernel choice, parallel blocks, stream-k against a walk block by block, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.llama_cpp.fattn import POLICY
from decodecalc.engines.llama_cpp.split import StreamK, parallel_blocks, stream_k
from decodecalc.engines.llama_cpp.tables import mma_config, tile_config
from decodecalc.launch.arrays import Batches, at

RTX4090, RTX3090, A100, V100 = (dc.load_gpu(n) for n in ("rtx-4090", "rtx-3090", "a100-sxm", "v100-sxm2"))
PASCAL = dc.Gpu(name="p40", sm_count=30, compute_capability=(6, 1))
F16 = dc.KvCache("fp16")
GQA = dc.Geometry(32, 8, 128)


def plan(geo=GQA, batch=None, gpu=RTX4090, kv=F16, **options):
    return dc.plan("llama-cpp", geo, batch or dc.Batch([4096]), kv=kv, gpu=gpu, **options)


def test_an_ada_card_decodes_one_sequence_with_vec():
    """16 parallel blocks of 32 heads are one full wave of 512, and a kernel combines them."""
    found = plan(max_blocks_per_sm=4)
    assert (found.stage1.name, found.stage1.grid) == ("flash_attn_ext_vec", (1, 16, 32))
    assert (found.merge.name, found.merge.grid) == ("flash_attn_combine_results", (1, 32, 1))


def test_large_groups_of_long_contexts_take_the_tensor_cores():
    """64 heads on 8 KV heads at 8192 cells: 512 stream-k blocks, the same number for each of 8 output tiles."""
    found = plan(geo=dc.Geometry(64, 8, 128), batch=dc.Batch([8192]), max_blocks_per_sm=4)
    assert (found.stage1.name, found.stage1.grid) == ("flash_attn_ext_f16", (512, 1, 1))
    assert (found.merge.name, found.merge.grid) == ("flash_attn_stream_k_fixup_uniform", (8, 1, 8))


def test_an_ampere_card_rounds_its_blocks_down():
    """164 blocks for 8 output tiles become 160: the 2 % that are lost save the general fix-up."""
    found = plan(gpu=RTX3090, max_blocks_per_sm=2)
    assert (found.stage1.name, found.stage1.grid) == ("flash_attn_ext_f16", (160, 1, 1))
    assert found.merge.name == "flash_attn_stream_k_fixup_uniform"


@pytest.mark.parametrize(
    ("gpu", "geo", "batch", "kv", "kernel"),
    [
        (A100, GQA, dc.Batch([4096]), F16, "mma"),
        (A100, dc.Geometry(32, 32, 128), dc.Batch([4096]), F16, "vec"),
        (A100, GQA, dc.Batch([4096]), dc.KvCache("int8"), "vec"),
        (A100, GQA, dc.Batch([4096], 2), dc.KvCache("int8"), "mma"),
        (RTX4090, GQA, dc.Batch([4096], 2), dc.KvCache("int8"), "vec"),
        (RTX4090, GQA, dc.Batch([4096, 4096]), F16, "mma"),
        (RTX4090, dc.Geometry(32, 8, 80), dc.Batch([4096]), F16, "mma"),
        (RTX4090, dc.Geometry(32, 8, 72), dc.Batch([4096]), F16, "tile"),
        (V100, GQA, dc.Batch([4096]), F16, "tile"),
        (V100, dc.Geometry(32, 32, 128), dc.Batch([4096]), F16, "vec"),
        (V100, GQA, dc.Batch([4096], 8), F16, "mma"),
        (PASCAL, GQA, dc.Batch([4096]), F16, "tile"),
        (PASCAL, GQA, dc.Batch([4096]), dc.KvCache("int4"), "vec"),
    ],
)
def test_kernel_choice(gpu, geo, batch, kv, kernel):
    """Turing and newer use tensor cores but for vec's cases; Volta only for many rows; Pascal has none."""
    assert plan(geo=geo, batch=batch, gpu=gpu, kv=kv).detail.kernel == kernel


def test_groups_are_rounded_up_on_turing_and_newer():
    """Five query heads take 8 columns, of which 3 hold nothing; Volta and the tile kernel need divisible groups."""
    five = dc.Geometry(40, 8, 128)
    assert plan(geo=five, gpu=A100).detail.ncols2 == 8
    assert plan(geo=five, gpu=A100).live_rows == 5
    assert plan(geo=five, gpu=V100, batch=dc.Batch([4096], 32)).detail.ncols2 == 1


def test_every_stream_scans_the_longest_ones_cells():
    """Two streams of unequal length share n_kv; the scan of the mask shortens the second one to its padded length."""
    found = plan(batch=dc.Batch([5000, 300]))
    assert (found.detail.n_kv, found.detail.kv_max_kernel) == (5120, True)
    assert found.keys_read == (5000, 512)
    assert not plan(batch=dc.Batch([5000])).detail.kv_max_kernel


def test_a_unified_cache_is_one_stream():
    """Three sequences of one token become three tokens of one stream that holds all their keys."""
    found = plan(batch=dc.Batch([1000, 2000, 3000]), kv_unified=True)
    assert (found.detail.streams, found.detail.n_kv) == (1, 6144)
    assert found.keys_read == (6000, 6000, 6000)


def test_parallel_blocks_take_tiles_in_turn():
    """The vec kernel's block i walks the chunks of 128 keys i, i + p, i + 2p, …"""
    found = plan(batch=dc.Batch([1100]), geo=dc.Geometry(8, 8, 128), max_blocks_per_sm=4)
    blocks = found.splits.launched
    assert found.splits.interleave_keys == 128
    chunks = [(start, min(start + 128, 1100)) for start in range(0, 1100, 128)]
    assert found.splits.pieces(0) == [chunks[i::blocks] for i in range(min(blocks, len(chunks)))]


def tried_one_by_one(tiles, most, occupancy, wave):
    """launch_fattn's loop in its plainest words."""
    found, best, best_waves = min(occupancy, most), 0, 0
    for count in range(found, most + 1):
        waves = -(-tiles * count // wave)
        percent = 100 * tiles * count // (waves * wave)
        if best >= 95 and waves > best_waves:
            break
        if percent > best:
            found, best, best_waves = count, percent, waves
    return found


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 2048), st.integers(1, 8), st.integers(1, 200))
def test_parallel_blocks_are_the_launchers(tiles, most, occupancy, sms):
    """Looking once at each wave finds what trying every count finds."""
    arrays = (np.array([x]) for x in (tiles, most, occupancy, occupancy * sms))
    assert parallel_blocks(*arrays)[0] == tried_one_by_one(tiles, most, occupancy, occupancy * sms)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 120), st.integers(1, 60), st.integers(1, 300), st.booleans())
def test_stream_k_cuts_the_tiles_that_a_walk_cuts(tiles, key_tiles, wave, always):
    """Cut output tiles, and the block of every key tile, agree with the block bounds i * work / blocks."""
    walk = stream_k(np.array([tiles]), np.array([key_tiles]), np.array([wave]), always)
    blocks, work = int(walk.blocks[0]), tiles * key_tiles
    bounds = [i * work // blocks for i in range(blocks + 1)]
    owner = [i for i in range(blocks) for _ in range(bounds[i], bounds[i + 1])]
    assert [int(walk.block_of(np.array([k]))[0]) for k in range(work)] == owner
    parts = [len(set(owner[t * key_tiles : (t + 1) * key_tiles])) for t in range(tiles)]
    assert walk.cut_tiles()[0] == sum(n > 1 for n in parts)
    assert max(parts) <= walk.most[0]
    assert walk.uniform[0] or walk.general[0] or max(parts) == 1  # a general fix-up may find nothing to repair
    assert not walk.uniform[0] or set(parts) == {int(walk.most[0])}


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 120), st.integers(1, 60), st.data())
def test_any_number_of_blocks_cuts_what_a_walk_cuts(tiles, key_tiles, data):
    """The closed form for cut tiles holds for every block count, also those that the launcher rounds away."""
    blocks = data.draw(st.integers(1, tiles * key_tiles))
    walk = StreamK(
        blocks=np.array([blocks]), tiles=np.array([tiles]), key_tiles=np.array([key_tiles]),
        uniform=np.array([False]), general=np.array([True]),
    )  # fmt: skip
    seams = {i * tiles * key_tiles // blocks for i in range(1, blocks)}
    inside = [s for s in seams if s % key_tiles]
    assert walk.seams()[0] == len(inside)
    assert walk.cut_tiles()[0] == len({s // key_tiles for s in inside})


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 20_000), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4, 8, 5]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([RTX4090, RTX3090, V100]),
)
def test_pieces_of_every_stream_tile_its_keys_once(lengths, group, tokens, gpu):
    """Whatever kernel runs, the pieces of a stream's splits are disjoint and cover its keys."""
    found = plan(geo=dc.Geometry(4 * group, 4, 128), batch=dc.Batch(lengths, tokens), gpu=gpu)
    for r, length in enumerate(lengths):
        pieces = sorted(piece for split in found.splits.pieces(r) for piece in split)
        assert len(found.splits.pieces(r)) == found.splits.live[r] <= found.splits.launched
        assert [start for start, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
        assert pieces[-1][1] == length


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60_000)), min_size=1, max_size=5),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([RTX4090, A100, PASCAL]),
)
def test_whole_array_and_scalar_planning_agree(steps, group, gpu):
    """A sweep's step n is the plan of its uniform batch, in grid, merge, buffers and the first stream's splits."""
    geo, opts = dc.Geometry(4 * group, 4, 128), POLICY.options_type()
    sizes, contexts = np.array(steps).T
    _, swept = POLICY.on_layer(geo, Batches.uniform(sizes, contexts), F16, gpu, opts, POLICY.version())
    for n, (size, context) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(size, context), F16, gpu)
        used = [k for k in swept.kernels if at(k.when, n)]
        assert [tuple(int(at(x, n)) for x in k.grid) for k in used] == [k.grid for k in one.kernels]
        assert [int(at(k.live_blocks, n)) for k in used if k.role != "stage1"] == [
            k.live_blocks for k in one.kernels if k.role != "stage1"
        ]
        assert int(at(swept.scratch_bytes, n)) == one.scratch_bytes
        assert int(swept.live[n, 0]) == one.splits.live[0]
        assert [list(ranges) for ranges in swept.key_ranges(n)] == [list(ranges) for ranges in one.splits.keys]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"geo": dc.Geometry(32, 8, 100)}, "head_dim"),
        ({"geo": dc.Geometry(8, 8, 512)}, "group"),
        ({"geo": dc.Geometry(20, 1, 320, 256, mla=True)}, "group"),
        ({"geo": dc.Geometry(16, 1, 576, 512, mla=True), "mask": False}, "gqa_path"),
        ({"kv": dc.KvCache("fp8")}, "kv_dtype"),
        ({"batch": dc.Batch([64, 64], [1, 2])}, "ragged_q_len"),
        ({"gpu": dc.load_gpu("mi300x")}, "not_nvidia"),
        ({"gpu": dc.Gpu(name="unknown", sm_count=100)}, "compute_capability"),
        ({"n_kv": 256}, "n_kv"),
    ],
)
def test_refusals(change, code):
    """What ggml has no kernel for carries a code."""
    with pytest.raises(dc.GateError) as refused:
        plan(**change)
    assert refused.value.code == code


def test_gates_say_what_costs_time():
    """A quantised cache is read directly by vec and converted in full before mma; soft caps are compiled for some."""
    int8 = dc.KvCache("int8")
    assert plan(kv=int8).gate("cache_used_directly").passed
    assert not plan(kv=int8, batch=dc.Batch([4096], 4)).gate("cache_used_directly").passed
    assert not plan(geo=dc.Geometry(32, 8, 64, softcap=30.0)).gate("softcap_compiled").passed
    assert plan(geo=dc.Geometry(32, 8, 128, softcap=30.0)).gate("softcap_compiled").passed
    assert not plan().gate("occupancy_given").passed


def test_tables_of_the_kernels():
    """Spot values of ggml's tables: threads, tiles, and the exceptions of Turing, Volta and compute capability 6.1."""
    assert (mma_config(128, 8, 800).batch_fa, mma_config(128, 16, 800).batch_fa) == (128, 64)
    assert (mma_config(256, 8, 800).threads, mma_config(256, 8, 750).threads) == (64, 128)
    assert (mma_config(576, 8, 750).batch_k2, mma_config(576, 8, 800).batch_k2) == (96, 288)
    assert mma_config(512, 32, 700).batch_combine == 64
    assert tile_config(128, 16, 610).batch_fa == 32
    assert tile_config(128, 16, 600).batch_fa == 64
