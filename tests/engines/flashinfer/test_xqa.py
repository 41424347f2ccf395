"""flashinfer-xqa: splits by the page table's width, tiles dealt in turn, refusals of the entry and of the build."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.analysis.explain import explain
from decodecalc.analysis.segments import segments
from decodecalc.analysis.traffic import traffic
from decodecalc.engines import load_policy
from decodecalc.engines.flashinfer.xqa_memory import generic_memory, hopper_memory
from decodecalc.launch.arrays import Batches, at
from decodecalc.launch.plan import LAST_BLOCK
from decodecalc.plot.segments import rows as drawn_rows
from decodecalc.scenario import Planned
from decodecalc.verify.run.execution import execution_of

LLAMA = dc.Geometry(32, 8, 128)
MQA = dc.Geometry(8, 1, 128)
RAGGED = (300, 8000, 64, 1)


def plan(
    geo: dc.Geometry = LLAMA, lens: tuple[int, ...] = (8000,), dtype: str = "bf16", q_len: int = 1,
    gpu: str = "h100-sxm", **options: Any,
) -> dc.LaunchPlan:  # fmt: skip
    """On an H100 with 132 SMs, pages of 16 keys."""
    return dc.plan("flashinfer-xqa", geo, dc.Batch(lens, q_len), kv=dc.KvCache(dtype, 16), gpu=gpu, **options)


@pytest.mark.parametrize("width", [500, 8192])
def test_a_sixteenth_of_the_sms_for_each_head(width: int) -> None:
    """132 SMs for 8 KV heads are 16 splits, whether the page table holds 8000 or 131072 keys."""
    found = plan(page_table_width=width)
    assert found.stage1.grid == (16, 8, 1)
    assert found.stage1.threads == 256
    assert (found.splits.live, found.scratch_bytes, found.tile_keys) == ((16,), 163_840, 256)


def test_hopper_counts_three_quarters_of_an_sm() -> None:
    """With FP8 keys 3 * 132 // 8 = 49 quarters round to 12 splits of the Hopper kernel's 64-key tiles."""
    found = plan(dtype="fp8")
    assert (found.stage1.grid, found.stage1.threads, found.tile_keys) == ((1, 12, 8), 384, 64)
    assert (found.detail.kernel, found.scratch_bytes) == ("mha_sm90_fp8", 101_376)


@pytest.mark.parametrize(
    ("dtype", "grid", "live"), [("bf16", (32, 1, 4), (2, 32, 1, 1)), ("fp8", (1, 25, 4), (5, 25, 1, 1))]
)
def test_short_requests_leave_splits_without_tiles(dtype: str, grid: tuple[int, ...], live: tuple[int, ...]) -> None:
    """All requests get the splits of the page table's width, and each can use at most its number of tiles."""
    found = plan(MQA, RAGGED, dtype, page_table_width=512)
    assert (found.stage1.grid, found.splits.live) == (grid, live)


@pytest.mark.parametrize(
    ("q_len", "kernel", "grid", "rows"), [(4, "mha", (16, 8, 1), 32), (16, "mha_sm90_fp8", (1, 12, 8), 64)]
)
def test_short_drafts_leave_the_hopper_kernel(q_len: int, kernel: str, grid: tuple[int, ...], rows: int) -> None:
    """Up to 32 rows of tokens times group run the generic kernel although the keys are FP8."""
    found = plan(dtype="fp8", q_len=q_len)
    assert (found.detail.kernel, found.stage1.grid, found.block_rows) == (kernel, grid, rows)
    assert found.gate("hopper_fp8_kernel").passed is (kernel == "mha_sm90_fp8")


def test_tiles_are_dealt_to_the_splits_in_turn() -> None:
    """Split 0 of 16 has the tiles 0 and 16 of 8000 keys, split 15 the tiles 15 and 31, of which the last is short."""
    splits = plan().splits
    assert splits.interleave_keys == 256
    assert splits.pieces(0)[0] == [(0, 256), (4096, 4352)]
    assert splits.pieces(0)[15] == [(3840, 4096), (7936, 8000)]
    assert splits.key_counts(0) == [512] * 15 + [320]


def test_whole_tiles_before_the_window_are_skipped() -> None:
    """With a window of 1024 keys 8000 keys leave tiles 27 to 31: five, so five of 16 splits have work."""
    found = plan(dc.Geometry(32, 8, 128, window=1024))
    assert (found.splits.live, found.detail.first_tile, found.keys_read) == ((5,), (27,), (8000 - 27 * 256,))
    assert found.splits.pieces(0)[0] == [(6912, 7168)]


def test_nobody_launches_a_merge() -> None:
    """A split launch has one kernel: the last block of a request merges 16-bit partial states."""
    found = plan()
    assert (found.is_split, found.merge_in, found.merge, len(found.kernels)) == (True, LAST_BLOCK, None, 1)
    assert found.state_values * 4 == 128 * 2 + 2 * 4
    assert traffic(found).partial_written_bytes == 16 * 32 * 264
    full = plan(lens=(8000,) * 64)
    assert (full.is_split, full.merge_in, full.scratch_bytes, full.stage1.grid) == (False, None, 0, (1, 8, 64))


def test_splits_without_tiles_write_a_state_on_the_generic_kernel_only() -> None:
    """The generic kernel merges all launched splits; Hopper's skips idle ones and writes one-tile requests itself."""
    assert plan(MQA, RAGGED, page_table_width=512).partial_splits == (32, 32, 32, 32)
    assert plan(MQA, RAGGED, "fp8", page_table_width=512).partial_splits == (5, 25, 0, 0)


def refused(*args: Any, **options: Any) -> str:
    """The code of a refusal."""
    with pytest.raises(dc.GateError) as error:
        plan(*args, **options)
    return error.value.code


def test_the_entry_and_the_build_refuse() -> None:
    """Each limit of the entry and of the kernels' static assertions has its own code."""
    assert refused(dc.Geometry(16, 1, 576, 512, mla=True)) == "head_dim_v"
    assert refused(dc.Geometry(32, 8, 100)) == "head_dim"
    assert refused(dc.Geometry(8, 8, 512), q_len=2) == "wide_head_draft"
    assert refused(dc.Geometry(20, 1, 512)) == "wide_head_group"
    assert refused(dc.Geometry(128, 1, 128)) == "query_tile"
    assert refused(dc.Geometry(40, 1, 128)) == "query_tile"
    assert refused(dc.Geometry(48, 1, 128), dtype="fp8") == "hopper_group"
    assert refused(dtype="nvfp4") == "nvfp4_needs_sm12x"
    assert refused(dtype="fp16") == "cache_dtype"
    assert refused(out_dtype="fp8") == "output_dtype"
    assert refused(ragged_q=True) == "ragged_q"


def test_other_architectures_and_pages() -> None:
    """Ampere and AMD devices are refused, and so is a page of 8 keys."""
    for gpu, page, code in (
        ("a100-sxm", 16, "compute_capability"),
        ("mi300x", 16, "compute_capability"),
        ("h100-sxm", 8, "page_size"),
    ):
        with pytest.raises(dc.GateError) as error:
            dc.plan("flashinfer-xqa", LLAMA, dc.Batch([64]), kv=dc.KvCache(page_size=page), gpu=gpu)
        assert error.value.code == code


def test_a_table_must_hold_the_longest_request() -> None:
    """A page table of 10 pages of 16 keys cannot hold 161 keys, and a promise of one token not a draft of two."""
    assert plan(lens=(160,), page_table_width=10).splits.launched == 1
    with pytest.raises(dc.InputError, match="161 keys"):
        plan(lens=(161,), page_table_width=10)
    with pytest.raises(dc.InputError, match="2 query tokens"):
        plan(q_len=2, q_len_per_req=1)


@pytest.mark.parametrize(
    ("head_dim", "dtype", "group", "major", "size"),
    [
        (128, "bf16", 64, 9, 183_424), (256, "bf16", 32, 12, 99_968), (512, "bf16", 16, 9, 157_312),
        (512, "fp8", 8, 12, 91_776), (64, "int8", 64, 9, 109_824), (256, "nvfp4", 32, 12, 86_656),
    ],
)  # fmt: skip
def test_generic_shared_memory(head_dim: int, dtype: str, group: int, major: int, size: int) -> None:
    """What nvcc 13.0 makes of sizeof(SharedMem) in mha.cu of flashinfer-python 0.7.4."""
    assert generic_memory(head_dim, dtype, -(-group // 16) * 16, major) == size


@pytest.mark.parametrize(
    ("head_dim", "rows", "swapped", "size"),
    [(128, 40, True, 45_312), (256, 32, True, 63_360), (64, 56, True, 30_336), (256, 64, False, 108_544)],
)
def test_hopper_shared_memory(head_dim: int, rows: int, swapped: bool, size: int) -> None:
    """What nvcc 13.0 makes of sizeof(SharedMem) in mha_sm90.cu of flashinfer-python 0.7.4."""
    assert hopper_memory(head_dim, rows, np.array(swapped), 16) == size


def test_the_hopper_build_holds_both_sources() -> None:
    """int8 keys run the generic kernel, but a build for Hopper has the FP8 kernel's source beside it."""
    assert not plan(dtype="int8").gate("both_kernels_compile").passed
    assert plan(dtype="bf16").gate("both_kernels_compile").passed
    assert not plan(dc.Geometry(24, 1, 128)).gate("both_kernels_compile").passed


@settings(max_examples=30, deadline=None)
@given(
    cases=st.lists(st.tuples(st.integers(1, 70), st.integers(8, 9000), st.integers(1, 16)), min_size=1, max_size=6),
    dtype=st.sampled_from(["bf16", "fp8"]),
)
def test_a_sweep_may_change_the_kernel_from_step_to_step(cases: list[tuple[int, int, int]], dtype: str) -> None:
    """Drafts of different lengths run different kernels: entry n of the array is the plan of step n alone."""
    policy, gpu, kv = load_policy("flashinfer-xqa"), dc.load_gpu("h100-sxm"), dc.KvCache(dtype, 16)
    cases = [(batch, max(keys, tokens), tokens) for batch, keys, tokens in cases]
    sweep = Batches.uniform(*(np.array(column) for column in zip(*cases)))
    _, found = policy.on_layer(LLAMA, sweep, kv, gpu, policy.options_type(), policy.version(None))
    for n, (batch, keys, tokens) in enumerate(cases):
        one = plan(lens=(keys,) * batch, dtype=dtype, q_len=tokens)
        assert (at(found.detail.kernel, n), at(found.detail.smem_bytes, n)) == (
            one.detail.kernel,
            one.detail.smem_bytes,
        )
        assert at(found.scratch_bytes, n) == one.scratch_bytes
        assert at(found.state_values, n) == one.state_values or not one.is_split
        assert at(found.detail.defines, n) == one.detail.defines


def test_segments_count_keys_and_pieces() -> None:
    """A dealt split spans from its first key to its last one and counts only its own keys, tiles and pieces."""
    rows = list(segments(plan(MQA, (8000,)), 0))
    assert (rows[0].start, rows[0].end, rows[0].keys, rows[0].tiles, rows[0].pieces) == (0, 256, 256, 1, 1)
    assert sum(row.keys for row in rows) == sum(row.visible_keys for row in rows) == 8000
    rows = list(segments(plan()))
    assert (rows[15].start, rows[15].end, rows[15].keys, rows[15].tiles, rows[15].pieces) == (3840, 8000, 320, 2, 2)


def test_every_dealt_range_is_drawn() -> None:
    """The picture of a launch has a bar for each range, and the bars hold all keys once."""
    item = Planned(case=0, layer_group=dc.LayerGroup("all", 1, MQA), batch=plan().batch, plan=plan())
    request = SimpleNamespace(scenarios=SimpleNamespace(plans=lambda: [item]))
    bars = sorted((bar["start"], bar["end"]) for bar in drawn_rows(request, []))
    assert bars == [(start, min(start + 256, 8000)) for start in range(0, 8000, 256)]


def test_a_walkthrough_says_who_merges_and_how_tiles_are_dealt() -> None:
    """The explanation names the round robin and the last block, and no merge kernel."""
    text = "\n".join(line for step in explain(plan()) for line in step.lines)
    assert "tiles of 256 keys are dealt to the 16 splits in turn" in text
    assert "the last block of a request to finish combines the partial states" in text
    assert "16-bit output vector" in text


def test_the_bundled_kernel_does_not_claim_to_run_it() -> None:
    """A proof with contiguous splits would show another partition, so it is refused in words; unsplit plans can run."""
    assert "splits of one size" in execution_of(plan(gpu="h200")).unsupported
    assert execution_of(plan(lens=(8000,) * 64, gpu="h200")).unsupported == ""
