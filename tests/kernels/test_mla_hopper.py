"""The kernel for latents on Hopper's warp groups. It cannot run in the interpreter: everywhere it is compiled, and on a
Hopper GPU it is checked against the float64 reference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from decodecalc_kernels.blocks import MLA_HOPPER, cdiv, merge_shape

WIDTHS = {"head_dim": 576, "v_dim": 512, "mla": True, "kv_heads": 1}
# Tiles are 64 keys: lengths of one tile, around its edges, of odd and even tile counts, and none at all.
LENGTHS = {
    "one key": [1],
    "one tile": [64],
    "edges": [63, 65, 128, 129, 191],
    "ragged": [0, 1000, 4096, 5, 257, 0],
    "long": [9000],
}


def of_splits(lengths, splits, rows, **more):
    """The launch of about this many splits of one size; one split is the unsplit launch."""
    from decodecalc_kernels import LaunchConfig

    if splits == 1:
        return LaunchConfig(**MLA_HOPPER, **more)
    tiles = max(cdiv(max(lengths), 64), 1)
    size = 64 * cdiv(tiles, splits)
    count = max(cdiv(max(lengths), size), 1)
    return LaunchConfig(
        num_splits=count, split_rule="size", split_value=size, **MLA_HOPPER, **merge_shape(count, rows, 512), **more
    )


@pytest.fixture
def hopper():
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 2, 7, 64])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    ("q_heads", "q_len"), [(128, 1), (64, 1), (32, 1), (24, 3), (128, 2), (128, 4), (16, 4), (1, 1)]
)
def test_every_length_split_and_group_matches_the_reference(hopper, problem, q_heads, q_len, lengths, splits):
    lens = [n and max(n, q_len) for n in LENGTHS[lengths]]
    made = problem(lens, q_heads, page=64, dtype="bf16", q_len=q_len, **WIDTHS)
    made.check(of_splits(lens, splits, made.tokens * q_heads))


@pytest.mark.gpu
@pytest.mark.parametrize("page", [64, 128, 1024])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_pages_of_whole_tiles_and_both_types_match(hopper, problem, dtype, page):
    lens = [5000, 64, 333]
    problem(lens, 128, page=page, dtype=dtype, **WIDTHS).check(of_splits(lens, 5, 3 * 128))


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("page", [1, 16, 96, 1072])
def test_pages_of_any_size_match(hopper, problem, page, splits):
    """Tiles whose rows lie in several pages: each row is copied by itself."""
    lens = [5000, 64, 333, 0, 1]
    problem(lens, 128, page=page, dtype="bf16", **WIDTHS).check(of_splits(lens, splits, 5 * 128))


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("page", [1, 64])
def test_flat_lists_of_slots_match(hopper, problem, page, splits):
    lens = [700, 0, 4096, 65]
    problem(lens, 64, page=page, flat=True, dtype="fp16", **WIDTHS).check(of_splits(lens, splits, 4 * 64))


@pytest.mark.gpu
def test_a_cache_whose_layers_alternate_matches(hopper, problem):
    """Pages that do not follow each other in memory, because another layer's lie between."""
    import torch

    lens = [3000, 100]
    made = problem(lens, 128, page=64, dtype="bf16", **WIDTHS)
    both = torch.full((len(made.k), 2, *made.k.shape[1:]), float("nan"), dtype=made.k.dtype, device="cuda")
    both[:, 1] = made.k
    made.k = both[:, 1]
    made.check(of_splits(lens, 3, 2 * 128))


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 2, 7])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    ("q_heads", "q_len", "page"), [(128, 1, 64), (64, 1, 16), (32, 1, 1), (64, 2, 64), (32, 4, 16)]
)
def test_fp8_matches_the_reference(hopper, problem, q_heads, q_len, page, lengths, splits):
    """Whole rows of E4M3 with one scale: exact in fp16, so that the bound is that of fp16."""
    lens = [n and max(n, q_len) for n in LENGTHS[lengths]]
    scales = {"k_scale": 0.5, "v_scale": 1.5}
    made = problem(lens, q_heads, page=page, dtype="fp8", q_len=q_len, options=scales, **WIDTHS)
    made.check(of_splits(lens, splits, made.tokens * q_heads))


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("heads", [32, 128])
def test_lists_with_holes_match(hopper, heads, dtype, splits):
    """Sparse layers: full lists, padded ones, holes anywhere, whole tiles of holes, lists of nothing."""
    import torch
    from sparse_steps import check, sparse_step

    gen = torch.Generator().manual_seed(splits)
    lists = [[-1] * 2048, [], [5]]
    for known in (2048, 700, 64, 1):
        one = torch.full((2048,), -1)
        one[torch.randperm(2048, generator=gen)[:known]] = torch.randperm(20_000, generator=gen)[:known]
        lists.append(one.tolist())
    lists.append([*range(100), *[-1] * 900, *range(100, 230)])
    step = sparse_step(lists, heads=heads, head_dim=576, v_dim=512, mla=True, dtype=dtype, slots=20_000)
    check(step, of_splits([2048], splits, len(lists) * heads), dtype)


@pytest.mark.gpu
def test_rules_of_whole_tiles_and_mixed_drafts_match(hopper, problem):
    import torch

    from decodecalc_kernels import LaunchConfig

    lens = [700, 4096, 65, 0]
    made = problem(lens, 64, page=64, dtype="bf16", **WIDTHS)
    made.check(LaunchConfig.fixed_count(6, unit=64, idle_requests=1, **MLA_HOPPER))
    counts = torch.tensor([3, 8, 0, 1], dtype=torch.int32, device="cuda")
    made.check(LaunchConfig.per_request_counts(8, unit=64, **MLA_HOPPER), split_values=counts)
    mixed = problem(lens[:3], 64, page=64, dtype="bf16", q_lens=[1, 4, 2], **WIDTHS)
    mixed.check(of_splits(lens, 3, 7 * 64))
    mixed.check(of_splits(lens, 1, 7 * 64))


@pytest.mark.gpu
def test_scores_far_apart_match(hopper, problem):
    """The reference of the exponents moves by hundreds from tile to tile, up and down."""
    made = problem([2048, 700], 128, page=64, dtype="bf16", **WIDTHS)
    made.q *= 40
    made.check(of_splits([2048], 1, 256))
    made.check(of_splits([2048], 4, 256))


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 6])
def test_graph_replays_with_changed_lengths_equal_eager_bit_for_bit(hopper, problem, splits):
    import torch

    from decodecalc_kernels import decode_attention

    made = problem([9000, 4000, 2500, 9000], 128, page=64, dtype="bf16", **WIDTHS)
    launch = of_splits(made.seq_lens, splits, 4 * 128)
    space, out = made.workspace(launch), torch.empty(made.out_shape, dtype=torch.bfloat16, device="cuda")

    def step():
        decode_attention(made.q, made.k, None, config=launch, workspace=space, out=out, **made.args)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lens in ([1, 4000, 0, 513], [9000, 1, 2500, 64], [0, 0, 0, 0], [8191, 3999, 2049, 8193]):
        made.lens.copy_(torch.tensor(lens))
        made.q.normal_()
        space.poison()
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        eager = decode_attention(made.q, made.k, None, config=launch, **made.args)
        assert out.equal(eager)
        made.seq_lens = lens
        assert made.error(out.float(), made.reference()[0]) < 4e-3  # bf16 output: 1.6e-3 more


@pytest.mark.gpu
def test_a_request_has_the_same_bits_alone_and_at_any_place_in_any_batch(hopper, problem):
    import torch

    from decodecalc_kernels import LaunchConfig, decode_attention

    lens = [30_000, 6000, 100, 12_345, 1, 64]
    made = problem(lens, 128, page=64, dtype="bf16", **WIDTHS)
    launch = LaunchConfig.fixed_size(512, max(lens), **MLA_HOPPER)

    def run(rows):
        arguments = dict(made.args, seq_lens=made.lens[rows], page_table=made.args["page_table"][rows])
        return decode_attention(made.q[rows], made.k, None, config=launch, **arguments)

    together = run(torch.arange(6, device="cuda"))
    for order in ([0], [1], [2], [3], [4], [5], [5, 4, 3, 2, 1, 0], [3, 1], [2, 2, 2, 0]):
        rows = torch.tensor(order, device="cuda")
        assert run(rows).equal(together[rows])


@pytest.mark.gpu
def test_recorded_blocks_cover_every_key_once(hopper, problem):
    from decodecalc_kernels import record_launch

    made = problem([1000, 0, 64], 128, page=64, dtype="bf16", **WIDTHS)
    launch = of_splits([1000], 4, 3 * 128)
    out, seen = record_launch(made.q, made.k, None, config=launch, **made.args)
    assert made.error(out.float(), made.reference()[0]) < 4e-3
    assert seen.grid == (2, 3, 4)
    assert seen.live_splits() == [4, 0, 1]
    for column in (0, 1):
        assert seen.split_keys(0, column) == [(0, 256), (256, 512), (512, 768), (768, 1000)]
    assert seen.sms_used() == 10  # one block an SM
    assert (seen.finish_ns >= seen.begin_ns).all()


@pytest.mark.gpu
def test_the_default_launch_is_this_kernel_where_it_fits(hopper, problem, monkeypatch):
    import decodecalc.cost.bundled  # noqa: F401  (registers the time model's choice)
    from decodecalc_kernels import mla_hopper

    launches = []
    launch = mla_hopper.launch_mla
    monkeypatch.setattr(mla_hopper, "launch_mla", lambda *a, **k: (launches.append(1), launch(*a, **k)))

    def ran(q_heads, dtype="bf16", **more):
        before = len(launches)
        made = problem([3000, 200], q_heads, dtype=dtype, **WIDTHS, **more)
        out, _ = made.run(None)
        assert made.error(out, made.reference()[0]) < 2e-3
        return len(launches) > before

    assert ran(128, page=64)
    assert ran(32, page=64)
    assert not ran(16, page=64)
    assert ran(128, page=16)
    assert ran(128, page=64, flat=True)
    assert ran(16, dtype="fp8", page=64)


@pytest.mark.interpreter
def test_what_it_cannot_run_is_refused_in_words(problem):
    made = problem([64], 32, page=16, dtype="bf16", **WIDTHS)
    with pytest.raises(ValueError, match=r"kernel mla_stage1 (runs on|needs)"):
        made.run(of_splits([64], 1, 32))


COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from decodecalc_kernels import mla_hopper as home

kernel = home.mla_stage1_kernel
direct, q_len, load, holes = json.loads(sys.argv[1])
layout = home.shared_layout()
types = {"q_wide": 256, "q_narrow": 64, "k_wide": 256, "k_narrow": 64}
types = {name: f"tensordesc<bf16[64, {width}],{layout!r}>" for name, width in types.items()}
types |= {"scale_log2": "fp32", "v_scale": "fp32", "out_ptr": "*bf16", "lse_ptr": "*fp32"}
types["k_ptr"] = "*i32" if load == home.ROWS_FP8.value else "*bf16"
types |= {f"part_{name}_ptr": "*fp32" for name in ("out", "max", "sum")}
types |= {f"{name}_ptr": "*i32" for name in ("seq_lens", "table", "split_values")}
fixed = {"query_start_ptr": None, "record_ptr": None, "indptr_ptr": None, "Q_LEN": q_len, "LOAD": load,
         "HOLES": holes, "PAGE": {0: 64, 1: 1072, 2: 1}[load], "FLAT": False, "DIRECT": direct,
         "HAS_LSE": direct,
         "RECORD": False, "PDL": True, "LATE": direct}
signature = {n: "constexpr" if n in fixed else types.get(n, "i32") for n in kernel.arg_names}
strides = [f"{tensor}_stride_{of}" for tensor, of in (("k", "page"), ("k", "slot"), ("out", "token"), ("out", "head"))]
aligned = [n for n, t in signature.items() if t[0] == "*" or n in strides]
attributes = {(kernel.arg_names.index(n),): [["tt.divisibility", 16]] for n in aligned}
made = triton.compile(
    GluonASTSource(kernel, signature, fixed, attributes), target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}
)
open(sys.argv[2], "w").write(made.asm["ptx"])
print(json.dumps({"shared": made.metadata.shared, "ptxas": triton.knobs.nvidia.ptxas.path}))
"""


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("direct", "q_len", "load", "holes"),
    [(False, 1, 0, False), (True, 4, 0, False), (False, 2, 1, False), (True, 1, 1, True), (False, 1, 2, False),
     (True, 1, 2, True)],
)  # fmt: skip
def test_it_compiles_for_hopper_without_spills_and_fits_an_sm(direct, q_len, load, holes, tmp_path):
    """Without a GPU: through Triton and its own assembler. Warp-group products that the assembler has to serialise
    would show as a warning."""
    pytest.importorskip("triton.experimental.gluon.language.nvidia.hopper")
    ptx = tmp_path / "kernel.ptx"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, "-c", COMPILE, json.dumps([direct, q_len, load, holes]), str(ptx)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["shared"] <= 232_448  # bytes of shared memory that a block may have
    assembled = subprocess.run(
        [made["ptxas"], "-v", "--gpu-name", "sm_90a", str(ptx), "-o", str(Path(os.devnull))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    spilled = re.findall(
        r"(\d+) bytes (?:stack frame|cumulative stack size|spill stores|spill loads)", assembled.stderr
    )
    assert not any(int(n) for n in spilled)
    assert "Used 168 registers" in assembled.stderr  # of 384 threads: all that an SM has
    assert "serialized" not in assembled.stderr
    assert "warpgroup.wait is injected" not in assembled.stderr
