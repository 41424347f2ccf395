"""The bundled table: values against spec sheets, units, names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import decodecalc
from decodecalc.errors import UnknownNameError
from decodecalc.gpus import gpu_aliases, gpu_fields, gpu_names, load_gpu
from decodecalc.gpus.table import name_key

ALL = gpu_names()


@pytest.mark.parametrize(
    ("name", "sms", "hbm_bytes_per_s", "bf16_flop_per_s", "memory_gb"),
    [
        ("a100-sxm", 108, 2.039e12, 312e12, 80),
        ("a100-sxm-40gb", 108, 1.555e12, 312e12, 40),
        ("a100-pcie", 108, 1.935e12, 312e12, 80),
        ("a10g", 80, 600e9, 70e12, 24),
        ("l4", 58, 300e9, 121e12, 24),
        ("l40s", 142, 864e9, 362.05e12, 48),
        ("rtx4090", 128, 1.008e12, 165.2e12, 24),
        ("rtx5090", 170, 1.792e12, 209.5e12, 32),
        ("h100-sxm", 132, 3.35e12, 989.4e12, 80),
        ("h100-pcie", 114, 2.0e12, 756e12, 80),
        ("h100-nvl", 132, 3.938e12, 835.5e12, 94),
        ("h200-sxm", 132, 4.8e12, 989.4e12, 141),
        ("h20", 78, 4.0e12, 148e12, 96),
        ("b200-sxm", 148, 7.7e12, 2250e12, 180),
        ("mi300x", 304, 5.3e12, 1307.4e12, 192),
        ("mi355x", 256, 8.0e12, 2516.6e12, 288),
    ],
)
def test_spec_sheet_values(name: str, sms: int, hbm_bytes_per_s: float, bf16_flop_per_s: float, memory_gb: int) -> None:
    """SMs, bandwidth, dense BF16 peak and memory are those of the vendor's spec sheet, in SI units."""
    gpu = load_gpu(name)
    assert gpu.sm_count == sms
    assert gpu.hbm_bytes_per_s == hbm_bytes_per_s
    assert gpu.tensor_bf16_flop_per_s == bf16_flop_per_s
    assert gpu.memory_bytes == memory_gb * 10**9


def test_v100_and_t4_have_no_bf16() -> None:
    """Parts before Ampere list FP16 only."""
    for name, fp16 in (("v100", 125e12), ("t4", 65e12)):
        assert load_gpu(name).tensor_fp16_flop_per_s == fp16
        assert load_gpu(name).tensor_bf16_flop_per_s is None
        assert "bf16" in load_gpu(name).absent_tensor_modes


def test_h100_ridge_is_295() -> None:
    """Dense BF16 over bandwidth: a sparse peak, a tera of 1e13 or 3072 GB/s would each move it."""
    assert load_gpu("h100-sxm").ridge_flop_per_byte("bf16") == pytest.approx(295.3, abs=0.05)


# Dense FP16 FLOP per clock and SM. A sparse figure would read twice its architecture's number, a tera of 1e13 ten
# times. Parts sold at half rate with FP32 accumulate, and the cut H20, are listed by name.
_RATE_OF_CAPABILITY = {
    (7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 7): 2048, (8, 9): 1024, (9, 0): 4096,
    (10, 0): 8192, (10, 3): 8192, (11, 0): 8192, (12, 0): 1024, (12, 1): 1024,
}  # fmt: skip
_RATE_OF_GFX = {"gfx90a": 1024, "gfx942": 2048, "gfx950": 4096}
_RATE_OF_NAME = {
    "a10g": 512, "rtx3090": 512, "rtx4090": 512, "l40": 512, "rtx5090": 512, "h20": 958,
    "h20-3e": 958, "rtx3080": 512, "rtx5080": 512,
}  # fmt: skip
_PEAK_BELOW_MAX_CLOCK = 0.14  # H100 NVL prints its peak 13.4 % under the driver's clock, B200 5.6 %
# Peaks of these are not clock times SMs of the usual kind (eight MME engines), or no source of them was found.
_NO_RATE = {"gaudi3", "intel-max-1550", "mi308x", "l20"}


@pytest.mark.parametrize("name", [name for name in ALL if name not in _NO_RATE])
def test_matrix_peak_per_clock_and_sm_fits_the_architecture(name: str) -> None:
    """FLOP per clock and SM is the architecture's dense rate."""
    gpu = load_gpu(name)
    clock = gpu.tensor_reference_clock_hz or gpu.boost_clock_hz
    assert clock
    assert gpu.tensor_fp16_flop_per_s
    rate = gpu.tensor_fp16_flop_per_s / gpu.sm_count / clock
    expected = _RATE_OF_NAME.get(
        name, _RATE_OF_CAPABILITY.get(gpu.compute_capability or (0, 0), _RATE_OF_GFX.get(gpu.gfx or "", 0))
    )
    assert expected * (1 - _PEAK_BELOW_MAX_CLOCK) <= rate <= expected * 1.01


@pytest.mark.parametrize("name", ALL)
def test_lower_precision_peaks_keep_their_ratio(name: str) -> None:
    """Dense FP8 is twice dense BF16 wherever both exist; Gaudi 3 runs both at one rate."""
    gpu = load_gpu(name)
    if gpu.tensor_fp8_flop_per_s and gpu.tensor_bf16_flop_per_s:
        expected = 1.0 if name == "gaudi3" else 2.0
        assert gpu.tensor_fp8_flop_per_s / gpu.tensor_bf16_flop_per_s == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ALL)
def test_fp32_peak_is_two_flop_per_core_and_clock(name: str) -> None:
    """FP32 per clock and SM is 128 or 256 (64 or 128 FMA lanes; CDNA3 and later print packed or matrix figures)."""
    gpu = load_gpu(name)
    if gpu.is_hip or gpu.vendor != "NVIDIA" or not gpu.boost_clock_hz or not gpu.fp32_flop_per_s:
        return
    rate = gpu.fp32_flop_per_s / gpu.sm_count / gpu.boost_clock_hz
    # The RTX PRO 6000 Server's 120e12 implies 2.49 GHz, 2.6 % above the clock its driver showed; the
    # H20's printed 44e12 does not follow from its SMs and clock (the table keeps 39.5e12 beside it).
    assert any(lanes * 0.9 <= rate <= lanes * 1.03 for lanes in (128, 256)) or name == "h20"


@pytest.mark.parametrize("name", ALL)
def test_memory_is_decimal_and_the_driver_reports_about_as_much(name: str) -> None:
    """Marketed sizes are whole decimal GB; the driver's number lies within the GB/GiB gap of 7.4 % and overheads."""
    gpu = load_gpu(name)
    assert gpu.memory_bytes is not None
    assert gpu.memory_bytes % 10**9 == 0
    if gpu.memory_usable_bytes is not None:
        assert 0.97 < gpu.memory_usable_bytes / gpu.memory_bytes <= 2**30 / 1e9
        assert gpu.capacity_bytes == gpu.memory_usable_bytes


@pytest.mark.parametrize("name", ALL)
def test_shared_memory_of_a_block_is_the_sms_less_one_kib_on_recent_nvidia(name: str) -> None:
    """From compute capability 8.0 one KiB per block is reserved; before, none."""
    gpu = load_gpu(name)
    if gpu.compute_capability is not None:
        assert gpu.smem_bytes_per_sm is not None
        assert gpu.max_smem_bytes_per_block is not None
        reserved = 1024 if gpu.compute_capability >= (8, 0) else 0
        assert gpu.smem_bytes_per_sm - gpu.max_smem_bytes_per_block == reserved


def test_h100_family_l2_differs_by_memory_stacks() -> None:
    """Five-stack parts have 50 MiB of L2, six-stack parts 60 MiB."""
    for name in ("h100-sxm", "h100-pcie"):
        assert load_gpu(name).l2_bytes == 50 << 20
    for name in ("h100-nvl", "h200-sxm", "gh200-96gb", "gh200-144gb"):
        assert load_gpu(name).l2_bytes == 60 << 20


def test_amd_l2_is_per_die_and_totals_32_mib() -> None:
    """HIP reports one die's L2; eight dies share a 256 MiB memory-side cache, which is what a cold run overflows."""
    gpu = load_gpu("mi300x")
    assert (gpu.l2_bytes, gpu.l2_total_bytes, gpu.cache_bytes) == (4 << 20, 32 << 20, 256 << 20)
    assert load_gpu("h200").l2_total_bytes == load_gpu("h200").cache_bytes == 60 << 20
    assert load_gpu("b300").cache_bytes is None
    assert load_gpu("mi308x").l2_total_bytes is None


def test_every_name_and_alias_is_unique_and_resolves() -> None:
    """No spelling is claimed by two entries, and each loads its own."""
    claimed: Counter[str] = Counter()
    for name in ALL:
        gpu = load_gpu(name)
        spellings = {name, *gpu_aliases(name), gpu.display_name or name, *gpu.device_names}
        claimed.update({name_key(text) for text in spellings})
        for text in spellings:
            assert load_gpu(text).name == name
    assert [key for key, count in claimed.items() if count > 1] == []
    assert len(ALL) == len(set(ALL)) == 51


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "h100-sxm"), ("H100_SXM", "h100-sxm"), ("NVIDIA H100", "h100-sxm"), ("h200", "h200-sxm"),
        ("a100", "a100-sxm"), ("a100-80gb", "a100-sxm"), ("a100-sxm4-80gb", "a100-sxm"), ("l40s", "l40s"),
        ("RTX 4090", "rtx4090"), ("4090", "rtx4090"), ("GeForce RTX 4090", "rtx4090"), ("b200", "b200-sxm"),
        ("mi300x", "mi300x"), ("AMD Instinct MI300X", "mi300x"), ("AMD Instinct MI250X/MI250", "mi250x"),
        ("gh200", "gh200-96gb"), ("h20", "h20"), ("rtx-pro-6000", "rtx-pro-6000-server"), ("orin", "jetson-orin-64gb"),
    ],
)  # fmt: skip
def test_aliases(text: str, name: str) -> None:
    """Common spellings, with case and punctuation ignored, mean the documented part."""
    assert load_gpu(text).name == name


@pytest.mark.parametrize(
    ("text", "near"), [("h1000", "h100"), ("rtx409", "rtx4090"), ("a100-xsm", "a100-sxm"), ("mi250", "mi250x")]
)
def test_unknown_names_suggest_the_nearest(text: str, near: str) -> None:
    """A near miss is never loaded silently, and its message holds the name that was meant."""
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(text)
    assert near in caught.value.nearest


@pytest.mark.parametrize("text", ["", " ", "?", "x" * 10_000, "🙂"])
def test_junk_names_are_unknown(text: str) -> None:
    """Empty, huge and symbol-only names are unknown, in a short message."""
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(text)
    assert len(str(caught.value)) < 600


def test_every_value_has_provenance() -> None:
    """Each field of each entry that holds a value says its source and a confidence word."""
    words = {"datasheet", "driver query seen", "secondary", "derived", "unknown"}
    for name in ALL:
        infos = {info.field: info for info in gpu_fields(name)}
        for field, value in load_gpu(name).to_dict().items():
            if field in {"name", "display_name", "table_name", "origin", "warnings", "absent_tensor_modes"}:
                continue
            if value not in (None, []):
                info = infos[field]
                assert info.source not in ("", "not applicable", "no source found"), (name, field)
                assert info.confidence in words
                assert all(alternative.source for alternative in info.alternatives)


def test_disagreeing_sources_are_kept() -> None:
    """B200 bandwidth is listed as 7.7, 7.67 and 8.0 TB/s by different sources; all are there."""
    (info,) = [info for info in gpu_fields("b200") if info.field == "hbm_bytes_per_s"]
    assert (info.value, info.unit) == (7.7e12, "B/s")
    assert {alternative.value for alternative in info.alternatives} == {7.67232e12, 8.0e12}


def test_values_and_provenance_files_cover_the_same_fields() -> None:
    """The two data files describe the same GPUs, and no source of the table is unused."""
    data = Path(decodecalc.__file__).parent / "data"
    values = json.loads((data / "gpus.json").read_text("utf-8"))["gpus"]
    provenance = json.loads((data / "gpus_provenance.json").read_text("utf-8"))
    assert list(values) == list(provenance["gpus"])
    used = set()
    for name, fields in provenance["gpus"].items():
        assert set(values[name]) - {"display_name", "aliases", "absent_tensor_modes"} <= set(fields)
        for record in fields.values():
            used.update(record["s"])
            used.update(i for other in record.get("a", ()) for i in other["s"])
    assert used == set(range(len(provenance["sources"])))
    assert len(provenance["sources"]) == len(set(provenance["sources"]))


def test_loading_a_gpu_imports_nothing_heavy() -> None:
    """A look-up reads the values file only and imports no torch, triton, pandas, matplotlib or NumPy."""
    code = (
        "import sys, decodecalc.gpus as g; g.load_gpu('h100-sxm')\n"
        "from decodecalc.gpus import table\n"
        "assert table._provenance.cache_info().currsize == 0\n"
        "print([m for m in ('torch','triton','pandas','matplotlib','click','rich','numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
