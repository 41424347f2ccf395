"""`decodecalc kv`: what the cache takes and what fits."""

from __future__ import annotations

import click

from decodecalc.cli.options import MOST_GIB, gpu_option, html_option, output_options
from decodecalc.cli.output import emit_with_page
from decodecalc.errors import InputError
from decodecalc.request import DEFAULT_MODEL, resolve_gpu
from decodecalc.units import parse_counts


@click.command("kv", epilog="Example:  decodecalc kv --model llama3.1-70b --tp 8 --gpu h100 --context 8k,32k,128k")
@click.option(
    "--model", "-m", default=DEFAULT_MODEL, show_default=True, help="A zoo name, or a config.json or its folder."
)
@click.option("--tp", type=int, default=1, show_default=True, help="The tensor-parallel degree.")
@click.option(
    "--dcp",
    type=int,
    default=1,
    show_default=True,
    help="Ranks that divide the tokens of one sequence (decode context parallelism).",
)
@click.option("--pp", type=int, default=1, show_default=True, help="The number of pipeline stages.")
@gpu_option
@click.option(
    "--kv-dtype",
    default="bf16",
    show_default=True,
    help="Element type of the KV cache: bf16, fp16, fp8, int8, int4, nvfp4, …",
)
@click.option("--page-size", type=int, default=16, show_default=True, help="Tokens that a page of the KV cache holds.")
@click.option(
    "--context", "-c", default=None, help="Tokens of a sequence: 8k,32k. [default: from 1k up to the model's longest]"
)
@click.option(
    "--memory-fraction",
    type=float,
    default=0.92,
    show_default=True,
    help="Share of the GPU's memory that the server uses.",
)
@click.option(
    "--reserve-gib",
    type=float,
    default=2.0,
    show_default=True,
    help="GPU memory to allow for activations, CUDA graphs and buffers.",
)
@click.option(
    "--weights",
    "stored",
    default=None,
    help="How the linear layers are stored: fp8, int4, nvfp4, … [default: as the model states]",
)
@click.option(
    "--available-gib",
    type=float,
    default=None,
    help="Memory for the cache, if known from a server's log, instead of the computed value.",
)
@html_option
@output_options
def command(
    model: str,
    tp: int,
    dcp: int,
    pp: int,
    gpu: str | None,
    kv_dtype: str,
    page_size: int,
    context: str | None,
    memory_fraction: float,
    reserve_gib: float,
    stored: str | None,
    available_gib: float | None,
    format_: str,
    output: str | None,
    html: str | None,
) -> None:
    """Count the bytes of the KV cache for a token and layer group, and the sequences that fit on a GPU.

    The table has one row for every length of a sequence.
    """
    from decodecalc.errors import UnknownNameError
    from decodecalc.kvcache import KvCache
    from decodecalc.models import load_model
    from decodecalc.models.weights import LINEAR_BYTES
    from decodecalc.tables.kv import available_bytes, kv_table

    if not 0 < memory_fraction <= 1:
        raise InputError(f"--memory-fraction must be above 0 and at most 1, not {memory_fraction}")
    for name, gib in (("--reserve-gib", reserve_gib), ("--available-gib", available_gib)):
        if gib is not None and not 0 <= gib < MOST_GIB:
            raise InputError(f"{name} must be from 0 to {MOST_GIB}, not {gib}")
    if stored is not None and stored not in LINEAR_BYTES:
        raise UnknownNameError("storage of weights", stored, LINEAR_BYTES)
    for name, value in (("--dcp", dcp), ("--pp", pp)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    chosen, device = load_model(model), resolve_gpu(gpu)
    contexts = tuple(parse_counts(context, "--context", 1000)) if context else None
    if contexts and min(contexts) < 1:
        raise InputError(f"--context must be at least 1, not {min(contexts)}")
    available = (
        available_gib * (1 << 30)
        if available_gib is not None
        else available_bytes(
            chosen,
            device,
            tp=tp,
            pp=pp,
            fraction=memory_fraction,
            reserve_bytes=int(reserve_gib * (1 << 30)),
            stored=stored,
        )
    )
    inputs = {
        "model": chosen.name,
        "gpu": device.name,
        "tp": tp,
        "dcp": dcp,
        "pp": pp,
        "kv_dtype": kv_dtype,
        "page_size": page_size,
        "memory_fraction": memory_fraction,
        "reserve_gib": reserve_gib,
    }
    table = kv_table(
        chosen,
        device,
        KvCache(kv_dtype, page_size),
        tp=tp,
        dcp=dcp,
        pp=pp,
        contexts=contexts,
        available=available,
        inputs=inputs,
    )
    emit_with_page(table, format_, output, html, model=chosen, gpu=device)
