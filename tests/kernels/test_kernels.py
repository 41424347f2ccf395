"""The kernels against the float64 reference on small shapes: in the interpreter, or compiled where there is a GPU.

Everything outside a request's keys (cache slots, table entries, scratch, output) is poisoned by `Problem`.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.interpreter

SPLITS = {
    "unsplit": lambda c: c(tile_keys=32),
    "fixed count": lambda c: c.fixed_count(5, unit=16, tile_keys=32, merge_rows=8, merge_splits=8),
    "fixed size": lambda c: c.fixed_size(128, 300, tile_keys=32, merge_rows=8, merge_splits=2),
    "fused": lambda c: c.fixed_count(4, unit=16, tile_keys=32, merge="fused", merge_splits=2),
}


@pytest.fixture
def config():
    from decodecalc_kernels import LaunchConfig

    return LaunchConfig


@pytest.mark.parametrize("rule", SPLITS)
def test_lengths_around_tile_and_split_edges_match(problem, config, rule):
    problem([1, 15, 0, 16, 17, 255, 256, 257], q_heads=2, kv_heads=1, head_dim=16).check(SPLITS[rule](config))


@pytest.mark.parametrize("page", [1, 3, 16, 64, 256, 1072])
def test_pages_of_any_size_match(problem, config, page):
    problem([100, 33], q_heads=4, kv_heads=2, page=page, head_dim=16).check(SPLITS["fixed count"](config))


@pytest.mark.parametrize("page", [1, 16])
def test_flat_index_list_matches_with_either_cache_layout(problem, config, page):
    problem([70, 0, 33], page=page, flat=True, head_dim=16).check(SPLITS["fixed count"](config))


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "rows", "rows_used"),
    [(3, 3, 16, None), (5, 1, 16, None), (12, 2, 16, None), (12, 1, 16, None), (24, 1, 32, None), (7, 1, 16, None),
     (14, 2, 16, None), (14, 2, 16, 3), (71, 1, 32, None),
     (40, 2, 16, None), (128, 1, 64, None)],
)  # fmt: skip
def test_group_sizes_match_with_any_row_blocking(problem, config, q_heads, kv_heads, rows, rows_used):
    made = config.fixed_count(2, unit=16, tile_keys=32, rows=rows, rows_used=rows_used, merge_rows=16)
    problem([50, 5], q_heads=q_heads, kv_heads=kv_heads, head_dim=16).check(made)


@pytest.mark.parametrize(
    ("head_dim", "v_dim"), [(80, 80), (96, 96), (112, 112), (192, 128), (256, 256), (72, 72), (512, 512)]
)
def test_head_dims_that_are_no_power_of_two_or_differ_match(problem, config, head_dim, v_dim):
    made = config.fixed_count(2, unit=16, tile_keys=16, merge_dims=64)
    problem([40], head_dim=head_dim, v_dim=v_dim, q_heads=2, kv_heads=1).check(made)


@pytest.mark.parametrize(("head_dim", "v_dim"), [(576, 512), (96, 64), (96, 32)])
def test_mla_reads_its_value_from_the_key(problem, config, head_dim, v_dim):
    made = config.fixed_count(2, unit=16, tile_keys=16, merge_rows=4)
    problem([40, 7], head_dim=head_dim, v_dim=v_dim, q_heads=16, kv_heads=1, mla=True).check(made)


@pytest.mark.parametrize(("q_len", "rule"), [(2, "unsplit"), (3, "fixed size"), (5, "fixed count"), (8, "fused")])
def test_several_query_tokens_are_causal(problem, config, q_len, rule):
    problem([8, 150, 17], q_len=q_len, q_heads=3, kv_heads=1, head_dim=16).check(SPLITS[rule](config))


@pytest.mark.parametrize("rule", SPLITS)
def test_requests_with_different_query_lengths_match(problem, config, rule):
    problem([9, 70, 33, 0], q_lens=[3, 1, 4, 0], q_heads=3, kv_heads=1, head_dim=16).check(SPLITS[rule](config))


@pytest.mark.parametrize(
    ("rule", "window", "partition"),
    [("unsplit", 17, "full"), ("fixed count", 1, "full"), ("fixed count", 64, "full"), ("fixed count", 64, "window"),
     ("fixed size", 17, "full"), ("fixed size", 17, "window"), ("fixed size", 1000, "full"), ("fused", 17, "full"),
     ("fused", 64, "window")],
)  # fmt: skip
def test_sliding_windows_match_and_splits_outside_them_are_neutral(problem, config, rule, window, partition):
    made = SPLITS[rule](config).replace(window_partition=partition)
    problem([5, 200], q_len=2, q_heads=2, kv_heads=1, head_dim=16, options={"window": window}).check(made)


@pytest.mark.parametrize("rule", SPLITS)
def test_sinks_join_the_sum_once(problem, config, rule):
    problem([1, 200, 0], sinks=True, head_dim=16, options={"window": 30}).check(SPLITS[rule](config))


@pytest.mark.parametrize("rule", SPLITS)
def test_soft_cap_and_scale_match(problem, config, rule):
    problem([90], head_dim=16, options={"softcap": 3.0, "scale": 1.5}).check(SPLITS[rule](config))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "e5m2", "int8"])
@pytest.mark.parametrize("p_parts", [1, 2])
def test_every_cache_type_matches_within_its_bound(problem, config, dtype, p_parts):
    scales = {"k_scale": 0.5, "v_scale": 1.75} if dtype == "fp8" else {}
    made = config.fixed_count(3, unit=32, tile_keys=32, p_parts=p_parts)
    problem([150, 31], head_dim=32, dtype=dtype, options=scales).check(made)


@pytest.mark.parametrize("rule", ["unsplit", "fixed count", "fused"])
def test_scales_may_be_read_on_the_device(problem, config, rule):
    import torch

    made = problem([50], head_dim=16, dtype="fp8")
    made.args.update(k_scale=torch.tensor([0.5]).to(made.device), v_scale=torch.tensor([3.0]).to(made.device))
    made.check(SPLITS[rule](config))


@pytest.mark.parametrize("rule", ["unsplit", "fixed count", "fused"])
@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_each_kv_head_may_have_its_own_scales(problem, config, rule, dtype):
    import torch

    made = problem([50, 0, 7], q_heads=6, kv_heads=3, head_dim=16, dtype=dtype)
    made.args.update(k_scale=torch.tensor([0.02, 0.01, 0.05]).to(made.device))
    made.args.update(v_scale=torch.tensor([1.0, 0.25, 3.0]).to(made.device))
    made.check(SPLITS[rule](config))


def test_scales_that_are_neither_one_nor_one_a_head_are_refused(problem, config):
    import torch

    made = problem([20], q_heads=4, kv_heads=4, head_dim=16, dtype="int8")
    made.args.update(k_scale=torch.ones(4, device=made.device), v_scale=torch.ones(1, device=made.device))
    with pytest.raises(ValueError, match="each KV head"):
        made.run(SPLITS["fixed count"](config))


LISTED = {
    "fixed count": lambda c: c.fixed_count(5, unit=16, tile_keys=32, merge_rows=8, merge_splits=8),
    "fixed size": lambda c: c.fixed_size(48, 300, tile_keys=16, merge_rows=8, merge_splits=2),
    "fused": lambda c: c.fixed_size(64, 300, tile_keys=32, merge="fused", merge_splits=2),
    "one size": lambda c: c.fixed_size(300, 300, tile_keys=32),
}


@pytest.mark.parametrize("rule", LISTED)
@pytest.mark.parametrize("lens", [[1, 15, 0, 16, 17, 255, 256, 257], [0, 0], [300], [0, 299, 0]], ids=str)
def test_a_listed_launch_gives_the_bits_of_the_grid(problem, config, rule, lens):
    made, grid = problem(lens, q_heads=4, kv_heads=2, head_dim=16), LISTED[rule](config)
    out, lse = made.run(grid)
    assert made.error(out, made.reference()[0]) < 2e-5
    listed, listed_lse = made.run(grid.replace(listed=True))
    assert listed.equal(out)
    assert listed_lse.equal(lse)


def test_a_list_of_as_many_entries_as_the_keys_allow_is_enough(problem, config):
    from decodecalc_kernels import live

    lens = [64, 64, 1, 0, 192, 65, 128]
    made, grid = problem(lens, head_dim=16), config.fixed_size(64, 192, tile_keys=32)
    most = live.list_length(sum(lens), 64, len(lens))
    assert most < len(lens) * grid.num_splits
    assert made.run(grid.replace(listed=True, list_length=most))[0].equal(made.run(grid)[0])


def test_more_requests_than_a_block_counts_at_a_time_are_listed(problem, config):
    from decodecalc_kernels import live

    lens = [(37 * i) % 70 for i in range(140)]
    made, grid = problem(lens, q_heads=1, head_dim=16), config.fixed_size(32, 70, tile_keys=32, merge_splits=4)
    most = live.list_length(sum(lens), 32, len(lens))
    assert made.run(grid.replace(listed=True, list_length=most))[0].equal(made.run(grid)[0])


@pytest.mark.parametrize("window", [None, 40])
def test_listed_requests_with_different_query_lengths_match(problem, config, window):
    made = problem([9, 70, 33, 0, 200], q_lens=[3, 1, 4, 0, 2], q_heads=3, head_dim=16, options={"window": window})
    for partition in ("full", "window"):
        made.check(LISTED["fixed size"](config).replace(listed=True, window_partition=partition))


def test_listed_counts_and_sizes_of_each_request_match(problem, config):
    import torch

    made = problem([300, 64, 1, 0, 33], q_heads=2, kv_heads=1, head_dim=16)
    counts = torch.tensor([7, 2, 3, 0, 1], dtype=torch.int32, device=made.device)
    made.check(config.per_request_counts(8, unit=32, tile_keys=32, listed=True), split_values=counts)
    sizes = torch.tensor([60, 16, 5, 1, 33], dtype=torch.int32, device=made.device)
    made.check(config.per_request_sizes(5, tile_keys=16, listed=True), split_values=sizes)


def test_per_request_counts_and_sizes_from_the_device_match(problem, config):
    import torch

    made = problem([300, 64, 1, 0, 33], q_heads=2, kv_heads=1, head_dim=16)
    counts = torch.tensor([7, 2, 3, 0, 1], dtype=torch.int32, device=made.device)
    made.check(config.per_request_counts(8, unit=32, tile_keys=32, merge_rows=2), split_values=counts)
    sizes = torch.tensor([60, 16, 5, 1, 33], dtype=torch.int32, device=made.device)
    made.check(config.per_request_sizes(5, tile_keys=16, merge_rows=2), split_values=sizes)


def test_strided_queries_caches_and_outputs_match(problem, config):
    import torch

    from decodecalc_kernels import decode_attention

    made = problem([75, 20], q_heads=4, kv_heads=2, head_dim=16)
    interleaved = torch.stack([made.k, made.v], dim=1).transpose(2, 3).contiguous().transpose(2, 3)
    made.k, made.v = interleaved[:, 0], interleaved[:, 1]  # [pages, page, heads, D]: one buffer, heads before slots
    fused_qkv = torch.full((2, 3 * 4, 16), float("nan"), device=made.device)
    fused_qkv[:, 4:8] = made.q
    made.q = fused_qkv[:, 4:8]
    wide = torch.full((2, 4, 40), float("nan"), device=made.device)
    made_config = SPLITS["fixed count"](config)
    decode_attention(made.q, made.k, made.v, config=made_config, out=wide[:, :, 8:24], **made.args)
    assert made.error(wide[:, :, 8:24], made.reference()[0]) < 2e-5
    assert torch.isnan(wide[:, :, :8]).all()
    assert torch.isnan(wide[:, :, 24:]).all()


def test_fused_merge_leaves_its_counters_ready_for_the_next_launch(problem, config):
    made, fused = problem([90, 5], head_dim=16), SPLITS["fused"](config)
    space = made.workspace(fused)
    first = made.run(fused, workspace=space)[0]
    space.poison()
    second = made.run(fused, workspace=space)[0]
    assert first.equal(second)
    assert not space.arrived.any()


def test_idle_requests_change_nothing(problem, config):
    made, rule = problem([90, 5], head_dim=16), SPLITS["fixed count"](config)
    assert made.run(rule)[0].equal(made.run(rule.replace(idle_requests=3))[0])


@pytest.mark.parametrize("which", ["by hand", "invariant_config"])
def test_fixed_split_size_gives_a_request_the_same_bits_in_any_batch(problem, config, which):
    from decodecalc_kernels import invariant_config

    made = config.fixed_size(48, 300, tile_keys=16, merge_rows=2)
    if which == "invariant_config":
        made = invariant_config(q_heads=2, kv_heads=1, head_dim=16, max_seq_len=300, split_keys=64)
    batch = problem([300, 77, 1, 130], q_heads=2, kv_heads=1, head_dim=16)
    together = batch.run(made)[0]
    for b in range(4):
        alone = problem([300, 77, 1, 130], q_heads=2, kv_heads=1, head_dim=16)
        alone.q, alone.tokens, alone.out_shape = batch.q[b : b + 1], 1, (1, *batch.out_shape[1:])
        alone.k, alone.v, alone.seq_lens = batch.k, batch.v, batch.seq_lens[b : b + 1]
        alone.args.update(seq_lens=batch.lens[b : b + 1], page_table=batch.args["page_table"][b : b + 1])
        assert alone.run(made)[0].equal(together[b : b + 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_table": None}, "page_table"),
        ({"q_len": 2}, "query rows"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(problem, config, change, message):
    made = problem([20], head_dim=16)
    made.args.update(change)
    with pytest.raises(ValueError, match=message):
        made.run(SPLITS["fixed count"](config))


def test_per_request_rules_need_their_values(problem, config):
    with pytest.raises(ValueError, match="split_values"):
        problem([20], head_dim=16).run(config.per_request_counts(4))


def test_without_a_config_the_registered_chooser_s_launch_runs(problem, config, monkeypatch):
    """The launcher hands on lengths, shapes and types, and runs what it is told."""
    from decodecalc_kernels import choose as hook

    asked = []
    made = problem([90, 5], q_heads=4, kv_heads=2, head_dim=16, page=16)
    chosen = config.fixed_size(32, 90, tile_keys=16)
    monkeypatch.setattr(hook, "_registered", [lambda told: asked.append(told) or chosen])
    assert made.run(None)[0].equal(made.run(chosen)[0])
    (told,) = asked
    assert (told.q_heads, told.kv_heads, told.head_dim, told.seq_lens, told.q_lens) == (4, 2, 16, (90, 5), (1, 1))
    assert (told.page_size, told.mla, told.window) == (16, False, None)
