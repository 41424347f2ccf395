"""`decodecalc calibrate`: measure this GPU's parameters."""

from __future__ import annotations

from pathlib import Path

import click

from decodecalc.cli.progress import Bars


@click.command("calibrate", epilog="Example:  decodecalc calibrate --output h200.json")
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False), help="The calibration file to write.")
@click.option(
    "--device-index", type=int, default=0, show_default=True, help="The index of the GPU to measure in this machine."
)
def command(output: str, device_index: int) -> None:
    """Measure every parameter of the time model on this GPU, each with its own microbenchmark.

    This needs a CUDA GPU and takes a few minutes. When it is interrupted, the same command continues where it stopped.
    Pass the file to `--calibration` of predict, choose, step and serve.
    """
    from decodecalc.errors import InputError
    from decodecalc.gpus import detect_gpu
    from decodecalc.verify.run.device import open_device

    target = Path(output)
    if not target.absolute().parent.is_dir():
        raise InputError(f"cannot write {output}: no such folder")
    device = open_device("cuda", device_index)
    gpu = detect_gpu(device_index)
    journal = target.with_name(f".{target.name}.journal")

    from decodecalc.calibrate.measure import calibrate

    try:
        with Bars() as bars:
            bar = bars.add("calibrating", None)
            found = calibrate(device, gpu, journal, lambda part, done, total: bar.part(part, done, total))
    except KeyboardInterrupt:
        click.echo(f"interrupted: finished parts are in {journal}; the same command goes on from there", err=True)
        raise
    found.save(target)
    click.echo(f"{found.label}: {len(found.parameters)} parameters, {len(found.variants)} variants", err=True)
    click.echo(f"wrote {output}", err=True)
