"""Real traces (--traces-dir): three rounds of vLLM, SGLang and FlashAttention-3 kernels on an H200.

The kernels were called directly, without a server: vLLM's threshold is 128 // KV heads, not snapped to a capture size,
which is the option capture_sizes=none.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.models import LayerGroup
from decodecalc.trace.audit import Audit, audit_traces
from decodecalc.trace.candidates import Known

ENGINES = {"vllm-triton", "sglang-triton", "flash-attention-3"}
STAGE1 = ("kernel_unified_attention", "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage1", "FlashAttnFwdSm90<")
ROUNDS = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trace" in metafunc.fixturenames:
        folder = Path(metafunc.config.getoption("--traces-dir"))
        found = sorted(folder.glob("*.json.gz"))
        metafunc.parametrize("trace", found, ids=[p.name.removesuffix(".json.gz") for p in found])


def inputs_of(trace: Path) -> dict[str, Any]:
    """The inputs beside a trace."""
    return json.loads(trace.with_name(trace.name.replace(".json.gz", ".inputs.json")).read_text())


def known_of(inputs: dict[str, Any]) -> Known:
    """What a user of that run would say."""
    layer = LayerGroup("attention", 1, Geometry(inputs["h"], inputs["hk"], 128))
    return Known(layer_groups=(layer,), ragged=Batch(inputs["lens"]), options={"capture_sizes": None})


def events_of(trace: Path) -> dict[str, Any]:
    """The trace as JSON."""
    return json.loads(gzip.decompress(trace.read_bytes()))


def stage1_kernels(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Events of the kernels that read keys."""
    return [e for e in data["traceEvents"] if e.get("cat") == "kernel" and any(s in e["name"] for s in STAGE1)]


def in_order(audit: Audit) -> dict[str, Any]:
    """Judged groups by engine; there is one for each."""
    assert len(audit.groups) == len({g.engine for g in audit.groups}) == len(ENGINES)
    return {str(g.engine): g for g in audit.groups}


def test_there_are_traces(request: pytest.FixtureRequest) -> None:
    """An empty folder does not pass."""
    assert list(Path(request.config.getoption("--traces-dir")).glob("*.json.gz"))


def test_every_launch_is_identified_without_being_told_anything(trace: Path) -> None:
    """Engine, path, launched splits and the GPU come from the trace alone, for every launch."""
    data, inputs = events_of(trace), inputs_of(trace)
    audit = audit_traces([str(trace)], Known())
    groups = in_order(audit)
    assert set(groups) == ENGINES
    assert audit.gpu is not None
    assert audit.gpu.name == "h200-sxm"
    assert sum(g.group.launches for g in audit.groups) == len(stage1_kernels(data)) == ROUNDS * len(ENGINES)
    for event in stage1_kernels(data):
        if "unified" in event["name"]:
            found = groups["vllm-triton"]
            assert found.path == ("3d" if event["args"]["grid"][2] > 1 else "2d")
            assert found.seen.kv_heads == inputs["hk"]
            assert found.seen.splits_launched == event["args"]["grid"][2]
        elif "stage1" in event["name"]:
            found = groups["sglang-triton"]
            assert (found.seen.batch, found.seen.q_heads) == (inputs["B"], inputs["h"])
            assert found.seen.splits_launched == event["args"]["grid"][2] == 8
        else:
            found = groups["flash-attention-3"]
            assert found.seen.head_dim == 128
        assert list(found.group.stage1.grid or ()) == event["args"]["grid"]
    # Nothing is refuted, and what shows heads and batch is confirmed.
    assert groups["sglang-triton"].status in ("consistent", "needs inputs")
    assert not audit.with_status("mismatch", "refused")


def test_every_exact_claim_holds_where_the_inputs_are_known(trace: Path) -> None:
    """Kernel, path, grids, threads, merge and split bounds of all launches equal the plans; SGLang's counts too."""
    inputs = inputs_of(trace)
    audit = audit_traces([str(trace)], known_of(inputs))
    groups = in_order(audit)
    assert {e: g.status for e, g in groups.items()} == dict.fromkeys(ENGINES, "match"), audit.verdict
    assert audit.passed
    for found in groups.values():
        checked = {c.what for c in found.claims}
        assert {"kernel", "stage-1 grid", "stage-1 threads", "merge runs"} <= checked
        assert ("merge grid" in checked) == (found.group.merge is not None)
        assert found.group.launches == ROUNDS
        assert found.achieved_bytes_per_s is not None
        assert 1e9 < found.achieved_bytes_per_s < 2e13  # 4.8 TB/s from memory, more from L2; a slip of units is 1000x
    assert {"path", "split bound", "tile rows", "tile keys"} <= {
        c.what for c in groups["flash-attention-3"].claims
    } or (groups["flash-attention-3"].path == "unsplit")
    counts = groups["sglang-triton"].plan.splits.requested
    assert list(counts) == inputs["sgl_splits"]
    assert "0.33.0" in groups["vllm-triton"].versions
    assert "0.5.10" in groups["sglang-triton"].versions
    assert "vllm-0.33" in groups["flash-attention-3"].versions


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_planted_wrong_grid_is_found(trace: Path, tmp_path: Path, axis: int) -> None:
    """One extent of one launch of each engine changed by one: exactly those launches are refuted."""
    data = events_of(trace)
    for marker in ("kernel_unified_attention", "kernel_stage1", "FlashAttnFwdSm90<"):
        copy = json.loads(json.dumps(data))
        wrong = [e for e in stage1_kernels(copy) if marker in e["name"]][1]
        wrong["args"]["grid"][axis] += 1
        path = tmp_path / f"planted_{axis}.json"
        path.write_text(json.dumps(copy))
        audit = audit_traces([str(path)], known_of(inputs_of(trace)))
        assert not audit.passed
        refuted = audit.with_status("mismatch")
        assert [g.group.launches for g in refuted] == [1]
        assert list(refuted[0].group.stage1.grid or ()) == wrong["args"]["grid"]
        assert "stage-1 grid" in {c.what for c in refuted[0].failed}


def test_a_planted_wrong_merge_grid_is_found(trace: Path, tmp_path: Path) -> None:
    """The merge is held to its plan as well."""
    data = events_of(trace)
    merges = [
        e for e in data["traceEvents"] if any(s in e.get("name", "") for s in ("stage2", "FwdCombine", "reduce_seg"))
    ]
    for wrong in merges[: len(ENGINES)]:
        wrong["args"]["grid"][0] += 1
    path = tmp_path / "planted.json"
    path.write_text(json.dumps(data))
    audit = audit_traces([str(path)], known_of(inputs_of(trace)))
    assert not audit.passed
    assert {c.what for g in audit.with_status("mismatch") for c in g.failed} == {"merge grid"}


def test_other_lengths_are_refuted_or_change_nothing_that_the_trace_shows(trace: Path) -> None:
    """With one request more than ran, every engine whose grids hold the batch is refuted."""
    inputs = inputs_of(trace)
    more = {**inputs, "lens": [*inputs["lens"], 100]}
    audit = audit_traces([str(trace)], known_of(more))
    assert not audit.passed
    assert {"vllm-triton", "sglang-triton"} <= {g.engine for g in audit.with_status("mismatch")}
