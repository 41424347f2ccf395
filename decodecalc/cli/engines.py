"""`decodecalc engines`: which policies there are, one policy's rule, and whether installed engines still follow it."""

from __future__ import annotations

import click

from decodecalc.cli.complete import complete_engines
from decodecalc.cli.options import output_options
from decodecalc.cli.output import emit
from decodecalc.errors import InputError


@click.command("engines", epilog="Example:  decodecalc engines vllm-triton")
@click.argument("engine", required=False, shell_complete=complete_engines)
@click.option(
    "--installed",
    is_flag=True,
    help="Compare the installed engines' sources with our policies, without importing them.",
)
@click.option(
    "--runnable",
    is_flag=True,
    help="List the engines whose own kernels `verify --kernel own` can run here, and why others cannot.",
)
@click.option(
    "--path", type=click.Path(exists=True), help="With --installed: the installation or source checkout to compare."
)
@click.option(
    "--gpu", "-g", default=None, help="With --installed: the GPU that the servers run on. [default: the one here]"
)
@output_options
def command(
    engine: str | None,
    installed: bool,
    runnable: bool,
    path: str | None,
    gpu: str | None,
    format_: str,
    output: str | None,
) -> int:
    """List the engines, or show one: its rule in words and formulas, its versions, sources and options."""
    from decodecalc.tables.engines import engine_table, engines_table

    if path and not installed:
        raise InputError("--path needs --installed")
    if gpu and not installed:
        raise InputError("--gpu needs --installed")
    if runnable:
        from decodecalc.tables.runnable import runnable_table

        emit(runnable_table(engine), format_, output)
        return 0
    if installed:
        from decodecalc.tables.installed import installed_table

        table, code = installed_table(path, gpu)
        emit(table, format_, output)
        return code
    emit(engines_table() if engine is None else engine_table(engine), format_, output)
    return 0
