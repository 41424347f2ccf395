"""`decodecalc audit`: a real engine's profiler trace against the predictions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from decodecalc.cli.options import cache_options, engine_options, html_option, layer_options, output_options
from decodecalc.cli.output import check_outputs, emit, typed, write_text
from decodecalc.cli.progress import Bars

if TYPE_CHECKING:
    pass


@click.command(
    "audit", epilog="Example:  decodecalc audit rank*.json.gz --model llama3-8b --tp 2 --seq-lens 2048,1865,902"
)
@click.argument("traces", nargs=-1, required=True, type=click.Path())
@layer_options
@click.option(
    "--gpu", "-g", default=None, help="A GPU's name, a JSON or TOML file, or `auto`. [default: what the trace says]"
)
@engine_options
@click.option(
    "--batch", "-b", default=None, help="Requests of the step, including padding. [default: inferred from the grid]"
)
@click.option("--context", "-c", default=None, help="Keys of every request: 2560 or 2k. [default: taken as unknown]")
@click.option(
    "--seq-lens", default=None, help="One batch of unequal requests, 128,8192, instead of --batch and --context."
)
@click.option("--q-len", default="1", show_default=True, help="Query tokens per request.")
@cache_options
@click.option(
    "--allow-truncated", is_flag=True, help="Audit what a truncated file holds before the place where it was cut."
)
@html_option
@output_options
def command(
    traces: tuple[str, ...],
    allow_truncated: bool,
    html: str | None,
    format_: str,
    output: str | None,
    **values: Any,
) -> int:
    """Compare the profiler traces of one run with what should have been launched.

    The command reads torch profiler JSON (.json, .json.gz; one file per rank), Nsight Systems SQLite exports and
    cuda_gpu_trace CSV, and Nsight Compute CSV. Say what ran (--model, and --seq-lens or --batch with --context) as far
    as you know it; the rest is inferred from the launches where they show it. The exit code is 1 when something
    differs or when there was nothing to check.
    """
    from decodecalc.tables.audit import audit_table
    from decodecalc.trace.audit import audit_traces
    from decodecalc.trace.words import known_of

    known, inputs = known_of(values)
    with Bars() as bars:
        found = audit_traces(traces, known, allow_truncated=allow_truncated, progress=_reading(bars))
    inputs = {"traces": list(traces), **inputs, "gpu": found.gpu.name if found.gpu else None}
    heading = [
        f"{trace.path}: {trace.format}, {trace.log.kernels} kernels, {len(trace.log)} of them attention"
        for trace in found.traces
    ]
    table = audit_table(found, inputs, heading)
    if html is not None:
        from decodecalc.plot.timeline import timeline_figures
        from decodecalc.tables.audit import audit_page
        from decodecalc.trace.timeline import timeline

        page = audit_page(found, table, typed(), timeline_figures(timeline(found)))
        check_outputs(html, output)
        write_text(page, html)
    emit(table, format_, output)
    return 0 if found.passed else 1


def _reading(bars: Bars) -> Callable[[str], Callable[[int], None]]:
    """A bar for each file that is read."""

    def start(path: str) -> Callable[[int], None]:
        size = os.path.getsize(path) if os.path.isfile(path) else None
        return bars.add(f"reading {os.path.basename(path)}", size).advance

    return start
