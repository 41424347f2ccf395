"""Parameters to test the model with: a made-up device, so that no test leans on one calibration's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from decodecalc.cost.calibration import SCHEMA
from decodecalc.cost.rates import Rates

RATES = {
    "sm_count": 100,
    "slots": 200,
    "launch_s": 0.5e-6,
    "launch_block_s": 1e-9,
    "gap_s": 1e-6,
    "hbm_bytes_per_s": 4e12,
    "l2_bytes_per_s": 8e12,
    "l2_capacity_bytes": 40e6,
    "peak_flop_per_s": 1e15,
    "exponent": 1.5,
    "refill_s": 0.5e-6,
    "row_s": 1e-9,
    "blocks": (1.0, 100.0, 200.0),
    "latency_s": (0.4e-6, 0.8e-6, 1.4e-6),
    "starts_s": tuple((1e-6, (1.5 + i / 4) * 1e-6, (2 + i / 2) * 1e-6) for i in range(5)),
    "merge_rows": (8.0, 512.0),
    "merge_splits": (2.0, 64.0),
    "merge_s": (1.2e-6, 2e-6, 1.5e-6, 4e-6),
    "warm": False,
    "half_width": 0.1,
    "half_width_ragged": 0.1,
}


@pytest.fixture
def rates() -> Rates:
    """A plausible device and kernel."""
    return Rates(**RATES)  # type: ignore[arg-type]


def entry(value: Any, provenance: str = "measured", spread: float = 0.01) -> dict[str, Any]:
    """One parameter of the file format."""
    return {"value": value, "provenance": provenance, "spread": spread}


@pytest.fixture
def calibration_file() -> dict[str, Any]:
    """A whole calibration file of a made-up H200, as plain values: two bundled variants and one of vLLM's."""
    device = {
        "launch_graph_s": 0.5e-6, "launch_stream_s": 3e-6, "launch_block_s": 1e-9, "dependent_launch_gap_s": 1e-6,
        "hbm_sustained_bytes_per_s": 4.4e12, "l2_bytes_per_s": 8e12, "l2_capacity_bytes": 40e6, "overlap_exponent": 4.0,
        "residual_p90": 0.1,
    }  # fmt: skip
    kernel: dict[str, Any] = {
        "slots_per_sm": 2, "refill_s": 0.5e-6, "blocks": [1, 132, 264],
        **{f"t_start_{t}_s": [1e-6, 2e-6, 3e-6] for t in (1, 2, 4, 8)}, "t_start_16_s": [1e-6, 3e-6, 4e-6],
        "merge_rows": [8, 512], "merge_splits": [2, 64], "merge_s": [1e-6, 2e-6, 1.5e-6, 4e-6],
    }  # fmt: skip

    def variant(name: str, tile: int, dim: int, tau: float, path: str, warps: int = 4, stages: int = 3) -> Any:
        values = {k: entry(v) for k, v in {**kernel, "tau_s": [tau, 1.2 * tau, 3 * tau]}.items()}
        shape = {"dtype": "bf16", "head_dim": dim, "head_dim_v": dim, "tile_keys": tile, "rows": 16, "path": path}
        return {"kernel": name, **shape, "warps": warps, "stages": stages, "layout": "paged", "values": values}

    return {
        "schema": SCHEMA,
        "gpu": {"name": "NVIDIA H200", "table_name": "h200-sxm", "sm_count": 132, "hbm_bytes_per_s": 4.8e12},
        "date": "2026-01-01",
        "protocol": "made up",
        "environment": {"driver": "580"},
        "parameters": {name: entry(value) for name, value in device.items()},
        "variants": [
            *(variant("bundled", 64, 128, 0.8e-6, path) for path in ("split", "unsplit")),
            *(variant("bundled", 128, 128, 1.2e-6, path) for path in ("split", "unsplit")),
            *(variant("bundled", 64, 64, 0.6e-6, path) for path in ("split", "unsplit")),
            variant("vllm-triton-3d", 16, 128, 1.25e-6, "", 0, 0),
        ],
    }
