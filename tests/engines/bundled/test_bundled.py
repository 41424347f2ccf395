"""The bundled kernel's policy: S_opt by itself, another engine's splits on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.load import load_calibration
from decodecalc.cost.tuning import default_variant
from decodecalc.engines import load_policy
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.launch.arrays import Batches

GEO = dc.Geometry(32, 8, 128)


def plan(batch: Any, geo: Any = GEO, **options: Any) -> Any:
    """On an H200."""
    return dc.plan("bundled", geo, batch, gpu="h200", **options)


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_live_splits_cover_every_key_once(lens: list[int]) -> None:
    """Ranges tile each request from 0 to its end, each at most one split long."""
    found = plan(dc.Batch(lens))
    for length, ranges in zip(lens, found.splits.keys):
        edges = [start for start, _ in ranges] + [length]
        assert edges[0] == 0
        assert all(start < end for start, end in ranges)
        assert [end for _, end in ranges] == edges[1:]
        assert len(ranges) <= found.splits.launched


@pytest.mark.parametrize("engine", ["vllm-triton", "sglang-triton", "flash-attention-3", "flash-decoding"])
def test_another_rule_keeps_its_splits_and_gets_our_tile(engine: str) -> None:
    """Ranges are the engine's to the key; tile and grid are the kernel's."""
    step = dc.Batch([500, 9000, 40_000])
    theirs, ours = dc.plan(engine, GEO, step, gpu="h200"), plan(step, split_policy=engine)
    assert list(ours.splits.keys) == list(theirs.splits.keys)
    assert ours.splits.live == theirs.splits.live
    default = default_variant(load_calibration(gpu=dc.load_gpu("h200")), GEO, dc.KvCache())
    assert (ours.tile_keys, ours.block_rows) == (default.tile_keys, 16)
    assert ours.stage1.grid == (8, 3, ours.splits.launched)
    assert ours.is_split == theirs.is_split


def test_fixed_size_is_batch_invariant() -> None:
    """With split_keys given, a request's ranges do not depend on who else is in the batch."""
    alone, crowd = plan(dc.Batch([9000]), split_keys=512), plan(dc.Batch([9000, 50_000, 3]), split_keys=512)
    assert alone.splits.keys[0] == crowd.splits.keys[0]
    assert alone.determinism == crowd.determinism == "fixed size"


def test_a_count_by_hand_is_the_longest_request_s() -> None:
    """2560 keys in 10 splits are 256 keys each: grid (8, 1, 10) and a merge of 32 heads, four a block."""
    found = plan(dc.Batch.uniform(1, 2560), num_splits=10, tile_keys=64)
    assert (found.splits.launched, found.splits.live, found.stage1.grid) == (10, (10,), (8, 1, 10))
    assert found.merge is not None
    assert found.merge.grid == (8, 1, 2)
    assert found.scratch_bytes == 32 * 10 * 130 * 4
    assert found.state_values == 130


def test_unsplit_has_no_merge_and_no_scratch() -> None:
    """num_splits 1."""
    found = plan(dc.Batch.uniform(1, 2560), num_splits=1)
    assert found.merge is None
    assert (found.scratch_bytes, found.path, found.determinism) == (0, "unsplit", "invariant")


def test_wide_groups_take_several_row_blocks() -> None:
    """71 query heads on one KV head: two blocks of 64 rows walk each split."""
    found = plan(dc.Batch.uniform(1, 4096), dc.Geometry(71, 1, 128), num_splits=4)
    assert found.block_rows == 64
    assert found.blocks_per_split == (2,)
    assert found.stage1.grid == (2, 1, 4)


LATENT_CACHE = dc.KvCache("bf16", 64)


def latent(
    heads: int, *, gpu: str = "h200", kv: dc.KvCache = LATENT_CACHE, q_len: int = 1, **options: Any
) -> dc.LaunchPlan:
    """The bundled kernel on 16 requests of a latent cache."""
    geo = dc.Geometry(heads, 1, 576, 512, mla=True)
    return dc.plan("bundled", geo, dc.Batch.uniform(16, 8192, q_len), kv=kv, gpu=gpu, **options)


@pytest.mark.parametrize(
    ("heads", "q_len", "row_blocks"), [(32, 1, 1), (64, 1, 1), (128, 1, 2), (16, 2, 1), (128, 4, 8)]
)
def test_latents_with_many_rows_run_on_hopper_s_warp_groups(heads: int, q_len: int, row_blocks: int) -> None:
    """64 rows a block, 12 warps, whole tiles of 64 keys."""
    found = latent(heads, q_len=q_len)
    assert (found.stage1.name, found.stage1.threads) == ("mla_stage1_kernel", 384)
    assert found.stage1.grid == (row_blocks, 16, found.splits.launched)
    assert (found.tile_keys, found.block_rows, found.detail.warps, found.detail.stages) == (64, 64, 12, 2)
    assert found.detail.split_keys % 64 == 0 or not found.is_split


@pytest.mark.parametrize("heads", [4, 16, 128])
def test_an_fp8_latent_runs_there_however_few_its_rows(heads: int) -> None:
    """The kernel for everything takes several times as long with FP8."""
    found = latent(heads, kv=dc.KvCache("fp8", 16, None, "bf16"))
    assert (found.stage1.name, found.tile_keys, found.block_rows) == ("mla_stage1_kernel", 64, 64)


@pytest.mark.parametrize("page", [1, 16, 1072])
def test_a_latent_runs_there_in_pages_of_any_size(page: int) -> None:
    """A tile's rows are copied one by one where pages are no whole tiles: the same launch."""
    assert latent(128, kv=dc.KvCache("bf16", page)).stage1 == latent(128).stage1


@pytest.mark.parametrize(
    "other",
    [
        {"heads": 16},
        {"heads": 128, "gpu": "a100-sxm"},
        {"heads": 128, "gpu": "b200-sxm"},
        {"heads": 128, "kv": dc.KvCache("fp8", 64, None, "fp8")},
        {"heads": 128, "kv": dc.KvCache("bf16", 64, None, "fp16")},
        {"heads": 128, "split_keys": 500},
        {"heads": 128, "tile_keys": 32},
        {"heads": 128, "split_policy": "vllm-triton-mla"},
    ],
    ids=str,
)
def test_other_latents_run_the_kernel_for_everything(other: dict[str, Any]) -> None:
    """Few rows, another GPU, queries in FP8 or of another type, cut tiles or another engine's rule."""
    found = latent(**other)
    assert found.stage1.name == "stage1_kernel"
    assert found.detail.warps in (1, 2, 4, 8)


def test_an_array_may_mix_both_kernels() -> None:
    """16 heads with one and with two query tokens: each step is what its plan is."""
    policy, gpu = load_policy("bundled"), dc.load_gpu("h200")
    geo = dc.Geometry(16, 1, 576, 512, mla=True)
    sweep = Batches.uniform(np.array([16, 16]), np.array([8192, 8192]), np.array([1, 2]))
    found = policy.launches(geo, sweep, LATENT_CACHE, gpu, policy.options_type(), policy.version())
    stages = [k for k in found.kernels if k.role == "stage1"]
    assert [k.name for k in stages] == ["stage1_kernel", "mla_stage1_kernel"]
    for n, q_len in enumerate((1, 2)):
        one = latent(16, q_len=q_len)
        (name,) = (k.name for k in stages if k.when[n])
        assert (name, found.launched[n], found.detail.warps[n]) == (
            one.stage1.name,
            one.splits.launched,
            one.detail.warps,
        )


def test_the_array_rule_is_the_scalar_rule() -> None:
    """Splits of a swept array equal each plan's."""
    policy, gpu, kv = load_policy("bundled"), dc.load_gpu("h200"), dc.KvCache()
    contexts = np.array([1, 100, 2560, 32_768, 131_072])
    _, found = policy.on_layer(GEO, Batches.uniform(4, contexts), kv, gpu, policy.options_type(), policy.version())
    for n, context in enumerate(contexts.tolist()):
        assert found.launched[n] == plan(dc.Batch.uniform(4, context)).splits.launched


@pytest.mark.parametrize("steps", [[(1, 2, 2), (25, 641, 1)], [(1, 3, 2), (1, 465, 1)], [(3, 9, 3), (1, 9, 1)]])
def test_an_array_may_mix_query_lengths(steps: list[tuple[int, int, int]]) -> None:
    """Steps of one, two and three query tokens are tuned apart inside one array, and each is what its plan is."""
    policy, gpu, kv = load_policy("bundled"), dc.load_gpu("h200"), dc.KvCache()
    sweep = Batches.uniform(*(np.array(column) for column in zip(*steps)))
    _, found = policy.on_layer(GEO, sweep, kv, gpu, policy.options_type(), policy.version())
    for n, step in enumerate(steps):
        one = plan(dc.Batch.uniform(*step))
        assert (found.launched[n], found.split_keys[n, 0]) == (one.splits.launched, one.detail.split_keys)
        assert (found.scratch_bytes[n], found.detail.warps[n]) == (one.scratch_bytes, one.detail.warps)
        assert found.gates[0].reason(n) == one.gates[0].reason


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tile_keys": 48}, GateError, "power of two"),
        ({"num_splits": 4, "split_keys": 64}, InputError, "one of them"),
        ({"split_policy": "bundled"}, InputError, "another engine"),
        ({"split_policy": "vllm"}, UnknownNameError, "vllm-triton"),
        ({"split_keys": 1}, GateError, "grid"),
    ],
)
def test_what_the_kernel_cannot_run_is_refused(options: dict[str, Any], error: type, message: str) -> None:
    """Each with its own message."""
    with pytest.raises(error, match=message):
        plan(dc.Batch.uniform(1, 100_000), **options)
