"""GPU files and mappings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.gpus import Gpu, gpu_fields, load_gpu

MINE = {"name": "mine", "sm_count": 100, "hbm_bytes_per_s": 2.5e12}


def _write(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data), "utf-8")
    return path


def test_json_file_with_the_three_required_fields(tmp_path: Path) -> None:
    """Name, SMs and bandwidth are enough; everything else is unknown."""
    gpu = load_gpu(_write(tmp_path / "g.json", MINE))
    assert (gpu.name, gpu.sm_count, gpu.hbm_bytes_per_s) == ("mine", 100, 2.5e12)
    assert (gpu.l2_bytes, gpu.table_name, gpu.origin) == (None, None, "file g.json")
    assert load_gpu(str(tmp_path / "g.json")) == gpu


def test_toml_file_gives_the_same_gpu_as_json(tmp_path: Path) -> None:
    """The two formats are equivalent."""
    toml = 'name = "mine"\nsm_count = 100\nhbm_bytes_per_s = 2.5e12\ncompute_capability = "9.0"\n'
    a = load_gpu(_write(tmp_path / "g.toml", toml))
    b = load_gpu(_write(tmp_path / "g.json", {**MINE, "compute_capability": [9, 0]}))
    assert a.with_(origin="") == b.with_(origin="")


def test_base_fills_the_rest_but_not_the_identity(tmp_path: Path) -> None:
    """`base` inherits values, yet the device names stay with the original, so detection is unaffected."""
    gpu = load_gpu(_write(tmp_path / "g.json", {"base": "h100", "name": "slow", "hbm_bytes_per_s": 3.0e12}))
    h100 = load_gpu("h100")
    assert (gpu.name, gpu.label, gpu.hbm_bytes_per_s) == ("slow", "slow", 3.0e12)
    assert (gpu.sm_count, gpu.l2_bytes, gpu.compute_capability) == (132, h100.l2_bytes, (9, 0))
    assert (gpu.device_names, gpu.table_name) == ((), "h100-sxm")


def test_fields_of_a_file_say_what_was_given() -> None:
    """Provenance separates what the user gave from what the base's sources say."""
    infos = {info.field: info for info in gpu_fields({"base": "h100", "name": "slow", "hbm_bytes_per_s": 3.0e12})}
    assert infos["hbm_bytes_per_s"].confidence == "given"
    assert infos["sm_count"].confidence == "driver query seen"


def test_a_gpu_is_returned_as_it_is() -> None:
    """`load_gpu` is the identity on a Gpu."""
    gpu = Gpu("x", 1)
    assert load_gpu(gpu) is gpu


@pytest.mark.parametrize("spec", [None, 3, 2.5, [], b"h100"])
def test_other_types_are_refused(spec: Any) -> None:
    """Anything that is not a name, path, mapping or Gpu is an input error."""
    with pytest.raises(InputError, match="name"):
        load_gpu(spec)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("g.json", "", "not JSON"),
        ("g.json", '{"name": "x", ', "not JSON"),
        ("g.json", "[1]", "one object"),
        ("g.json", "[" * 100_000, "not JSON: nested too deeply"),
        ("g.json", '{"name": "x", "name": "y"}', "'name' appears twice"),
        ("g.json", "{}", "name, sm_count, hbm_bytes_per_s must be given"),
        ("g.json", '{"name": "x", "sm_count": null, "hbm_bytes_per_s": 1e12}', "sm_count must be given"),
        ("g.json", '{"base": "h100"}', "name must be given"),
        ("g.json", '{"base": 3, "name": "x"}', "base must be"),
        ("g.json", '{"name": "x", "sm_count": 100, "hbm_bytes_per_s": NaN}', "finite"),
        ("g.json", '{"name": "x", "sm_count": 100, "hbm_bytes_per_s": 1e999}', "finite"),
        ("g.json", '{"name": "x", "sm_count": 100, "hbm_bytes_per_s": 3350}', r"g\.json.*bytes per second"),
        ("g.json", '{"name": "x", "sm_count": -4, "hbm_bytes_per_s": 1e12}', "sm_count is -4"),
        ("g.json", '{"name": "x", "sm_count": 1' + "0" * 5000 + "}", "not JSON"),
        ("g.toml", "name = ", "not TOML"),
        ("g.toml", "name = 1979-05-27\nsm_count = 1\nhbm_bytes_per_s = 1e12", "printable"),
        ("g.toml", 'name = "x"\nhbm_bytes_per_s = 1e12\nsm_count = 0x1' + "0" * 5000, "sm_count"),
        ("g.yaml", "name: x", r"end in \.json or \.toml"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, name: str, text: str, match: str) -> None:
    """Each kind of broken file has its own short message."""
    with pytest.raises(InputError, match=match) as caught:
        load_gpu(_write(tmp_path / name, text))
    assert len(str(caught.value)) < 600


def test_unknown_fields_suggest_the_nearest(tmp_path: Path) -> None:
    """A misspelled field is an error, not an ignored key."""
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(_write(tmp_path / "g.json", {**MINE, "l2_byte": 5}))
    assert "l2_bytes" in caught.value.nearest


def test_unknown_base_suggests_the_nearest(tmp_path: Path) -> None:
    """So is a misspelled base."""
    with pytest.raises(UnknownNameError, match="h100-sxm"):
        load_gpu(_write(tmp_path / "g.json", {**MINE, "base": "h100-smx"}))


def test_unreadable_paths(tmp_path: Path) -> None:
    """A missing file, a folder, binary, a NUL in the path and a huge file are input errors."""
    (tmp_path / "dir.json").mkdir()
    (tmp_path / "bin.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "big.json").write_bytes(b" " * (1 << 21))
    for name, match in (
        ("none.json", "No such file"),
        ("dir.json", "cannot be read"),
        ("bin.json", "UTF-8"),
        ("big.json", "1 MiB"),
        ("nul\0.json", "cannot be read"),
        ("h100", "must end"),
    ):
        with pytest.raises(InputError, match=match):
            load_gpu(str(tmp_path / name))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=200), suffix=st.sampled_from([".json", ".toml"]))
def test_junk_files_are_input_errors(tmp_path: Path, data: bytes, suffix: str) -> None:
    """Random bytes never crash and never load."""
    path = tmp_path / f"junk{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError):
        load_gpu(path)


_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.dictionaries(
        st.sampled_from(["base", "name", "sm_count", "hbm_bytes_per_s", "l2_bytes", "device_names", "oops"]), _values
    )
)
def test_json_objects_of_random_values_load_or_are_input_errors(tmp_path: Path, data: dict[str, Any]) -> None:
    """Well-formed files with arbitrary values give a usable GPU or an input error."""
    path = _write(tmp_path / "random.json", data)
    try:
        gpu = load_gpu(path)
    except InputError:
        return
    assert gpu.name == data["name"]
    assert gpu.hbm_bytes_per_s is not None
    assert gpu.hbm_bytes_per_s >= 1e9
