"""Which kernel's parameters a launch gets."""

from __future__ import annotations

from typing import Any

import pytest

from decodecalc.cost.calibration import parse_calibration
from decodecalc.cost.parameters import Variant
from decodecalc.cost.variants import kernel_of, resolve, tile_bytes, wanted_variant
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache


def test_a_measured_variant_is_used_as_it_is(calibration_file: dict[str, Any]) -> None:
    """Exact: provenance stays measured."""
    calibration = parse_calibration(calibration_file)
    wanted = Variant("bundled", "bf16", 128, 128, 64, 16, 4, 3)
    found = resolve(calibration, wanted)
    assert found.exact
    assert found.note == ""
    assert found.values["tau_unloaded_s"].provenance == "measured"


def test_a_width_between_two_measured_ones_is_interpolated_along_the_tile_s_bytes(
    calibration_file: dict[str, Any],
) -> None:
    """head_dim 96 lies half way between 64 (0.6 us) and 128 (0.8 us)."""
    found = resolve(parse_calibration(calibration_file), Variant("bundled", "bf16", 96, 96, 64, 16, 4, 3))
    assert not found.exact
    assert "interpolated" in found.note
    assert found.values["tau_unloaded_s"].value == pytest.approx(0.7e-6)
    assert found.values["tau_unloaded_s"].provenance == "extrapolated"


def test_interpolation_is_kept_within_a_factor_of_the_nearest(calibration_file: dict[str, Any]) -> None:
    """A width far beyond what was measured does not run away."""
    found = resolve(parse_calibration(calibration_file), Variant("bundled", "bf16", 4096, 4096, 64, 16, 4, 3))
    assert found.values["tau_unloaded_s"].value == pytest.approx(4 * 0.8e-6)


def test_an_engine_without_measured_kernel_gets_the_bundled_one(calibration_file: dict[str, Any]) -> None:
    """vLLM's 3D kernel is in the file, its 2D one and SGLang's are not."""
    calibration = parse_calibration(calibration_file)
    assert kernel_of("vllm-triton", True, calibration) == "vllm-triton-3d"
    assert kernel_of("vllm-triton", False, calibration) == "bundled"
    assert kernel_of("sglang-triton", True, calibration) == "bundled"


def test_mla_counts_its_latent_once() -> None:
    """A tile of a 576-wide latent holds 576 elements a key, not 576 + 512."""
    mla = wanted_variant("bundled", Geometry(16, 1, 576, 512, mla=True), KvCache(), 64, 16)
    assert tile_bytes(mla) == 64 * 576 * 2
    assert wanted_variant("bundled", Geometry(16, 1, 192, 128), KvCache("fp8", 1), 64, 16).layout == "flat"
