"""`decodecalc audit`: a real engine's profiler trace against the predictions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from decodecalc.cli.options import cache_options, engine_options, html_option, layer_options, output_options
from decodecalc.cli.output import check_outputs, emit, typed, write_text
from decodecalc.cli.progress import Bars
from decodecalc.request import resolve_gpu, resolve_kv, resolve_layers, resolve_opts

if TYPE_CHECKING:
    from decodecalc.trace.candidates import Known


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

    known, inputs = _known(values)
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


def _known(values: dict[str, Any]) -> tuple[Known, dict[str, Any]]:
    """What the user says about the run. Nothing is assumed here: a default would be held against the trace."""
    from decodecalc.batch import Batch
    from decodecalc.engines import engine_names, load_policies, split_version
    from decodecalc.errors import InputError
    from decodecalc.trace.candidates import Known
    from decodecalc.units import parse_counts

    layers = None
    if any(values[name] is not None for name in ("model", "q_heads", "kv_heads", "head_dim", "head_dim_v", "window")):
        layers = resolve_layers(values)
    elif values["tp"] != 1 or values["mla"]:
        raise InputError("--tp and --mla describe a model; give --model or --q-heads with them")
    if values["seq_lens"] is not None and (values["batch"] is not None or values["context"] is not None):
        raise InputError("--seq-lens describes a whole batch and cannot be combined with --batch or --context")
    q_lens = parse_counts(values["q_len"], "--q-len")
    ragged = None
    if values["seq_lens"] is not None:
        ragged = Batch(parse_counts(values["seq_lens"], "--seq-lens"), q_lens[0] if len(q_lens) == 1 else q_lens)
    elif len(q_lens) != 1:
        raise InputError("--q-len must be one number here, or one number for each of --seq-lens")
    names = [part.strip() for part in (values["engine"] or "all").split(",") if part.strip()]
    everyone = "all" in [name.lower() for name in names]
    if not everyone:
        load_policies(names)  # unknown names and versions fail before a long file is read
    options: dict[str, Any] = {}
    if values["opts"] or values["batch_invariant"]:
        options = resolve_opts(values["opts"], values["batch_invariant"], list(engine_names()) if everyone else names)
    kv = resolve_kv(values, layers.model if layers else None)
    known = Known(
        layer_groups=layers.layer_groups if layers else (),
        model_kv_heads=layers.model_kv_heads if layers else None,
        whole_model=values["model"] is not None,
        requests=_counts(values["batch"], "--batch"),
        contexts=_counts(values["context"], "--context"),
        ragged=ragged,
        q_len=q_lens[0],
        kv=kv,
        gpu=None if values["gpu"] is None else resolve_gpu(values["gpu"]),
        engines=None if everyone else tuple(split_version(name) for name in names),
        options=options,
        model=layers.model if layers and values["model"] is not None else None,
    )
    inputs = {
        "model": layers.label if layers else None,
        "tp": values["tp"],
        "batch": list(known.requests),
        "context": list(known.contexts),
        "seq_lens": list(ragged.seq_lens) if ragged else None,
        "q_len": list(q_lens),
        "kv_dtype": kv.dtype,
        "page_size": kv.page_size,
        "engines": ["all"] if everyone else names,
        "options": options,
    }
    return known, inputs


def _counts(text: str | None, name: str) -> tuple[int, ...]:
    from decodecalc.errors import InputError
    from decodecalc.units import parse_counts

    found = tuple(parse_counts(text, name)) if text is not None else ()
    if found and min(found) < 1:
        raise InputError(f"{name} must be at least 1, not {min(found)}")
    return found


def _reading(bars: Bars) -> Callable[[str], Callable[[int], None]]:
    """A bar for each file that is read."""

    def start(path: str) -> Callable[[int], None]:
        size = os.path.getsize(path) if os.path.isfile(path) else None
        return bars.add(f"reading {os.path.basename(path)}", size).advance

    return start
