"""`decodecalc calibrate`, as far as it goes without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decodecalc.cost.calibration import load_calibration
from decodecalc.cost.parameters import DEVICE, PER_KERNEL
from decodecalc.cost.variants import BUNDLED
from decodecalc.verify.calibrate import Journal, all_variants, assemble

IDENTITY = {"name": "NVIDIA H200", "table_name": "h200-sxm", "sm_count": 132, "hbm_bytes_per_s": 4.8e12}


def no_gpu() -> bool:
    """Whether torch sees no CUDA device here."""
    try:
        import torch
    except ImportError:
        return True
    return not torch.cuda.is_available()


@pytest.mark.skipif(not no_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_is_exit_3(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing hardware has its own exit code, and leaves no file."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    result = call("calibrate", "--output", str(tmp_path / "here.json"))
    assert result.code == 3
    assert "GPU" in result.err or "torch" in result.err
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_exit_2_before_anything_is_measured(call: Any, tmp_path: Path) -> None:
    """Minutes of measuring must not end in a missing folder."""
    result = call("calibrate", "--output", str(tmp_path / "no" / "such" / "folder.json"))
    assert result.code == 2
    assert "cannot write" in result.err


def test_a_journal_takes_up_where_it_stopped(tmp_path: Path) -> None:
    """A finished part is not measured again; another GPU's journal is not taken up."""
    path = tmp_path / "j"
    first = Journal(path, {"gpu": "a"})
    assert first.run("launches", lambda: {"x": 1}) == {"x": 1}

    def never() -> Any:
        raise AssertionError("measured twice")

    assert Journal(path, {"gpu": "a"}).run("launches", never) == {"x": 1}
    assert Journal(path, {"gpu": "b"}).run("launches", lambda: 2) == 2
    path.write_text("{")
    assert Journal(path, {"gpu": "a"}).run("launches", lambda: 3) == 3
    first.remove()
    assert not path.exists()


def test_measured_values_make_a_valid_file(tmp_path: Path) -> None:
    """What calibrate assembles can be saved and read for its GPU, raw times left out."""
    device = {n: {"value": 1e-6, "spread": 0.01} for n in DEVICE if n not in PER_KERNEL}
    values = {
        "slots_per_sm": 4, "t_fixed_s": 1e-6, "t_crowd_s": 1e-7, "refill_s": 0.0, "t_row_s": 0.0,
        "tau_unloaded_s": 1e-6, "tau_loaded_s": 1e-6, "tau_busy_s": 0.0, "overlap_exponent": 2.0,
        "dependent_launch_gap_s": 1e-6, "merge_fixed_s": 1e-6, "merge_per_split_s": 1e-8, "spread": 0.02,
        "raw": {"by_blocks": {}},
    }  # fmt: skip
    found = assemble(IDENTITY, device, [(v, values) for v in all_variants()], {"date_utc": "2026-01-02T00:00:00Z"})
    found.save(tmp_path / "c.json")
    again = load_calibration(tmp_path / "c.json", "h200")
    assert set(again.variants) == set(all_variants())
    assert again.date == "2026-01-02"
    assert "raw" not in json.dumps(again.to_dict())


def test_every_variant_is_of_the_bundled_kernel_and_measured_once() -> None:
    """No two entries for one compiled kernel."""
    variants = all_variants()
    assert {v.kernel for v in variants} == {BUNDLED}
    assert len(set(variants)) == len(variants)
