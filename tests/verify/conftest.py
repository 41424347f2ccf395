"""Small problems, in Triton's interpreter where there is no GPU: it must be chosen before Triton is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

HAS_TORCH, HAS_TRITON = find_spec("torch") is not None, find_spec("triton") is not None
if HAS_TORCH and "triton" not in sys.modules:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name, there in (("torch", HAS_TORCH), ("triton", HAS_TRITON)) if not there]
    for item in items:
        if missing and item.get_closest_marker("interpreter"):
            item.add_marker(
                pytest.mark.skip(reason=f"needs {' and '.join(missing)} (pip install 'decodecalc[verify]')")
            )


@pytest.fixture
def make_case() -> Callable[..., Any]:
    """make_case(policy, geometry, batch, gpu, **options): a Case planned by this policy object."""
    from decodecalc.kvcache import KvCache
    from decodecalc.models import LayerGroup
    from decodecalc.verify.session.suites import Case, Scenario

    def make(policy: Any, geometry: Any, batch: Any, gpu: Any, kv: Any = None, **options: Any) -> Any:
        cache = kv or KvCache()
        scenario = Scenario("test", LayerGroup("all", 1, geometry), batch, cache, (policy.name,))
        return Case(scenario, policy, policy.version().name, policy.plan(geometry, batch, cache, gpu, options))

    return make


@pytest.fixture
def check(make_case: Callable[..., Any]) -> Callable[..., Any]:
    """check(case, claims) -> {claim: Finding}, on the GPU where there is one, else in the interpreter."""
    from decodecalc.verify.run.device import open_device
    from decodecalc.verify.run.runner import Runner

    def run(case: Any, claims: tuple[int, ...]) -> Any:
        import torch

        device = open_device("cuda" if torch.cuda.is_available() else "interpreter")
        (result,) = Runner(device, claims).run([case], lambda case, finding: None)
        return {finding.claim: finding for finding in result.findings}

    return run
