"""Cases of a made-up engine, and the loop with that engine's profiler and clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from own_engine import CpuAsGpu, FakeEngine

from decodecalc import Batch, Geometry, KvCache, load_gpu
from decodecalc.launch.policy import Policy
from decodecalc.verify.claims.claim import Finding
from decodecalc.verify.run.timing import Timed

GEO, BATCH, KV = Geometry(4, 1, 32), Batch([130, 40]), KvCache("bf16", 16)


@pytest.fixture
def own_case(make_case: Callable[..., Any]) -> Callable[..., Any]:
    """own_case(policy, **options): the small step under this policy."""

    def make(policy: Policy, geometry: Geometry = GEO, batch: Batch = BATCH, kv: KvCache = KV, **options: Any) -> Any:
        return make_case(policy, geometry, batch, load_gpu("h200"), kv, **options)

    return make


@pytest.fixture
def own_check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[int, Finding]]:
    """own_check(case, engine, claims=…) -> {claim: Finding}, with the profiler and the clock of the made-up engine."""
    pytest.importorskip("torch")
    from decodecalc.verify.own import trial as trials
    from decodecalc.verify.own.loop import OwnRunner

    def run(case: Any, engine: FakeEngine, claims: tuple[int, ...] = (1, 2, 10, 11), **more: Any) -> Any:
        def watched(call: Callable[[], Any]) -> dict[str, Any]:
            engine.launched.clear()
            call()
            return {"schemaVersion": 1, "traceEvents": list(engine.launched)}

        def timed(call: Any, layers: int, cold: bool, budget_s: float = 0.0) -> Timed:
            return Timed(call.seconds, 0.01, 9, layers, layers, cold)

        monkeypatch.setattr(trials, "kernel_events", watched)
        monkeypatch.setattr(trials, "time_layers", timed)
        device = CpuAsGpu("cuda", "cpu", "CPU as GPU", l2_bytes=1 << 16)
        runner = OwnRunner(device, claims, here={engine.plan.engine: engine.here()}, **more)
        monkeypatch.setattr(CpuAsGpu, "free_memory", lambda self: None)
        (result,) = runner.run([case], lambda case, finding: None)
        return {finding.claim: finding for finding in result.findings}

    return run
