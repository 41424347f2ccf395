"""`decodecalc predict`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from decodecalc.cost.parameters import PROVENANCES


def test_rows_hold_the_terms_baselines_interval_and_provenance(call: Any) -> None:
    """Llama-3-8B, one request of 2560 keys on an H200, vLLM's kernel."""
    result = call("predict", "--gpu", "h200", "--format", "json")
    assert result.code == 0, result.err
    (row,) = result.rows
    terms = ("launch_s", "fixed_s", "stream_s", "latency_s", "compute_s", "tail_s", "gap_s", "merge_s")
    assert sum(row[t] for t in terms) == pytest.approx(row["total_s"])
    assert row["low_s"] < row["total_s"] < row["high_s"]
    assert row["roofline_s"] < row["overhead_plus_bytes_s"] < row["total_s"]
    assert row["kernel"] == "vllm-triton-3d"
    assert row["token_s"] == pytest.approx(32 * row["total_s"])
    assert {p["provenance"] for p in row["provenance"]} <= {*PROVENANCES}
    assert all(p["unit"] for p in row["provenance"])
    assert json.loads(result.out)["schema"] == "decodecalc/predict/1"


def test_a_token_adds_every_layer_group(call: Any) -> None:
    """Gemma-3: sliding and full layers, each per layer, summed per token for each batch on its own."""
    rows = call("predict", "-m", "gemma3-27b", "--batch", "1,8", "--format", "json").rows
    assert {r["layer_group"] for r in rows} == {"sliding", "full"}
    for batch in (1, 8):
        mine = [r for r in rows if r["batch"] == batch]
        assert len(mine) == 2
        token_s = sum(r["total_s"] * r["layers"] for r in mine)
        assert [r["token_s"] for r in mine] == pytest.approx([token_s] * 2)


def test_both_kernels_are_two_rows(call: Any) -> None:
    """vLLM's own kernel, and the bundled kernel under vLLM's rule."""
    rows = call("predict", "--gpu", "h200", "--kernel", "both", "--format", "json").rows
    assert [r["kernel"] for r in rows] == ["vllm-triton-3d", "bundled"]


def test_warm_and_cold_are_printed_with_every_number(call: Any) -> None:
    """The mode stands in the rows and under the table."""
    warm = call("predict", "--gpu", "h200", "--l2", "warm", "--format", "json").rows[0]
    cold = call("predict", "--gpu", "h200", "--format", "json").rows[0]
    assert (warm["l2"], cold["l2"]) == ("warm", "cold")
    assert warm["total_s"] < cold["total_s"]
    assert "The L2 is cold" in call("predict", "--gpu", "h200").out


def test_an_extrapolated_gpu_says_so(call: Any) -> None:
    """H100 was never calibrated here. Curves are named by their ends."""
    result = call("predict", "--gpu", "h100-sxm", "--provenance")
    assert result.code == 0
    assert "extrapolated to h100-sxm from" in result.out
    assert "hbm_sustained_bytes_per_s" in result.out
    assert re.search(r"tau_s = \S+ to \S+ \(\d+ values\) s, extrapolated", result.out)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--calibration", "nowhere.json"), "cannot be read"),
        (("--kernel", "theirs"), "theirs"),
        (("--l2", "hot"), "hot"),
        (("--engine", "vlm-triton"), "vllm-triton"),
    ],
)
def test_bad_input_is_exit_2(call: Any, argv: tuple[str, ...], message: str) -> None:
    """One line that says what was wrong."""
    result = call("predict", *argv)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_calibration_of_another_gpu_is_exit_2(call: Any, tmp_path: Any) -> None:
    """An H200 file with --gpu h100-sxm."""
    from decodecalc.cost.load import load_calibration

    path = tmp_path / "h200.json"
    load_calibration(gpu="h200").save(path)
    assert call("predict", "--gpu", "h200", "--calibration", str(path)).code == 0
    result = call("predict", "--gpu", "h100-sxm", "--calibration", str(path))
    assert result.code == 2
    assert "H200" in result.err
