"""`decodecalc kv`: what the cache takes and what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from decodecalc.cli.complete import complete_dtypes, complete_models
from decodecalc.cli.options import MOST_GIB, CountList, gpu_option, html_option, output_options
from decodecalc.cli.output import emit_several
from decodecalc.errors import InputError
from decodecalc.request import DEFAULT_MODEL, combinations, resolve_gpu
from decodecalc.units import parse_counts

if TYPE_CHECKING:
    from decodecalc.tables.several import Solved


@click.command("kv", epilog="Example:  decodecalc kv --model llama3.1-70b --tp 8 --gpu h100 --context 8k,32k,128k")
@click.option(
    "--model",
    "-m",
    default=DEFAULT_MODEL,
    show_default=True,
    shell_complete=complete_models,
    help="A zoo name, or a config.json or its folder; or a list.",
)
@click.option(
    "--tp", type=CountList(), default=1, show_default=True, help="The tensor-parallel degree, or a list: 1,2,8."
)
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
    default=None,
    shell_complete=complete_dtypes,
    help="Element type of the KV cache, or a list: bf16, fp16, fp8, int8, int4, nvfp4, … [default: what the checkpoint "
    "declares, else bf16]",
)
@click.option(
    "--page-size",
    type=CountList(),
    default=16,
    show_default=True,
    help="Tokens that a page of the KV cache holds, or a list.",
)
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
    tp: int | tuple[int, ...],
    dcp: int,
    pp: int,
    gpu: str | None,
    kv_dtype: str | None,
    page_size: int | tuple[int, ...],
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
    from decodecalc.tables.several import several

    if not 0 < memory_fraction <= 1:
        raise InputError(f"--memory-fraction must be above 0 and at most 1, not {memory_fraction}")
    for name, gib in (("--reserve-gib", reserve_gib), ("--available-gib", available_gib)):
        if gib is not None and not 0 <= gib <= MOST_GIB:
            raise InputError(f"{name} must be from 0 to {MOST_GIB}, not {gib:g}")
    if stored is not None and stored not in LINEAR_BYTES:
        raise UnknownNameError("storage of weights", stored, LINEAR_BYTES)
    degrees = tp if isinstance(tp, tuple) else (tp,)
    for name, value in (("--tp", min(degrees)), ("--dcp", dcp), ("--pp", pp)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    contexts = tuple(parse_counts(context, "--context", 1000)) if context else None
    if contexts and min(contexts) < 1:
        raise InputError(f"--context must be at least 1, not {min(contexts)}")

    def solved(chosen: dict[str, Any]) -> Solved:
        known, device, degree = load_model(chosen["model"]), resolve_gpu(chosen["gpu"]), chosen["tp"]
        dtype = chosen["kv_dtype"] or known.kv_dtype or device.half_type
        cache = KvCache(dtype, chosen["page_size"])
        available = None if available_gib is None else available_gib * (1 << 30)
        if available is None:
            reserve = int(reserve_gib * (1 << 30))
            available = available_bytes(
                known, device, tp=degree, pp=pp, fraction=memory_fraction, reserve_bytes=reserve, stored=stored
            )
        labels = {
            "model": known.name,
            "gpu": device.name,
            "tp": degree,
            "kv_dtype": cache.dtype,
            "page_size": cache.page_size,
        }
        inputs = {**labels, "dcp": dcp, "pp": pp, "memory_fraction": memory_fraction, "reserve_gib": reserve_gib}
        table = kv_table(
            known, device, cache, tp=degree, dcp=dcp, pp=pp, contexts=contexts, available=available, inputs=inputs
        )
        return labels, table, (known, device)

    lists = {"model": model, "gpu": gpu, "tp": tp, "kv_dtype": kv_dtype, "page_size": page_size}
    emit_several(several(combinations(lists), solved), format_, output, html)
