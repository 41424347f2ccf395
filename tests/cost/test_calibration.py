"""Calibration files: what is read, what is refused, what is extrapolated."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import decodecalc as dc
from decodecalc.cost.calibration import parse_calibration
from decodecalc.cost.extrapolate import extrapolate
from decodecalc.cost.load import SHIPPED, fits, load_calibration, shipped_calibration
from decodecalc.errors import InputError


def write(tmp_path: Path, data: Any) -> str:
    """A file holding `data`."""
    path = tmp_path / "calibration.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_a_calibration_survives_being_saved(tmp_path: Path, calibration_file: dict[str, Any]) -> None:
    """What is written is what is read again."""
    first = parse_calibration(calibration_file)
    first.save(tmp_path / "out.json")
    assert load_calibration(tmp_path / "out.json", "h200").to_dict() == first.to_dict()
    assert not (tmp_path / "out.json.part").exists()


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (["schema"], "decodecalc/calibration/0", "schema"),
        (["gpu"], {"name": "x"}, "sm_count"),
        (["parameters", "hbm_sustained_bytes_per_s"], None, "hbm_sustained_bytes_per_s"),
        (["parameters", "launch_graph_s", "value"], -1.0, "launch_graph_s"),
        (["parameters", "launch_graph_s", "value"], "fast", "launch_graph_s"),
        (["parameters", "launch_graph_s", "provenance"], "guessed", "provenance"),
        (["parameters", "launch_graph_us"], {"value": 1, "provenance": "measured"}, "launch_graph_us"),
        (["variants"], [], "variants"),
        (["variants", 0, "tile_keys"], "64", "tile_keys"),
        (["variants", 0, "values", "t_start_4_s"], None, "t_start_4_s"),
        (["variants", 0, "values", "tau_s", "value"], 1e-6, "tau_s"),
        (["variants", 0, "values", "tau_s", "value"], [1e-6, "x", 2e-6], "tau_s"),
        (["variants", 0, "values", "tau_s", "value"], [1e-6, 2e-6], "as many values as knots"),
        (["variants", 0, "values", "merge_s", "value"], [1e-6, 2e-6, 3e-6], "as many values as knots"),
        (["variants", 0, "values", "blocks", "value"], [1, 132, 132], "ascend"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, calibration_file: dict[str, Any], where: list[Any], value: Any, message: str
) -> None:
    """Another schema version, a missing or impossible parameter: one message that names it."""
    at: Any = calibration_file
    for key in where[:-1]:
        at = at[key]
    if value is None:
        del at[where[-1]]
    else:
        at[where[-1]] = value
    with pytest.raises(InputError, match=message):
        load_calibration(write(tmp_path, calibration_file), "h200")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "\x00"])
def test_what_is_not_a_calibration_is_refused(tmp_path: Path, text: str) -> None:
    """Truncated, empty or foreign JSON."""
    with pytest.raises(InputError, match="calibration"):
        load_calibration(write(tmp_path, text), "h200")


def test_a_calibration_of_another_gpu_is_refused(tmp_path: Path, calibration_file: dict[str, Any]) -> None:
    """An H200's file does not pass for an H100, whose SM count is the same."""
    with pytest.raises(InputError, match="H100"):
        load_calibration(write(tmp_path, calibration_file), "h100-sxm")


def test_unreadable_and_unwritable_files_are_input_errors(tmp_path: Path, calibration_file: dict[str, Any]) -> None:
    """A missing file and a folder that does not exist."""
    with pytest.raises(InputError, match="cannot be read"):
        load_calibration(str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="cannot write"):
        parse_calibration(calibration_file).save(tmp_path / "no" / "where.json")


def test_the_shipped_h200_is_plausible() -> None:
    """Units: bandwidth between half and all of the data sheet's, launches and tiles of microseconds and below."""
    h200 = load_calibration(gpu="h200")
    gpu = dc.load_gpu("h200")
    value = {name: p.number for name, p in h200.parameters.items()}
    assert h200.extrapolated_from is None
    assert fits(h200, gpu)
    assert 0.5 * gpu.need("hbm_bytes_per_s") < value["hbm_sustained_bytes_per_s"] < gpu.need("hbm_bytes_per_s")
    assert value["hbm_sustained_bytes_per_s"] < value["l2_bytes_per_s"] < 50e12
    assert 10e6 < value["l2_capacity_bytes"] <= gpu.need("l2_bytes")
    assert 1e-7 < value["launch_graph_s"] < 1e-5
    for values in h200.variants.values():
        assert all(1e-8 < tau < 1e-4 for tau in values["tau_s"].curve)
        assert 1 <= values["slots_per_sm"].number <= 32


def test_an_h100_is_an_h200_with_less_bandwidth() -> None:
    """Same SMs and clock: everything carries over but the memory, and every number says it was extrapolated. A lone
    block's tile hardly notices; where bandwidth rules, a tile takes longer by its ratio."""
    h200 = shipped_calibration(SHIPPED[0].file)
    h100 = extrapolate(h200, dc.load_gpu("h100-sxm"))
    assert h100.extrapolated_from
    every = [*h100.parameters.values(), *(p for v in h100.variants.values() for p in v.values())]
    assert {p.provenance for p in every} == {"extrapolated"}
    ratio = 3.35 / 4.8
    name = "hbm_sustained_bytes_per_s"
    assert h100.parameters[name].number == pytest.approx(h200.parameters[name].number * ratio)
    for variant, values in h200.variants.items():
        slower = [b / a for a, b in zip(values["tau_s"].curve, h100.variants[variant]["tau_s"].curve)]
        assert slower[0] == pytest.approx(1.0, rel=0.01)
        assert all(0.999 < x < 1.001 / ratio for x in slower)
    assert h100.parameters["residual_p90"].number > h200.parameters["residual_p90"].number


@pytest.mark.parametrize("name", dc.gpu_names())
def test_every_gpu_of_the_table_gets_parameters(name: str) -> None:
    """All are positive and finite, slots at least one, and wider intervals the further away the GPU is."""
    calibration = load_calibration(gpu=name)
    for values in (calibration.parameters, *calibration.variants.values()):
        assert all(0 <= x < float("inf") for p in values.values() for x in p.curve)
    assert all(v["slots_per_sm"].number >= 1 for v in calibration.variants.values())


def test_a_gpu_without_bandwidth_cannot_be_extrapolated_to(calibration_file: dict[str, Any]) -> None:
    """The message says how to supply it."""
    gpu = dc.load_gpu("h100-sxm").with_(hbm_bytes_per_s=None)
    with pytest.raises(InputError, match="hbm_bytes_per_s"):
        extrapolate(parse_calibration(copy.deepcopy(calibration_file)), gpu)


def test_shipped_calibrations_are_read_once() -> None:
    """The JSON is parsed on first use and kept."""
    assert shipped_calibration("calibration_h200.json") is shipped_calibration("calibration_h200.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("gpu", "table_name"), ["h200"]), (("gpu", "sm_count"), 0), (("gpu", "hbm_bytes_per_s"), 0),
        (("gpu", "hbm_bytes_per_s"), "fast"), (("extrapolated_from",), {}),
        (("parameters", "hbm_sustained_bytes_per_s", "value"), 0), (("parameters", "l2_bytes_per_s", "spread"), [1]),
        (("parameters", "l2_bytes_per_s", "value"), 1e300), (("parameters", "overlap_exponent", "value"), None),
        (("parameters", "residual_p90", "value"), True), (("parameters", "l2_capacity_bytes", "spread"), "wide"),
    ],
)  # fmt: skip
def test_a_field_of_another_kind_is_named(path: tuple[str, ...], value: object) -> None:
    """Text, lists, zeros that are divided by and numbers that would overflow are refused where they stand."""
    data = json.loads((Path(__file__).parents[2] / "decodecalc" / "data" / "calibration_h200.json").read_text())
    spot = data
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    with pytest.raises(InputError, match=path[-2] if path[-1] in ("value", "spread") else path[-1]):
        parse_calibration(data)
