"""The timeline of a step: every kernel in it, attention marked, in a window that does not grow with the trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.models import LayerGroup
from decodecalc.plot.timeline import timeline_figures
from decodecalc.trace.audit import Audit, audit_traces
from decodecalc.trace.candidates import Known
from decodecalc.trace.timeline import ATTENTION, EXCHANGE, MATRIX, OTHER, Slice, Timeline, WindowLog, timeline

GEO = dc.Geometry(32, 8, 128)
BATCH = dc.Batch([4096] * 4)
NAMES = {"nvjet_tst_128x64": MATRIX, "ncclDevKernel_AllReduce_Sum": EXCHANGE, "rms_norm_kernel": OTHER}


def step(kernel: Any, layers: int, steps: int, other: float = 20.0, graph: bool = False) -> list[dict[str, Any]]:
    """Steps of so many layers, each an attention launch with its merge and three other kernels; µs."""
    plan = dc.plan("vllm-triton", GEO, BATCH, gpu="h200-sxm")
    events, at = [], 1000.0
    for n in range(steps):
        for _ in range(layers):
            for launch in plan.kernels:
                grid = [*launch.grid, 1, 1][:3]
                more = {"correlation": n + 1} if graph else {}
                events.append(kernel(launch.name, at, 10.0, grid, **more))
                at += 10.0
            for name in NAMES:
                events.append(kernel(name, at, other))
                at += other
        at += 500.0  # the host prepares the next step
    if graph:
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0.0, "dur": 1.0,
             "args": {"correlation": n + 1}}
            for n in range(steps)
        ]  # fmt: skip
    return events


@pytest.fixture
def judged(kineto: Callable[..., str]) -> Callable[..., Audit]:
    """judged(events, layers) audits one trace of a model with so many layers."""

    def run(events: Any, layers: int, whole: bool = True) -> Audit:
        group = LayerGroup("all", layers, GEO)
        return audit_traces([kineto(events)], Known(layer_groups=(group,), whole_model=whole, ragged=BATCH))

    return run


def test_a_step_is_shown_whole_and_once(judged: Any, kernel: Any) -> None:
    """Of many steps one is drawn: as many launches as the model has layers, with every kernel between them, and not the
    pause before the next step."""
    found = timeline(judged(step(kernel, 6, 5), 6))
    assert found is not None
    assert "one step of 6 layers" in found.what
    assert sum(s.role == "stage 1" for s in found.slices) == 6
    assert sum(s.role == "merge" for s in found.slices) == 6
    assert {s.name: s.kind for s in found.slices if s.kind != ATTENTION} == NAMES
    assert len(found.slices) == 6 * 5
    assert found.length_s == pytest.approx(6 * 80e-6)
    assert found.share(ATTENTION) == pytest.approx(20 / 80)
    assert found.share(MATRIX) == pytest.approx(20 / 80)
    assert found.idle == pytest.approx(0, abs=1e-9)
    assert found.slices[0].role == "stage 1"


def test_a_replayed_graph_says_how_long_a_step_is(judged: Any, kernel: Any) -> None:
    """Launches of one graph replay are one step where the number of layers is not known."""
    found = timeline(judged(step(kernel, 5, 3, graph=True), 1, whole=False))
    assert found is not None
    assert sum(s.role == "stage 1" for s in found.slices) == 5


def test_without_layers_or_a_graph_a_few_launches_are_shown_and_not_called_a_step(judged: Any, kernel: Any) -> None:
    """The words claim no more than is known."""
    found = timeline(judged(step(kernel, 8, 1), 1, whole=False))
    assert found is not None
    assert "step" not in found.what
    assert sum(s.role == "stage 1" for s in found.slices) == 3


def test_a_trace_that_is_gone_or_holds_no_engine_has_no_timeline(judged: Any, kernel: Any) -> None:
    """The file is read again; where that fails, or nothing was attributed, the audit stands without a figure."""
    audit = judged(step(kernel, 2, 1), 2)
    Path(audit.traces[0].path).unlink()
    assert timeline(audit) is None
    assert timeline(judged([kernel("ampere_gemm", 0)], 2)) is None
    assert timeline_figures(None) == []


def test_the_figures_show_the_step_and_one_of_its_layers(judged: Any, kernel: Any) -> None:
    """The band says each kind's share; the layer names its kernels, and says what it leaves out."""
    whole, layer = timeline_figures(timeline(judged(step(kernel, 6, 5), 6)))
    assert "attention, 25 %" in whole.svg.decode()
    assert "One step of 6 layers" in whole.caption
    drawn = layer.svg.decode()
    for words in ("kernel_unified_attention (stage 1)", "(merge)", *NAMES):
        assert words in drawn
    crowded = [Slice(name=f"k{i}", kind=OTHER, role="", start_s=i * 1e-6, duration_s=1e-7, stream=0) for i in range(99)]
    many = timeline_figures(Timeline(what="x", slices=tuple(crowded), layer=(0.0, 99e-6)))
    assert "83 shortest of 99 kernels are not drawn" in many[1].caption


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_shares_are_shares(spans: list[tuple[float, float]]) -> None:
    """However kernels overlap, what runs and what is idle add up to the whole, and no share exceeds it."""
    start = min(at for at, _ in spans)
    slices = [
        Slice(name="k", kind=OTHER, role="", start_s=at - start, duration_s=long, stream=0)
        for at, long in sorted(spans)
    ]
    found = Timeline(what="x", slices=tuple(slices), layer=None)
    if found.length_s:
        assert -1e-9 <= found.idle <= 1
        assert found.share(OTHER) + found.idle == pytest.approx(1)


def test_the_window_keeps_what_starts_in_it_and_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before, after, of other devices and with broken clocks are left out; a limit bounds the memory."""
    monkeypatch.setattr("decodecalc.trace.timeline.MOST_KERNELS", 3)
    log = WindowLog(1.0, 2.0, 0)
    for start, long, device in ((0.9, 1, 0), (1.0, 1, 0), (1.5, 1, 1), (1.5, float("nan"), 0), (2.0, 1, 0)):
        log.add("k", start, long, device=device)
    assert [start for start, *_ in log.found] == [1.0]
    for _ in range(5):
        log.add("k", 1.2, 0.1)
    assert (len(log.found), log.left_out) == (3, 3)
    assert len(log) == 0
