"""Laws of the FlashAttention and FlexAttention policies, in every version: partitions, counts, both doors."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decodecalc.batch import Batch
from decodecalc.engines.registry import load_policy
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, at, row

POLICIES = [
    (name, version.name)
    for name in ("flash-attention-2", "flash-attention-3", "flex-decoding")
    for version in load_policy(name).versions
]
HOPPER = load_gpu("h100-sxm")
PAGE = KvCache(page_size=256)
every_version = pytest.mark.parametrize(("name", "version"), POLICIES)
keys = st.one_of(st.integers(1, 700), st.integers(1, 200_000), st.sampled_from([128, 129, 176, 512, 513, 4096, 4097]))
head_dims = st.sampled_from([64, 80, 96, 128, 192, 256])


@st.composite
def geometries(draw):
    kv_heads = draw(st.sampled_from([1, 2, 5, 8, 16]))
    window = draw(st.one_of(st.none(), st.integers(1, 5000)))
    return Geometry(kv_heads * draw(st.sampled_from([1, 2, 4, 7, 8, 16])), kv_heads, draw(head_dims), window=window)


options = st.fixed_dictionaries(
    {},
    optional={
        "num_splits_arg": st.integers(0, 128),
        "batch_invariant": st.booleans(),
        "cuda_graph": st.booleans(),
        "cu_seqlens_q": st.booleans(),
        "causal": st.booleans(),
        "api": st.sampled_from(["kvcache", "varlen"]),
        "has_full_blocks": st.booleans(),
        "split_kv": st.integers(1, 300),
    },
)


def accepted(name, version, given_options):
    """The options that this engine and version take."""
    known = {f.name for f in fields(load_policy(name).options_type)}
    if version == "3.0.0":
        known.discard("cuda_graph")  # vLLM's bound
    return {k: v for k, v in given_options.items() if k in known}


def planned(name, version, geo, batch, gpu, given_options):
    """The plan, or another example where the engine refuses this one."""
    try:
        return load_policy(name).plan(geo, batch, PAGE, gpu, accepted(name, version, given_options), version)
    except GateError:
        assume(False)
        raise


@every_version
@settings(max_examples=30, deadline=None)
@given(geo=geometries(), lens=st.lists(keys, min_size=1, max_size=6), sms=st.integers(1, 300), opts=options)
def test_live_splits_tile_the_keys_once(name, version, geo, lens, sms, opts):
    """Live splits are in order, without gap or overlap, end with the request and are as many as counted; what lies
    before them is outside the window."""
    gpu = Gpu(name="any", sm_count=sms, compute_capability=(9, 0))
    p = planned(name, version, geo, Batch(lens), gpu, opts)
    for r, total in enumerate(lens):
        ranges = p.splits.keys[r]
        assert len(ranges) == p.splits.live[r]
        assert [a for a, _ in ranges[1:]] == [b for _, b in ranges[:-1]]
        assert all(a < b for a, b in ranges)
        assert ranges[-1][1] == total
        assert ranges[0][0] <= max(total - (geo.window or total), 0)


@every_version
@settings(max_examples=30, deadline=None)
@given(geo=geometries(), lens=st.lists(keys, min_size=1, max_size=6), q_len=st.integers(1, 5), opts=options)
def test_counts_are_ordered(name, version, geo, lens, q_len, opts):
    """working <= live <= requested <= launched, and no more blocks work than are launched."""
    p = planned(name, version, geo, Batch([n + q_len for n in lens], q_len), HOPPER, opts)
    for working, live, requested in zip(p.splits.working, p.splits.live, p.splits.requested):
        assert 1 <= working <= live <= requested <= p.splits.launched
    for kernel in p.kernels:
        assert 1 <= kernel.live_blocks <= kernel.launched_blocks or kernel.role == "merge"
        assert kernel.live_blocks <= kernel.launched_blocks
    assert (p.scratch_bytes > 0) == p.is_split
    assert p.to_dict()["detail"]


@every_version
@settings(max_examples=25, deadline=None)
@given(
    geo=geometries(),
    steps=st.lists(st.tuples(st.integers(1, 80), keys, st.integers(1, 3)), min_size=1, max_size=6),
    opts=options,
)
def test_whole_arrays_plan_what_single_steps_plan(name, version, geo, steps, opts):
    """One rule, two doors: entry n of an array is the plan of step n."""
    steps = [(b, c + q, q) for b, c, q in steps]
    policy = load_policy(name)
    alone = [planned(name, version, geo, Batch.uniform(*step), HOPPER, opts) for step in steps]
    made = policy.options_type.from_mapping(name, accepted(name, version, opts))
    sweep = Batches.uniform(*(np.array(column) for column in zip(*steps)))
    _, found = policy.on_layer(geo, sweep, PAGE, HOPPER, made, policy.version(version))
    for n, p in enumerate(alone):
        size = p.batch.size
        stage1 = next(k for k in found.kernels if k.role == "stage1" and at(k.when, n))
        assert tuple(int(at(x, n)) for x in stage1.grid) == p.stage1.grid
        assert (stage1.name, stage1.threads, int(at(stage1.live_blocks, n))) == (
            p.stage1.name,
            p.stage1.threads,
            p.live_blocks,
        )
        assert at(found.launched, n) == p.splits.launched
        assert row(found.live, n, size) == p.splits.live
        assert row(found.requested, n, size) == p.splits.requested
        assert row(found.keys_read, n, size) == p.keys_read
        assert row(found.blocks_per_split, n, size) == p.blocks_per_split
        assert int(at(found.scratch_bytes, n)) == p.scratch_bytes
        assert [bool(at(g.passed, n)) for g in found.gates] == [g.passed for g in p.gates]
        assert [g.reason(n) for g in found.gates] == [g.reason for g in p.gates]


@every_version
def test_requests_without_keys_have_no_splits(name, version):
    """An empty request (a padded row) adds no blocks of work and no keys."""
    p = load_policy(name).plan(Geometry(8, 8, 128), Batch([0, 5000]), PAGE, HOPPER, {}, version)
    assert p.splits.live[0] == 0
    assert p.splits.keys[0] == []
    assert p.keys_read[0] == 0
