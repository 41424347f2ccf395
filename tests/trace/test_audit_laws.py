"""Laws: a trace of what a plan launches is judged a match, and one launched block more is judged a mismatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from launches import whole_name

import decodecalc as dc
from decodecalc.engines import load_policy
from decodecalc.errors import DecodecalcError
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup
from decodecalc.trace.audit import Audit, audit_traces
from decodecalc.trace.candidates import Known

MLA = dc.Geometry(16, 1, 576, 512, mla=True)
# Engine, geometry, GPU as traces name it, options, page size.
ENGINES: list[tuple[str, dc.Geometry, str, dict[str, Any], int]] = [
    ("vllm-triton", dc.Geometry(32, 8, 128), "h200-sxm", {}, 16),
    ("vllm-triton", dc.Geometry(28, 4, 128), "h200-sxm", {"batch_invariant": True}, 16),
    ("vllm-triton@0.19", dc.Geometry(8, 1, 128), "h200-sxm", {}, 16),
    ("sglang-triton", dc.Geometry(32, 8, 128), "h200-sxm", {}, 1),
    ("sglang-triton", dc.Geometry(16, 16, 64), "h200-sxm", {"max_kv_splits_arg": 32}, 1),
    ("flash-attention-2", dc.Geometry(32, 8, 128), "h200-sxm", {}, 256),
    ("flash-attention-3", dc.Geometry(64, 8, 128), "h200-sxm", {}, 16),
    ("flashinfer", dc.Geometry(32, 8, 128), "h200-sxm", {}, 16),
    ("flashinfer", dc.Geometry(32, 8, 128), "h200-sxm", {"path": "cuda_cores"}, 16),
    ("flashinfer-mla", MLA, "h200-sxm", {}, 64),
    ("flashmla", MLA, "h200-sxm", {}, 64),
    ("flashmla-sparse", MLA, "h200-sxm", {}, 64),
    ("flash-attention-4", dc.Geometry(64, 8, 128), "b200-sxm", {}, 16),
    ("cutlass-mla", dc.Geometry(128, 1, 576, 512, mla=True), "b200-sxm", {}, 64),
    ("vllm-triton-mla", MLA, "h200-sxm", {}, 16),
    ("tensorrt-llm-xqa", dc.Geometry(32, 8, 128), "h200-sxm", {}, 32),
    ("tensorrt-llm-mmha", dc.Geometry(32, 32, 128), "h200-sxm", {}, 32),
    ("flashinfer-xqa", dc.Geometry(32, 8, 128), "h200-sxm", {}, 16),
    ("trtllm-gen", dc.Geometry(32, 8, 128), "b200-sxm", {}, 64),
    ("llama-cpp", dc.Geometry(32, 8, 128), "h200-sxm", {}, 1),
    ("turbomind", dc.Geometry(32, 8, 128), "h200-sxm", {}, 64),
    ("paged-attention-v1", dc.Geometry(32, 8, 128), "h200-sxm", {}, 16),
    ("paged-attention-v2", dc.Geometry(32, 8, 128), "h200-sxm", {}, 16),
    ("rocm-paged", dc.Geometry(32, 8, 128), "mi300x", {}, 16),
    ("aiter-unified", dc.Geometry(64, 8, 64), "mi300x", {}, 16),
    ("aiter-pa-decode", dc.Geometry(64, 8, 128), "mi300x", {}, 16),
    ("aiter-pa-decode", dc.Geometry(64, 8, 128), "mi300x", {"ps": "no"}, 16),
    ("aiter-mla", MLA, "mi300x", {}, 1),
    ("aiter-mla", MLA, "mi300x", {"mode": "split_kv"}, 1),
    ("vllm-triton-diffkv", dc.Geometry(64, 4, 192, 128), "h200-sxm", {}, 16),
]
DEVICES = {
    "h200-sxm": {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0,
                 "warpSize": 32, "numSms": 132},
    "b200-sxm": {"id": 0, "name": "NVIDIA B200", "totalGlobalMem": 191501770752, "computeMajor": 10, "computeMinor": 0,
                 "warpSize": 32, "numSms": 148},
    "mi300x": {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "computeMajor": 9,
               "computeMinor": 4, "warpSize": 64, "numSms": 304},
}  # fmt: skip
IDS = [f"{e}-{g.q_heads}-{g.kv_heads}-{'-'.join(map(str, o.values()))}" for e, g, _, o, _ in ENGINES]

FP8_CACHE = ("flashmla-sparse",)

lens = st.lists(st.one_of(st.integers(1, 700), st.integers(1, 40_000)), min_size=1, max_size=40)


class Case:
    """One engine on one batch: its plan, and audits of traces made from it."""

    def __init__(self, entry: Any, seq_lens: list[int], kineto: Callable[..., str], events_of: Any) -> None:
        self.engine, self.geometry, self.gpu, self.options, page = entry
        self.kineto = kineto
        fp8 = self.engine.partition("@")[0] in FP8_CACHE
        self.kv = dc.KvCache(dtype="fp8", query_dtype="bf16", page_size=page) if fp8 else dc.KvCache(page_size=page)
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


@pytest.mark.parametrize("entry", ENGINES, ids=IDS)
@given(seq_lens=lens)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_plan_launches_matches_it_and_a_block_more_does_not(
    entry: Any, seq_lens: list[int], kineto: Callable[..., str], events_of: Any
) -> None:
    """Every engine: its own trace is a match with the right path; one extent of one kernel off by one is a mismatch."""
    try:
        case = Case(entry, seq_lens, kineto, events_of)
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
        # FlashAttention-2 tells prefill from decode by the first extent: more than one tile of rows is a prompt.
        if case.plan.engine == "flash-attention-2" and kernel.role == "stage1":
            assert [g.status for g in refuted.with_status("prefill", "mismatch")]
        else:
            assert not refuted.passed
            assert refuted.with_status("mismatch")


@pytest.mark.parametrize(
    "entry",
    [e for e in ENGINES if e[0] in ("vllm-triton", "sglang-triton") and "batch_invariant" not in e[3]],
    ids=lambda e: str(e[0]),
)
@given(seq_lens=lens)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_heads_and_batch_come_back_from_a_split_launch(
    entry: Any, seq_lens: list[int], kineto: Callable[..., str], events_of: Any
) -> None:
    """Where a merge runs, grids alone give query heads, KV heads and batch, and the launch is consistent with them."""
    case = Case(entry, seq_lens, kineto, events_of)
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


@pytest.mark.parametrize("engine", ["paged-attention-v2", "rocm-paged", "vllm-triton-mla"])
@given(length=st.integers(513, 60_000), batch=st.integers(1, 9))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_eager_grid_bounds_the_context_and_a_replayed_one_does_not(
    engine: str, length: int, batch: int, kineto: Callable[..., str], events_of: Any
) -> None:
    """Partition counts say within which lengths the longest request lies, unless a graph froze them."""
    entry = next(e for e in ENGINES if e[0] == engine)
    case = Case(entry, [length] * batch, kineto, events_of)
    assume(case.plan.is_split)
    found = case.audit(case.events, ragged=None).groups[0].seen
    assert found.context_range is not None
    assert found.context_range[0] <= length <= found.context_range[1]
    replayed = [{**e, "args": {**e["args"], "graph node id": 9, "correlation": 4}} for e in case.events]
    assert case.audit(replayed, ragged=None).groups[0].seen.context_range is None


def test_every_modelled_engine_with_a_kernel_of_its_own_is_covered() -> None:
    """The list above holds all engines that a trace can show."""
    shown = {load_policy(e[0].partition("@")[0]).name for e in ENGINES}
    not_in_traces = {"flash-decoding", "bundled", "flex-decoding"}  # a textbook, our own, and names of torch's choosing
    assert shown == set(dc.engine_names()) - not_in_traces
