"""Real traces (--traces-dir) of an H200: three rounds of vLLM, SGLang and FlashAttention-3, or two of named engines.

The kernels were called directly, without a server: vLLM's threshold is 128 // KV heads, not snapped to a capture size,
which is the option capture_sizes=none.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.models import LayerGroup
from decodecalc.trace.audit import Audit, audit_traces
from decodecalc.trace.candidates import Known

ENGINES = {"vllm-triton", "sglang-triton", "flash-attention-3"}
STAGE1 = ("kernel_unified_attention", "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage1", "FlashAttnFwdSm90<")
ROUNDS = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = Path(metafunc.config.getoption("--traces-dir"))
    for fixture, named in (("trace", False), ("engine_trace", True)):
        if fixture in metafunc.fixturenames:
            found = [path for path in sorted(folder.glob("*.json.gz")) if kind_of(inputs_of(path)) == (named, False)]
            metafunc.parametrize(fixture, found, ids=[p.name.removesuffix(".json.gz") for p in found])


def kind_of(inputs: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the inputs name engines, and whether they name one policy (`test_own_traces` reads those)."""
    return "engine" in inputs, "policy" in inputs


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


# -- traces whose inputs name their engines ----------------------------------------------------------------------------

# Words of the inputs' `engine`, and what that engine is called here.
NAMED = {
    "FlexAttention": "flex-decoding",
    "FlashAttention-3": "flash-attention-3",
    "Triton unified attention": "vllm-triton",
    "FlashMLA dense": "flashmla",
    "Triton MLA": "vllm-triton-mla",
}
# Kernels that read keys, in any of these engines.
READERS = ("triton_tem", "FlashAttnFwdSm90<", "kernel_unified", "flash_fwd_splitkv_mla_kernel", "kernel_stage1")


def named_engines(inputs: dict[str, Any]) -> set[str]:
    """The engines that the inputs name."""
    return {engine for words, engine in NAMED.items() if words in inputs["engine"]}


def known_of_engines(inputs: dict[str, Any], **more: Any) -> Known:
    """What a user of such a run would say."""
    geo = Geometry(
        inputs["h"], inputs["hk"], inputs["head_dim"], inputs.get("head_dim_v"), mla=inputs.get("mla", False)
    )
    dtype = inputs.get("kv", "bf16")
    said: dict[str, Any] = {
        "layer_groups": (LayerGroup("attention", 1, geo),),
        "ragged": Batch(inputs["lens"]),
        "kv": KvCache(dtype=dtype, query_dtype=dtype, page_size=inputs.get("page", 16)),
        "options": {"capture_sizes": None},
    }
    return Known(**{**said, **more})


def readers(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Events of the kernels that read keys."""
    return [e for e in data["traceEvents"] if e.get("cat") == "kernel" and any(s in e["name"] for s in READERS)]


def test_engines_of_a_named_trace_are_identified_without_being_told_anything(engine_trace: Path) -> None:
    """Each launch group is the named engine's, in its own grid, and nothing is refuted."""
    data, inputs = events_of(engine_trace), inputs_of(engine_trace)
    audit = audit_traces([str(engine_trace)], Known())
    assert {g.engine for g in audit.groups} == named_engines(inputs)
    launched = Counter({g.group.stage1.grid: g.group.launches for g in audit.groups})
    assert launched == Counter(tuple(e["args"]["grid"]) for e in readers(data))
    assert all(g.group.merge is not None for g in audit.groups)
    assert not audit.with_status("mismatch", "refused", "not modelled", "prefill")
    for found in audit.groups:
        if found.seen.batch is not None:
            assert found.seen.batch == len(inputs["lens"])
        if found.seen.q_heads is not None:
            assert found.seen.q_heads == inputs["h"]
        if found.seen.context_range is not None:
            assert found.seen.context_range[0] <= max(inputs["lens"]) <= found.seen.context_range[1]


def test_launches_of_a_named_trace_equal_their_plans(engine_trace: Path) -> None:
    """Kernel, grids, threads and merge of every engine that the inputs name."""
    inputs = inputs_of(engine_trace)
    audit = audit_traces([str(engine_trace)], known_of_engines(inputs))
    assert {g.engine: g.status for g in audit.groups} == dict.fromkeys(named_engines(inputs), "match"), audit.verdict
    assert audit.passed
    for found in audit.groups:
        assert {"kernel", "stage-1 grid", "stage-1 threads", "merge runs"} <= {c.what for c in found.claims}
        assert found.achieved_bytes_per_s is not None
        assert 1e9 < found.achieved_bytes_per_s < 2e13
    versions = {g.engine: g.versions for g in audit.groups}
    assert {"2.13", "2.14"} >= set(versions.get("flex-decoding", ()))  # torch 2.11, which the policy of 2.13 covers
    assert "0.33.0" in versions.get("vllm-triton-mla", ("0.33.0",))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_planted_wrong_grid_of_a_named_trace_is_found(engine_trace: Path, tmp_path: Path, axis: int) -> None:
    """One extent of one launch changed by one: that launch does not match any more."""
    data = events_of(engine_trace)
    inputs = inputs_of(engine_trace)
    for number in range(len(readers(data))):
        copy = json.loads(json.dumps(data))
        readers(copy)[number]["args"]["grid"][axis] += 1
        path = tmp_path / "planted.json"
        path.write_text(json.dumps(copy))
        audit = audit_traces([str(path)], known_of_engines(inputs))
        assert not audit.passed
        assert [g.group.launches for g in audit.with_status("mismatch")] == [1]


def test_another_precision_of_a_named_trace_is_refuted_where_it_shows(engine_trace: Path) -> None:
    """The FP8 kernels have other tiles than bf16's: held against a bf16 cache, FlashAttention-3 differs."""
    inputs = inputs_of(engine_trace)
    if inputs.get("kv") != "fp8":
        return
    audit = audit_traces([str(engine_trace)], known_of_engines(inputs, kv=KvCache(page_size=inputs["page"])))
    assert {g.engine for g in audit.with_status("mismatch")} == {"flash-attention-3"}
