"""`decodecalc sweep`: the cross product of everything, streamed."""

from __future__ import annotations

import json
from typing import Any

import click

from decodecalc.cli.complete import complete_engines, complete_gpus, complete_models
from decodecalc.cli.options import dcp_options
from decodecalc.cli.progress import Bars
from decodecalc.cli.say import say
from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import InputError, UnknownNameError
from decodecalc.keyshare import EXCHANGES
from decodecalc.request import DEFAULT_BATCH, DEFAULT_CONTEXT, DEFAULT_GPU, DEFAULT_MODEL, DEFAULT_PAGE, resolve_opts
from decodecalc.units import counted, parse_counts, parse_shard


@click.command(
    "sweep",
    epilog="Example:  decodecalc sweep --model llama3-8b,llama3-70b --tp 1,8 --engine vllm-triton,sglang-triton "
    "--batch 1:256:x2 --context 1k:128k:x2 --where 'sm_coverage < 0.5' -o idle.csv",
)
@click.option(
    "--model",
    "-m",
    default=DEFAULT_MODEL,
    show_default=True,
    shell_complete=complete_models,
    help="Models, separated by commas.",
)
@click.option(
    "--tp",
    default="1",
    show_default=True,
    help="Tensor-parallel degrees; degrees that do not divide a model are skipped.",
)
@click.option(
    "--dcp",
    default="1",
    show_default=True,
    help="Ranks, among those of --tp, that divide the keys of a request; degrees that do not fit are skipped.",
)
@dcp_options
@click.option(
    "--gpu",
    "-g",
    default=DEFAULT_GPU,
    show_default=True,
    shell_complete=complete_gpus,
    help="GPUs, separated by commas.",
)
@click.option(
    "--engine",
    "-e",
    default=DEFAULT_ENGINE,
    show_default=True,
    shell_complete=complete_engines,
    help="Engines by our name or a server's, or all.",
)
@click.option(
    "--server", default=None, help="Also plan the engine that this server (NAME or NAME@RELEASE) chooses by itself."
)
@click.option("--eager", is_flag=True, help="Plan launches without CUDA graphs. [default: with CUDA graphs]")
@click.option(
    "--batch",
    "-b",
    default=DEFAULT_BATCH,
    show_default=True,
    help="Requests in the batch: a list 1,4,16 or a range 1:256:x2.",
)
@click.option(
    "--context",
    "-c",
    default=DEFAULT_CONTEXT,
    show_default=True,
    help="Keys per request: a list 2k,32k or a range 1k:128k:x2.",
)
@click.option("--q-len", default="1", show_default=True, help="Query tokens per request.")
@click.option(
    "--kv-dtype",
    default=None,
    help="Element types of the KV cache, separated by commas. [default: what each checkpoint declares, else bf16]",
)
@click.option(
    "--page-size", default=None, help="Page sizes of the KV cache, in keys. [default: 16, or what the engine needs]"
)
@click.option("--splits", default=None, help="Split counts to try, for engines that let the user set the split count.")
@click.option(
    "--opt",
    "opts",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of an engine. It can be given several times.",
)
@click.option("--select", default=None, help="Columns to write, separated by commas; `time` adds the predicted time.")
@click.option(
    "--where",
    default=None,
    help="Keep only rows that satisfy this, for example 'live_blocks < sm_count and batch > 1'.",
)
@click.option(
    "--top",
    default=None,
    help="Keep only the N rows with the largest value ('20 by sm_coverage') or smallest ('20 by -sm_coverage').",
)
@click.option(
    "--shard",
    default=None,
    metavar="I/N",
    help="Compute only part I of N. The parts joined in order are the whole sweep.",
)
@click.option(
    "--output",
    "-o",
    default=None,
    help="A .csv or .jsonl file, or a .parquet folder. [default: CSV to standard output]",
)
def command(**values: Any) -> None:
    """Plan every combination of the options and write a row for each: grid, splits, coverage, bytes, time.

    When a sweep with --output is interrupted, the same command continues it: finished parts are kept.
    """
    from decodecalc.sanity import length_lines
    from decodecalc.sweeps.columns import COLUMNS, DEFAULT_COLUMNS, RANKS, TIME
    from decodecalc.sweeps.run import scenario_range, sweep
    from decodecalc.sweeps.top import Top
    from decodecalc.sweeps.where import Filter
    from decodecalc.sweeps.writers import writer_for

    if values["where"]:
        Filter(values["where"], COLUMNS)  # a mistake in it must not leave a file behind
    axes = _axes(values)
    for model in axes.models:
        for line in length_lines(model, max(axes.contexts)):
            say(f"warning: {line}")
    shard = parse_shard(values["shard"])
    columns = [*DEFAULT_COLUMNS, *(RANKS if axes.dcps != (1,) else ())]
    if values["select"]:
        names = [n.strip() for n in values["select"].split(",") if n.strip()]
        alone = names == ["time"]  # `time` by itself adds to the usual columns; among others it is its own column
        columns = [c for n in names for c in ((*columns, *TIME) if alone else TIME if n == "time" else (n,))]
        columns = list(dict.fromkeys(columns))
        for name in columns:
            if name not in COLUMNS:
                raise UnknownNameError("column", name, COLUMNS)
    kind = _kind(values["output"])
    first, last = scenario_range(axes, shard)
    top = Top(values["top"]) if values["top"] else None
    key = _key(axes, values)
    if top:
        _top(axes, top, columns, values, shard, (first, last), kind)
        return
    header = shard is None or shard[0] == 1
    writer = writer_for(kind, columns, values["output"], numbers=(first, last), header=header, key=key, shard=shard)
    start = max(writer.position, first)
    note = _note()
    chunks = rows = 0
    with Bars() as bars:
        bar = bars.add("sweep", last - first, start - first)
        try:
            for position, chunk in sweep(axes, where=values["where"], shard=shard, start=start, on_note=note):
                writer.write(chunk, position)
                chunks += 1
                rows += chunk.rows
                bar.at(position - first)
        except KeyboardInterrupt:
            writer.pause()
            if values["output"]:
                where = getattr(writer, "partial", None) or values["output"]
                say(f"interrupted; {where} holds what was finished, the same command goes on")
            raise
    if not chunks and shard is None and start == first:
        writer.abandon()
        raise InputError("none of the chosen engines runs any of these scenarios; the lines above say why")
    writer.finish()
    if values["output"]:
        written = f"{counted(rows, 'row')} of " if start == first else ""  # one that goes on does not know those before
        say(f"wrote {values['output']}: {written}{counted(last - first, 'scenario')}")


def _key(axes: Any, values: dict[str, Any]) -> str:
    """What the rows of a sweep follow from: the options, what the models and GPUs hold, and this program's version."""
    import hashlib

    from decodecalc._version import __version__

    asked = {k: v for k, v in sorted(values.items()) if k not in ("output", "shard")}
    made_of = [model.to_dict() for model in axes.models] + [gpu.to_dict() for gpu in axes.gpus]
    text = json.dumps([__version__, asked, made_of], default=str, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _top(
    axes: Any, top: Any, columns: list[str], values: dict[str, Any], shard: Any, numbers: tuple[int, int], kind: str
) -> None:
    from decodecalc.cli.output import write_text
    from decodecalc.csvtext import csv_lines
    from decodecalc.sweeps.run import sweep

    if kind == "parquet":
        raise InputError("--top writes .csv or .jsonl")
    first, last = numbers
    with Bars() as bars:
        bar = bars.add("sweep", last - first)
        for position, chunk in sweep(axes, where=values["where"], shard=shard, on_note=_note()):
            top.add(chunk, columns)
            bar.at(position - first)
    rows = top.rows()
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    write_text(lines if kind == "jsonl" else csv_lines(columns, rows), values["output"])


def _axes(values: dict[str, Any]) -> Any:
    from decodecalc.gpus import load_gpu
    from decodecalc.models import load_model
    from decodecalc.sweeps.axes import Axes

    engines = tuple(n.strip() for n in values["engine"].split(",") if n.strip())
    if not engines:
        raise InputError("--engine is empty")
    if values["server"] is not None:
        from click.core import ParameterSource

        given = click.get_current_context().get_parameter_source("engine") is not ParameterSource.DEFAULT
        engines = (values["server"], *(engines if given else ()))
    options = resolve_opts(values["opts"], False, engines)
    return Axes(
        models=tuple(load_model(n.strip()) for n in values["model"].split(",") if n.strip()),
        tps=tuple(parse_counts(values["tp"], "--tp")),
        dcps=tuple(parse_counts(values["dcp"], "--dcp")),
        dcp_interleave=1 if values["dcp_interleave"] is None else values["dcp_interleave"],
        dcp_exchange=values["dcp_exchange"] or EXCHANGES[0],
        gpus=tuple(load_gpu(n.strip()) for n in values["gpu"].split(",") if n.strip()),
        engines=engines,
        batches=tuple(parse_counts(values["batch"], "--batch", 1 << 20)),
        contexts=tuple(parse_counts(values["context"], "--context", 1 << 20)),
        q_lens=tuple(parse_counts(values["q_len"], "--q-len")),
        kv_dtypes=None
        if values["kv_dtype"] is None
        else tuple(n.strip() for n in values["kv_dtype"].split(",") if n.strip()),
        page_sizes=tuple(parse_counts(values["page_size"] or str(DEFAULT_PAGE), "--page-size")),
        own_pages=values["page_size"] is None,
        splits=tuple(parse_counts(values["splits"], "--splits")) if values["splits"] else (),
        options=tuple(options.items()),
        eager=values["eager"],
    )


def _kind(output: str | None) -> str:
    if output is None:
        return "csv"
    for suffix, kind in ((".csv", "csv"), (".jsonl", "jsonl"), (".ndjson", "jsonl"), (".parquet", "parquet")):
        if output.rstrip("/").endswith(suffix):
            return kind
    raise InputError(f"--output {output}: end it in .csv, .jsonl or .parquet (a folder)")


def _note() -> Any:
    said: set[str] = set()

    def note(text: str) -> None:
        if text not in said and len(said) < 20:
            say(f"skipped: {text}")
        said.add(text)

    return note
