"""Matching the live device to the table. No GPU is needed except where marked."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from decodecalc.errors import MissingDependencyError
from decodecalc.gpus import DeviceProperties, detect_gpu, gpu_from_device, gpu_names, load_gpu, match_device
from decodecalc.gpus.detect import _read_properties

GIB = 1 << 30


@pytest.mark.parametrize("name", gpu_names())
def test_every_listed_device_name_matches_its_entry(name: str) -> None:
    """A driver that prints a listed name, with the table's SMs and memory, is that entry and warns of nothing."""
    gpu = load_gpu(name)
    for device_name in gpu.device_names:
        found = match_device(device_name, gpu.sm_count, gpu.capacity_bytes, gpu.compute_capability, gpu.gfx)
        assert found is not None
        assert found.name == name
        assert found.warnings == () or "Max-Q" in device_name
        assert found.with_(origin=gpu.origin, warnings=(), memory_usable_bytes=gpu.memory_usable_bytes) == gpu


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("NVIDIA H20", "h20"), ("NVIDIA H200", "h200-sxm"), ("NVIDIA H20-3e", "h20-3e"),
        ("NVIDIA H200 NVL", "h200-nvl"), ("NVIDIA B200", "b200-sxm"), ("NVIDIA GB200", "gb200"),
        ("NVIDIA L4", "l4"), ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"), ("NVIDIA A10", "a10"), ("NVIDIA A10G", "a10g"), ("NVIDIA A40", "a40"),
        ("NVIDIA RTX A6000", "rtx-a6000"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GH200 480GB", "gh200-96gb"), ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"), ("GeForce RTX 3090", "rtx3090"),
        ("AMD Instinct MI300X VF", "mi300x"), ("AMD Instinct MI250X / MI250", "mi250x"),
    ],
)  # fmt: skip
def test_names_that_contain_one_another_stay_apart(device_name: str, name: str) -> None:
    """Names are compared whole, not by prefix or substring; a missing "NVIDIA" (older drivers) is no difference."""
    found = match_device(device_name)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "device_name",
    [
        "NVIDIA H100", "NVIDIA H20 NVL16", "NVIDIA H800 PCIe", "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 5090 D v2", "Quadro RTX 6000", "NVIDIA RTX 6000D",
        "NVIDIA A100-SXM-64GB", "NVIDIA PG506-230", "NVIDIA RTX A4000", "AMD Instinct MI300A", "Orin", "", "h100",
    ],
)  # fmt: skip
def test_other_products_do_not_match_their_neighbours(device_name: str) -> None:
    """Products that the table does not hold are not taken for the nearest name."""
    assert match_device(device_name) is None


def test_live_sm_count_wins_and_peaks_scale() -> None:
    """The device is right about its SMs; the difference is reported and the matrix peaks follow."""
    gpu = match_device("NVIDIA A100-SXM4-80GB", sm_count=54)
    assert gpu is not None
    assert (gpu.sm_count, gpu.tensor_bf16_flop_per_s, gpu.hbm_bytes_per_s) == (54, 156e12, 2.039e12)
    assert "54 SMs, the table says 108" in gpu.warnings[0]


def test_mig_instance_gets_its_share_of_memory_bandwidth() -> None:
    """A 3g.40gb instance owns four of eight memory slices: half the bandwidth and half the L2."""
    gpu = match_device("NVIDIA A100-SXM4-80GB MIG 3g.40gb", sm_count=42, memory_bytes=42_550_034_432)
    assert gpu is not None
    assert (gpu.name, gpu.sm_count, gpu.memory_usable_bytes) == ("a100-sxm", 42, 42_550_034_432)
    assert (gpu.hbm_bytes_per_s, gpu.l2_bytes) == (2.039e12 / 2, 20 << 20)
    assert any("4/8" in warning for warning in gpu.warnings)


def test_mig_of_the_whole_gpu_keeps_its_bandwidth() -> None:
    """7g.80gb is the whole memory."""
    gpu = match_device("NVIDIA A100-SXM4-80GB MIG 7g.80gb", sm_count=98, memory_bytes=84 * 10**9)
    assert gpu is not None
    assert gpu.hbm_bytes_per_s == 2.039e12


def test_orin_modules_are_told_apart_by_memory() -> None:
    """Every Orin prints the same name: 64 GB is the entry, even with SMs hidden by a power mode; others are not."""
    agx = match_device("Orin", sm_count=8, memory_bytes=65_893_269_504)
    assert agx is not None
    assert (agx.name, agx.sm_count) == ("jetson-orin-64gb", 8)
    assert agx.warnings
    assert match_device("Orin", sm_count=8, memory_bytes=16 * 10**9) is None
    assert match_device("Orin", sm_count=14, memory_bytes=32 * 10**9) is None


def test_max_q_is_flagged() -> None:
    """The Max-Q edition shares the Workstation entry, with a warning about its clocks."""
    gpu = match_device("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    assert gpu is not None
    assert (gpu.name, "clocks" in gpu.warnings[0]) == ("rtx-pro-6000-workstation", True)


def test_unusual_memory_is_reported_and_wins() -> None:
    """A card with twice the memory (rebuilt boards exist) keeps its entry but says so."""
    gpu = match_device("NVIDIA GeForce RTX 4090", 128, 50 * 10**9)
    assert gpu is not None
    assert (gpu.capacity_bytes, gpu.hbm_bytes_per_s) == (50 * 10**9, 1.008e12)
    assert "50.0 GB" in gpu.warnings[0]


@pytest.mark.parametrize(
    ("gfx", "cus", "memory_gib", "name"),
    [
        ("gfx942:sramecc+:xnack-", 304, 192, "mi300x"),
        ("gfx942", 304, 256, "mi325x"),
        ("gfx942", 80, 192, "mi308x"),
        ("gfx90a", 104, 64, "mi210"),
        ("gfx950", 256, 288, None),  # MI350X and MI355X cannot be told apart
        ("gfx942", 300, 192, None),
        ("gfx1100", 96, 24, None),
    ],
)
def test_nameless_rocm_devices_match_only_when_one_entry_fits(
    gfx: str, cus: int, memory_gib: int, name: str | None
) -> None:
    """Without a telling name, architecture, compute units and memory must single out one entry."""
    for device_name in ("", "AMD Radeon Graphics"):
        found = match_device(device_name, cus, memory_gib * GIB, gfx=gfx)
        assert (found.name if found else None) == name


def test_unknown_devices_keep_what_the_driver_says() -> None:
    """A device that is not in the table has its own properties, no bandwidth and no peaks, and a warning."""
    device = DeviceProperties("NVIDIA Z1", 77, 8 * GIB, (13, 0), None, 32, 8 << 20, 102400, 101376, 65536, 1536)
    gpu = gpu_from_device(device)
    assert (gpu.name, gpu.label, gpu.sm_count, gpu.compute_capability) == ("nvidia-z1", "NVIDIA Z1", 77, (13, 0))
    assert (gpu.l2_bytes, gpu.max_smem_bytes_per_block, gpu.capacity_bytes) == (8 << 20, 101376, 8 * GIB)
    assert (gpu.hbm_bytes_per_s, gpu.peak_flop_per_s("bf16").flop_per_s, gpu.table_name) == (None, None, None)
    assert "not in the table" in gpu.warnings[0]


def test_cuda_properties_are_read() -> None:
    """Fields as torch 2.11 filled them on an H200 (its gcnArchName holds no ISA name there)."""
    props = SimpleNamespace(
        name="NVIDIA H200", multi_processor_count=132, total_memory=150_109_880_320, major=9, minor=0, warp_size=32,
        L2_cache_size=62914560, shared_memory_per_multiprocessor=233472, shared_memory_per_block_optin=232448,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, gcnArchName="NVIDIA H200",
    )  # fmt: skip
    device = _read_properties(props)
    assert (device.gfx, device.compute_capability, device.max_smem_bytes_per_block) == (None, (9, 0), 232448)
    gpu = gpu_from_device(device)
    assert (gpu.name, gpu.warnings, gpu.capacity_bytes) == ("h200-sxm", (), 150_109_880_320)


def test_rocm_properties_that_hip_misreports_are_not_read() -> None:
    """HIP's LDS per CU is multiplied by the CUs and its register count halved: neither is believed."""
    props = SimpleNamespace(
        name="AMD Instinct MI999", multi_processor_count=304, total_memory=206_141_652_992, major=9, minor=4,
        warp_size=64, L2_cache_size=4 << 20, shared_memory_per_multiprocessor=65536 * 304,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, gcnArchName="gfx942:sramecc+:xnack-",
    )  # fmt: skip
    gpu = gpu_from_device(_read_properties(props))
    assert (gpu.gfx, gpu.vendor, gpu.is_hip, gpu.compute_capability) == ("gfx942", "AMD", True, None)
    assert (gpu.smem_bytes_per_sm, gpu.registers_per_sm, gpu.warp_size) == (None, None, 64)


def test_without_torch_detection_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch is a missing dependency (exit code 3), with the command that brings it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"decodecalc\[verify\]") as caught:
        detect_gpu()
    assert caught.value.exit_code == 3


@pytest.mark.gpu
def test_the_live_device_is_detected() -> None:
    """On a real GPU the SM count is the device's own."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    assert detect_gpu().sm_count == torch.cuda.get_device_properties(0).multi_processor_count
