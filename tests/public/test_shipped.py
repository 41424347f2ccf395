"""The fitted calibrations that the package ships, and how they are put together with the measured one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import decodecalc as dc
from benchmarks.public.report import accuracy_table, markdown
from decodecalc.cost.extrapolate import reference_of
from decodecalc.cost.load import SHIPPED, Shipped, kernels_of, load_calibration, shipped_calibration
from decodecalc.cost.parameters import EXTRAPOLATED, FITTED, MEASURED, PROVENANCES
from decodecalc.cost.variants import BUNDLED, tile_bytes

ROOT = Path(__file__).parents[2]
FITTED_FILES = [s.file for s in SHIPPED if s.provenance == FITTED]
REPORT = json.loads((ROOT / "reports" / "public-fit.json").read_text("utf-8"))


@pytest.mark.parametrize("name", FITTED_FILES)
def test_every_fitted_number_is_physical_and_says_what_it_is(name: str) -> None:
    """No bandwidth above the data sheet, no tile faster than its bytes allow, starts of microseconds, one word for all
    of a kernel's numbers."""
    known = shipped_calibration(name)
    gpu = reference_of(known)
    assert known.provenance == FITTED
    assert 0.5 < known.parameters["hbm_sustained_bytes_per_s"].number / gpu.need("hbm_bytes_per_s") <= 0.97
    for variant, values in known.variants.items():
        assert {p.provenance for p in values.values()} == {FITTED}
        transfer = tile_bytes(variant) / values["hbm_sustained_bytes_per_s"].number
        assert all(0.999 * k * transfer < tau for k, tau in zip(values["blocks"].curve, values["tau_s"].curve))
        assert values["tau_s"].curve[0] < 1e-5 + tile_bytes(variant) / 2e9
        assert all(1e-7 < start < 3e-5 for start in values["t_start_1_s"].curve)
        assert list(values["tau_s"].curve) == sorted(values["tau_s"].curve)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.file)
def test_what_is_said_of_a_shipped_file_without_reading_it_holds(shipped: Shipped) -> None:
    """Its GPU and the word for its numbers are the file's, and no fitted file holds the bundled kernel."""
    known = shipped_calibration(shipped.file)
    assert reference_of(known) == shipped.reference
    assert known.provenance == shipped.provenance
    assert bool(known.of_kernel(BUNDLED)) == (shipped.provenance == MEASURED)


def test_measured_comes_before_fitted_and_fitted_before_extrapolated() -> None:
    """An H200's FlashAttention-3 at width 128 was measured, TensorRT-LLM's kernels are fitted; on a B200 trtllm-gen is
    fitted and the bundled kernel comes from the H200."""
    h200 = load_calibration(gpu="h200-sxm")
    words = {(v.dtype, v.head_dim): h200.origin(v).provenance for v in h200.variants if v.kernel == "flash-attention-3"}
    assert words["bf16", 128] == MEASURED
    assert kernels_of(dc.load_gpu("h200-sxm"))["tensorrt-llm-xqa"] == FITTED
    assert kernels_of(dc.load_gpu("b200-sxm"))["trtllm-gen"] == FITTED
    assert kernels_of(dc.load_gpu("b200-sxm"))["bundled"] == EXTRAPOLATED
    assert kernels_of(dc.load_gpu("h200-sxm"))["bundled"] == MEASURED


def test_an_uncalibrated_gpu_starts_from_its_nearest_neighbour() -> None:
    """An RTX 6000 Ada has the L40S's chip: its FlashAttention 2 comes from there."""
    gpu = dc.load_gpu("rtx-6000-ada")
    known = load_calibration(gpu=gpu)
    assert set(kernels_of(gpu).values()) == {EXTRAPOLATED}
    origins = {known.origin(v).extrapolated_from for v in known.variants if v.kernel == "flash-attention-2"}
    assert "l40s" in origins


def test_other_vendors_get_no_kernel_that_cannot_run_there() -> None:
    """Nothing fitted on NVIDIA's GPUs is carried to AMD's; Gaudi and Intel's keep the bundled kernel alone."""
    assert "trtllm-gen" not in kernels_of(dc.load_gpu("mi300x"))
    assert "tensorrt-llm-mmha" not in kernels_of(dc.load_gpu("mi300x"))
    for name in ("gaudi3", "intel-max-1550"):
        assert set(kernels_of(dc.load_gpu(name))) <= {"bundled"}


def test_a_prediction_names_where_its_numbers_come_from() -> None:
    """One label a prediction, beginning with one of the words."""
    geo, batch, kv = dc.Geometry(32, 8, 128), dc.Batch.uniform(batch=4, context=4096), dc.KvCache(page_size=64)
    for gpu, word in (("h100-sxm", FITTED), ("h200-sxm", MEASURED), ("gh200-96gb", EXTRAPOLATED)):
        found = dc.predict(dc.plan("flash-attention-3", geo, batch, kv=kv, gpu=gpu))
        assert found.calibration.startswith(word), gpu
        assert word in PROVENANCES


def test_the_report_and_the_page_say_what_the_numbers_say() -> None:
    """Both are made from the committed results."""
    assert (ROOT / "reports" / "public-fit.md").read_text("utf-8") == markdown(REPORT)
    assert "\n".join(accuracy_table(REPORT)) in (ROOT / "docs" / "accuracy.md").read_text("utf-8")


def test_an_extrapolated_interval_is_as_wide_as_gpus_left_out_were_wrong() -> None:
    """The least half widths are the 90th percentiles, over tables, of predictions for GPUs that were left out."""
    from benchmarks.public.judge import left_out_width
    from decodecalc.cost.extrapolate import LEAST_OTHER_ARCHITECTURE, LEAST_SAME_ARCHITECTURE

    assert pytest.approx(left_out_width(REPORT["left_out"], same=True), abs=0.01) == LEAST_SAME_ARCHITECTURE
    assert pytest.approx(left_out_width(REPORT["left_out"], same=False), abs=0.01) == LEAST_OTHER_ARCHITECTURE
