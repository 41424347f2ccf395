"""`decodecalc calibrate`: measure this GPU's parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from decodecalc.cli.progress import Bars
from decodecalc.cli.say import say

BUDGET_S = 0.03  # of the replays of one launch: engines' launches are many, and each is timed on many steps

if TYPE_CHECKING:
    from decodecalc.cost import Calibration
    from decodecalc.gpus import Gpu
    from decodecalc.verify.run.device import Device


@click.command("calibrate", epilog="Example:  decodecalc calibrate --engine vllm-triton --output h200.json")
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False), help="The calibration file to write.")
@click.option(
    "--engine",
    "-e",
    default=None,
    metavar="LIST",
    help="Time the installed kernels of these engines, or of `all` that can run here, and add them to the file, which "
    "may exist already. [default: measure the device and the bundled kernel]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(10, 300),
    default=200.0,
    show_default=True,
    help="How long each engine is timed at most; fitting takes some seconds more.",
)
@click.option(
    "--times", metavar="FILE", type=click.Path(dir_okay=False), help="Also write every timed launch of --engine here."
)
@click.option(
    "--device-index", type=int, default=0, show_default=True, help="The index of the GPU to measure in this machine."
)
@click.option(
    "--collectives",
    is_flag=True,
    help="Measure the collectives between several GPUs of one machine instead, for --dcp. Start it with torchrun.",
)
def command(
    output: str, engine: str | None, seconds: float, times: str | None, device_index: int, collectives: bool
) -> None:
    """Measure every parameter of the time model on this GPU, each with its own microbenchmark.

    With --engine the kernels of installed engines are timed instead, on many decode steps, and their parameters are
    fitted to these times; `decodecalc engines --runnable` lists the engines that can run here. This needs a CUDA GPU
    and takes a few minutes, at most five for each engine. When it is interrupted, the same command continues where it
    stopped. Pass the file to `--calibration` of predict, choose, step and serve.
    """
    from decodecalc.calibrate.own.family import all_subjects, subject_of
    from decodecalc.errors import InputError
    from decodecalc.files import open_alone
    from decodecalc.gpus import detect_gpu
    from decodecalc.verify.run.device import open_device

    target = Path(output)
    for path in (target, Path(times) if times else target):
        if not path.absolute().parent.is_dir():
            raise InputError(f"cannot write {path}: no such folder")
    names = [name.strip() for name in engine.split(",") if name.strip()] if engine is not None else []
    if engine is not None and not names:
        raise InputError("--engine is empty")
    if times and engine is None:
        raise InputError("--times keeps the timed launches of engines: give --engine too")
    if collectives:
        if engine is not None:
            raise InputError("--collectives measures no engine: leave --engine out")
        _collectives(output)
        return
    if names != ["all"]:
        for name in names:
            subject_of(name)
    device = open_device("cuda", device_index)
    gpu = detect_gpu(device_index)
    journal = target.with_name(f".{target.name}.journal")
    lock = target.with_name(f".{target.name}.lock")
    held = open_alone(lock, "wb", f"another run is measuring for {target}: wait for it, or give another --output")
    try:
        if engine is None:
            found = _bundled(device, gpu, journal, target)
        else:
            chosen = [*all_subjects()] if names == ["all"] else names
            found = _engines(chosen, names == ["all"], device, gpu, target, journal, seconds, times, device_index)
    except KeyboardInterrupt:
        say(f"interrupted: finished parts are in {journal}; the same command goes on from there")
        raise
    finally:
        lock.unlink(missing_ok=True)
        held.close()
    say(f"{found.label}: {len(found.parameters)} parameters, {len(found.variants)} variants")
    say(f"wrote {output}")


def _bundled(device: Device, gpu: Gpu, journal: Path, target: Path) -> Calibration:
    """The device and the bundled kernel, measured now and written."""
    from decodecalc.calibrate.measure import calibrate

    with Bars() as bars:
        bar = bars.add("calibrating", None)
        found = calibrate(device, gpu, journal, bar.part)
    found.save(target)
    return found


def _engines(
    names: list[str],
    whatever_runs: bool,
    device: Device,
    gpu: Gpu,
    target: Path,
    journal: Path,
    seconds: float,
    times: str | None,
    device_index: int,
) -> Calibration:
    """The kernels of these engines, timed now and added to the file, or to what is shipped for this GPU."""
    from decodecalc.calibrate.measure import identity_of
    from decodecalc.calibrate.own.session import OwnCalibration, base_for, runnable_subjects
    from decodecalc.calibrate.own.timer import DeviceTimer, compile_all
    from decodecalc.calibrate.own.timing import TIMES_SCHEMA
    from decodecalc.files import write_whole

    subjects, here, missing = runnable_subjects(names, gpu, whatever_runs)
    for engine, reason in missing.items():
        say(f"not calibrated: {engine}: {reason}")
    base = base_for(target, gpu) or _bundled(device, gpu, journal, target)
    timer = DeviceTimer(device, gpu, here, BUDGET_S)
    run = OwnCalibration(subjects, timer, gpu, identity_of(device, gpu), journal, seconds)
    with Bars() as bars:
        what = "compiling engines' kernels"
        bar = bars.add(what, None)
        compile_all(run.to_compile(), device_index, lambda done, total: bar.part(what, done, total))
        entries = run.measure(bar.part)
        if times:
            write_whole(times, json.dumps({"schema": TIMES_SCHEMA, "gpu": dict(run.identity), "steps": entries}))
        families = run.fitted(base, bar.part)
    for one in families:
        widths = "; ".join(
            f"{kernel} {dtype}: 90 % within {w.uniform:.1%}, ragged {w.ragged:.1%}"
            for (kernel, dtype), w in one.widths.items()
        )
        say(f"{one.family.name}: {len(one.held)} launches; held-out steps of {widths}")
    found = run.finished(base, families)
    found.save(target)
    run.forget()
    return found


def _collectives(output: str) -> None:
    """One process of torchrun; the first writes the file."""
    from decodecalc.calibrate.collectives import calibrate_collectives, check_ranks
    from decodecalc.gpus import detect_gpu
    from decodecalc.verify.run.device import open_device
    from decodecalc.verify.session.ranks import Ranks

    ranks = Ranks.from_environment()
    check_ranks(ranks)
    device = open_device("cuda", ranks.local)
    rows = calibrate_collectives(ranks, device, detect_gpu(ranks.local), output)
    if ranks.is_first:
        say(f"wrote {output}: {rows} times of collectives between {ranks.world} {device.name}")
