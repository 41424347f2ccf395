"""`decodecalc calibrate`, as far as it goes without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from decodecalc.batch import Batch
from decodecalc.calibrate import measure as calibrate
from decodecalc.calibrate.derive import TILES, StageTimes, knots, wave_points
from decodecalc.calibrate.measure import MeasurementJournal, all_variants
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.load import load_calibration
from decodecalc.cost.prediction import predict
from decodecalc.cost.variants import BUNDLED
from decodecalc.engines import load_policy
from decodecalc.files import open_alone
from decodecalc.geometry import Geometry
from decodecalc.gpus import load_gpu
from decodecalc.kvcache import KvCache


class Sample(NamedTuple):
    """As the microbenchmarks return it."""

    seconds: float
    spread: float


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
    assert "--" not in result.err, "calibrate has no option that stands in for the hardware"
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_exit_2_before_anything_is_measured(call: Any, tmp_path: Path) -> None:
    """Minutes of measuring must not end in a missing folder."""
    result = call("calibrate", "--output", str(tmp_path / "no" / "such" / "folder.json"))
    assert result.code == 2
    assert "cannot write" in result.err


def test_a_second_run_with_the_same_output_is_refused(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs would mix the parts in one journal. The lock goes away with the run that held it."""
    monkeypatch.setattr("decodecalc.verify.run.device.open_device", lambda *_: None)
    monkeypatch.setattr("decodecalc.gpus.detect_gpu", lambda *_: load_gpu("h200"))
    lock = tmp_path / ".here.json.lock"
    with open_alone(lock, "wb", "taken"):
        result = call("calibrate", "--output", str(tmp_path / "here.json"))
        assert result.code == 2
        assert "another run is measuring" in result.err
    with open_alone(lock, "wb", "taken"):
        pass


def test_engines_that_cannot_be_calibrated_are_exit_2_before_anything_is_measured(call: Any, tmp_path: Path) -> None:
    """A name without a kernel to calibrate, no name, and times of nothing."""
    target = str(tmp_path / "c.json")
    for options, said in (
        (("--engine", "paged-attention-v1"), "vllm-triton"),
        (("--engine", " , "), "--engine is empty"),
        (("--times", str(tmp_path / "t.json")), "give --engine too"),
        (("--engine", "all", "--times", str(tmp_path / "no" / "t.json")), "cannot write"),
        (("--engine", "all", "--seconds", "3"), "--seconds"),
    ):
        result = call("calibrate", "--output", target, *options)
        assert result.code == 2
        assert said in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not no_gpu(), reason="there is a GPU")
def test_engines_need_a_gpu_too(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 3, and no file."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert call("calibrate", "--engine", "all", "--output", str(tmp_path / "c.json")).code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_journal_takes_up_where_it_stopped(tmp_path: Path) -> None:
    """A finished part is not measured again; another GPU's journal is not taken up."""
    path = tmp_path / "j"
    first = MeasurementJournal(path, {"gpu": "a"})
    assert first.run("launches", lambda: {"x": 1}) == {"x": 1}

    def never() -> Any:
        raise AssertionError("measured twice")

    assert MeasurementJournal(path, {"gpu": "a"}).run("launches", never) == {"x": 1}
    assert MeasurementJournal(path, {"gpu": "b"}).run("launches", lambda: 2) == 2
    path.write_text("{")
    assert MeasurementJournal(path, {"gpu": "a"}).run("launches", lambda: 3) == 3
    first.remove()
    assert not path.exists()


class MadeUpBench:
    """The microbenchmarks of a device whose time is known: 1 us of start, 2 us a tile for up to 264 blocks
    and in proportion beyond; merges of 1 us and 1 ns for every row and split."""

    class Pool:
        """Only what callers look at."""

        def __init__(self, dtype: str, head_dim: int, head_dim_v: int, kv_heads: int = 1, pool_bytes: int = 0) -> None:
            self.v_dim, self.kv_heads = head_dim_v or 512, kv_heads

    @staticmethod
    def launch_probes(sm_count: int) -> dict[str, Sample]:
        return {"launch_graph_s": Sample(5e-7, 0.0), "launch_block_s": Sample(6e-10, 0.0)}

    @staticmethod
    def memory_probes(sm_count: int, l2_bytes: int) -> dict[str, Sample]:
        rates = {"hbm_sustained_bytes_per_s": 4.6e12, "l2_bytes_per_s": 8e12, "l2_capacity_bytes": 5e7}
        return {name: Sample(value, 0.001) for name, value in rates.items()}

    @staticmethod
    def merge_probes(pool: Any) -> dict[tuple[int, int], float]:
        return {(r, s): 1e-6 + 1e-9 * (r + s) for r in (8, 32, 128) for s in (2, 16, 256) if r < 128 or s < 256}

    @staticmethod
    def resident_slots(pool: Any, variant: Any, gpu: Any) -> int:
        return 4

    @staticmethod
    def seconds(blocks: int, tiles: int) -> float:
        whole, left = divmod(blocks, 528)
        wave = sum(tiles * 2e-6 * max(n / 264, 1) for n in [528] * whole + [left] if n)
        return 5e-7 + 1e-6 + wave

    @classmethod
    def stage_probes(
        cls, pool: Any, variant: Any, sm_count: int, slots: int, merge_of: Any
    ) -> tuple[StageTimes, float]:
        assert merge_of(32, 16) == pytest.approx(1e-6 + 48e-9)
        n = slots * sm_count
        points = [(k, t) for k in knots(sm_count, slots) for t in TILES]
        times = StageTimes(n, {p: cls.seconds(*p) for p in points}, {p: cls.seconds(*p) for p in wave_points(n)})
        return times, 0.01

    @staticmethod
    def shared_tile(pool: Any, variant: Any, blocks: int) -> tuple[float, float]:
        transfer = blocks * 32768 / 4.6e12
        return (transfer**3 + (1e-6) ** 3) ** (1 / 3), 1e-6


class MadeUpDevice:
    """As much of a device as `calibrate` looks at."""

    name, l2_bytes, kind, is_cuda = "NVIDIA H200", 60 << 20, "cuda", False

    def free_memory(self) -> None:
        pass

    def state(self) -> Any:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"driver": "580"}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calibration:
    """A whole calibration of the made-up device."""
    monkeypatch.setattr(calibrate, "_microbench", lambda: MadeUpBench)
    monkeypatch.setattr(calibrate, "_compile_all", lambda variants: True)
    monkeypatch.setattr("decodecalc.verify.run.device.provenance", lambda device: {"date_utc": "2026-01-02T00:00:00Z"})
    device: Any = MadeUpDevice()
    return calibrate.calibrate(device, load_gpu("h200"), tmp_path / "journal")


def test_the_parameters_of_a_made_up_device_come_back(made_up: Calibration) -> None:
    """What is known of its time is what its calibration says, for every variant."""
    assert made_up.parameters["overlap_exponent"].number == pytest.approx(3.0, rel=1e-3)
    assert set(made_up.variants) == set(all_variants())
    for values in made_up.variants.values():
        tau = dict(zip(values["blocks"].curve, values["tau_s"].curve))
        assert tau[max(tau)] == pytest.approx(2e-6 * max(tau) / 264)
        assert min(tau.values()) == pytest.approx(2e-6)
        assert values["t_start_4_s"].curve == pytest.approx([1e-6] * len(tau))
        assert values["refill_s"].number == pytest.approx(0.0, abs=1e-12)


def test_a_made_up_device_s_own_launches_are_predicted(made_up: Calibration) -> None:
    """Unsplit launches of 8 to 528 blocks and of two waves, each within 4 %."""
    gpu = load_gpu("h200")
    for batch, tiles in ((1, 16), (16, 4), (33, 48), (66, 16), (132, 8)):
        geo, keys = Geometry(32, 8, 128), Batch.uniform(batch, tiles * 64)
        plan = load_policy("bundled").plan(geo, keys, KvCache(), gpu, {"num_splits": 1, "tile_keys": 64, "warps": 4})
        told = predict(plan, gpu, made_up).total_s
        assert told == pytest.approx(MadeUpBench.seconds(8 * batch, tiles), rel=0.04), (batch, tiles)


def test_a_calibration_can_be_saved_and_read_for_its_gpu(made_up: Calibration, tmp_path: Path) -> None:
    """Raw times stay out of the file."""
    made_up.save(tmp_path / "c.json")
    again = load_calibration(tmp_path / "c.json", "h200")
    assert set(again.variants) == set(all_variants())
    assert again.date == "2026-01-02"
    assert "raw" not in json.dumps(again.to_dict())


def test_every_variant_is_of_the_bundled_kernel_and_measured_once() -> None:
    """No two entries for one compiled kernel."""
    variants = all_variants()
    assert {v.kernel for v in variants} == {BUNDLED}
    assert len(set(variants)) == len(variants)
