"""Laws: a trace of what a plan launches is judged a match, and one launched block more is judged a mismatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from launches import whole_name
from lawful import Traced, laws

import decodecalc as dc
from decodecalc.errors import DecodecalcError
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup
from decodecalc.trace.audit import Audit, audit_traces
from decodecalc.trace.candidates import Known

ENGINES = [(name, traced) for name, law in laws().items() for traced in law.traced]
DEVICES = {
    "h200-sxm": {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0,
                 "warpSize": 32, "numSms": 132},
    "b200-sxm": {"id": 0, "name": "NVIDIA B200", "totalGlobalMem": 191501770752, "computeMajor": 10, "computeMinor": 0,
                 "warpSize": 32, "numSms": 148},
    "mi300x": {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "computeMajor": 9,
               "computeMinor": 4, "warpSize": 64, "numSms": 304},
}  # fmt: skip
IDS = [
    f"{name}-{t.geometry.q_heads}-{t.geometry.kv_heads}-{'-'.join(map(str, t.options.values()))}" for name, t in ENGINES
]

lens = st.lists(st.one_of(st.integers(1, 700), st.integers(1, 40_000)), min_size=1, max_size=40)


class Case:
    """One engine on one batch: its plan, and audits of traces made from it."""

    def __init__(
        self, name: str, traced: Traced, seq_lens: list[int], kineto: Callable[..., str], events_of: Any
    ) -> None:
        self.engine = f"{name}@{traced.version}" if traced.version else name
        self.geometry, self.gpu, self.options = traced.geometry, traced.gpu, traced.options
        self.kineto = kineto
        self.kv = replace(laws()[name].cache, page_size=traced.page_size)
        self.batch = dc.Batch(seq_lens)
        self.plan: LaunchPlan = dc.plan(
            self.engine, self.geometry, self.batch, kv=self.kv, gpu=dc.load_gpu(self.gpu), **self.options
        )
        self.events = events_of(self.plan)

    def audit(self, events: Any, **known: Any) -> Audit:
        """The trace held against what ran."""
        # The version is said: another version's launch may be just the one that was planted.
        name, version = self.plan.engine, self.plan.version
        said: dict[str, Any] = {
            "layer_groups": (LayerGroup("all", 1, self.geometry),), "ragged": self.batch, "kv": self.kv,
            "options": self.options, "engines": ((name, version),),
        }  # fmt: skip
        path = self.kineto(events, device=DEVICES[self.gpu])
        return audit_traces([path], Known(**{**said, **known}))


@pytest.mark.parametrize(("name", "traced"), ENGINES, ids=IDS)
@given(seq_lens=lens)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_plan_launches_matches_it_and_a_block_more_does_not(
    name: str, traced: Traced, seq_lens: list[int], kineto: Callable[..., str], events_of: Any
) -> None:
    """Every engine: its own trace is a match with the right path; one extent of one kernel off by one is a mismatch."""
    try:
        case = Case(name, traced, seq_lens, kineto, events_of)
    except DecodecalcError:
        assume(False)
        return
    audit = case.audit(case.events)
    assert [g.status for g in audit.groups] == ["match"], audit.groups
    assert audit.passed
    found = audit.groups[0]
    assert found.plan is not None
    assert (found.engine, found.plan.path) == (case.plan.engine, case.plan.path)
    assert found.live_blocks == case.plan.live_blocks
    for kernel in case.plan.kernels:
        wrong = [{**e, "args": {**e["args"], "grid": list(e["args"]["grid"])}} for e in case.events]
        target = next(e for e in wrong if e["name"] == whole_name(kernel.name))
        target["args"]["grid"][0] += 1
        refuted = case.audit(wrong)
        if not traced.exact_grid and kernel.role == "stage1":
            assert [g.status for g in refuted.with_status("prefill", "mismatch")]
        else:
            assert not refuted.passed
            assert refuted.with_status("mismatch")


@pytest.mark.parametrize(("name", "traced"), [e for e in ENGINES if e[1].heads_from_grids], ids=lambda e: str(e)[:20])
@given(seq_lens=lens)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_heads_and_batch_come_back_from_a_split_launch(
    name: str, traced: Traced, seq_lens: list[int], kineto: Callable[..., str], events_of: Any
) -> None:
    """Where a merge runs, grids alone give query heads, KV heads and batch, and the launch is consistent with them."""
    case = Case(name, traced, seq_lens, kineto, events_of)
    assume(case.plan.is_split)
    audit = case.audit(case.events, layer_groups=(), ragged=None, options=case.options)
    found = audit.groups[0]
    assert (found.seen.q_heads, found.seen.kv_heads, found.seen.batch) == (
        case.geometry.q_heads, case.geometry.kv_heads, len(seq_lens),
    )  # fmt: skip
    assert found.status == "consistent"
    assert found.lengths == "unknown"
    assert found.sm_coverage is None
    assert found.achieved_bytes_per_s is None


@pytest.mark.parametrize(("name", "traced"), [e for e in ENGINES if e[1].bounds_context], ids=lambda e: str(e)[:20])
@given(length=st.integers(513, 60_000), batch=st.integers(1, 9))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_eager_grid_bounds_the_context_and_a_replayed_one_does_not(
    name: str, traced: Traced, length: int, batch: int, kineto: Callable[..., str], events_of: Any
) -> None:
    """Partition counts say within which lengths the longest request lies, unless a graph froze them."""
    case = Case(name, traced, [length] * batch, kineto, events_of)
    assume(case.plan.is_split)
    found = case.audit(case.events, ragged=None).groups[0].seen
    assert found.context_range is not None
    assert found.context_range[0] <= length <= found.context_range[1]
    replayed = [{**e, "args": {**e["args"], "graph node id": 9, "correlation": 4}} for e in case.events]
    assert case.audit(replayed, ragged=None).groups[0].seen.context_range is None


def test_every_engine_has_a_traced_layer_or_says_why_not() -> None:
    """Each entry of the laws either holds layers for the test above or a reason."""
    for name, law in laws().items():
        assert bool(law.traced) != bool(law.not_in_traces), f"{name}: give its laws.py `traced` or `not_in_traces`"
