"""Which calibration serves a GPU: a file, a shipped one, or a shipped one extrapolated."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TYPE_CHECKING

from decodecalc.cost.calibration import Calibration, parse_calibration, read_calibration
from decodecalc.cost.extrapolate import extrapolate
from decodecalc.errors import InputError, check_type

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

SHIPPED = ("calibration_h200.json",)  # in decodecalc/data
_DATA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")


def load_calibration(spec: str | os.PathLike[str] | None = None, gpu: Gpu | str | None = None) -> Calibration:
    """The calibration for `gpu`: a file when `spec` is a path, else a shipped one, else one extrapolated from it.

    gpu None takes the file's own GPU (or the first shipped one's). A file of another GPU than `gpu`, of another
    schema version, or that is damaged raises InputError.
    """
    from decodecalc.gpus import load_gpu

    device = None if gpu is None else load_gpu(gpu)
    if spec is not None:
        loaded = read_calibration(os.fspath(spec))
        if device is not None and not fits(loaded, device):
            raise InputError(
                f"calibration {os.fspath(spec)} was measured on {loaded.gpu['name']} ({loaded.gpu['sm_count']} SMs), "
                f"not on {device.label} ({device.sm_count} SMs): leave --calibration out to extrapolate, or run "
                "`decodecalc calibrate` there"
            )
        return loaded
    shipped = [shipped_calibration(name) for name in SHIPPED]
    if device is None:
        return shipped[0]
    for calibration in shipped:
        if fits(calibration, device):
            return calibration
    return _extrapolated(device)


def own_calibration(calibration: Calibration | None, gpu: Gpu) -> Calibration:
    """`calibration`, or the one for `gpu` where None was given. InputError where it is something else."""
    if calibration is None:
        return load_calibration(gpu=gpu)
    check_type("calibration", calibration, Calibration, "decodecalc.load_calibration(path) reads one")
    return calibration


def fits(calibration: Calibration, gpu: Gpu) -> bool:
    """Whether the calibration was taken on this kind of GPU: the same table entry or name, and as many SMs."""
    known = {calibration.gpu.get("table_name"), calibration.gpu["name"]} - {None}
    names = {gpu.table_name, gpu.name, gpu.display_name, *gpu.device_names} - {None}
    if calibration.gpu["sm_count"] != gpu.sm_count or not known & names:
        return False
    bandwidth = calibration.gpu.get("hbm_bytes_per_s")
    return bandwidth is None or gpu.hbm_bytes_per_s is None or bandwidth == gpu.hbm_bytes_per_s


@cache
def _extrapolated(gpu: Gpu) -> Calibration:
    return extrapolate(shipped_calibration(SHIPPED[0]), gpu)


@cache
def shipped_calibration(name: str) -> Calibration:
    """A calibration of the package's data, by file name. Each variant is checked when it is first asked for: a table of
    launches needs a few of more than a hundred, and a test checks them all."""
    with open(os.path.join(_DATA, name), encoding="utf-8") as file:
        return parse_calibration(json.load(file), f"shipped {name}", lazy=True)
