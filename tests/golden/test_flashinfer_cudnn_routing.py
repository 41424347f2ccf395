"""Where `backend="auto"` goes against decisions recorded from FlashInfer's own routing function."""

from __future__ import annotations

import numpy as np

from decodecalc.engines.flashinfer.decode import POLICY
from decodecalc.engines.flashinfer.routing import AutoRequest, auto_route

GOLDEN = "flashinfer_cudnn_routing"
LEFT_OUT: dict[str, str] = {}


def test_routes_where_flashinfer_routes(case, check):
    """cuDNN or fa2, and a condition of the source that says why."""
    given = dict(case["in"])
    rules = POLICY.version(given.pop("flashinfer")).rules.routing
    given["compute_capability"] = tuple(given["compute_capability"])
    for name in ("batch_size", "q_len_per_req", "fa2_available"):
        given[name] = np.array([given[name]])
    route = auto_route(AutoRequest(**given), rules)
    assert route.code()
    assert route.reason()
    check(case["out"], {"prefers_cudnn": bool(route.prefers_cudnn[0])}, LEFT_OUT)
