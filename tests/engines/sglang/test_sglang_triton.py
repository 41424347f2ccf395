"""SGLang's Triton policy: known launches, what options and versions change, and laws that hold for every step."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodecalc.batch import Batch
from decodecalc.engines import plan
from decodecalc.engines.sglang.triton import POLICY, heads_with_wrong_kv_head
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.geometry import Geometry
from decodecalc.gpus import load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, at, row

LLAMA3_8B = Geometry(q_heads=32, kv_heads=8, head_dim=128)
DEEPSEEK_TP8 = Geometry(q_heads=16, kv_heads=1, head_dim=576, head_dim_v=512, mla=True)
RECORDED = "sglang-triton@0.5.10"


def sglang(geo=LLAMA3_8B, lens=(2560,), gpu="h100-sxm", engine="sglang-triton", **options):
    return plan(engine, geo, Batch(lens), kv=KvCache(page_size=1), gpu=gpu, **options)


# -- values -----------------------------------------------------------------------------------------------------------


def test_llama3_8b_at_2560_keys_takes_the_cap():
    """e = 702, 8 head blocks: min(88, 8) = 8 splits of 320 keys (split rule of triton_backend.py, worked by hand)."""
    p = sglang()
    assert (p.detail.ext_device_core_count, p.detail.token_grid) == (702, 8)
    assert (p.splits.requested, p.splits.launched, p.splits.live) == ((8,), 8, (8,))
    assert p.splits.keys[0][0] == (0, 320)
    assert p.splits.keys[0][-1] == (2240, 2560)
    assert "ceil(702 / 8 blocks) = 88, cap 8) = 8" in p.gate("cap_not_binding").reason


def test_kernels_of_an_h200_step():
    """One scheduler block, a grouped stage 1 and a merge, all of 128 threads, as a profiler shows them on an H200."""
    scheduler, stage1, merge = sglang(gpu="h200").kernels
    assert (scheduler.name, scheduler.role, scheduler.grid) == ("get_num_kv_splits_triton", "scheduler", (1, 1, 1))
    assert (stage1.name, stage1.grid, stage1.tile_keys) == ("_fwd_grouped_kernel_stage1", (1, 8, 8), 32)
    assert (merge.name, merge.grid, merge.live_blocks) == ("_fwd_kernel_stage2", (1, 32), 32)
    assert {k.threads for k in (scheduler, stage1, merge)} == {128}


def test_scratch_is_what_the_backend_allocates():
    """fp32 attn_logits [rows, heads, cap, Dv] and attn_lse [rows, heads, cap]; under graphs for the largest graph."""
    assert sglang(lens=(100, 200)).scratch_bytes == 2 * 32 * 8 * (128 + 1) * 4
    assert sglang(lens=(100, 200), graph_max_tokens=160).scratch_bytes == 160 * 32 * 8 * (128 + 1) * 4


@pytest.mark.parametrize(("keys", "live"), [(128, 4), (224, 7), (225, 8), (32768, 8)])
def test_cap_8_leaves_an_a100_idle(keys, live):
    """sgl-project/sglang PR #27786: 8 splits at any length, 64 blocks on 108 SMs; fewer live below 225 keys."""
    p = sglang(lens=(keys,), gpu="a100-sxm4-80gb")
    assert p.splits.requested == (8,)
    assert p.splits.live == (live,)
    assert p.live_blocks == 8 * live
    assert p.s_star == 14


def test_a_cap_of_64_fills_an_h100():
    """sgl-project/sglang PR #21775 (Qwen3-8B at 32 K): 64 blocks with cap 8, 512 with the cap proposed there."""
    assert sglang(lens=(32768,)).live_blocks == 64
    p = sglang(lens=(32768,), max_kv_splits_arg=64)
    assert (p.splits.launched, p.splits.live, p.live_blocks) == (64, (64,), 512)


MHA = Geometry(q_heads=32, kv_heads=32, head_dim=128)


@pytest.mark.parametrize(
    ("geo", "lens", "gpu", "requested"),
    [
        (MHA, (4096,) * 16, "h100-sxm", (2,) * 16),
        (LLAMA3_8B, (128, 8192), "h100-sxm", (1, 8)),
        (LLAMA3_8B, (512,) * 31 + (32768,), "h100-sxm", (1,) * 31 + (8,)),
        (LLAMA3_8B, (8000, 9900), "h100-sxm", (7, 8)),
        (LLAMA3_8B, (1024,) * 32, "mi300x", (5,) * 32),
        (LLAMA3_8B, (1024,) * 256, "mi300x", (1,) * 256),
    ],
)
def test_adaptive_counts(geo, lens, gpu, requested):
    """Mixed and equal batches of sgl-project/sglang PRs #2271 and #2394 get the counts their formula gives."""
    assert sglang(geo, lens, gpu).splits.requested == requested


def test_one_kv_head_per_rank_takes_the_grouped_kernel():
    """sgl-project/sglang #2465: TP 8 leaves 8 query heads on 1 KV head: one head block, and empty splits."""
    p = sglang(Geometry(q_heads=8, kv_heads=1, head_dim=128), (100,))
    assert p.stage1.grid == (1, 1, 8)
    assert (p.splits.requested, p.splits.live) == ((8,), (4,))
    assert not p.gate("every_split_live").passed


def test_the_grid_never_changes_with_the_lengths():
    """sgl-project/sglang PR #26019: a replayed graph has the cap as its z; only the counts on the device move."""
    short, long = sglang(lens=(64, 64), padded_batch=4), sglang(lens=(9000, 70), padded_batch=4)
    assert [k.grid for k in short.kernels] == [k.grid for k in long.kernels]
    assert short.splits.live != long.splits.live


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "wrong"),
    [(40, 2, 12), (56, 2, 4), (48, 2, 8), (96, 4, 48), (64, 2, 0), (71, 1, 0), (48, 1, 0), (32, 8, 0)],
)
def test_groups_over_16_may_read_wrong_kv_heads(q_heads, kv_heads, wrong):
    """decode_attention.py indexes KV heads by block // ceil(group / 16): wrong unless 16 divides the group."""
    geo = Geometry(q_heads=q_heads, kv_heads=kv_heads, head_dim=128)
    assert heads_with_wrong_kv_head(geo) == wrong
    if geo.group > 16:
        assert sglang(geo).gate("kv_head_mapping").passed == (wrong == 0)


def test_padding_rows_change_everyones_count():
    """Nine requests of 4096 padded to 16 take 8 splits each, sixteen real ones take 7: padding rows have length 1."""
    assert sglang(lens=(4096,) * 9, padded_batch=16).splits.requested == (8,) * 9
    assert sglang(lens=(4096,) * 16, padded_batch=16).splits.requested == (7,) * 16


def test_short_rows_lose_most_splits_to_rounding():
    """29 requested splits of 256 keys: ceil(256 / 29) = 9 rounds up to 32 keys, 8 splits live (114 SMs, cap 32)."""
    p = sglang(lens=(256,), gpu=load_gpu("h100-sxm").with_(sm_count=114), max_kv_splits_arg=32)
    assert (p.splits.requested, p.splits.live, p.live_blocks) == ((29,), (8,), 64)


def test_counts_and_grids_seen_on_an_h200(data_dir):
    """SGLang's scheduler and kernels ran on an H200 (traces' inputs): our counts for every request of every trace."""
    for file in sorted((data_dir / "traces").glob("h200_*.inputs.json")):
        seen = json.loads(file.read_text())
        p = sglang(Geometry(seen["h"], seen["hk"], 128), seen["lens"], "h200")
        assert list(p.splits.requested) == seen["sgl_splits"], file.name


# -- modes ------------------------------------------------------------------------------------------------------------


def test_deterministic_tile_is_256_keys():
    """--enable-deterministic-inference: ceil(L / 256) splits, cap from the context, no scheduler kernel."""
    p = sglang(lens=(40960,), deterministic=True, max_context_len=40960)
    assert (p.splits.launched, p.splits.requested, p.splits.live) == (160, (160,), (160,))
    assert [k.role for k in p.kernels] == ["stage1", "merge"]
    assert p.determinism == "fixed size"


def test_deterministic_splits_do_not_depend_on_the_batch():
    """A request's key ranges are the same alone and beside any other request."""
    alone = sglang(lens=(3000,), deterministic=True).splits.keys[0]
    assert sglang(lens=(3000, 9, 100_000), deterministic=True).splits.keys[0] == alone


def test_static_counts_are_the_cap():
    """SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS; deterministic mode overrides it."""
    assert sglang(lens=(33, 64, 65), static_kv_splits=True).splits.requested == (8, 8, 8)
    both = sglang(lens=(600,), static_kv_splits=True, deterministic=True)
    assert both.splits.requested == (3,)
    assert not both.gate("static_kv_splits").passed


def test_draft_branches_are_rows():
    """Step 1 of a draft with 4 branches: 4 rows a request with one more key, counts from the request's own length."""
    p = sglang(lens=(100, 120), draft_topk=4)
    assert p.stage1.grid == (8, 8, 8)
    assert p.splits.requested == (3, 3)
    assert p.keys_read == (101, 121)
    assert p.splits.keys[0] == [(0, 64), (64, 101)]


def test_window_layers_read_the_window_with_counts_for_full_lengths():
    """L 20000, window 1024 (the backend holds 1023): 8 splits of the last 1023 keys; 300 keys keep their count of 1."""
    p = sglang(Geometry(32, 8, 128, window=1024), (20000, 300), engine=RECORDED)
    assert (p.keys_read, p.splits.requested) == ((1023, 300), (8, 1))
    assert p.detail.window_num_kv_splits == (8, 3)
    assert p.splits.keys[0][0] == (20000 - 1023, 20000 - 1023 + 128)
    assert p.splits.keys[0][-1][1] == 20000
    assert not p.gate("window_counts").passed


# -- versions and devices ---------------------------------------------------------------------------------------------


def test_mla_cap_grew_with_0_5_12():
    """DeepSeek at TP 8 on 132 SMs: cap 8 up to 0.5.11, then min(np2(132), np2(ceil(163840 / 32))) = 256."""
    caps = {
        v: sglang(DEEPSEEK_TP8, (4096,), engine=f"sglang-triton@{v}", max_context_len=163840).splits.launched
        for v in ("0.5.10.post1", "0.5.11", "0.5.12", "0.5.23")
    }
    assert caps == {"0.5.10.post1": 8, "0.5.11": 8, "0.5.12": 256, "0.5.23": 256}


def test_mla_cap_stops_at_256_on_gfx942_from_0_5_13():
    """304 compute units would round up to 512."""
    caps = [
        sglang(DEEPSEEK_TP8, (4096,), "mi300x", f"sglang-triton@{v}", max_context_len=163840).splits.launched
        for v in ("0.5.12", "0.5.13")
    ]
    assert caps == [512, 256]


def test_mla_reads_its_latent_once_from_0_5_12():
    """Before, V was a second load of the same latent."""
    assert sglang(DEEPSEEK_TP8, engine=RECORDED).detail.loads_latent_twice
    assert not sglang(DEEPSEEK_TP8).detail.loads_latent_twice


def test_amd_has_its_own_cap_tiles_and_wavefronts():
    """Cap 16; tiles of 8 keys for MHA and 16 for keys of 576 elements; 4 wavefronts of 64 threads."""
    assert sglang(gpu="mi300x").splits.launched == 16
    assert [sglang(g, gpu="mi300x").tile_keys for g in (MHA, LLAMA3_8B, DEEPSEEK_TP8)] == [8, 32, 16]
    assert [sglang(g).tile_keys for g in (MHA, LLAMA3_8B, DEEPSEEK_TP8)] == [64, 32, 32]
    assert sglang(gpu="mi300x").stage1.threads == 256


@pytest.mark.parametrize(("rows", "splits", "threads"), [(1, 112, 256), (5, 51, 256), (24, 21, 128), (136, 7, 64)])
def test_tuned_gfx950_geometry(rows, splits, threads):
    """SGLANG_MLA_DECODE_TUNE on an MI355X: one count for the batch, which shrinks the grid (values in its comments)."""
    p = sglang(DEEPSEEK_TP8, (68000,) * rows, "mi355x", mla_decode_tune=True, enable_lean_attention=False)
    assert p.stage1.grid == (rows, 1, splits)
    assert p.splits.requested == (splits,) * rows
    assert (p.stage1.threads, p.tile_keys) == (threads, 32)
    deterministic = sglang(DEEPSEEK_TP8, (68000,) * rows, "mi355x", mla_decode_tune=True, deterministic=True)
    assert deterministic.splits.requested == (266,) * rows
    assert deterministic.stage1.threads == 128


def test_every_release_has_a_policy():
    """Releases between the named versions resolve to the one that holds for them; unknown ones are refused."""
    assert POLICY.version("0.5.10.post1").name == "0.5.10"
    assert POLICY.version("0.5.16").name == "0.5.17"
    assert POLICY.version().name == "0.5.23"
    with pytest.raises(UnknownNameError):
        POLICY.version("0.4.1")


def test_lean_kernel_on_amd():
    """Llama-3-8B on an MI300X (0.5.23): lean from 64 K keys on at batch 1; never before 0.5.19."""
    assert sglang(lens=(65535,), gpu="mi300x").stage1.name == "_fwd_grouped_kernel_stage1"
    p = sglang(lens=(65536,), gpu="mi300x")
    assert p.stage1.name == "_lean_attention_decode_kernel"
    assert (p.stage1.grid, p.stage1.threads, p.tile_keys, p.merge) == ((304,), 256, 128, None)
    # 8 KV heads on 8 XCDs: one row of 512 tiles for the 38 blocks of an XCD, 14 each and then 13.
    assert p.splits.keys[0][0] == (0, 14 * 128)
    assert (p.splits.live, p.live_blocks) == ((38,), 304)
    assert p.splits.keys[0][-1] == (65536 - 13 * 128, 65536)
    assert sglang(lens=(65536,), gpu="mi300x", engine="sglang-triton@0.5.18").merge is not None
    assert not sglang(lens=(65536,), gpu="mi300x", deterministic=True).gate("lean_kernel").passed


@pytest.mark.parametrize(
    ("geo", "batch", "least"),
    [
        (Geometry(64, 4, 128), 1, 65536),  # 4 rows of 16 heads: the middle class begins
        (Geometry(24, 8, 128), 1, 65536),  # 8 rows of 3 heads
        (Geometry(16, 8, 128), 2, 65536),  # 8 rows of 2 heads: two requests still need as much as one
        (Geometry(48, 3, 128), 1, 131072),  # 3 rows
        (Geometry(256, 16, 128), 1, 16384),  # 16 rows
        (Geometry(256, 16, 128), 64, 4096),  # the floor
        (DEEPSEEK_TP8, 8, 4096),
    ],
)
def test_the_lean_kernel_starts_at_its_average_length(geo, batch, least):
    """lean_decode_seqlen_gate: one key fewer in the batch and the standard kernel runs."""
    assert sglang(geo, (least,) * batch, "mi300x").gate("lean_kernel").passed
    assert not sglang(geo, (least,) * (batch - 1) + (least - 1,), "mi300x").gate("lean_kernel").passed


def test_the_lean_kernel_wants_eight_requests_for_mla():
    """lean_decode_seqlen_gate: seven are too few, however long they are."""
    assert not sglang(DEEPSEEK_TP8, (99999,) * 7, "mi300x").gate("lean_kernel").passed


def test_deterministic_mode_did_not_stop_the_lean_kernel_at_first():
    """Releases 0.5.19 and 0.5.20 on AMD: batch-dependent cuts in spite of --enable-deterministic-inference."""
    for version, lean in (("0.5.20", True), ("0.5.21", False)):
        p = sglang(lens=(65536,), gpu="mi300x", engine=f"sglang-triton@{version}", deterministic=True)
        assert p.gate("lean_kernel").passed == lean
        assert p.determinism == ("batch-dependent" if lean else "fixed size")


@pytest.mark.parametrize(
    ("geo", "batch", "taken"), [(LLAMA3_8B, 15, False), (LLAMA3_8B, 16, True), (DEEPSEEK_TP8, 8, True)]
)
def test_captured_graphs_choose_the_lean_kernel_by_batch(geo, batch, taken):
    """A graph is captured with lengths of 1: lean_capture_policy looks at the batch, 16 or (MLA) 8, instead."""
    p = sglang(geo, (50,), "mi300x", padded_batch=batch)
    assert p.gate("lean_kernel").passed == taken


@settings(max_examples=100, deadline=None)
@given(
    geo=st.sampled_from((LLAMA3_8B, MHA, DEEPSEEK_TP8, Geometry(q_heads=48, kv_heads=1, head_dim=128))),
    lens=st.lists(st.integers(1, 20_000), min_size=1, max_size=6), sm_count=st.integers(8, 320),
)  # fmt: skip
def test_lean_parts_are_the_runs_of_the_blocks(geo, lens, sm_count):
    """The first KV head's cuts are where the kernel's blocks, walked one by one, stop and start."""
    p = sglang(geo, lens, load_gpu("mi300x").with_(sm_count=sm_count), enable_lean_attention=True)
    tile, rows = p.tile_keys, geo.kv_heads * -(-geo.group // 16)
    xcds = 8 if geo.kv_heads % 8 == 0 and geo.group <= 16 else 1
    blocks = p.stage1.grid[0] // xcds
    tiles = [-(-n // tile) for n in lens]
    total = sum(tiles) * rows // xcds
    run = max(-(-total // blocks), 1)
    full = total - (run - 1) * blocks
    starts = {0}
    for block in range(blocks):
        starts.add(run * block if block < full else (run - 1) * (block - full) + full * run)
    expected, before = [], 0
    for n, count in zip(lens, tiles):
        cuts = sorted({0, *(s - before for s in starts if before < s < before + count)})
        expected.append([(c * tile, min(d * tile, n)) for c, d in itertools.pairwise([*cuts, count])])
        before += count
    assert list(p.splits.keys) == expected
    assert p.splits.live == tuple(map(len, expected))
    assert p.live_blocks == min(total, blocks) * xcds


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_launches_that_fail_are_refused():
    """A window of one key, and a draft of a model with a window before 0.5.23."""
    with pytest.raises(GateError) as refused:
        sglang(Geometry(8, 8, 64, window=1))
    assert refused.value.code == "empty_window"
    with pytest.raises(GateError) as refused:
        sglang(Geometry(8, 8, 64, window=128), engine=RECORDED, draft_topk=2)
    assert refused.value.code == "draft_window"
    assert sglang(Geometry(8, 8, 64, window=128), draft_topk=2).keys_read == (127,)


def test_impossible_steps_are_refused():
    """Empty requests, a graph smaller than the batch, and requests longer than the context."""
    for lens, options in (((0, 5), {}), ((5, 5, 5), {"padded_batch": 2}), ((4096,), {"max_context_len": 2048})):
        with pytest.raises(InputError):
            sglang(lens=lens, **options)


# -- laws -------------------------------------------------------------------------------------------------------------

GPUS = {name: load_gpu(name) for name in ("h100-sxm", "a100-sxm4-80gb", "mi300x", "mi355x")}
geometries = st.one_of(
    st.builds(
        lambda kv, g, d, w: Geometry(q_heads=kv * g, kv_heads=kv, head_dim=d, window=w),
        st.integers(1, 8),
        st.integers(1, 40),
        st.sampled_from((64, 80, 128, 256)),
        st.sampled_from((None, None, 2, 128, 4096)),
    ),
    st.just(DEEPSEEK_TP8),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "max_kv_splits_arg": st.integers(1, 300),
        "static_kv_splits": st.booleans(),
        "deterministic": st.booleans(),
        "split_tile_size": st.sampled_from((64, 256, 1000)),
        "mla_decode_tune": st.booleans(),
        "enable_lean_attention": st.booleans(),
        "draft_topk": st.integers(1, 4),
        "draft_step": st.integers(0, 5),
    },
)
lengths = st.one_of(st.integers(1, 200), st.integers(1, 200_000))
versions = st.sampled_from([v.name for v in POLICY.versions])


@settings(max_examples=150, deadline=None)
@given(
    geo=geometries, lens=st.lists(lengths, min_size=1, max_size=8), gpu=st.sampled_from(sorted(GPUS)), given=options,
    version=versions, padding=st.sampled_from((None, 0, 3)),
)  # fmt: skip
def test_live_splits_tile_the_keys_once(geo, lens, gpu, given, version, padding):
    """Live splits cover what a row reads exactly once, none is empty, and no row needs more than the grid has."""
    if padding is not None:
        given = {**given, "padded_batch": len(lens) + padding}
    if geo.window is not None and version != "0.5.23":
        given = {k: v for k, v in given.items() if not k.startswith("draft")}
    p = sglang(geo, lens, GPUS[gpu], f"sglang-triton@{version}", **given)
    extra = (given.get("draft_step", 1) if "draft_topk" in given else given.get("draft_step", 0)) or 0
    for r, ranges in enumerate(p.splits.keys):
        end = lens[r] + extra
        assert ranges[0][0] == end - p.keys_read[r]
        assert ranges[-1][1] == end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
        assert all(start < stop for start, stop in ranges)
        assert len(ranges) == p.splits.live[r] <= p.splits.launched
        lean = "lean" in p.stage1.name
        assert all((start - ranges[0][0]) % (p.tile_keys if lean else 32) == 0 for start, _ in ranges)
    if lean:
        assert (p.merge, p.stage1.grid[0]) == (None, p.stage1.launched_blocks)
        assert p.live_blocks <= p.stage1.launched_blocks <= p.gpu.sm_count
        return
    pads = p.detail.padded_requests * p.detail.padded_live_splits
    assert p.live_blocks == (sum(p.splits.live) + pads) * p.detail.head_blocks * p.detail.draft_topk
    assert p.live_blocks <= p.stage1.launched_blocks


@settings(max_examples=60, deadline=None)
@given(
    geo=geometries, steps=st.lists(st.tuples(st.integers(1, 300), lengths), min_size=1, max_size=12),
    gpu=st.sampled_from(sorted(GPUS)), given=options, version=versions,
)  # fmt: skip
def test_whole_arrays_plan_what_single_steps_plan(geo, steps, gpu, given, version):
    """A sweep of uniform steps and the same steps one by one are the same launches, to every count."""
    if geo.window is not None and version != "0.5.23":
        given = {k: v for k, v in given.items() if not k.startswith("draft")}
    chosen = POLICY.version(version)
    _, found = POLICY.on_layer(
        geo, Batches.uniform(*np.array(steps).T), KvCache(), GPUS[gpu], POLICY.options_type(**given), chosen
    )
    for n, (batch, context) in enumerate(steps):
        p = POLICY.plan(geo, Batch.uniform(batch, context), KvCache(), GPUS[gpu], given, version)
        assert row(found.requested, n, 1)[0] == p.splits.requested[0]
        assert row(found.live, n, 1)[0] == p.splits.live[0]
        if p.merge is not None:
            assert row(found.split_keys, n, 1)[0] == p.detail.kv_len_per_split[0]
        assert at(found.launched, n) == p.splits.launched
        assert at(found.scratch_bytes, n) == p.scratch_bytes
        stage1 = next(k for k in found.kernels if k.role == "stage1" and at(k.when, n))
        assert tuple(at(x, n) for x in stage1.grid) == p.stage1.grid
        assert (at(stage1.live_blocks, n), stage1.threads) == (p.stage1.live_blocks, p.stage1.threads)
        assert [bool(at(g.passed, n)) for g in found.gates] == [g.passed for g in p.gates]
        assert [g.reason(n) for g in found.gates] == [g.reason for g in p.gates]


@settings(max_examples=60, deadline=None)
@given(lens=st.lists(lengths, min_size=1, max_size=6), times=st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_classes_of_equal_requests_plan_like_the_requests(lens, times):
    """Counting equal requests as one class, absent classes included, gives the ragged batch's launch."""
    times = [*times[: len(lens) - 1], max(times[-1], 1)]
    classes = Batches(np.array([lens]), np.ones((1, len(lens)), np.int64), np.array([times]))
    _, found = POLICY.on_layer(LLAMA3_8B, classes, KvCache(), GPUS["h100-sxm"], POLICY.options_type(), POLICY.version())
    p = sglang(lens=[n for n, k in zip(lens, times) for _ in range(k)])
    assert [c for c, k in zip(row(found.requested, 0, len(lens)), times) for _ in range(k)] == list(p.splits.requested)
    stage1 = next(k for k in found.kernels if k.role == "stage1")
    assert at(stage1.live_blocks, 0) == p.live_blocks


@pytest.mark.parametrize(("q_heads", "kv_heads", "blocks"), [(32, 8, 6), (64, 8, 5), (16, 1, 7), (32, 32, 5)])
def test_an_sm_holds_as_many_blocks_as_the_group_leaves_registers_for(q_heads, kv_heads, blocks):
    """The group and a single KV head are compiled into the kernel, so that the blocks of an SM follow them."""
    geo = Geometry(q_heads, kv_heads, 128)
    found = plan("sglang-triton", geo, Batch.uniform(1, 4096), gpu=load_gpu("h200"))
    assert found.resident_blocks == blocks
