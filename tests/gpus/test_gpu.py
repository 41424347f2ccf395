"""The Gpu value object."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.gpus import Gpu, gpu_names, load_gpu
from decodecalc.gpus.fields import FIELDS


@pytest.mark.parametrize(
    ("gpu", "dtype", "peak_dtype", "flop_per_s"),
    [
        ("h100", "bf16", "bf16", 989.4e12),
        ("h100", "fp8", "fp8", 1978.9e12),
        ("h100", "fp32", "fp32", 66.9e12),
        ("v100", "bf16", "fp16", 125e12),
        ("v100", "fp8", "fp16", 125e12),
        ("a100", "fp8", "bf16", 312e12),
        ("a100", "int8", "int8", 624e12),
        ("a100", "int4", "bf16", 312e12),
        ("h100", "nvfp4", "bf16", 989.4e12),
        ("b200", "nvfp4", "nvfp4", 9e15),
    ],
)
def test_peak_falls_back_to_the_dtype_the_maths_runs_in(
    gpu: str, dtype: str, peak_dtype: str, flop_per_s: float
) -> None:
    """A dtype with no matrix mode of its own takes the peak of the dtype that its kernels compute in."""
    peak = load_gpu(gpu).peak_flop_per_s(dtype)
    assert (peak.flop_per_s, peak.dtype) == (flop_per_s, peak_dtype)


def test_peak_says_why() -> None:
    """The reason separates a mode that does not exist from a rate that nobody knows."""
    assert load_gpu("a100").peak_flop_per_s("fp8").reason == (
        "NVIDIA A100 SXM4 80GB has no fp8 matrix mode: maths in bf16 after dequantisation"
    )
    assert load_gpu("v100").peak_flop_per_s("bf16").reason == "NVIDIA V100 SXM2 32GB has no bf16 matrix mode: fp16 peak"
    unknown = load_gpu("mi308x").peak_flop_per_s("bf16")
    assert (unknown.flop_per_s, unknown.reason) == (None, "no bf16 peak of AMD Instinct MI308X is known")
    assert load_gpu("mi308x").ridge_flop_per_byte() is None


def test_peak_of_an_unknown_dtype() -> None:
    """An unknown dtype is an error that names the known ones."""
    with pytest.raises(UnknownNameError, match="bf16"):
        load_gpu("h100").peak_flop_per_s("bf17")


def test_capability_helpers() -> None:
    """Exact and family checks of compute capability, and AMD apart."""
    b200, b300, mi = load_gpu("b200"), load_gpu("b300"), load_gpu("mi300x")
    assert (b200.sm, b300.sm, mi.sm) == (100, 103, None)
    assert b200.is_sm(100)
    assert not b300.is_sm(100)
    assert b300.is_sm_family(100)
    assert load_gpu("rtx5090").is_sm_family(120)
    assert not load_gpu("rtx5090").is_sm_family(100)
    assert not mi.is_sm_family(90)
    assert [gpu.is_hip for gpu in (b200, mi, load_gpu("gaudi3"))] == [False, True, False]


def test_need_names_the_field_and_the_way_to_give_it() -> None:
    """A number that is not known is asked for, with the file that would supply it."""
    assert load_gpu("h100").need("l2_bytes") == 50 << 20
    with pytest.raises(InputError, match=r'l2_bytes of GPU .* not known.*"base": "b300-sxm"'):
        load_gpu("b300").need("l2_bytes")
    with pytest.raises(UnknownNameError, match="l2_bytes"):
        load_gpu("b300").need("l2_byte")


def test_with_changes_a_copy_and_checks_it() -> None:
    """`with_` leaves the original alone, rejects unknown fields and bad values."""
    h100 = load_gpu("h100")
    assert h100.with_(sm_count=100).sm_count == 100
    assert h100.sm_count == 132
    with pytest.raises(UnknownNameError, match="sm_count"):
        h100.with_(sm_counts=3)
    with pytest.raises(InputError, match="sm_count is 0"):
        h100.with_(sm_count=0)


def test_gpus_are_frozen_hashable_values() -> None:
    """Equal by value, usable as keys, not assignable."""
    h100 = load_gpu("h100")
    assert h100 == load_gpu("h100-sxm")
    assert len({h100, load_gpu("h100-sxm")}) == 1
    with pytest.raises(FrozenInstanceError):
        h100.sm_count = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", gpu_names())
def test_to_dict_is_plain_and_round_trips(name: str) -> None:
    """`to_dict` survives JSON and builds the same GPU again."""
    gpu = load_gpu(name)
    assert Gpu(**{**json.loads(json.dumps(gpu.to_dict())), "warnings": ()}) == gpu


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("hbm_bytes_per_s", 3350, r"bytes per second: 3350 GB/s is 3\.35e12"),
        ("hbm_bytes_per_s", 3.35, "bytes per second"),
        ("hbm_bytes_per_s", 3.35e6, "bytes per second"),
        ("hbm_bytes_per_s", float("nan"), "finite number"),
        ("hbm_bytes_per_s", -3.35e12, "outside"),
        ("hbm_bytes_per_s", "3.35e12", "finite number"),
        ("tensor_bf16_flop_per_s", 989.4, "989 TFLOP/s is 9.89e14"),
        ("tensor_bf16_flop_per_s", 989400, "FLOP per second"),
        ("boost_clock_hz", 1980, "1980 MHz is 1.98e9"),
        ("boost_clock_hz", 1.98, "Hz"),
        ("memory_bytes", 80, "80 GB is 80e9"),
        ("l2_bytes", 50, "50 MiB is 52428800"),
        ("l2_bytes", 51200, "bytes"),
        ("smem_bytes_per_sm", 228, "bytes"),
        ("interconnect_bytes_per_s_per_direction", 450, "bytes per second"),
        ("sm_count", 0, "sm_count is 0"),
        ("sm_count", 131.5, "whole number"),
        ("sm_count", True, "whole number"),
        ("sm_count", 10**400, "sm_count is"),
        ("sm_count", None, "whole number"),
        ("memory_bytes", 80e9 + 0.5, "whole number of bytes"),
        ("compute_capability", 9.0, r'\[9, 0\] or "9\.0"'),
        ("compute_capability", "9", "pair"),
        ("compute_capability", [9, 0, 0], "pair"),
        ("device_names", "NVIDIA H100", "list"),
        ("name", "", "printable"),
        ("name", "a\x1b[31m", "printable"),
        ("max_smem_bytes_per_block", 1 << 20, "exceeds smem_bytes_per_sm"),
    ],
)
def test_bad_values_name_field_range_and_unit(field: str, value: Any, match: str) -> None:
    """Each wrong type, sign or unit gets a message that names the field and says what to write."""
    with pytest.raises(InputError, match=match) as caught:
        load_gpu("h100").with_(**{field: value})
    assert field in str(caught.value)
    assert len(str(caught.value)) < 300


def test_bytes_may_be_written_as_floats() -> None:
    """80e9 is a natural way to write a size, and becomes an int."""
    size = load_gpu("h100").with_(memory_bytes=80e9).memory_bytes
    assert size == 80 * 10**9
    assert isinstance(size, int)


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.none().map(lambda _: 10**5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(field=st.sampled_from(sorted(FIELDS)), value=_junk)
def test_any_value_is_either_accepted_or_an_input_error(field: str, value: Any) -> None:
    """No value of any type makes a field crash with anything but InputError."""
    try:
        gpu = load_gpu("h100").with_(**{field: value})
    except InputError:
        return
    assert value is None or type(getattr(gpu, field)) in (int, float, str, tuple)
    assert isinstance(hash(gpu), int)


@pytest.mark.parametrize(
    "contradiction",
    [
        {"vendor": "NVIDIA", "gfx": "gfx942"},
        {"vendor": "AMD", "compute_capability": "9.0"},
        {"vendor": "Intel", "compute_capability": "9.0"},
    ],
)
def test_a_vendor_that_contradicts_the_architecture_is_refused(contradiction: dict[str, str]) -> None:
    """A device is one vendor's: rules of two vendors would hold for it."""
    with pytest.raises(InputError, match="leave"):
        load_gpu({"name": "x", "sm_count": 100, "hbm_bytes_per_s": 2e12, **contradiction})
