"""vllm-triton: values derived by hand from vLLM's source, reported cases, and laws against a walk of all programs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.vllm.triton import POLICY
from decodecalc.engines.vllm.triton_rules import VERSIONS
from decodecalc.launch.arrays import Batches, at, row

H100 = dc.load_gpu("h100-sxm")
LLAMA_8B = dc.Geometry(32, 8, 128)


def plan(geo, batch, *, version="0.33.0", gpu=H100, kv=None, **options):
    return dc.plan(f"vllm-triton@{version}", geo, batch, kv=kv or dc.KvCache(), gpu=gpu, **options)


# --- the value table of the engine survey (hand-derived from vLLM 0.33) ---


@pytest.mark.parametrize(("batch", "blocks"), [(1, 1), (4, 5), (16, 20), (17, 21), (64, 80)])
def test_query_blocks_are_an_upper_bound(batch, blocks):
    """tokens // BLOCK_Q + requests query blocks are launched, more than there is work for."""
    assert plan(LLAMA_8B, dc.Batch.uniform(batch, 2560)).stage1.grid[0] == blocks


def test_llama_8b_single_request_splits_sixteen_ways():
    """B 1 on an H100: (1, 8, 16) = 128 blocks of 132 SMs, S* 17, 10 tiles per split, splits [0,160) … [2400,2560)."""
    found = plan(LLAMA_8B, dc.Batch.uniform(1, 2560))
    assert (found.path, found.stage1.grid, found.stage1.launched_blocks, found.s_star) == ("3d", (1, 8, 16), 128, 17)
    assert found.detail.tiles_per_segment == (10,)
    assert (found.splits.keys[0][0], found.splits.keys[0][15]) == ((0, 160), (2400, 2560))
    assert (found.merge.grid, found.block_rows, found.live_rows) == ((1, 32), 16, 4)


def test_llama_70b_on_eight_gpus_has_one_unsplit_block():
    """Llama-3-70B, TP 8, B 1: 1 unsplit block, S* 132, 16 split blocks."""
    found = plan(dc.Geometry(8, 1, 128), dc.Batch.uniform(1, 4096))
    assert (found.unsplit_blocks, found.s_star, found.stage1.launched_blocks) == (1, 132, 16)


@pytest.mark.parametrize(
    ("keys", "live", "split_keys", "last"),
    [(128, 8, 16, 16), (256, 16, 16, 16), (257, 9, 32, 1), (500, 16, 32, 20), (4096, 16, 256, 256),
     (4097, 16, 272, 17), (17, 2, 16, 1)],
)  # fmt: skip
def test_rounding_to_tiles_kills_splits(keys, live, split_keys, last):
    """vLLM reduce_segments source: a split is whole tiles, so L 257 leaves 9 of 16 splits live."""
    splits = plan(LLAMA_8B, dc.Batch.uniform(1, keys)).splits
    start, end = splits.keys[0][-1]
    assert (splits.launched, splits.live[0], end - start) == (16, live, last)
    assert splits.keys[0][0] == (0, min(split_keys, keys))


def test_scratch_of_the_partial_states():
    """16 splits of D 128 make 8 320 B a (token, head); the builder allocates threshold rows of them."""
    found = plan(LLAMA_8B, dc.Batch.uniform(1, 2560))
    assert 16 * found.state_values * 4 == 8320
    assert found.scratch_bytes == 16 * 32 * 8320


# --- reported cases ---


def test_cliff_above_eight_requests():
    """vLLM issue 48076: 16 KV heads split up to B 8 with 2048 live blocks; B 9 runs 144 unsplit ones."""
    geo = dc.Geometry(16, 16, 128)
    below, above = (plan(geo, dc.Batch.uniform(batch, 65536)) for batch in (8, 9))
    assert (below.path, below.live_blocks, above.path, above.live_blocks) == ("3d", 2048, "2d", 144)
    assert "8 <= 8" in below.gate("threshold").reason
    assert "9 > 8 (128 // 16 KV heads = 8" in above.gate("threshold").reason


def test_model_wide_kv_heads_send_gemma4_down_the_wrong_path():
    """vLLM PR 54191: 4 model-wide KV heads against the layer's 1 turn 576 live blocks into 36."""
    geo, batch = dc.Geometry(8, 1, 512), dc.Batch.uniform(36, 220_000)
    wrong, right = plan(geo, batch, model_kv_heads=4, capture_sizes=None), plan(geo, batch, capture_sizes=None)
    assert (wrong.path, wrong.stage1.grid, wrong.live_blocks) == ("2d", (54, 1), 36)
    assert (right.path, right.stage1.grid, right.live_blocks) == ("3d", (54, 1, 16), 576)
    assert (right.splits.live[0], right.splits.keys[0][0]) == (16, (0, 13_760))
    assert "128 // 4 = 32 instead of 128" in wrong.gate("model_kv_heads").reason
    with pytest.raises(KeyError):
        right.gate("model_kv_heads")


@pytest.mark.parametrize(
    ("kv_heads", "threshold"),
    [(1, 128), (2, 64), (3, 40), (4, 32), (5, 24), (6, 24), (7, 16), (8, 16), (10, 8), (16, 8), (32, 4), (40, 2),
     (64, 2)],
)  # fmt: skip
def test_threshold_snaps_to_the_nearest_capture_size(kv_heads, threshold):
    """vLLM PR 28306: 128 // KV heads becomes the nearest default capture size, the smaller one at a tie."""
    found = plan(dc.Geometry(kv_heads * 2, kv_heads, 128), dc.Batch.uniform(1, 4096))
    assert found.detail.threshold == threshold


def test_threshold_without_full_graphs_is_not_snapped():
    """128 // 3 is 42 without full CUDA graphs, 40 with the default capture sizes."""
    geo = dc.Geometry(6, 3, 128)
    assert plan(geo, dc.Batch.uniform(1, 4096), capture_sizes=None).detail.threshold == 42
    assert plan(geo, dc.Batch.uniform(1, 4096)).detail.threshold == 40


def test_graph_padding_keeps_the_path_and_adds_dead_rows():
    """vLLM source: 9 requests replay the graph of 16 on the split path, 17 the graph of 24 unsplit."""
    nine = plan(LLAMA_8B, dc.Batch.uniform(9, 4096), padded_num_seqs="auto")
    assert (nine.path, nine.detail.num_seqs, nine.stage1.grid[0], nine.live_blocks) == ("3d", 16, 20, 9 * 8 * 16)
    assert (nine.merge.grid, nine.merge.live_blocks) == ((16, 32), 9 * 32)
    seventeen = plan(LLAMA_8B, dc.Batch.uniform(17, 4096), padded_num_seqs="auto")
    assert (seventeen.path, seventeen.detail.num_seqs) == ("2d", 24)


def test_padding_below_the_batch_is_refused():
    """A padded batch that is smaller than the batch is an input error."""
    with pytest.raises(dc.InputError, match=r"padded_num_seqs \(4\) is below the batch \(9 requests\)"):
        plan(LLAMA_8B, dc.Batch.uniform(9, 4096), padded_num_seqs=4)


@pytest.mark.parametrize(("q_len", "path"), [(4, "3d"), (5, "3d"), (8, "3d"), (9, "2d")])
def test_drafts_are_verified_on_the_split_path(q_len, path):
    """vLLM PR 46724: with scratch made for drafts, up to 8 query tokens split; 9 do not."""
    found = plan(LLAMA_8B, dc.Batch.uniform(4, 4096, q_len), num_speculative_tokens=q_len - 1)
    assert found.path == path
    assert found.gate("query_len").passed == (path == "3d")


def test_drafts_without_speculative_scratch_run_out_of_rows():
    """vLLM PR 46724: without speculation scratch has 16 rows, so B 4 with 5 tokens is unsplit."""
    found = plan(LLAMA_8B, dc.Batch.uniform(4, 4096, 5))
    assert (found.path, found.gate("scratch_rows").passed, found.gate("threshold").passed) == ("2d", False, True)
    assert "20 query tokens > 16 scratch rows" in found.gate("scratch_rows").reason
    assert plan(LLAMA_8B, dc.Batch.uniform(4, 4096, 4)).path == "3d"


def test_older_versions_never_split_drafts():
    """vLLM before PR 46724: 2D for any query longer than 1."""
    for version in ("0.32.0", "0.27", "0.13.0", "0.12.0"):
        assert plan(LLAMA_8B, dc.Batch.uniform(1, 4096, 2), version=version, num_speculative_tokens=1).path == "2d"


def test_packed_int4_caches_split_single_queries_only():
    """vLLM int4_per_token_head.py: the INT4 launcher has its own gate and a kernel of its own."""
    kv = dc.KvCache(dtype="int4")
    single = plan(LLAMA_8B, dc.Batch.uniform(4, 4096), kv=kv)
    assert (single.path, single.stage1.name) == ("3d", "_attn_packed")
    drafts = plan(LLAMA_8B, dc.Batch.uniform(4, 4096, 2), kv=kv, num_speculative_tokens=1)
    assert (drafts.path, drafts.detail.scratch_rows) == ("2d", 16)
    assert "packed INT4" in drafts.gate("query_len").reason


def test_non_causal_masks_split_single_queries_only():
    """vLLM unified_attention: a non-causal mask sends several query tokens down the 2D path."""
    options = {"causal": False, "num_speculative_tokens": 3}
    assert plan(LLAMA_8B, dc.Batch.uniform(4, 4096, 4), **options).path == "2d"
    assert plan(LLAMA_8B, dc.Batch.uniform(4, 4096), **options).path == "3d"
    with pytest.raises(dc.GateError, match="supports causal masks only") as refused:
        plan(LLAMA_8B, dc.Batch.uniform(4, 4096), version="0.23.0", causal=False)
    assert refused.value.code == "causal"


def test_large_heads_are_tuned_on_data_center_blackwell():
    """vLLM tuned large-head path: D 256 and several tokens on SM100: 32 rows, tile 128, 8 warps, 2D."""
    batch, geo = dc.Batch.uniform(2, 4096, 4), dc.Geometry(16, 8, 256)
    b200 = plan(geo, batch, gpu=dc.load_gpu("b200"), num_speculative_tokens=3)
    assert (b200.path, b200.block_rows, b200.detail.block_q, b200.tile_keys) == ("2d", 32, 16, 128)
    assert (b200.stage1.threads, b200.detail.num_warps_override) == (256, 8)
    assert not b200.gate("large_head").passed
    assert plan(geo, batch, num_speculative_tokens=3).path == "3d"
    assert plan(geo, dc.Batch.uniform(2, 4096), gpu=dc.load_gpu("b200")).path == "3d"
    assert plan(geo, batch, gpu=dc.load_gpu("b200"), version="0.23.0").block_rows == 16


def test_few_scratch_rows_bound_the_split_path():
    """vLLM PR 36374: max_num_seqs below the threshold bounds the scratch, and so the split path."""
    found = plan(LLAMA_8B, dc.Batch.uniform(6, 4096), max_num_seqs=4, capture_sizes=None)
    assert (found.path, found.detail.scratch_rows) == ("2d", 4)
    assert "6 query tokens > 4 scratch rows" in found.gate("scratch_rows").reason


def test_fixed_grid_launches_blocks_that_exit():
    """vLLM PRs 28673, 29020: 28/4 heads, B 36: 54 query blocks for 36 with work."""
    found = plan(dc.Geometry(28, 4, 128), dc.Batch.uniform(36, 4096))
    assert (found.path, found.stage1.grid, found.live_blocks) == ("2d", (54, 4), 36 * 4)
    assert (found.block_rows, found.live_rows) == (16, 7)


@pytest.mark.parametrize(
    ("sms", "kv_heads", "most"),
    [(188, 8, 1), (188, 4, 2), (188, 2, 5), (188, 1, 11), (170, 8, 1), (170, 4, 2), (170, 2, 5), (170, 1, 10)],
)
def test_idle_sm120_gets_64_segments(sms, kv_heads, most):
    """vLLM source: 64 segments while B <= (SMs - 1) // (16 KV heads), on SM120 only, from 0.32 on."""
    gpu = dc.load_gpu("h100-sxm").with_(sm_count=sms, compute_capability=(12, 0))
    geo = dc.Geometry(8 * kv_heads, kv_heads, 128)
    at_most, above = (plan(geo, dc.Batch.uniform(batch, 32768), gpu=gpu) for batch in (most, most + 1))
    assert (at_most.splits.launched, above.splits.launched) == (64, 16)
    assert at_most.scratch_bytes == above.scratch_bytes
    assert plan(geo, dc.Batch.uniform(most, 32768), gpu=gpu, version="0.32").splits.launched == 64
    assert plan(geo, dc.Batch.uniform(most, 32768), gpu=gpu, version="0.31").splits.launched == 16
    assert plan(geo, dc.Batch.uniform(most, 32768), gpu=gpu.with_(compute_capability=(12, 1))).splits.launched == 16


def test_groups_above_sixteen_widen_the_block():
    """vLLM PR 23424: granite 48/1 has 64 rows and a grid of (2, 1, 16) with 16 live; Falcon 71/1 128 rows."""
    granite = plan(dc.Geometry(48, 1, 128), dc.Batch.uniform(1, 4096))
    assert (granite.block_rows, granite.detail.block_q) == (64, 1)
    assert (granite.stage1.grid, granite.live_blocks) == ((2, 1, 16), 16)
    falcon = plan(dc.Geometry(71, 1, 64), dc.Batch.uniform(1, 4096))
    assert (falcon.block_rows, falcon.detail.block_q, falcon.live_rows) == (128, 1, 71)


@pytest.mark.parametrize(
    ("head_dim", "keys", "window", "working"), [(64, 8192, 128, 1), (64, 8192 + 128, 128, 1), (128, 20000, 1024, 2)]
)
def test_splits_outside_the_window_are_live_but_idle(head_dim, keys, window, working):
    """vLLM PRs 47188, 44584: splits cut the full length; all stay live, one or two see the window."""
    found = plan(dc.Geometry(8, 1, head_dim, window=window), dc.Batch.uniform(1, keys))
    assert (found.splits.live, found.splits.working) == ((16,), (working,))
    assert found.keys_read[0] <= window + found.tile_keys


def test_window_that_straddles_a_split_boundary_keeps_two_working():
    """vLLM source: L 4097, window 128: the last split holds 17 keys, the window reaches the one before."""
    found = plan(dc.Geometry(8, 1, 64, window=128), dc.Batch.uniform(1, 4097))
    assert found.splits.keys[0][-1] == (4080, 4097)
    assert found.splits.working == (2,)


def test_version_0_13_walked_segments_outside_the_window():
    """vLLM 0.13 split kernels had no window pruning: every live split reads its keys."""
    geo = dc.Geometry(8, 1, 64, window=128)
    old = plan(geo, dc.Batch.uniform(1, 8192), version="0.13.0")
    assert (old.splits.working, old.keys_read) == ((16,), (8192,))


def test_head_dim_96_is_padded_in_scratch_not_in_the_cache():
    """openvino PR 33454: D 96 runs in 128 lanes; partial states are allocated padded, cache bytes are not."""
    geo = dc.Geometry(32, 32, 96)
    found = plan(geo, dc.Batch.uniform(1, 2048))
    assert (found.detail.head_dim_padded, found.state_values) == (128, 98)
    assert found.scratch_bytes == 4 * 32 * 16 * 130 * 4
    assert found.kv.bytes_per_key(geo) == 32 * 2 * 96 * 2


@pytest.mark.parametrize(("page_size", "use"), [(1, 16), (8, 16), (24, 32)])
def test_pages_must_be_a_multiple_of_sixteen(page_size, use):
    """vLLM issues 41339, 42510: other page sizes stop the start-up; they are not a slow path."""
    with pytest.raises(dc.GateError, match=f"page size {page_size} is not a multiple of 16; use {use}") as refused:
        plan(LLAMA_8B, dc.Batch.uniform(1, 128), kv=dc.KvCache(page_size=page_size))
    assert refused.value.code == "page_size"
    assert "an error, not a slow path" in str(refused.value)


def test_allocator_pages_must_hold_whole_kernel_pages():
    """The allocator's page is a multiple of the kernel's (32 over 16 doubles the block table), or start-up fails."""
    wide = plan(LLAMA_8B, dc.Batch.uniform(1, 128), kv=dc.KvCache(page_size=16, allocator_page_size=32))
    assert "each allocator page of 32 is 2 of them" in wide.gate("page_size").reason
    with pytest.raises(dc.GateError, match="allocator page 40 is not a multiple of the kernel's 16; use 48") as refused:
        plan(LLAMA_8B, dc.Batch.uniform(1, 128), kv=dc.KvCache(page_size=16, allocator_page_size=40))
    assert refused.value.code == "allocator_page_size"


def test_batch_invariant_mode_never_splits():
    """vLLM issue 50603: batch-invariant Llama-8B at B 1 keeps 8 of 132 SMs busy."""
    found = plan(LLAMA_8B, dc.Batch.uniform(1, 4096), batch_invariant=True)
    assert (found.path, found.stage1.grid, found.live_blocks, found.determinism) == ("2d", (1, 8), 8, "invariant")
    assert plan(LLAMA_8B, dc.Batch.uniform(1, 4096), batch_invariant=True, version="0.15.1").path == "3d"


@pytest.mark.parametrize(
    ("geo", "kv", "code"),
    [
        (dc.Geometry(16, 1, 576, 512, mla=True), dc.KvCache(), "mla"),
        (dc.Geometry(16, 4, 192, 128), dc.KvCache(), "head_dim_v"),
        (dc.Geometry(16, 4, 16), dc.KvCache(), "head_dim"),
        (LLAMA_8B, dc.KvCache(dtype="nvfp4"), "kv_dtype"),
    ],
)
def test_start_up_refusals_have_codes(geo, kv, code):
    """What the backend refuses at start-up, or leaves to another one, is a GateError with a machine word."""
    with pytest.raises(dc.GateError, match=r"refuses to start|takes another backend") as refused:
        plan(geo, dc.Batch.uniform(1, 128), kv=kv)
    assert refused.value.code == code


def test_fp8_caches_need_fp8_units_and_quantise_the_query():
    """An FP8 cache makes Q one byte on NVIDIA, so the tile is 32 keys; below SM89 the server does not start."""
    fp8 = dc.KvCache(dtype="fp8")
    assert plan(LLAMA_8B, dc.Batch.uniform(1, 4096), kv=fp8).tile_keys == 32
    with pytest.raises(dc.GateError, match=r"needs compute capability 8.9.* has 8.0"):
        plan(LLAMA_8B, dc.Batch.uniform(1, 4096), kv=fp8, gpu=dc.load_gpu("a100-sxm-80gb"))


def test_gemma3_shapes_get_wide_tiles():
    """Window 1024 with D 128 or 256 is taken for Gemma 3: 32 keys per tile in 3D too; from vLLM 0.13 on."""
    batch = dc.Batch.uniform(1, 4096)
    assert plan(dc.Geometry(16, 8, 256, window=1024), batch).tile_keys == 32
    assert plan(dc.Geometry(16, 8, 256, window=1025), batch).tile_keys == 16
    assert plan(dc.Geometry(16, 8, 256, window=1024), batch, version="0.12.0").tile_keys == 16


def test_version_0_12_gates_on_the_grid():
    """vLLM up to 0.12 splits while query blocks x KV heads <= 128, whatever the batch: 8 KV heads flip above B 13."""
    below, above = (plan(LLAMA_8B, dc.Batch.uniform(batch, 4096), version="0.12.0") for batch in (13, 14))
    assert (below.path, above.path) == ("3d", "2d")
    assert below.gate("threshold").reason == "16 query blocks x 8 KV heads = 128 blocks <= 128"
    assert above.gate("threshold").reason == "17 query blocks x 8 KV heads = 136 blocks > 128"
    assert (below.scratch_bytes, above.scratch_bytes) == (13 * 32 * 16 * 130 * 4, 0)


def test_versions_cover_every_release_they_name():
    """Each version is found by its own name and by both ends of its range; ranges do not overlap."""
    edges = []
    for version in VERSIONS:
        assert POLICY.version(version.name) is version
        for end in version.covers:
            assert POLICY.version(end) is version
        edges.append(tuple(tuple(map(int, end.split("."))) for end in version.covers))
    assert all(newer[0] > older[1] for newer, older in pairwise(edges))


# --- laws ---


@st.composite
def scenarios(draw):
    """A geometry, a ragged batch and options; small enough to walk every program."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 8]))
    group = draw(st.sampled_from([1, 3, 4, 7, 16, 20]))
    head_dim = draw(st.sampled_from([64, 80, 128, 256]))
    window = draw(st.sampled_from([None, None, 1, 33, 128, 1024]))
    batch = draw(st.integers(1, 6))
    q_lens = draw(st.lists(st.integers(1, 9), min_size=batch, max_size=batch))
    if draw(st.booleans()):
        q_lens = [q_lens[0]] * batch
    longest = draw(st.sampled_from([40, 300, 5000]))
    seq_lens = [q + draw(st.integers(0, longest)) for q in q_lens]
    options = {
        "num_speculative_tokens": draw(st.sampled_from([None, 1, 8])),
        "capture_sizes": draw(st.sampled_from([None, "default", (1, 2, 4)])),
        "causal": draw(st.sampled_from([True, True, False])),
    }
    if draw(st.booleans()):
        options["padded_num_seqs"] = batch + draw(st.integers(0, 3))
    gpu = H100.with_(
        sm_count=draw(st.sampled_from([20, 132, 188])),
        compute_capability=draw(st.sampled_from([(9, 0), (10, 0), (12, 0)])),
    )
    query = draw(st.sampled_from(["bf16", "fp8"]))
    return (
        dc.Geometry(kv_heads * group, kv_heads, head_dim, window=window),
        dc.Batch(seq_lens, q_lens),
        gpu,
        query,
        options,
    )


def walk(found):
    """Every program of KV head 0, as the kernel resolves it: (request, query block, segment, keys it visits)."""
    geo, batch, detail = found.geometry, found.batch, found.detail
    block_q, tile, causal = detail.block_q, found.tile_keys, found.options.causal
    padding = detail.num_seqs - batch.size
    q_lens, seq_lens = [*batch.q_lens, *[0] * padding], [*batch.seq_lens, *[0] * padding]
    starts = [sum(q_lens[:r]) // block_q + r for r in range(len(q_lens))]
    for block in range(found.stage1.grid[0]):
        r = max(i for i, start in enumerate(starts) if start <= block)
        local, keys, queries = block - starts[r], seq_lens[r], q_lens[r]
        if local * block_q >= queries:
            continue
        context = keys - queries
        last_row = local * block_q + (found.block_rows - 1) // geo.group
        prefix = min(context + last_row + 1, keys) if causal else keys
        first_tile, end_tile = 0, -(-prefix // tile)
        if geo.window is not None:
            first_tile = max(context + local * block_q - geo.window + 1, 0) // tile
            last_key = context + min(last_row, queries - 1) + (0 if causal else geo.window - 1)
            end_tile = min(min(last_key, keys - 1) // tile + 1, end_tile)
        for segment in range(found.splits.launched):
            lo, hi = first_tile, end_tile
            if found.path == "3d":
                per = -(-keys // (found.splits.launched * tile))
                if segment * per * tile >= keys:
                    continue
                lo, hi = max(segment * per, lo), min((segment + 1) * per, hi)
            yield r, local, segment, (lo * tile, min(hi * tile, keys)) if lo < hi else None


@settings(max_examples=100, deadline=None)
@given(scenarios())
def test_counts_agree_with_a_walk_through_every_program(scenario):
    """Live blocks, blocks with tiles, live and working splits equal what the kernel's own index arithmetic gives."""
    geo, batch, gpu, query, options = scenario
    found = plan(geo, batch, gpu=gpu, kv=dc.KvCache(query_dtype=query), **options)
    programs = list(walk(found))
    assert found.live_blocks == len(programs) * geo.kv_heads
    assert found.detail.programs_with_tiles == sum(keys is not None for *_, keys in programs) * geo.kv_heads
    for r in range(batch.size):
        segments = {segment for request, _, segment, _ in programs if request == r}
        working = {segment for request, _, segment, keys in programs if request == r and keys}
        assert found.splits.live[r] == len(segments)
        assert found.splits.working[r] == len(working)
        assert found.blocks_per_split[r] == len({b for request, b, *_ in programs if request == r}) * geo.kv_heads
        visited = min(keys[0] for request, *_, keys in programs if request == r and keys)
        assert found.keys_read[r] == batch.seq_lens[r] - visited


@settings(max_examples=100, deadline=None)
@given(scenarios(), st.sampled_from(VERSIONS))
def test_live_splits_tile_the_keys_once(scenario, version):
    """Splits follow each other without gap or overlap to the last key; from 0 when split, from the window when not."""
    geo, batch, gpu, query, options = scenario
    options = {**options, "causal": True}
    found = plan(geo, batch, version=version.name, gpu=gpu, kv=dc.KvCache(query_dtype=query), **options)
    for r, keys in enumerate(batch.seq_lens):
        ranges = found.splits.keys[r]
        assert len(ranges) == found.splits.live[r] <= found.splits.launched
        assert all(start < end for start, end in ranges)
        assert all(one[1] == two[0] for one, two in pairwise(ranges))
        assert ranges[-1][1] == keys
        assert ranges[0][0] == (0 if found.path == "3d" else found.detail.first_visited_key[r])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(10, 300_000), st.integers(1, 9)), min_size=1, max_size=12),
    st.sampled_from([(32, 8, 128, None), (28, 4, 128, 1024), (16, 8, 256, None), (20, 1, 64, 500)]),
    st.sampled_from([(9, 0), (10, 0), (12, 0)]),
    st.sampled_from(VERSIONS),
    st.sampled_from([None, "auto"]),
)
def test_array_door_equals_scalar_door(steps, shape, capability, version, padded):
    """A whole-array plan of uniform steps says of every step what planning it alone says."""
    q_heads, kv_heads, head_dim, window = shape
    geo, gpu = dc.Geometry(q_heads, kv_heads, head_dim, window=window), H100.with_(compute_capability=capability)
    options = POLICY.options_type.from_mapping("vllm-triton", {"num_speculative_tokens": 7, "padded_num_seqs": padded})
    many = POLICY.launches(geo, Batches.uniform(*zip(*steps)), dc.KvCache(), gpu, options, version)
    for n, (batch, context, q_len) in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(batch, context, q_len), dc.KvCache(), gpu, options, version.name)
        kernels = [k for k in many.kernels if at(k.when, n)]
        assert [k.name for k in kernels] == [k.name for k in one.kernels]
        assert [tuple(int(at(x, n)) for x in k.grid) for k in kernels] == [k.grid for k in one.kernels]
        assert [at(k.live_blocks, n) for k in kernels] == [k.live_blocks for k in one.kernels]
        assert many.path_names[at(many.is_split, n)] == one.path
        assert row(many.live, n, 1) == one.splits.live[:1]
        assert row(many.working, n, 1) == one.splits.working[:1]
        assert row(many.requested, n, 1) == one.splits.requested[:1]
        assert row(many.split_keys, n, 1)[0] >= one.splits.keys[0][0][1] - one.splits.keys[0][0][0]
        assert row(many.keys_read, n, 1) == one.keys_read[:1]
        assert at(many.scratch_bytes, n) == one.scratch_bytes
        assert at(many.unsplit_blocks, n) == one.unsplit_blocks
        assert at(many.detail.programs_with_tiles, n) == one.detail.programs_with_tiles
        assert [(bool(at(g.passed, n)), g.reason(n)) for g in many.gates] == [(g.passed, g.reason) for g in one.gates]


def test_whole_arrays_have_no_python_loop_over_rows():
    """A hundred thousand steps are planned at once, and the last equals the scalar plan."""
    contexts = np.arange(1, 100_001)
    many = POLICY.launches(
        LLAMA_8B, Batches.uniform(8, contexts), dc.KvCache(), H100, POLICY.options_type(), POLICY.version()
    )
    assert many.live.shape == (100_000, 1)
    assert many.live[-1, 0] == plan(LLAMA_8B, dc.Batch.uniform(8, 100_000)).splits.live[0]


@pytest.mark.parametrize(
    ("geo", "kv", "batch", "blocks"),
    [
        (dc.Geometry(32, 32, 128), dc.KvCache("fp8"), 1, 3),  # 142 registers: 65536 // (4 warps x 4608) = 3
        (dc.Geometry(40, 8, 128), dc.KvCache("fp8"), 1, 3),
        (dc.Geometry(64, 8, 128), dc.KvCache("fp8"), 1, 4),
        (dc.Geometry(64, 8, 128), dc.KvCache(), 1, 5),
        (dc.Geometry(64, 8, 128), dc.KvCache("fp8"), 200, 4),
        (dc.Geometry(8, 1, 128), dc.KvCache(), 200, 6),  # a stride of 1 saves registers
        (dc.Geometry(32, 1, 128), dc.KvCache(), 1, 0),  # a group of 32 has blocks of 32 rows: not compiled
    ],
)
def test_an_sm_holds_as_many_blocks_as_the_group_leaves_registers_for(geo, kv, batch, blocks):
    """The group is compiled into the kernel, so that the blocks of an SM follow it."""
    assert plan(geo, dc.Batch.uniform(batch, 2560), kv=kv).resident_blocks == blocks
