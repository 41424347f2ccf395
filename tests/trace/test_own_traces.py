"""Real traces (--traces-dir) of one step of one engine's own kernel on an H200, against the policy that they name.

`decodecalc verify --kernel own --traces DIR` wrote them. Their inputs name the policy, its version and its settings.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from decodecalc.batch import Batch
from decodecalc.engines.registry import load_policy, split_version
from decodecalc.geometry import Geometry
from decodecalc.gpus import load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup
from decodecalc.trace.audit import audit_traces
from decodecalc.trace.candidates import Known
from decodecalc.verify.own.claims import launch_quantities
from decodecalc.verify.own.observe import planned_part, seen_kernels

# One grid of as many blocks as there are SMs, and no kernel beside it: its launch says nothing of the batch.
ALWAYS_THE_DEVICE = ("flashinfer-mla",)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "own_trace" in metafunc.fixturenames:
        folder = Path(metafunc.config.getoption("--traces-dir"))
        found = [path for path in sorted(folder.glob("*.json.gz")) if "policy" in inputs_of(path)]
        metafunc.parametrize("own_trace", found, ids=[p.name.removesuffix(".json.gz") for p in found])


def inputs_of(trace: Path) -> dict[str, Any]:
    """The inputs beside a trace."""
    return json.loads(trace.with_name(trace.name.replace(".json.gz", ".inputs.json")).read_text())


def events_of(trace: Path) -> list[dict[str, Any]]:
    """The trace's events."""
    return json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def step_of(inputs: dict[str, Any]) -> tuple[Geometry, Batch, KvCache]:
    """The layer, the lengths and the cache."""
    mla = inputs.get("mla", False)
    geo = Geometry(
        inputs["h"], inputs["hk"], inputs["head_dim"], inputs.get("head_dim_v"), window=inputs.get("window"), mla=mla
    )
    return geo, Batch(inputs["lens"], inputs.get("q_len", 1)), KvCache(inputs["kv"], inputs["page"])


def plan_of(inputs: dict[str, Any]) -> LaunchPlan:
    """The plan of the policy that the inputs name."""
    name, version = split_version(inputs["policy"])
    return load_policy(name).plan(*step_of(inputs), load_gpu("h200"), inputs.get("options", {}), version)


def test_every_kernel_grid_and_block_of_an_engines_own_step_is_the_plans(own_trace: Path) -> None:
    """Names, roles, grids and threads of all kernels that a plan speaks of, in order."""
    quantities = launch_quantities(plan_of(inputs_of(own_trace)), planned_part(seen_kernels(events_of(own_trace))))
    assert {q.name: (q.predicted, q.observed) for q in quantities if not q.agrees} == {}
    assert len(quantities) >= 3


def test_another_step_is_told_from_the_one_that_ran(own_trace: Path) -> None:
    """The same comparison fails for the plan of other lengths, except where a grid always fills the device."""
    inputs = inputs_of(own_trace)
    other = {**inputs, "lens": [*inputs["lens"], 16384] * 4}
    seen = planned_part(seen_kernels(events_of(own_trace)))
    told = any(not q.agrees for q in launch_quantities(plan_of(other), seen))
    assert told == (split_version(inputs["policy"])[0] not in ALWAYS_THE_DEVICE)


def test_the_audit_finds_the_engine_and_its_plan(own_trace: Path) -> None:
    """With the layer, the lengths and the settings said, the audit matches the launch with its engine's plan."""
    inputs = inputs_of(own_trace)
    geo, batch, kv = step_of(inputs)
    name, version = split_version(inputs["policy"])
    known = Known(
        layer_groups=(LayerGroup("attention", 1, geo),), ragged=batch, kv=kv, options=inputs.get("options", {})
    )
    audit = audit_traces([str(own_trace)], known)
    assert {g.engine: g.status for g in audit.groups} == {name: "match"}, audit.verdict
    (found,) = audit.groups
    assert version in found.versions
