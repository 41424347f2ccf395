"""Laws that every policy obeys in every version: partitions, counts, coverage, both doors, plain values, gates."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lawful import laws, missing

from decodecalc.batch import Batch
from decodecalc.engines import engine_names, load_policy
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import DETERMINISM, Batches, at, row
from decodecalc.launch.plan import CLUSTER, MERGE_KERNEL, MERGES, LaunchPlan
from decodecalc.launch.policy import Policy

POLICIES = [(name, version.name) for name in engine_names() for version in load_policy(name).versions]

every_version = pytest.mark.parametrize(("name", "version"), POLICIES, ids=[f"{n}@{v}" for n, v in POLICIES])
quick = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@st.composite
def steps(draw: st.DrawFn, name: str, windows: bool = True, max_q_len: int = 3) -> tuple[Geometry, Batch, Gpu]:
    """A layer, a decode step and a device."""
    law, queries = laws()[name], max_q_len if draw(st.booleans()) else 1
    return (
        draw(law.geometries(windows)),
        draw(strategies.batches(max_q_len=queries)),
        draw(law.devices),
    )


def test_every_engine_says_where_the_laws_are_tested() -> None:
    """A registered engine has an entry in its test folder, and no entry is of an engine that is not registered."""
    assert not missing(), (
        f"no laws for {', '.join(missing())}: add tests/engines/FOLDER/laws.py, named as the engine's own folder, with "
        'LAWS = {"the-engine": Lawful(gpus=("h100-sxm",))}; tests/lawful.py says what each field means'
    )
    assert list(laws()) == list(engine_names())


def plan(name: str, version: str, geo: Geometry, batch: Batch, gpu: Gpu) -> LaunchPlan:
    """The plan; another example where the engine refuses this one, or takes a single query token only."""
    try:
        return load_policy(name).plan(geo, batch, laws()[name].cache, gpu, {}, version)
    except GateError:
        assume(False)
    except InputError as refused:
        assume("query token" not in str(refused))
        raise
    raise AssertionError


@every_version
@quick
@given(data=st.data())
def test_live_splits_tile_the_visible_keys_once(name: str, version: str, data: st.DataObject) -> None:
    """The pieces of a request's live splits follow each other without gap or overlap, none is empty, the last ends with
    the request, and they start at key 0 or, with a window, no later than the first key that a query can see."""
    geo, batch, gpu = data.draw(steps(name))
    p = plan(name, version, geo, batch, gpu)
    assert len(p.splits.keys) == batch.size
    for r, (length, queries) in enumerate(zip(batch.seq_lens, batch.q_lens)):
        pieces = p.splits.pieces(r)
        assert len(pieces) == len(p.splits.keys[r]) == p.splits.live[r] >= 1
        assert [sum(end - start for start, end in mine) for mine in pieces] == p.splits.key_counts(r)
        assert [(mine[0][0], mine[-1][1]) for mine in pieces] == list(p.splits.keys[r])
        ranges = sorted(piece for mine in pieces for piece in mine)
        assert all(start < end for start, end in ranges)
        assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
        assert ranges[-1][1] == length
        if geo.window is None:
            assert ranges[0][0] == 0
        else:
            visible = max(length - queries - geo.window + 1, 0)
            assert 0 <= ranges[0][0] <= visible + laws()[name].keys_left_out


@every_version
@quick
@given(data=st.data())
def test_counts_are_ordered(name: str, version: str, data: st.DataObject) -> None:
    """working <= live <= requested, live <= launched, live blocks <= launched blocks in every kernel, and partial
    states have room in the scratch where the split path runs."""
    geo, batch, gpu = data.draw(steps(name))
    p = plan(name, version, geo, batch, gpu)
    for working, live, requested in zip(p.splits.working, p.splits.live, p.splits.requested):
        assert 0 <= working <= live <= requested
        assert live <= p.splits.launched
    for kernel in p.kernels:
        assert 0 <= kernel.live_blocks <= kernel.launched_blocks
        assert all(extent >= 1 for extent in kernel.grid)
    assert [k.role for k in p.kernels].count("stage1") == 1
    assert p.live_blocks >= 1
    assert p.is_split == (p.path in ("split", "3d"))
    if p.is_split:
        assert p.merge_in in MERGES
        assert (p.merge is not None) == (p.merge_in == MERGE_KERNEL)
        assert p.scratch_bytes > 0 or p.merge_in == CLUSTER
        assert p.state_values > 0
    else:
        assert p.merge_in is None
        assert set(p.splits.live) == {1}
        assert p.state_values == 0


@every_version
@quick
@given(data=st.data())
def test_s_star_splits_cover_the_sms(name: str, version: str, data: st.DataObject) -> None:
    """S* times the unsplit blocks is at least the SMs, and one split less is not."""
    geo, batch, gpu = data.draw(steps(name))
    p = plan(name, version, geo, batch, gpu)
    assert p.s_star * p.unsplit_blocks >= gpu.sm_count
    assert (p.s_star - 1) * p.unsplit_blocks < gpu.sm_count


@every_version
@quick
@given(data=st.data())
def test_blocks_read_what_the_query_sees(name: str, version: str, data: st.DataObject) -> None:
    """Each request's blocks read at least its visible keys and no more than the batch's longest request has."""
    geo, batch, gpu = data.draw(steps(name))
    p = plan(name, version, geo, batch, gpu)
    for read, length, queries in zip(p.keys_read, batch.seq_lens, batch.q_lens):
        visible = length if geo.window is None else min(length, geo.window + queries - 1)
        assert visible - laws()[name].keys_left_out <= read <= batch.max_seq_len
    assert all(blocks >= 1 for blocks in p.blocks_per_split)


@every_version
@quick
@given(data=st.data())
def test_plans_are_plain_values(name: str, version: str, data: st.DataObject) -> None:
    """to_dict is JSON without NaN, with key ranges on request, and gates name conditions in words with numbers."""
    geo, batch, gpu = data.draw(steps(name))
    p = plan(name, version, geo, batch, gpu)
    text = json.dumps([p.to_dict(), p.splits.to_dict(with_keys=True)], allow_nan=False)
    assert json.loads(text)[0]["engine"] == name
    assert p.version == version
    assert len({gate.name for gate in p.gates}) == len(p.gates) >= 1
    assert all(gate.reason and isinstance(gate.passed, bool) for gate in p.gates)
    assert any(re.search(r"\d", gate.reason) for gate in p.gates)
    assert p.determinism in DETERMINISM


def same_step(policy: Policy, sweep: Batches, found: Any, n: int, p: LaunchPlan) -> None:
    """Entry n of an array is the plan."""
    stage1 = [k for k in found.kernels if k.role == "stage1" and at(k.when, n)]
    assert len(stage1) == 1
    assert tuple(int(at(extent, n)) for extent in stage1[0].grid) == p.stage1.grid
    assert (stage1[0].name, int(at(stage1[0].live_blocks, n))) == (p.stage1.name, p.live_blocks)
    assert found.path_names[bool(at(found.is_split, n))] == p.path
    assert at(found.launched, n) == p.splits.launched
    assert int(at(found.scratch_bytes, n)) == p.scratch_bytes
    assert int(found.unsplit(sweep)[n]) == p.unsplit_blocks
    assert [bool(at(g.passed, n)) for g in found.gates] == [g.passed for g in p.gates]
    assert [g.reason(n) for g in found.gates] == [g.reason for g in p.gates]
    assert policy.name == p.engine


@every_version
@quick
@given(data=st.data())
def test_whole_arrays_plan_what_single_steps_plan(name: str, version: str, data: st.DataObject) -> None:
    """One rule, two doors: entry n of a sweep of uniform steps is the plan of step n, request by request."""
    law, policy = laws()[name], load_policy(name)
    geo, gpu = data.draw(law.geometries(windows=True)), data.draw(law.devices)
    queries = data.draw(st.integers(1, 3))
    cases = data.draw(
        st.lists(st.tuples(st.integers(1, 70), strategies.key_counts, st.integers(1, queries)), min_size=1, max_size=5)
    )
    cases = [(b, length + q, q) for b, length, q in cases]
    plans = [plan(name, version, geo, Batch.uniform(*case), gpu) for case in cases]
    sweep = Batches.uniform(*(np.array(column) for column in zip(*cases)))
    _, found = policy.on_layer(geo, sweep, law.cache, gpu, policy.options_type(), policy.version(version))
    for n, p in enumerate(plans):
        same_step(policy, sweep, found, n, p)
        size = p.batch.size
        if p.stage1.name in law.dealt:
            assert row(found.live, n, 1)[0] in (max(p.splits.live), p.splits.live[0])
            continue
        assert row(found.live, n, size) == p.splits.live
        assert row(found.requested, n, size) == p.splits.requested
        assert row(found.blocks_per_split, n, size) == p.blocks_per_split
        if found.keys_read is not None:
            assert row(found.keys_read, n, size) == p.keys_read


@every_version
@quick
@given(data=st.data())
def test_counted_classes_are_equal_requests(name: str, version: str, data: st.DataObject) -> None:
    """A step of classes with counts is the step with its requests written out."""
    law, policy = laws()[name], load_policy(name)
    geo, gpu = data.draw(law.geometries(windows=False)), data.draw(law.devices)
    classes = data.draw(st.lists(st.tuples(strategies.key_counts, st.integers(1, 20)), min_size=1, max_size=4))
    p = plan(name, version, geo, Batch([length for length, count in classes for _ in range(count)]), gpu)
    lens, counts = (np.array([column]) for column in zip(*classes))
    step = Batches(lens, np.ones_like(lens), counts)
    _, found = policy.on_layer(geo, step, law.cache, gpu, policy.options_type(), policy.version(version))
    same_step(policy, step, found, 0, p)


@every_version
def test_a_refused_scenario_has_a_code(name: str, version: str) -> None:
    """An odd head dim, an odd page and an unknown device either give a plan or a GateError with a machine word."""
    policy = load_policy(name)
    for geo in (Geometry(7, 7, 36), Geometry(12, 4, 1024), Geometry(16, 1, 576, 512, mla=True)):
        for page in (1, 7, 64):
            for gpu in (Gpu(name="unheard-of", sm_count=7, hbm_bytes_per_s=1e12), load_gpu("mi300x")):
                code = ""
                try:
                    code = policy.plan(geo, Batch([5]), KvCache(page_size=page), gpu, {}, version).path
                except GateError as refused:
                    code = refused.code
                assert code


@pytest.mark.parametrize("name", engine_names())
def test_reasons_of_gates_are_in_number(name: str) -> None:
    """One request of one key has one of everything: no reason says "1 requests"."""
    said: list[str] = []
    for geo in (Geometry(1, 1, 128), Geometry(8, 1, 128), Geometry(16, 1, 576, 512, mla=True)):
        for gpu, page in (("h100", 16), ("b200", 64), ("a100", 256), ("mi300x", 16), ("h100", 1)):
            try:
                plan = load_policy(name).plan(geo, Batch([1]), KvCache(page_size=page), load_gpu(gpu))
            except GateError as refused:
                said.append(str(refused))
            else:
                said += [gate.reason for gate in plan.gates]
    assert said
    plural = r"(?<![\w.,/-])1 (\w+ )?(requests|splits|blocks|keys|tokens|pages|tiles|partitions|rows)\b"
    assert not [text for text in said if re.search(plural, text)]
