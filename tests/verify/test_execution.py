"""A plan as a launch of the bundled kernel: the kernel's own arithmetic on it gives the plan's key ranges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodecalc import Batch, Geometry, KvCache, load_gpu, plan
from decodecalc.errors import GateError
from decodecalc.verify.run.execution import execution_of, predicted_kernels
from decodecalc_kernels import live

GPU = load_gpu("h200")
ENGINES = ("bundled", "vllm-triton", "sglang-triton", "flash-decoding", "flash-attention-2", "flash-attention-3",
           "flashinfer", "flex-decoding", "paged-attention-v2")  # fmt: skip
GEOMETRIES = (Geometry(32, 8, 128), Geometry(28, 4, 128), Geometry(8, 1, 256), Geometry(8, 8, 64))


def device_ranges(run, length, request, q_len=1):
    """Key ranges by decodecalc_kernels.live, the functions that the kernel itself compiles."""
    config, window = run.launch, run.window or 0
    clamp = config.window_partition == "window"
    keys = length - live.first_key(length, q_len, window, int(clamp))
    if config.direct:
        size = keys
    elif config.split_rule == "size":
        size = config.split_value
    elif config.split_rule == "count":
        size = live.split_keys_of(keys, config.split_value, config.split_unit)
    elif config.split_rule == "counts":
        size = live.split_keys_of(keys, max(1, run.split_values[request]), config.split_unit)
    else:
        size = run.split_values[request]
    return live.splits(length, size, config.num_splits, q_len=q_len, window=window, clamp=clamp, tile=config.tile_keys)


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(ENGINES),
    geometry=st.sampled_from(GEOMETRIES),
    lens=st.lists(st.integers(1, 9000), min_size=1, max_size=6),
)
def test_every_regular_rule_runs_as_planned(engine, geometry, lens):
    try:
        planned = plan(engine, geometry, Batch(lens), kv=KvCache(), gpu=GPU)
    except GateError:
        return
    run = execution_of(planned)
    assert not run.unsupported
    for r, length in enumerate(lens):
        assert device_ranges(run, length, r) == list(planned.splits.keys[r])


@settings(max_examples=30, deadline=None)
@given(lens=st.lists(st.integers(1, 3000), min_size=1, max_size=4), window=st.integers(1, 600))
def test_windows_walk_the_keys_that_the_plan_reads(lens, window):
    geometry = Geometry(8, 2, 128, window=window)
    for engine in ("vllm-triton", "bundled"):
        planned = plan(engine, geometry, Batch(lens), kv=KvCache(), gpu=GPU)
        run = execution_of(planned)
        for r, length in enumerate(lens):
            walked = [b - a for a, b in device_ranges(run, length, r)]
            assert sum(walked) == planned.keys_read[r]
            assert sum(w > 0 for w in walked) == planned.splits.working[r]


def test_idle_query_blocks_of_vllm_are_launched_too():
    planned = plan("vllm-triton", Geometry(32, 8, 128), Batch.uniform(16, 2560), kv=KvCache(), gpu=GPU)
    (stage1, merge) = predicted_kernels(planned, execution_of(planned))
    assert stage1.blocks == planned.stage1.launched_blocks == 20 * 8 * 16
    assert merge.grid[1] == 16


def test_what_is_timed_is_our_own_launch_of_the_engine_s_splits():
    """Falcon's 71 heads under vLLM's rule: its block of 128 rows and its padding of the grid for the exact claims, our
    two blocks of 64 rows and no padding for the clock, the same 16 splits in both."""
    found = plan("vllm-triton", Geometry(71, 1, 64), Batch.uniform(4, 2048), gpu=GPU)
    run = execution_of(found)
    assert (run.launch.rows, run.timed.rows) == (128, 64)
    assert run.launch.idle_requests == 4
    assert run.timed.idle_requests == 0
    names = ("num_splits", "split_rule", "split_value", "split_unit")
    assert [getattr(run.launch, n) for n in names] == [getattr(run.timed, n) for n in names]


def test_a_latent_on_warp_groups_runs_in_the_only_block_it_has():
    latent = Geometry(128, 1, 576, 512, mla=True)
    planned = plan("bundled", latent, Batch([4000, 100]), kv=KvCache(page_size=64), gpu=GPU)
    run = execution_of(planned)
    for config in (run.launch, run.timed):
        assert (config.kernel, config.rows, config.tile_keys, config.warps, config.stages) == (
            "mla_stage1",
            64,
            64,
            12,
            2,
        )
    stage1, *_ = predicted_kernels(planned, run)
    assert (stage1.grid, stage1.threads) == (planned.stage1.grid, planned.stage1.threads)


def test_what_the_kernel_cannot_run_says_why():
    latent = Geometry(128, 1, 576, 512, mla=True)
    irregular = plan("flashmla", latent, Batch([4000, 100]), kv=KvCache(page_size=64), gpu=GPU)
    assert "splits of one size" in execution_of(irregular).unsupported
    eight_bit = plan("flash-decoding", Geometry(8, 8, 128), Batch([100]), kv=KvCache("int8"), gpu=GPU)
    assert "int8" in execution_of(eight_bit).unsupported


@pytest.mark.parametrize("engine", ["vllm-triton", "sglang-triton", "bundled"])
def test_the_pipeline_fits_shared_memory(engine):
    planned = plan(engine, Geometry(8, 1, 256), Batch.uniform(1, 8192), kv=KvCache(), gpu=GPU)
    config = execution_of(planned).launch
    assert config.tile_keys * config.stages * 2 * 256 * 2 < GPU.max_smem_bytes_per_block


@given(
    st.integers(1, 64), st.integers(64, 40_000), st.integers(2, 600), st.sampled_from([64, 80, 128, 256]),
    st.sampled_from([1, 2, 4]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_the_bundled_policy_plans_the_merge_that_the_launcher_runs(batch, context, splits, width, q_len):
    """Grid and threads, whatever splits, rows and widths shape its blocks: 10 splits of 32 heads are (8, 1, 2)."""
    step = Batch.uniform(batch, context, q_len)
    planned = plan("bundled", Geometry(32, 8, width), step, gpu=GPU, num_splits=splits)
    shapes = predicted_kernels(planned, execution_of(planned))
    assert len(shapes) == 1 + planned.is_split
    if planned.merge is not None:
        assert planned.merge.grid == shapes[1].grid
        assert planned.merge.threads == shapes[1].threads
