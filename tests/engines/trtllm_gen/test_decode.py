"""trtllm-gen: splits by the promised length, where they are reduced, and what no kernel serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.analysis.traffic import traffic
from decodecalc.engines import load_policy
from decodecalc.engines.trtllm_gen.decode import even_gpcs
from decodecalc.engines.trtllm_gen.kernels import CGA, DISABLED, GMEM, GMEM_SEPARATE, CubinFamily
from decodecalc.launch.arrays import Batches, at
from decodecalc.launch.plan import CLUSTER, LAST_BLOCK, MERGE_KERNEL

LLAMA = dc.Geometry(32, 8, 128)
DEEPSEEK = dc.Geometry(128, 1, 576, 512, mla=True)
SMALL_MLA = dc.Geometry(16, 1, 576, 512, mla=True)
VERSIONS = ("0.6.13", "0.7.2.post1", "0.7.4")


def plan(
    geo: dc.Geometry = LLAMA, lens: tuple[int, ...] = (8192,), q_len: int = 1, version: str = "0.7.4",
    kv: dc.KvCache | None = None, gpu: str = "b200-sxm", **options: Any,
) -> dc.LaunchPlan:  # fmt: skip
    """On a B200 with 148 SMs, 16-bit, pages of 64 keys."""
    cache = kv or dc.KvCache("bf16", 64)
    return dc.plan(f"trtllm-gen@{version}", geo, dc.Batch(lens, q_len), kv=cache, gpu=gpu, **options)


def test_sixteen_splits_reduce_in_a_cluster() -> None:
    """8192 keys have room for 16 splits of two iterations of 256 keys: one cluster of 16 blocks for each KV head."""
    found = plan()
    assert (found.stage1.grid, found.detail.cluster_x, found.merge_in, found.merge) == ((16, 8, 1), 16, CLUSTER, None)
    assert found.splits.keys[0][:2] == [(0, 512), (512, 1024)]
    assert (found.scratch_bytes, traffic(found).partial_written_bytes) == (0, 0)


def test_long_contexts_fill_one_wave_through_global_memory() -> None:
    """131072 keys: 148 SMs for 8 blocks are 18 splits, too many for a cluster, which the last block merges."""
    found = plan(lens=(131_072,))
    assert (found.stage1.grid, found.detail.cluster_x, found.merge_in) == ((18, 8, 1), 1, LAST_BLOCK)
    assert traffic(found).partial_written_bytes == 18 * 32 * (128 * 2 + 8)


@pytest.mark.parametrize(("version", "splits"), [("0.6.13", 18), ("0.7.2.post1", 16), ("0.7.4", 16)])
def test_newer_versions_clamp_to_a_cluster(version: str, splits: int) -> None:
    """65536 keys over 16 splits are 4096 keys a block, which 0.7 takes for the sake of the cluster."""
    assert plan(lens=(65_536,), version=version).splits.launched == splits


@pytest.mark.parametrize(
    ("options", "grid", "scheduler"),
    [({}, (1, 8, 16), "persistent"), ({"multi_wave_env": True}, (4, 8, 16), "static")],
)
def test_a_full_wave_is_not_split(options: dict[str, Any], grid: tuple[int, ...], scheduler: str) -> None:
    """16 requests of 8 KV heads leave one split a wave: persistent and unsplit, or four waves on request."""
    found = plan(lens=(8192,) * 16, **options)
    assert (found.stage1.grid, found.detail.scheduler) == (grid, scheduler)


def test_several_waves_need_room_and_the_newest_version() -> None:
    """Partial states of four waves that do not fit the workspace, and older versions, leave the one-wave rule."""
    lens = (8192,) * 16
    assert plan(lens=lens, multi_wave_env=True, workspace_bytes=1 << 16).splits.launched == 1
    assert plan(lens=lens, multi_wave_env=True, version="0.7.2.post1").splits.launched == 1


@pytest.mark.parametrize(
    ("keys", "grid", "cluster", "splits", "merge"),
    [(131_072, (148, 1, 1), 2, 74, MERGE_KERNEL), (8192, (9, 16, 1), 1, 9, LAST_BLOCK)],
)
def test_mla_of_128_heads(keys: int, grid: tuple[int, ...], cluster: int, splits: int, merge: str) -> None:
    """Long contexts run pairs of blocks and a reduction kernel, short ones share heads and values out over blocks."""
    found = plan(DEEPSEEK, (keys,))
    assert (found.stage1.grid, found.detail.cluster_x, found.splits.launched) == (grid, cluster, splits)
    assert (found.merge_in, found.merge is not None) == (merge, merge == MERGE_KERNEL)


def test_the_promised_length_decides_alone() -> None:
    """A captured graph keeps the split of its bound: the lengths of the step change neither grid nor kernel."""
    short, long = (plan(lens=lens, max_kv_len=131_072) for lens in ((300,), (100_000,)))
    assert short.stage1.grid == long.stage1.grid == (18, 8, 1)
    assert short.live_blocks < long.live_blocks == 18 * 8
    assert short.splits.live == (2,)
    with pytest.raises(dc.InputError, match="300 keys"):
        plan(lens=(300,), max_kv_len=299)


def test_sparse_mla_counts_selected_keys() -> None:
    """With top-k 2048 a long request has splits for 2048 keys and reads no more."""
    found = plan(DEEPSEEK, (131_072,), sparse_mla_top_k=2048)
    assert (found.keys_read, found.tile_keys) == ((2048,), 128)
    assert "StaticTokenSparse" in found.stage1.name
    assert found.splits.launched == 8
    assert found.splits.key_counts(0) == [256] * 8
    assert sum(plan(DEEPSEEK, (131_072,), sparse_mla_top_k=2000).splits.key_counts(0)) == 2000


def test_windows_bound_the_splits() -> None:
    """A window of 1024 keys leaves room for splits of it and the rest of a first iteration."""
    geo = dc.Geometry(32, 8, 128, window=1024)
    found = plan(geo, (100_000,))
    assert found.splits.launched == 3 == -(-(1024 + 255) // 512)
    assert "SlidingOrChunkedCausal" in found.stage1.name
    assert "Causal" in plan(geo, (1024,)).stage1.name


def test_clusters_need_room() -> None:
    """Where too few clusters run at a time, the same splits are reduced through global memory."""
    roomy = plan(lens=(8192,) * 8)
    assert roomy.splits.launched == 2
    lens = (4096,) * 2
    assert plan(lens=lens).merge_in == CLUSTER
    crowded = plan(lens=lens, gpc_sms=[4] * 37)
    assert (crowded.merge_in, crowded.detail.queried_cluster) == (LAST_BLOCK, 8)
    assert crowded.stage1.grid == plan(lens=lens).stage1.grid
    assert not crowded.gate("cluster_reduction").passed


def refused(*args: Any, **options: Any) -> str:
    """The code of a refusal."""
    with pytest.raises(dc.GateError) as error:
        plan(*args, **options)
    return error.value.code


def test_what_no_kernel_serves() -> None:
    """Each limit has a code: architecture, sizes, types, pages, windows and heads."""
    assert refused(gpu="h100-sxm") == "not_sm100"
    assert refused(dc.Geometry(32, 8, 96)) == "head_dim"
    assert refused(dc.Geometry(128, 1, 512, 512, mla=True)) == "head_dim"
    assert refused(kv=dc.KvCache("nvfp4", 64)) == "dtype"
    assert refused(DEEPSEEK, kv=dc.KvCache("fp8", 64)) == "dtype"
    assert refused(o_dtype="fp8") == "output_dtype"
    assert refused(kv=dc.KvCache("bf16", 48)) == "page_size"
    assert refused(dc.Geometry(16, 2, 512), kv=dc.KvCache("bf16", 128)) == "page_size"
    assert refused(dc.Geometry(128, 1, 576, 512, window=100, mla=True)) == "window"
    assert refused(dc.Geometry(96, 1, 576, 512, mla=True)) == "mla_heads"
    assert refused(sparse_mla_top_k=64) == "sparse_mla"
    assert refused(dc.Geometry(24, 1, 128), kv=dc.KvCache("fp8", 64)) == "head_group"
    assert refused(dc.Geometry(8, 8, 128), kv=dc.KvCache("bf16", 128), version="0.6.13") == "page_size"
    assert refused(dc.Geometry(64, 1, 512), version="0.6.13") == "no_kernel"


def test_newer_versions_pad_mla_heads() -> None:
    """40 heads of MLA run in one tile of 64 rows since 0.7.2; 0.6.13 cannot share them out over tiles of 16."""
    geo = dc.Geometry(40, 1, 576, 512, mla=True)
    assert plan(geo, version="0.7.4").block_rows == 64
    assert refused(geo, version="0.6.13") == "head_group"


def test_grouped_mla_drafts_need_a_newer_kernel_list() -> None:
    """Drafts of 16 heads in pages of 32 keys share a tile of 64 rows in 0.7, with a kernel not listed in 0.6.13."""
    geo, kv = dc.Geometry(16, 1, 576, 512, mla=True), dc.KvCache("bf16", 32)
    new, old = (plan(geo, q_len=4, kv=kv, version=version) for version in ("0.7.4", "0.6.13"))
    assert (new.block_rows, new.detail.groups_tokens_heads_q) == (64, True)
    assert (new.gate("kernel_listed").passed, old.block_rows) == (False, 16)


@pytest.mark.parametrize(
    ("qk", "vo", "dtype", "tile", "keeps", "mode", "persistent", "width", "pair", "size"),
    [
        (128, 128, "bf16", 8, False, CGA, False, 128, False, 174_696),
        (128, 128, "bf16", 8, False, DISABLED, True, 128, False, 143_120),
        (512, 512, "bf16", 32, False, GMEM, False, 512, False, 183_376),
        (256, 256, "fp8", 128, True, GMEM, False, 256, False, 214_192),
        (576, 512, "bf16", 64, True, GMEM_SEPARATE, False, 256, True, 223_880),
        (576, 512, "fp8", 64, True, DISABLED, True, 256, True, 207_608),
        (576, 512, "fp8", 16, False, GMEM, False, 128, False, 174_256),
    ],
)
def test_shared_memory_of_listed_kernels(
    qk: int, vo: int, dtype: str, tile: int, keeps: bool, mode: int, persistent: bool, width: int, pair: bool, size: int
) -> None:
    """Seven entries of the kernel list of flashinfer-cubin 0.6.13."""
    family = CubinFamily(
        qk=qk, vo=vo, mla=qk != vo, sparse=False, q_dtype=dtype, kv_dtype=dtype, o_dtype="bf16", page_size=64
    )
    assert family.shared_memory(tile, np.array(keeps), np.array(mode), persistent, width, pair) == size
    assert family.listed(tile, np.array(keeps), np.array(mode), width, family.groups_tokens)


@given(st.integers(1, 400))
def test_assumed_gpcs_hold_all_pairs_of_sms(sms: int) -> None:
    """The assumed clusters hold every pair of SMs, none more than 20, and none two pairs more than another."""
    found = even_gpcs(sms)
    assert sum(found) == sms // 2 * 2
    assert max(found) <= 20
    assert max(found) - min(found) <= 2


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(VERSIONS),
    st.sampled_from([LLAMA, DEEPSEEK, SMALL_MLA, dc.Geometry(8, 1, 64), dc.Geometry(64, 8, 256)]),
    st.lists(st.tuples(st.integers(1, 200), st.integers(8, 140_000), st.integers(1, 8)), min_size=1, max_size=8),
    st.booleans(),
)  # fmt: skip
def test_steps_of_an_array_do_not_touch_each_other(
    version: str, geo: dc.Geometry, cases: list[tuple[int, int, int]], multi_wave: bool
) -> None:
    """Kernel selection runs over all steps at once; each step's outcome is what it is alone."""
    policy, gpu, kv = load_policy("trtllm-gen"), dc.load_gpu("gb200"), dc.KvCache("bf16", 64)
    options = policy.options_type(multi_wave_env=multi_wave)
    sweep = Batches.uniform(*(np.array(column) for column in zip(*cases)))
    _, found = policy.on_layer(geo, sweep, kv, gpu, options, policy.version(version))
    for n, (batch, keys, tokens) in enumerate(cases):
        one = policy.plan(geo, dc.Batch.uniform(batch, keys, tokens), kv, gpu, options, version)
        assert at(found.detail.kernel, n) == one.stage1.name
        assert (at(found.detail.smem, n), at(found.launched, n)) == (one.detail.smem, one.splits.launched)
        assert at(found.merge_in, n) == one.merge_in or not one.is_split
        assert at(found.scratch_bytes, n) == one.scratch_bytes
        assert one.detail.cluster_x <= 32
        blocks = one.stage1.launched_blocks
        assert multi_wave or not one.is_split or blocks <= gpu.sm_count
