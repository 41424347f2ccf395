"""Which kernel's parameters a launch gets."""

from __future__ import annotations

from typing import Any

import pytest

from decodecalc.cost.calibration import parse_calibration
from decodecalc.cost.load import load_calibration
from decodecalc.cost.parameters import Variant
from decodecalc.cost.variants import is_calibrated, kernel_of, on_path, resolve, tile_bytes, wanted_variant
from decodecalc.geometry import Geometry
from decodecalc.gpus import load_gpu
from decodecalc.kvcache import KvCache

WANTED = Variant("bundled", "bf16", 128, 128, 64, 16, 4, 3, "paged", "split")


def test_a_measured_variant_is_used_as_it_is(calibration_file: dict[str, Any]) -> None:
    """Exact: provenance stays measured, and nothing is scaled."""
    found = resolve(parse_calibration(calibration_file), WANTED)
    assert found.exact
    assert found.note == ""
    assert found.slower == 1.0
    assert found.values["tau_s"].provenance == "measured"


def test_the_two_paths_of_a_tile_are_two_variants(calibration_file: dict[str, Any]) -> None:
    """Split and unsplit launches compile to different kernels."""
    calibration = parse_calibration(calibration_file)
    unsplit = on_path(WANTED, split=False)
    assert resolve(calibration, unsplit).used == unsplit
    assert resolve(calibration, on_path(unsplit, split=True)).used == WANTED


def test_a_width_that_pads_to_a_measured_one_has_its_latency_and_its_own_bytes(
    calibration_file: dict[str, Any],
) -> None:
    """head_dim 96 computes on 128 wide tiles: as slow as 128, though fewer bytes."""
    wanted = WANTED._replace(head_dim=96, head_dim_v=96)
    found = resolve(parse_calibration(calibration_file), wanted)
    assert not found.exact
    assert "extrapolated" in found.note
    assert found.used.head_dim == 128
    assert found.slower == 1.0
    assert found.values["tau_s"].provenance == "extrapolated"
    assert tile_bytes(found.wanted) == 0.75 * tile_bytes(found.used)


def test_latency_goes_with_half_of_what_a_tile_computes_on_within_limits(calibration_file: dict[str, Any]) -> None:
    """Four times the tile: twice the latency; a width far beyond what was measured does not run away."""
    calibration = parse_calibration(calibration_file)
    assert resolve(calibration, WANTED._replace(tile_keys=512)).slower == pytest.approx(2.0)
    assert resolve(calibration, WANTED._replace(head_dim=65536, head_dim_v=65536)).slower == 4.0


def test_a_kernel_is_calibrated_when_the_file_holds_it(calibration_file: dict[str, Any]) -> None:
    """vLLM's 3D kernel is in the file, its 2D one and SGLang's are not."""
    calibration = parse_calibration(calibration_file)
    assert kernel_of("vllm-triton", True) == "vllm-triton-3d"
    assert is_calibrated("vllm-triton", True, calibration)
    assert not is_calibrated("vllm-triton", False, calibration)
    assert not is_calibrated("sglang-triton", True, calibration)


def test_mla_counts_its_latent_once() -> None:
    """A tile of a 576-wide latent holds 576 elements a key, not 576 + 512."""
    mla = wanted_variant("bundled", Geometry(16, 1, 576, 512, mla=True), KvCache(), 64, 16)
    assert tile_bytes(mla) == 64 * 576 * 2
    assert wanted_variant("bundled", Geometry(16, 1, 192, 128), KvCache("fp8", 1), 64, 16).layout == "flat"


def test_neither_kernel_lends_the_other_its_times() -> None:
    """A latent's variant that was not measured is extrapolated from a block of its own kernel."""
    calibration = load_calibration(gpu=load_gpu("h200"))
    geo, kv = Geometry(64, 1, 576, 512, mla=True), KvCache("bf16", 64)
    for tile, rows, warps in ((64, 64, 12), (64, 64, 8), (64, 32, 8), (32, 64, 4), (64, 16, 2)):
        found = resolve(calibration, wanted_variant("bundled", geo, kv, tile, rows, warps, 2))
        assert (found.used.warps == 12) == (warps == 12)


def test_a_kernel_compiled_to_other_registers_keeps_its_own_blocks_of_an_sm() -> None:
    """With nobody knowing the blocks of an SM a variant is the measured one; with another count than any measured
    variant has, the nearest one's times are taken, and the count stays."""
    calibration = load_calibration(gpu=load_gpu("h200"))
    measured = next(v for v in calibration.of_kernel("vllm-triton-3d") if v.resident)
    assert resolve(calibration, measured._replace(resident=0)).exact
    other = resolve(calibration, measured._replace(resident=11))
    assert not other.exact
    assert other.values["slots_per_sm"].number == 11
    assert other.used.kernel == measured.kernel
