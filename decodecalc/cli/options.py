"""Options that commands share. What their words resolve to is `decodecalc.request`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from decodecalc.request import DEFAULT_GPU

F = TypeVar("F", bound=Callable[..., Any])


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def wrap(function: F) -> F:
        for decorate in reversed(options):
            function = decorate(function)
        return function

    return wrap


layer_options = _stack(
    click.option("--model", "-m", help="Zoo name, config.json or its folder, - for stdin, or a cached repo id."),
    click.option("--q-heads", type=int, help="Query heads (instead of --model; before sharding)."),
    click.option("--kv-heads", type=int, help="KV heads (default: as many as query heads)."),
    click.option("--head-dim", type=int, help="Width of a key (default 128 with --q-heads)."),
    click.option("--head-dim-v", type=int, help="Width of a value, where it differs."),
    click.option("--window", type=int, help="Sliding window in keys, the query's own included."),
    click.option("--mla", is_flag=True, help="The cache holds one latent; the value is a view of it."),
    click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel degree."),
    click.option("--as-dense", is_flag=True, help="Plan sparse layers as if every key were read."),
)
cache_options = _stack(
    click.option(
        "--kv-dtype",
        default=None,
        help="bf16, fp16, fp8, int8, int4, nvfp4, … [default: what the checkpoint declares, else bf16]",
    ),
    click.option("--query-dtype", default=None, help="Element type of Q, where it is not bf16."),
    click.option("--page-size", type=int, default=16, show_default=True, help="Keys of a KV page (1: flat index)."),
)
gpu_option = click.option("--gpu", "-g", default=None, help=f"Name, JSON/TOML file or `auto`. [default: {DEFAULT_GPU}]")
batch_options = _stack(
    click.option("--batch", "-b", default=None, help="Requests: 1,4,16 or 1:256:x2 or 1:64:1. [default: 1]"),
    click.option("--context", "-c", default=None, help="Keys per request: 2560 or 2k,32k. [default: 2560]"),
    click.option("--seq-lens", default=None, help="One ragged batch: 128,8192 (instead of --batch, --context)."),
    click.option("--q-len", default="1", show_default=True, help="Query tokens per request (speculative: up to 8)."),
)
engine_options = _stack(
    click.option("--engine", "-e", default=None, help="Engines or servers' names for them (name@version), or all."),
    click.option("--server", default=None, help="A server, or server@release: what it runs by itself comes first."),
    click.option("--eager", is_flag=True, help="Plan without CUDA graphs. [default: as under graphs]"),
    click.option("--opt", "opts", multiple=True, metavar="NAME=VALUE", help="An engine's own option (repeatable)."),
    click.option("--batch-invariant", is_flag=True, help="Each engine's batch-invariant / deterministic mode."),
)
output_options = _stack(
    click.option(
        "--format",
        "-f",
        "format_",
        type=click.Choice(["table", "csv", "json", "markdown"]),
        default="table",
        show_default=True,
    ),
    click.option("--output", "-o", "output", type=click.Path(dir_okay=False), help="Write to this file."),
)
scenario_options = _stack(layer_options, gpu_option, engine_options, batch_options, cache_options)
