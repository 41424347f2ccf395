"""`decodecalc serve`: what a serve command runs, costs and fits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from decodecalc.cli.options import MOST_GIB, gpu_option, html_option, output_options
from decodecalc.cli.output import check_outputs, emit, typed, write_text
from decodecalc.errors import InputError
from decodecalc.request import resolve_gpu
from decodecalc.units import parse_count, parse_counts

MAX_BYTES = 1 << 20


@click.command(
    "serve",
    epilog="Example:  decodecalc serve "
    "'vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-num-seqs 64' --gpu h100",
)
@click.argument("command", metavar="COMMAND|FILE|-")
@gpu_option
@click.option(
    "--server-version",
    default=None,
    help="The release of the server. [default: the container image's, or the newest known]",
)
@click.option(
    "--model", "-m", default=None, help="A zoo name or config.json, for a command that names the model by a path."
)
@click.option(
    "--context",
    "-c",
    default=None,
    help="Tokens of every sequence. [default: 8k, or the longest that the server takes if that is less]",
)
@click.option(
    "--batch",
    "-b",
    default=None,
    help="Numbers of sequences to show: 1,8,64. [default: one, the most that fit, and one between]",
)
@click.option(
    "--reserve-gib",
    type=float,
    default=2.0,
    show_default=True,
    help="GPU memory to allow for activations, CUDA graphs and buffers.",
)
@click.option(
    "--calibration",
    metavar="FILE",
    help="Use a calibration file that `decodecalc calibrate` wrote. [default: shipped or extrapolated]",
)
@html_option
@output_options
def command(command: str, format_: str, output: str | None, html: str | None, **values: Any) -> None:
    """Read a serve command and say what it runs, how fast it is, what fits and what to change.

    COMMAND is the command itself in quotes, a file that holds it (a shell script, a docker-compose file or a Kubernetes
    manifest), or - for standard input.
    """
    from decodecalc.cost.load import load_calibration
    from decodecalc.servers.commands import read_command
    from decodecalc.serving import serve
    from decodecalc.tables.serve import serve_page, serve_table

    gpu = resolve_gpu(values["gpu"])
    if not 0 <= values["reserve_gib"] <= MOST_GIB:
        raise InputError(f"--reserve-gib must be from 0 to {MOST_GIB}, not {values['reserve_gib']:g}")
    found = serve(
        read_command(_text(command)),
        gpu=gpu,
        version=values["server_version"],
        model=values["model"],
        context=parse_count(values["context"], "--context") if values["context"] else None,
        batches=parse_counts(values["batch"], "--batch", 100) if values["batch"] else None,
        calibration=load_calibration(values["calibration"], gpu),
        reserve_bytes=int(values["reserve_gib"] * (1 << 30)),
    )
    if html is not None:
        from decodecalc.plot.pages import figures_of

        check_outputs(html, output)
        write_text(serve_page(found, typed(), figures_of(serve_table(found))), html)
    emit(serve_table(found), format_, output)


def _text(command: str) -> str:
    """The command's text: standard input, a file's content, or the words themselves."""
    if command == "-":
        return sys.stdin.read(MAX_BYTES)
    if len(command) < 4096 and " " not in command.strip():
        path = Path(command)
        if path.is_file():
            from decodecalc.files import read_bounded

            return read_bounded(path, MAX_BYTES, str(path)).decode("utf-8", errors="replace")
        if path.suffix in (".sh", ".yaml", ".yml", ".txt") or "/" in command:
            raise InputError(f"no such file: {command[:100]}")
    return command
