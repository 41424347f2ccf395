"""The kernels on a CUDA device at real sizes: `pytest -m gpu tests/kernels`."""

from __future__ import annotations

import pytest

from decodecalc_kernels import live

pytestmark = pytest.mark.gpu

# (q_heads, kv_heads, head_dim, v_dim, MLA): models' layers on one rank
LAYERS = {
    "llama3-8b": (32, 8, 128, 128, False),
    "llama3-70b tp8": (8, 1, 128, 128, False),
    "mha": (32, 32, 128, 128, False),
    "qwen2-7b": (28, 4, 128, 128, False),
    "falcon-7b": (71, 1, 64, 64, False),
    "phi-2": (32, 32, 80, 80, False),
    "phi-3": (32, 32, 96, 96, False),
    "192/128": (16, 16, 192, 128, False),
    "gemma": (8, 4, 256, 256, False),
    "512": (8, 2, 512, 512, False),
    "deepseek-mla": (128, 1, 576, 512, True),
    "deepseek-mla tp8": (16, 1, 576, 512, True),
    "40/2": (40, 2, 128, 128, False),
}
BATCHES = {
    "one long": [33_000],
    "ragged": [1, 5000, 0, 17, 4096, 777, 256, 257],
    "many": [1000 + 13 * i for i in range(40)],
}


@pytest.fixture
def config():
    from decodecalc_kernels import LaunchConfig

    return LaunchConfig


def chosen(made):
    """What the time model launches for a problem."""
    from decodecalc import Batch, Geometry, KvCache, detect_gpu
    from decodecalc.cost.launcher import launch_config

    geo = Geometry(made.q_heads, made.kv_heads, made.head_dim, made.v_dim, made.options.get("window"), mla=made.mla)
    kv = KvCache("fp8" if made.dtype == "e5m2" else made.dtype, made.page)
    return launch_config(geo, Batch(made.seq_lens, made.q_lens or made.q_len), kv, detect_gpu())


@pytest.mark.parametrize("p_parts", [1, 2])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("layer", LAYERS)
def test_chosen_launch_matches_the_reference(problem, layer, batch, p_parts):
    q_heads, kv_heads, head_dim, v_dim, mla = LAYERS[layer]
    made = problem(BATCHES[batch], q_heads, kv_heads, head_dim, v_dim=v_dim, mla=mla, dtype="bf16")
    made.check(chosen(made).replace(p_parts=p_parts))


# 71 heads share a KV head: blocks of 64 rows, which are multiplied by warp groups.
@pytest.mark.parametrize("layer", ["llama3-8b", "mha", "falcon-7b", "40/2", "gemma", "deepseek-mla tp8"])
@pytest.mark.parametrize("dtype", ["fp16", "fp8", "e5m2", "int8"])
def test_other_cache_types_match_the_reference(problem, layer, dtype):
    q_heads, kv_heads, head_dim, v_dim, mla = LAYERS[layer]
    scales = {"k_scale": 0.5, "v_scale": 1.5} if dtype == "fp8" else {}
    made = problem(BATCHES["ragged"], q_heads, kv_heads, head_dim, v_dim=v_dim, mla=mla, dtype=dtype, options=scales)
    made.check(chosen(made))


@pytest.mark.parametrize("page", [1, 64, 256])
@pytest.mark.parametrize("flat", [False, True])
def test_page_layouts_match_the_reference(problem, page, flat):
    made = problem(BATCHES["ragged"], 32, 8, 128, page=page, flat=flat, dtype="bf16")
    made.check(chosen(made))


@pytest.mark.parametrize(
    "options",
    [{"window": 128}, {"window": 1024, "softcap": 30.0}, {"softcap": 50.0}],
    ids=str,
)
@pytest.mark.parametrize("q_len", [1, 3, 8])
def test_windows_caps_sinks_and_query_lengths_match_the_reference(problem, options, q_len, config):
    made = problem([20_000, 8192, 600, 9], 64, 8, 64, dtype="bf16", q_len=q_len, sinks=True, options=options)
    made.check(chosen(made))
    made.check(config.fixed_count(16, unit=16, rows=64, tile_keys=32))  # vLLM's partition: whole request


@pytest.mark.parametrize("rule", ["vllm", "sglang", "sizes", "fused", "unsplit"])
def test_every_policys_rule_matches_the_reference(problem, config, rule):
    import torch

    made = problem(BATCHES["ragged"], 32, 8, 128, dtype="bf16")
    counts = torch.tensor([8, 7, 0, 3, 8, 5, 1, 8], dtype=torch.int32, device="cuda")
    made_config, values = {
        "vllm": (config.fixed_count(16, unit=16, tile_keys=16, idle_requests=2), None),
        "sglang": (config.per_request_counts(8, unit=32, tile_keys=32), counts),
        "sizes": (config.per_request_sizes(8), counts * 128 + 640),
        "fused": (config.fixed_count(32, unit=64, merge="fused", merge_splits=16), None),
        "unsplit": (config(), None),
    }[rule]
    made.check(made_config, split_values=values)


def test_a_cache_beyond_32_bit_offsets_is_addressed_right(problem):
    import torch

    made = problem([3000, 70], 32, 8, 128, dtype="bf16")
    far = torch.empty(140_000, 16, 8, 128, dtype=torch.bfloat16, device="cuda")  # 2.3e9 elements
    far[-made.k.shape[0] :] = made.k
    made.k = far
    far_v = torch.empty_like(far)
    far_v[-made.v.shape[0] :] = made.v
    shift = far.shape[0] - made.v.shape[0]
    made.v = far_v
    made.args["page_table"] = made.args["page_table"].clamp(max=shift) + shift
    made.check(chosen(made))


@pytest.mark.parametrize("merge", ["kernel", "fused"])
@pytest.mark.parametrize("rule", ["size", "listed", "count", "unsplit"])
def test_graph_replays_with_changed_lengths_equal_eager_bit_for_bit(problem, config, merge, rule):
    import torch

    from decodecalc_kernels import decode_attention

    made = problem([9000, 4000, 2500, 9000], 32, 8, 128, dtype="bf16")
    launch = {
        "size": config.fixed_size(512, 9000, merge=merge),
        "listed": config.fixed_size(512, 9000, merge=merge, listed=True),
        "count": config.fixed_count(24, unit=64, merge=merge),
        "unsplit": config(),
    }[rule]
    space, out = made.workspace(launch), torch.empty(made.out_shape, dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    decode_attention(made.q, made.k, made.v, config=launch, workspace=space, out=out, **made.args)
    with torch.cuda.graph(graph):
        decode_attention(made.q, made.k, made.v, config=launch, workspace=space, out=out, **made.args)
    for lens in ([1, 4000, 0, 513], [9000, 1, 2500, 64], [0, 0, 0, 0], [8191, 3999, 2049, 8193]):
        made.lens.copy_(torch.tensor(lens))
        made.q.normal_()
        space.poison()
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        eager = decode_attention(made.q, made.k, made.v, config=launch, **made.args)
        assert out.equal(eager)
        made.seq_lens = lens
        assert made.error(out.float(), made.reference()[0]) < 4e-3  # bf16 output: 1.6e-3 more


def ulps(a, b):
    """The largest distance between two bf16 tensors in units of the last place, where neither is close to zero."""
    import torch

    def ordered(x):
        bits = x.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    large = a.float().abs() > a.float().pow(2).mean().sqrt()
    return int((ordered(a) - ordered(b)).abs()[large].max())


def test_fixed_split_size_is_bitwise_batch_invariant_and_adaptive_counts_are_not(problem, config, record_property):
    import torch

    from decodecalc_kernels import decode_attention

    made = problem([30_000, 6000, 100, 12_345], 32, 8, 128, dtype="bf16")

    def run(rows, launch, values=None):
        part = slice(*rows)
        arguments = dict(made.args, seq_lens=made.lens[part], page_table=made.args["page_table"][part])
        if values is not None:
            arguments["split_values"] = torch.tensor(values, dtype=torch.int32, device="cuda")
        return decode_attention(made.q[part], made.k, made.v, config=launch, **arguments)

    fixed = config.fixed_size(512, 30_000)
    together = run((0, 4), fixed)
    for b in range(4):
        assert run((b, b + 1), fixed).equal(together[b : b + 1])
    assert run((1, 3), fixed).equal(together[1:3])
    # An adaptive rule gives request 1 another count when it is alone: other partial sums, other bits.
    adaptive = config.per_request_counts(64, unit=64)
    batch = run((0, 4), adaptive, [16, 4, 1, 8])[1:2]
    alone = run((1, 2), adaptive, [48])
    distance = ulps(batch, alone)
    differ = float((batch != alone).float().mean())
    record_property("adaptive_ulps", distance)
    print(f"adaptive split counts, request alone against in a batch: {differ:.1%} of the outputs differ, by up to "
          f"{distance} bf16 ULP among those above the rms")  # fmt: skip
    assert differ > 0
    assert torch.allclose(batch.float(), alone.float(), atol=1e-2)


def test_recorded_launch_shows_splits_sms_and_early_exits(problem, config):
    import torch

    from decodecalc_kernels import record_launch

    made = problem([2560], 32, 8, 128, dtype="bf16")
    out, seen = record_launch(made.q, made.k, made.v, config=config.fixed_count(16, unit=16, tile_keys=16), **made.args)
    assert made.error(out.float(), made.reference()[0]) < 4e-3
    assert seen.grid == (8, 1, 16)
    assert seen.live_blocks == 128
    assert seen.split_keys(0) == [(160 * i, 160 * i + 160) for i in range(16)]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    assert seen.sms_used() == min(128, sms)  # one block per SM while there are enough SMs
    assert (seen.finish_ns > 0).all()
    assert (seen.finish_ns >= seen.begin_ns).all()

    made = problem([257, 0], 32, 8, 128, dtype="bf16")
    _, seen = record_launch(made.q, made.k, made.v, config=config.fixed_count(16, unit=16, tile_keys=16), **made.args)
    assert seen.live_splits() == [9, 0]
    assert seen.split_keys(0, 7) == live.splits(257, 32, 16)
    assert int(seen.exited.sum()) == 8 * (16 + 7)
